//! Where targets are served while another table is made.

use super::super::card::NameKey;
use super::settings::{Rest, WardSettings};
use super::tables::Held;
use crate::id::TargetId;
use crate::nodes::mix;
use crate::policy::table::{Place, RouteTable, RouteTableError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of the targets that a table leaves out of the one before, so many of a thousand stay in it: 7/8.
const REMEMBERED_PERMILLE: u64 = 875;

/// Which node serves a target by the table in force, or, where there is none, by hash: that node has it in memory. A table that
/// leaves targets there costs no reads.
///
/// With [`Rest::Here`] it says nothing: as in the paper, each table is made of nothing but counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub(super) held: Option<Arc<Held>>,
    /// The nodes that the next table is for, in its order.
    nodes: Vec<NameKey>,
    /// The places among these of the owners in force.
    owners: Vec<Option<Place>>,
    rest: Rest,
    targets_max: usize,
}

impl Serving {
    pub(super) fn new(held: Option<Arc<Held>>, nodes: &[NameKey], settings: &WardSettings) -> Self {
        let WardSettings { rest, targets_max, .. } = *settings;
        let places: BTreeMap<NameKey, u16> = nodes.iter().copied().zip(0..).collect();
        let place = |owner: &NameKey| places.get(owner).copied().map(Place::Node);
        let owners = held.iter().flat_map(|held| held.owners.iter().map(place)).collect();
        Self { held, nodes: nodes.to_vec(), owners, rest, targets_max }
    }

    /// Its place, with the owner as the place in [`Analyse::nodes`](super::Analyse::nodes). None: it is not known to be in memory
    /// anywhere. O(1), by hash O(nodes).
    pub fn place(&self, target: TargetId) -> Option<Place> {
        if self.rest == Rest::Here {
            return None;
        }
        match self.held.as_ref().and_then(|held| held.table.get(target)) {
            Some(Place::Core) => Some(Place::Core),
            Some(Place::Node(owner)) => self.owner(owner).or_else(|| self.hashed(target)),
            None => self.hashed(target),
        }
    }

    /// The next table with some of what it leaves out of the one in force: a target that nobody has asked for lately, or that is no
    /// longer worth a place in memory, has its owner as long as that is there, for that is who has it if anybody does. One in eight
    /// is forgotten with each table, so that a table has at most eight times what tables leave out in the mean; more of them where
    /// there would be more than `targets_max` in all. Which ones goes by their hash and the table's number.
    ///
    /// # Errors
    /// As [`RouteTable::new`].
    pub fn remembered(&self, next: RouteTable) -> Result<RouteTable, RouteTableError> {
        let Some(held) = self.held.as_ref().filter(|_| self.rest == Rest::Hashed) else { return Ok(next) };
        let owned = |(target, place): (TargetId, Place)| Some((target, self.owner(place.owner()?.0)?));
        let left_out = held.table.iter().filter(|(target, _)| next.get(*target).is_none());
        let left_out: Vec<(TargetId, Place)> = left_out.filter_map(owned).collect();
        let room = self.targets_max.saturating_sub(next.len());
        let permille = (room * 1_000).checked_div(left_out.len()).unwrap_or(0) as u64;
        let permille = permille.min(REMEMBERED_PERMILLE);
        let stays = |(target, _): &(TargetId, Place)| mix(target.0 ^ mix(held.id.number)) % 1_000 < permille;
        let remembered = left_out.into_iter().filter(stays).take(room);
        RouteTable::new(next.nodes(), next.iter().chain(remembered))
    }

    fn owner(&self, number: u16) -> Option<Place> {
        self.owners.get(usize::from(number)).copied().flatten()
    }

    fn hashed(&self, target: TargetId) -> Option<Place> {
        let ranked = self.nodes.iter().zip(0..);
        ranked.max_by_key(|(name, _)| rank(target, **name)).map(|(_, place)| Place::Node(place))
    }
}

/// What the nodes' hashes are for a target; the highest has it (Thaler and Ravishankar 1998).
pub(super) fn rank(target: TargetId, name: NameKey) -> u64 {
    mix(target.0 ^ mix(name.0))
}
