//! Transfer of routing tables between nodes, part by part.

use super::super::card::NameKey;
use super::Ward;
use super::output::WardOutput;
use super::tables::{InstalledTable, PartialTable, TablePart};
use super::wire::{PART_MAX, TableId, WardMessage};
use crate::id::NodeId;
use crate::policy::table::RouteTable;
use crate::time::Time;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Largest number of requests without an answer. After that the node waits for another announcement.
const TRIES_MAX: u32 = 10;

impl Ward {
    /// Processes the announcement of a node's table. Returns the answer.
    pub(super) fn receive_newest(
        &mut self,
        now: Time,
        from: NodeId,
        theirs: Option<TableId>,
    ) -> Option<WardMessage> {
        // The node no longer has the requested table.
        self.partial.take_if(|partial| partial.from == from && theirs.as_ref() != Some(&partial.id));
        let mine = self.installed.as_ref().map(|installed| &installed.id);
        if theirs.as_ref() < mine {
            return Some(WardMessage::Newest { id: mine.cloned() });
        }
        let id = theirs.filter(|theirs| Some(theirs) > mine)?;
        let is_fetching = self.partial.as_ref().is_some_and(|partial| partial.id >= id);
        if is_fetching || self.refused.as_ref() == Some(&id) {
            return None;
        }
        let (owners, rows) = (Vec::new(), Vec::new());
        let partial = self.partial.insert(PartialTable {
            id,
            from,
            total: 0,
            owners,
            rows,
            requested_at: now,
            tries: 0,
        });
        Some(partial.next_request())
    }

    /// Returns the part of a table that begins with a row, or the id of this node's table if it is another.
    pub(super) fn table_part(&self, id: &TableId, row: u32) -> WardMessage {
        let Some(installed) = self.installed.as_ref().filter(|installed| installed.id == *id) else {
            return WardMessage::Newest { id: self.table_id() };
        };
        let owners = if row == 0 { installed.owners.clone() } else { Vec::new() };
        let rows = installed.table.rows(row as usize, PART_MAX).collect();
        let total = u32::try_from(installed.table.len()).unwrap_or(u32::MAX);
        WardMessage::Table { id: id.clone(), from: row, total, owners, rows }
    }

    /// Processes a part of a table. Returns the next request.
    pub(super) fn receive_part(
        &mut self,
        now: Time,
        from: NodeId,
        id: &TableId,
        part: TablePart,
        out: &mut Vec<WardOutput>,
    ) -> Option<WardMessage> {
        let is_next = |partial: &&mut PartialTable| {
            partial.from == from && partial.id == *id && partial.rows.len() == part.row as usize
        };
        let partial = self.partial.as_mut().filter(is_next)?;
        let is_sound = partial.add_part(part, self.settings.targets_max);
        if is_sound && !partial.is_complete() {
            (partial.requested_at, partial.tries) = (now, 0);
            return Some(partial.next_request());
        }
        let PartialTable { id, owners, rows, .. } = self.partial.take()?;
        let nodes = u16::try_from(owners.len()).unwrap_or(u16::MAX);
        match RouteTable::new(nodes, rows) {
            Ok(table) if is_sound => {
                self.status.fetched += 1;
                self.install(now, InstalledTable { id, owners, table });
                if self.is_maker() {
                    self.announce(now, out);
                }
            }
            _ => {
                self.status.refused += 1;
                self.refused = Some(id);
            }
        }
        None
    }

    /// Installs a table that was made here, with a number above all known ones.
    pub(super) fn adopt(
        &mut self,
        now: Time,
        owners: Vec<NameKey>,
        table: RouteTable,
        out: &mut Vec<WardOutput>,
    ) {
        let partial = self.partial.as_ref().map(|partial| &partial.id);
        let known = [self.installed.as_ref().map(|installed| &installed.id), partial, self.refused.as_ref()];
        let highest = known.into_iter().flatten().map(|id| id.number).max().unwrap_or(0);
        let id =
            TableId { number: highest.saturating_add(1), maker: Arc::clone(&self.name), epoch: self.epoch };
        self.install(now, InstalledTable { id, owners, table });
        self.announce(now, out);
    }

    /// Announces the table of this node.
    pub(super) fn announce(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        self.heartbeat_at = now + self.settings.heartbeat;
        out.push(WardOutput::Broadcast(WardMessage::Newest { id: self.table_id() }));
    }

    /// Repeats a request without an answer.
    pub(super) fn repeat_request(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let retry = self.settings.retry;
        let Some(partial) = self.partial.as_mut().filter(|partial| partial.requested_at + retry <= now)
        else {
            return;
        };
        (partial.requested_at, partial.tries) = (now, partial.tries + 1);
        if partial.tries > TRIES_MAX {
            self.partial = None;
        } else {
            out.push(WardOutput::Send { to: partial.from, message: partial.next_request() });
        }
    }

    fn install(&mut self, now: Time, installed: InstalledTable) {
        self.partial.take_if(|partial| partial.id <= installed.id);
        self.installed = Some(Arc::new(installed));
        self.request_at = None;
        self.status.since = now;
        self.refresh_at = self.settings.refresh.map_or(Time::MAX, |refresh| now + refresh);
    }
}
