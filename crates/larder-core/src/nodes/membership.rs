//! The membership: everything known of the nodes except their load. It is a snapshot that is replaced as a whole.

use super::group::{GroupId, Groups};
use super::load::node_at;
use super::report::ReceivedReport;
use crate::curve::round;
use crate::id::NodeId;
use crate::unit::Bytes;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// A node's relative capacity. Load is compared as `load / weight`, so T_low, T_high and the admission limit scale
/// with it. Range 0.001 to 100; default 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// The weight of an ordinary node.
    pub const ONE: Self = Self(1000);

    /// Creates a weight from thousandths; `None` outside 1 to 100,000.
    pub const fn from_milli(milli: u32) -> Option<Self> {
        if milli >= 1 && milli <= 100_000 { Some(Self(milli)) } else { None }
    }

    /// Creates a weight from a number; `None` outside 0.001 to 100.
    pub fn from_f64(value: f64) -> Option<Self> {
        Self::from_milli(u32::try_from(round(value * 1000.0)).ok()?)
    }

    /// Returns the weight in thousandths.
    pub const fn milli(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 1000.0)
    }
}

/// The configuration of a node.
///
/// # Example
/// The membership is changed through the dispatcher, and read through [`Nodes`](crate::Nodes):
///
/// ```
/// use larder_core::{Bytes, Dispatcher, LoadReport, NodeSpec, NodeState, Settings, Time, Weight};
///
/// let dispatcher = Dispatcher::new(Settings::default(), &[NodeSpec::named("a")])?;
/// let (now, mut started) = (Time::from_secs(1), Vec::new());
/// let large = NodeSpec { cache: Bytes::mib(512), ..NodeSpec::named("b") };
/// let b = dispatcher.join(now, large, &mut started)?;
/// dispatcher.reweigh(now, b, Weight::from_milli(2_500).expect("0.001 to 100"), &mut started);
/// dispatcher.report(now, b, LoadReport { cpu_permille: Some(300), ..LoadReport::default() });
/// dispatcher.drain(now, b, &mut started);
///
/// let rows = dispatcher.nodes().rows();
/// assert_eq!((&*rows[1].name, rows[1].state, rows[1].weight.milli()), ("b", NodeState::Draining, 2_500));
/// assert_eq!(rows[1].report, None, "a report ends when its node drains");
/// # Ok::<(), larder_core::dispatch::SettingsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The node's name, which identifies it. Not empty, unique in the cluster.
    pub name: String,
    /// The node's relative capacity.
    pub weight: Weight,
    /// The size of the node's cache, by which first placements are shared out; 0 if unknown.
    pub cache: Bytes,
    /// The node's groups, beside the group of all nodes.
    pub groups: Groups,
    /// Whether the node is a backup. In each of its groups a backup takes requests only while no ordinary node of
    /// the group does.
    pub backup: bool,
}

impl NodeSpec {
    /// Creates a node of weight 1 whose cache size is unknown and which is only in the group of all nodes.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            weight: Weight::ONE,
            cache: Bytes::ZERO,
            groups: Groups::NONE,
            backup: false,
        }
    }
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    /// The node takes requests.
    Up,
    /// The node finishes its requests and receives no new ones.
    Draining,
    /// The node has failed.
    Down,
    /// The node is no longer a member. Its slot is reused for a joining node once its last request has ended.
    Removed,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Down => "down",
            Self::Removed => "removed",
        })
    }
}

/// The current state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// The node's slot.
    pub id: NodeId,
    /// The node's name. Source: configuration.
    pub name: Arc<str>,
    /// The node's relative capacity. Source: configuration.
    pub weight: Weight,
    /// The size of the node's cache. Source: configuration; 0 means unknown.
    pub cache: Bytes,
    /// The node's groups, beside that of all nodes. Source: configuration.
    pub groups: Groups,
    /// Whether the node is a backup. Source: configuration.
    pub backup: bool,
    /// Whether the node stands by: a backup that is up and takes no requests, because an ordinary node of each of
    /// its groups does.
    pub standby: bool,
    /// The node's state. A node that is up takes requests, unless it stands by. Source: health checks and the
    /// operator.
    pub state: NodeState,
    /// The number of requests in flight, until the last byte is sent or the reply is aborted. Source: the
    /// dispatcher's own count; never stale.
    pub load: u32,
    /// The number of requests in flight that are long-lived. Source: the dispatcher's own count; never stale.
    pub long_lived: u32,
    /// Whether the node has joined a running cluster and is not warm yet. New targets then come at a limited rate.
    pub joining: bool,
    /// The node's last report. Source: [`Dispatcher::report`](crate::dispatch::Dispatcher::report); its age is
    /// [`ReceivedReport::age`]. `None` if the node has sent none since it last joined, failed or drained, which does
    /// not mean that it is idle.
    pub report: Option<ReceivedReport>,
}

