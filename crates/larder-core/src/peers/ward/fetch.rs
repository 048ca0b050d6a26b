//! Routing tables that come from peers, part by part, and those that are told them.

use super::super::card::NameKey;
use super::Ward;
use super::output::WardOutput;
use super::tables::{Coming, Held, Part};
use super::wire::{PART_MAX, TableId, WardMessage};
use crate::id::NodeId;
use crate::policy::table::RouteTable;
use crate::time::Time;
use std::sync::Arc;

/// A table is asked for so often without an answer; then another word of it is waited for.
const TRIES_MAX: u32 = 10;

impl Ward {
    /// Hears which table a node has. What it is told, or asked.
    pub(super) fn heard_of(
        &mut self,
        now: Time,
        from: NodeId,
        theirs: Option<TableId>,
    ) -> Option<WardMessage> {
        // It has not any more what it was asked for.
        self.coming.take_if(|coming| coming.from == from && theirs.as_ref() != Some(&coming.id));
        let mine = self.held.as_ref().map(|held| &held.id);
        if theirs.as_ref() < mine {
            return Some(WardMessage::Newest { id: mine.cloned() });
        }
        let id = theirs.filter(|theirs| Some(theirs) > mine)?;
        let is_coming = self.coming.as_ref().is_some_and(|coming| coming.id >= id);
        if is_coming || self.refused.as_ref() == Some(&id) {
            return None;
        }
        let (owners, rows) = (Vec::new(), Vec::new());
        let coming = self.coming.insert(Coming { id, from, total: 0, owners, rows, asked: now, tries: 0 });
        Some(coming.ask())
    }

    /// The part of a table that begins with a row; which table there is, if it is another.
    pub(super) fn part(&self, id: &TableId, row: u32) -> WardMessage {
        let Some(held) = self.held.as_ref().filter(|held| held.id == *id) else {
            return WardMessage::Newest { id: self.id() };
        };
        let owners = if row == 0 { held.owners.clone() } else { Vec::new() };
        let rows = held.table.rows(row as usize, PART_MAX).collect();
        let total = u32::try_from(held.table.len()).unwrap_or(u32::MAX);
        WardMessage::Table { id: id.clone(), from: row, total, owners, rows }
    }

    /// Hears a part of a table. What else is asked for.
    pub(super) fn fetched(
        &mut self,
        now: Time,
        from: NodeId,
        id: &TableId,
        part: Part,
        out: &mut Vec<WardOutput>,
    ) -> Option<WardMessage> {
        let is_next = |coming: &&mut Coming| {
            coming.from == from && coming.id == *id && coming.rows.len() == part.row as usize
        };
        let coming = self.coming.as_mut().filter(is_next)?;
        let is_sound = coming.take(part, self.settings.targets_max);
        if is_sound && !coming.is_complete() {
            (coming.asked, coming.tries) = (now, 0);
            return Some(coming.ask());
        }
        let Coming { id, owners, rows, .. } = self.coming.take()?;
        let nodes = u16::try_from(owners.len()).unwrap_or(u16::MAX);
        match RouteTable::new(nodes, rows) {
            Ok(table) if is_sound => {
                self.status.fetched += 1;
                self.install(now, Held { id, owners, table });
                if self.is_maker() {
                    self.tell(now, out);
                }
            }
            _ => {
                self.status.refused += 1;
                self.refused = Some(id);
            }
        }
        None
    }

    /// Goes by a table that comes from here, above all that this node has heard of.
    pub(super) fn adopt(
        &mut self,
        now: Time,
        owners: Vec<NameKey>,
        table: RouteTable,
        out: &mut Vec<WardOutput>,
    ) {
        let coming = self.coming.as_ref().map(|coming| &coming.id);
        let heard_of = [self.held.as_ref().map(|held| &held.id), coming, self.refused.as_ref()];
        let highest = heard_of.into_iter().flatten().map(|id| id.number).max().unwrap_or(0);
        let id =
            TableId { number: highest.saturating_add(1), maker: Arc::clone(&self.name), epoch: self.epoch };
        self.install(now, Held { id, owners, table });
        self.tell(now, out);
    }

    /// Says which table there is.
    pub(super) fn tell(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        self.beat_at = now + self.settings.beat;
        out.push(WardOutput::Tell(WardMessage::Newest { id: self.id() }));
    }

    /// Asks again for what did not come.
    pub(super) fn ask_again(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let retry = self.settings.retry;
        let Some(coming) = self.coming.as_mut().filter(|coming| coming.asked + retry <= now) else { return };
        (coming.asked, coming.tries) = (now, coming.tries + 1);
        if coming.tries > TRIES_MAX {
            self.coming = None;
        } else {
            out.push(WardOutput::Send { to: coming.from, message: coming.ask() });
        }
    }

    fn install(&mut self, now: Time, held: Held) {
        self.coming.take_if(|coming| coming.id <= held.id);
        self.held = Some(Arc::new(held));
        self.want_at = None;
        self.status.since = now;
        self.refresh_at = self.settings.refresh.map_or(Time::MAX, |refresh| now + refresh);
    }
}
