//! Tables that nodes have and fetch from each other.

use super::super::card::NameKey;
use super::wire::{OWNERS_MAX, TableId, WardMessage};
use crate::id::{NodeId, TargetId};
use crate::policy::table::{Place, RouteTable};
use crate::time::Time;
use alloc::vec::Vec;

/// Table in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InstalledTable {
    pub(super) id: TableId,
    /// Owners by their number in the table.
    pub(super) owners: Vec<NameKey>,
    pub(super) table: RouteTable,
}

/// Table that is being fetched.
#[derive(Debug)]
pub(super) struct PartialTable {
    pub(super) id: TableId,
    pub(super) from: NodeId,
    pub(super) total: u32,
    pub(super) owners: Vec<NameKey>,
    pub(super) rows: Vec<(TargetId, Place)>,
    pub(super) requested_at: Time,
    pub(super) tries: u32,
}

/// Part of a table.
#[derive(Debug)]
pub(super) struct TablePart {
    pub(super) row: u32,
    pub(super) total: u32,
    pub(super) owners: Vec<NameKey>,
    pub(super) rows: Vec<(TargetId, Place)>,
}

impl PartialTable {
    pub(super) fn next_request(&self) -> WardMessage {
        WardMessage::TableRequest {
            id: self.id.clone(),
            from: u32::try_from(self.rows.len()).unwrap_or(u32::MAX),
        }
    }

    /// Adds the next part. Returns false if it is invalid or the table has more than `targets_max` targets.
    pub(super) fn add_part(&mut self, part: TablePart, targets_max: usize) -> bool {
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