/// One slot of the membership.
#[derive(Clone, Debug)]
pub(super) struct MembershipEntry {
    pub(super) name: Arc<str>,
    /// The XXH3-64 of the name, which is the same at every switch.
    pub(super) identity: u64,
    pub(super) weight: Weight,
    pub(super) cache: Bytes,
    pub(super) groups: Groups,
    pub(super) backup: bool,
    pub(super) state: NodeState,
}

/// A snapshot of the membership.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) rows: Vec<MembershipEntry>,
    /// The derived values of each group. The first is the group of all nodes. Groups without nodes may be missing.
    summaries: Vec<GroupSummary>,
}

/// The derived values of a group, over the members that can take requests: the ordinary nodes, or the backups while
/// these serve.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupSummary {
    /// The members' slots, including removed ones. Empty for the group of all nodes if its members are all slots.
    members: Vec<u16>,
    size: usize,
    /// The number of members that have not been removed.
    pub(super) present: usize,
    /// Whether the backups serve: no ordinary node is up, and a backup is.
    pub(super) on_backups: bool,
    /// The ends of the members' ranges if each range is as wide as the member's cache. Empty if all ranges are
    /// equally wide.
    ends: Vec<u64>,
    pub(super) open: usize,
    pub(super) weight_sum: u64,
    pub(super) weight_max: u64,
}

static EMPTY_GROUP: GroupSummary = GroupSummary {
    members: Vec::new(),
    size: 0,
    present: 0,
    on_backups: false,
    ends: Vec::new(),
    open: 0,
    weight_sum: 0,
    weight_max: 0,
};

impl Default for Membership {
    fn default() -> Self {
        Self { rows: Vec::new(), summaries: vec![GroupSummary::default()] }
    }
}

impl GroupSummary {
    fn of(group: GroupId, rows: &[MembershipEntry]) -> Self {
        let is_up = |backup: bool| {
            let up = |entry: &&MembershipEntry| entry.state == NodeState::Up && entry.groups.contains(group);
            rows.iter().filter(up).any(|entry| entry.backup == backup)
        };
        let on_backups = is_up(true) && !is_up(false);
        let inside = || {
            let member = |entry: &MembershipEntry| entry.groups.contains(group) && entry.backup == on_backups;
            rows.iter().enumerate().filter(move |(_, entry)| member(entry))
        };
        let open = || inside().filter(|(_, entry)| entry.state == NodeState::Up);
        let weights = || open().map(|(_, entry)| u64::from(entry.weight.milli()));
        let caches: Vec<Bytes> = inside().map(|(_, entry)| entry.cache).collect();
        let equal = caches.windows(2).all(|pair| pair[0] == pair[1]);
        let mut ends = Vec::new();
        if !equal && all_known(&caches) {
            let mut end = 0_u64;
            ends.extend(caches.iter().map(|cache| {
                end = end.saturating_add(cache.get());
                end
            }));
        }
        let slots = || inside().map(|(index, _)| node_at(index).0);
        Self {
            members: if caches.len() == rows.len() && group == GroupId::ALL {
                Vec::new()
            } else {
                slots().collect()
            },
            size: caches.len(),
            present: inside().filter(|(_, entry)| entry.state != NodeState::Removed).count(),
            on_backups,
            ends,
            open: open().count(),
            weight_sum: weights().sum(),
            weight_max: weights().max().unwrap_or(0),
        }
    }

    /// Returns whether cache sizes are known and differ.
    pub(super) fn has_widths(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Returns the members' slots, from the first one at or after `start`, cyclically. Not for the group of all
    /// nodes, which may have no list.
    pub(super) fn from(&self, start: usize) -> impl Iterator<Item = usize> + '_ {
        let at = self.members.partition_point(|slot| usize::from(*slot) < start);
        let (before, after) = self.members.split_at(at);
        after.iter().chain(before).map(|slot| usize::from(*slot))
    }

    /// Returns the index of a slot among the members, from 0; `None` for a slot that is no member.
    pub(super) fn rank(&self, slot: usize) -> Option<usize> {
        if self.members.is_empty() {
            return (slot < self.size).then_some(slot);
        }
        self.members.binary_search_by_key(&slot, |member| usize::from(*member)).ok()
    }

    /// Returns the slot of the member in whose range `hash` falls.
    pub(super) fn position(&self, hash: u64) -> usize {
        let at = match self.ends.last() {
            None => scale(hash, self.size as u64) as usize,
            Some(&total) => {
                let point = scale(hash, total);
                self.ends.partition_point(|end| *end <= point).min(self.size.saturating_sub(1))
            }
        };
        // If all slots are members, there is no list, and a member's index is its slot.
        self.members.get(at).map_or(at, |slot| usize::from(*slot))
    }
}

