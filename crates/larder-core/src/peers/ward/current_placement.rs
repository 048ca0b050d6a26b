//! Servers of targets while another table is made.

use super::super::card::NameKey;
use super::settings::{UnlistedTargets, WardSettings};
use super::tables::InstalledTable;
use crate::id::TargetId;
use crate::nodes::mix;
use crate::policy::table::{Place, RouteTable, RouteTableError};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Share of the targets missing in a new table that keep their old entry, in thousandths: 7/8.
const REMEMBERED_PERMILLE: u64 = 875;

/// Server of each target by the table in use, or by hash without one. That node has the target in memory, so a new
/// table that leaves targets there causes no reads.
///
/// With [`UnlistedTargets::Here`] it knows no server: as in the paper, each table is made only from counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentPlacement {
    pub(super) installed: Option<Arc<InstalledTable>>,
    /// Nodes that the next table is for, in its order.
    nodes: Vec<NameKey>,
    /// Index among these nodes of each current owner.
    owners: Vec<Option<Place>>,
    unlisted: UnlistedTargets,
    targets_max: usize,
}

impl CurrentPlacement {
    pub(super) fn new(
        installed: Option<Arc<InstalledTable>>,
        nodes: &[NameKey],
        settings: &WardSettings,
    ) -> Self {
        let WardSettings { unlisted, targets_max, .. } = *settings;
        let places: BTreeMap<NameKey, u16> = nodes.iter().copied().zip(0..).collect();
        let place = |owner: &NameKey| places.get(owner).copied().map(Place::Node);
        let owners = installed.iter().flat_map(|installed| installed.owners.iter().map(place)).collect();
        Self { installed, nodes: nodes.to_vec(), owners, unlisted, targets_max }
    }

    /// Returns the place of a target, with an owner as its index in
    /// [`AnalysisInput::nodes`](super::AnalysisInput::nodes). `None` if no node is known to have it in memory. O(1),
    /// by hash O(nodes).
    pub fn place(&self, target: TargetId) -> Option<Place> {
        if self.unlisted == UnlistedTargets::Here {
            return None;
        }
        match self.installed.as_ref().and_then(|installed| installed.table.get(target)) {
            Some(Place::Core) => Some(Place::Core),
            Some(Place::Node(owner)) => self.find_owner(owner).or_else(|| self.place_by_hash(target)),
            None => self.place_by_hash(target),
        }
    }

    /// Adds some entries of the table in use to the next table, for targets that the next one leaves out. Such a
    /// target was not requested recently, or is not worth memory any more. It keeps its owner while that node is
    /// live, since only that node can have it in memory. One in eight is dropped with each table, so the expected
    /// number is at most eight times the targets that one table leaves out. More are dropped if the table would
    /// exceed `targets_max`. The hash of the target and the number of the table decide which.
    ///
    /// # Errors
    /// Returns the errors of [`RouteTable::new`].
    pub fn with_remembered(&self, next: RouteTable) -> Result<RouteTable, RouteTableError> {
        let Some(installed) = self.installed.as_ref().filter(|_| self.unlisted == UnlistedTargets::Hashed)
        else {
            return Ok(next);
        };
        let owned = |(target, place): (TargetId, Place)| Some((target, self.find_owner(place.owner()?.0)?));
        let left_out = installed.table.iter().filter(|(target, _)| next.get(*target).is_none());
        let left_out: Vec<(TargetId, Place)> = left_out.filter_map(owned).collect();
        let room = self.targets_max.saturating_sub(next.len());
        let permille = (room * 1_000).checked_div(left_out.len()).unwrap_or(0) as u64;
        let permille = permille.min(REMEMBERED_PERMILLE);
        let stays =
            |(target, _): &(TargetId, Place)| mix(target.0 ^ mix(installed.id.number)) % 1_000 < permille;
        let remembered = left_out.into_iter().filter(stays).take(room);
        RouteTable::new(next.nodes(), next.iter().chain(remembered))
    }

    fn find_owner(&self, number: u16) -> Option<Place> {
        self.owners.get(usize::from(number)).copied().flatten()
    }

    fn place_by_hash(&self, target: TargetId) -> Option<Place> {
        let ranked = self.nodes.iter().zip(0..);
        ranked.max_by_key(|(name, _)| rank(target, **name)).map(|(_, place)| Place::Node(place))
    }
}

/// Computes the rank of a node for a target. The node with the highest rank has the target (Thaler and Ravishankar
/// 1998).
pub(super) fn rank(target: TargetId, name: NameKey) -> u64 {
    mix(target.0 ^ mix(name.0))
}
