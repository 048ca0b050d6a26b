//! Tables that nodes hold, and fetch from each other.

use super::super::card::NameKey;
use super::wire::{OWNERS_MAX, TableId, WardMessage};
use crate::id::{NodeId, TargetId};
use crate::policy::table::{Place, RouteTable};
use crate::time::Time;

/// A table to go by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) id: TableId,
    /// By their numbers in the table.
    pub(super) owners: Vec<NameKey>,
    pub(super) table: RouteTable,
}

/// A table that is being fetched.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) id: TableId,
    pub(super) from: NodeId,
    pub(super) total: u32,
    pub(super) owners: Vec<NameKey>,
    pub(super) rows: Vec<(TargetId, Place)>,
    pub(super) asked: Time,
    pub(super) tries: u32,
}

/// A part of a table.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) row: u32,
    pub(super) total: u32,
    pub(super) owners: Vec<NameKey>,
    pub(super) rows: Vec<(TargetId, Place)>,
}

impl Coming {
    pub(super) fn ask(&self) -> WardMessage {
        WardMessage::AskTable {
            id: self.id.clone(),
            from: u32::try_from(self.rows.len()).unwrap_or(u32::MAX),
        }
    }

    /// Takes the next part. False: it makes no sense, or more than `targets_max` targets.
    pub(super) fn take(&mut self, part: Part, targets_max: usize) -> bool {
        if self.rows.is_empty() {
            (self.total, self.owners) = (part.total, part.owners);
        }
        let total = self.total as usize;
        let fits = total <= targets_max && (1..=OWNERS_MAX).contains(&self.owners.len());
        let is_owner = |place: &Place| place.owner().is_none_or(|owner| owner.index() < self.owners.len());
        let is_sound = part.total == self.total
            && (!part.rows.is_empty() || total == 0)
            && self.rows.len() + part.rows.len() <= total
            && part.rows.iter().all(|(_, place)| is_owner(place));
        self.rows.extend(part.rows.into_iter().filter(|_| fits && is_sound));
        fits && is_sound
    }

    pub(super) fn is_complete(&self) -> bool {
        self.rows.len() == self.total as usize
    }
}