impl Membership {
    pub(super) fn id_of(&self, name: &str) -> Option<NodeId> {
        let alive = |entry: &MembershipEntry| entry.state != NodeState::Removed && &*entry.name == name;
        self.rows.iter().position(alive).map(node_at)
    }

    pub(super) fn put(&mut self, index: usize, spec: &NodeSpec) {
        let entry = MembershipEntry {
            name: Arc::from(spec.name.as_str()),
            identity: xxhash_rust::xxh3::xxh3_64(spec.name.as_bytes()),
            weight: spec.weight,
            cache: spec.cache,
            groups: spec.groups,
            backup: spec.backup,
            state: NodeState::Up,
        };
        if index < self.rows.len() {
            self.rows[index] = entry;
        } else {
            self.rows.push(entry);
        }
    }

    /// Derives the groups' sums and ranges from the rows.
    pub(super) fn derive_summaries(&mut self) {
        let named = self.rows.iter().fold(0, |bits, entry| bits | entry.groups.bits());
        let groups = (0..=GroupId::MAX).take_while(|number| *number == 0 || named >> number > 0);
        self.summaries =
            groups.filter_map(GroupId::new).map(|group| GroupSummary::of(group, &self.rows)).collect();
    }

    /// Returns the groups in which a slot can take requests, as bits; bit 0 is the group of all nodes.
    pub(super) fn eligible(&self, index: usize) -> u64 {
        let Some(entry) = self.rows.get(index) else { return 0 };
        let groups = entry.groups.bits() | 1;
        if !entry.backup {
            return groups;
        }
        let serving = self.summaries.iter().enumerate().filter(|(_, summary)| summary.on_backups);
        groups & serving.fold(0, |bits, (group, _)| bits | 1 << group)
    }

    /// Returns the derived values of a group.
    pub(super) fn summary(&self, group: GroupId) -> &GroupSummary {
        self.summaries.get(group.index()).unwrap_or(&EMPTY_GROUP)
    }
}

/// Returns whether all cache sizes are known, so that they can be used as widths.
fn all_known(caches: &[Bytes]) -> bool {
    caches.iter().all(|cache| cache.get() > 0)
}

/// Maps a hash evenly to 0..n without a division (Lemire, TOMACS 2019).
const fn scale(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(caches: &[u64]) -> Membership {
        let mut membership = Membership::default();
        for (index, cache) in caches.iter().enumerate() {
            let spec = NodeSpec { cache: Bytes(*cache), ..NodeSpec::named(format!("n{index}")) };
            membership.put(index, &spec);
        }
        membership.derive_summaries();
        membership
    }

    fn share(membership: &Membership, slot: usize) -> f64 {
        let hits = (0..40_000_u64)
            .filter(|i| membership.summary(GroupId::ALL).position(crate::nodes::mix(*i)) == slot)
            .count();
        hits as f64 / 40_000.0
    }

    #[test]
    fn positions_follow_cache_sizes() {
        let even = membership(&[7, 7, 7, 7]);
        let uneven = membership(&[10, 30]);
        let unknown = membership(&[10, 0]);
        assert!((share(&even, 2) - 0.25).abs() < 0.01);
        assert!((share(&uneven, 1) - 0.75).abs() < 0.01);
        assert!((share(&unknown, 1) - 0.5).abs() < 0.01, "an unknown size makes all equal");
    }

    #[test]
    fn a_groups_positions_are_its_members() {
        let two = GroupId::new(2).expect("at most 63");
        let mut membership = membership(&[7, 7, 7, 7]);
        for slot in [1, 3] {
            membership.rows[slot].groups = Groups::NONE.with(two);
        }
        membership.rows[3].state = NodeState::Down;
        membership.derive_summaries();
        let summary = membership.summary(two);
        let slots: Vec<usize> = (0..100).map(|i| summary.position(crate::nodes::mix(i))).collect();
        assert!(slots.iter().all(|slot| [1, 3].contains(slot)) && slots.contains(&1) && slots.contains(&3));
        assert_eq!((summary.open, summary.weight_sum), (1, 1000), "one of them is down");
        assert_eq!((summary.size, [0, 1, 3].map(|slot| summary.rank(slot))), (2, [None, Some(0), Some(1)]));
        let nobody = membership.summary(GroupId::new(9).expect("at most 63"));
        assert_eq!((nobody.open, nobody.position(u64::MAX)), (0, 0));
    }

    #[test]
    fn weights_outside_the_range_are_refused() {
        assert_eq!(Weight::from_f64(0.5), Weight::from_milli(500));
        for bad in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Weight::from_f64(bad), None, "{bad}");
        }
    }
}
