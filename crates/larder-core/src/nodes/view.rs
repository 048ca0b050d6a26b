//! What is known of the nodes beside their load: a snapshot, replaced as a whole when membership changes.

use super::group::{GroupId, Groups};
use super::load::node_at;
use super::report::Reported;
use crate::id::NodeId;
use crate::unit::Bytes;
use core::fmt;
use std::sync::Arc;

/// A node's relative capacity. Load is compared as `load / weight`, so T_low, T_high and the admission limit scale
/// with it. Range 0.001 to 100; default 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// The weight of an ordinary node.
    pub const ONE: Self = Self(1000);

    /// A weight from thousandths; `None` outside 1 to 100,000.
    pub const fn from_milli(milli: u32) -> Option<Self> {
        if milli >= 1 && milli <= 100_000 { Some(Self(milli)) } else { None }
    }

    /// A weight from a number; `None` outside 0.001 to 100.
    pub fn from_f64(value: f64) -> Option<Self> {
        let milli = (value * 1000.0).round();
        if (1.0..=100_000.0).contains(&milli) { Self::from_milli(milli as u32) } else { None }
    }

    /// Thousandths.
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

/// A node as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its identity. Not empty, unique in the cluster.
    pub name: String,
    /// Its relative capacity.
    pub weight: Weight,
    /// The size of its cache, by which first placements are shared out; 0 if unknown.
    pub cache: Bytes,
    /// The groups it is in, beside the group of all.
    pub groups: Groups,
    /// Whether it is a backup. In each of its groups a backup takes requests only while no ordinary node of the group does.
    pub backup: bool,
}

impl NodeSpec {
    /// A node of weight 1 whose cache size is unknown, in no group but that of all.
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

/// Whether a node takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    /// It takes requests.
    Up,
    /// It finishes what it has and gets nothing new.
    Draining,
    /// It has failed.
    Down,
    /// It is no longer a member. Its slot is given to a newcomer once its last request has ended.
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

/// What is known of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Its slot.
    pub id: NodeId,
    /// Its name. Source: configuration.
    pub name: Arc<str>,
    /// Its relative capacity. Source: configuration.
    pub weight: Weight,
    /// The size of its cache. Source: configuration; 0 means unknown.
    pub cache: Bytes,
    /// The groups it is in, beside that of all. Source: configuration.
    pub groups: Groups,
    /// Whether it is a backup. Source: configuration.
    pub backup: bool,
    /// Whether it stands by: a backup that is up and takes no requests, because an ordinary node of each of its groups does.
    pub standby: bool,
    /// Whether it takes requests, unless it stands by. Source: health checks and the operator.
    pub state: NodeState,
    /// Requests in flight, until the last byte is sent or the reply is aborted. Source: the dispatcher's own count;
    /// never stale.
    pub load: u32,
    /// How many of these are long-lived. Source: the dispatcher's own count; never stale.
    pub long_lived: u32,
    /// It has joined a running cluster and is not warm yet: new targets come at a limited rate.
    pub joining: bool,
    /// What it last said of itself. Source: [`Dispatcher::report`](crate::dispatch::Dispatcher::report); as old as
    /// [`Reported::age`] says. `None` if it has said nothing since it joined, failed or drained last, which is not the
    /// same as being idle.
    pub report: Option<Reported>,
}

/// One slot of the snapshot.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    /// XXH3-64 of the name: the same at every switch.
    pub(super) identity: u64,
    pub(super) weight: Weight,
    pub(super) cache: Bytes,
    pub(super) groups: Groups,
    pub(super) backup: bool,
    pub(super) state: NodeState,
}

/// The snapshot.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) rows: Vec<Entry>,
    /// What is derived for each group; the first is that of all nodes, and those nobody is in may be missing.
    pools: Vec<Pool>,
}

/// Sums over a group's members that can take requests: the ordinary nodes, or the backups while these serve.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Their slots, removed ones included; empty for the group of all if these are all slots.
    members: Vec<u16>,
    size: usize,
    /// The number of members that have not been removed.
    pub(super) present: usize,
    /// Whether the backups serve: no ordinary node is up, and a backup is.
    pub(super) on_backups: bool,
    /// Ends of the members' ranges when members are as wide as their caches; empty when all are equally wide.
    ends: Vec<u64>,
    pub(super) open: usize,
    pub(super) weight_sum: u64,
    pub(super) weight_max: u64,
}

static NOBODY: Pool = Pool {
    members: Vec::new(),
    size: 0,
    present: 0,
    on_backups: false,
    ends: Vec::new(),
    open: 0,
    weight_sum: 0,
    weight_max: 0,
};

impl Default for View {
    fn default() -> Self {
        Self { rows: Vec::new(), pools: vec![Pool::default()] }
    }
}

impl Pool {
    fn of(group: GroupId, rows: &[Entry]) -> Self {
        let is_up = |backup: bool| {
            let up = |entry: &&Entry| entry.state == NodeState::Up && entry.groups.contains(group);
            rows.iter().filter(up).any(|entry| entry.backup == backup)
        };
        let on_backups = is_up(true) && !is_up(false);
        let inside = || {
            let member = |entry: &Entry| entry.groups.contains(group) && entry.backup == on_backups;
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

    /// Whether cache sizes are known and differ.
    pub(super) fn has_widths(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Number of members that can take requests, closed ones included.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The members' slots from the first at or after `start` on, cyclically. Not for the group of all, which may have no list.
    pub(super) fn from(&self, start: usize) -> impl Iterator<Item = usize> + '_ {
        let at = self.members.partition_point(|slot| usize::from(*slot) < start);
        let (before, after) = self.members.split_at(at);
        after.iter().chain(before).map(|slot| usize::from(*slot))
    }

    /// Which member, counted from 0, a slot is; `None` for a slot that is no member.
    pub(super) fn rank(&self, slot: usize) -> Option<usize> {
        if self.members.is_empty() {
            return (slot < self.size).then_some(slot);
        }
        self.members.binary_search_by_key(&slot, |member| usize::from(*member)).ok()
    }

    /// The slot of the member in whose range `hash` falls.
    pub(super) fn position(&self, hash: u64) -> usize {
        let at = match self.ends.last() {
            None => scale(hash, self.size as u64) as usize,
            Some(&total) => {
                let point = scale(hash, total);
                self.ends.partition_point(|end| *end <= point).min(self.size.saturating_sub(1))
            }
        };
        // Where all slots are members there is no list: they are their own places.
        self.members.get(at).map_or(at, |slot| usize::from(*slot))
    }
}

impl View {
    pub(super) fn id_of(&self, name: &str) -> Option<NodeId> {
        let alive = |entry: &Entry| entry.state != NodeState::Removed && &*entry.name == name;
        self.rows.iter().position(alive).map(node_at)
    }

    pub(super) fn put(&mut self, index: usize, spec: &NodeSpec) {
        let entry = Entry {
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

    /// Derives the sums and ranges from the rows.
    pub(super) fn finish(&mut self) {
        let named = self.rows.iter().fold(0, |bits, entry| bits | entry.groups.bits());
        let groups = (0..=GroupId::MAX).take_while(|number| *number == 0 || named >> number > 0);
        self.pools = groups.filter_map(GroupId::new).map(|group| Pool::of(group, &self.rows)).collect();
    }

    /// The groups in which a slot can take requests, as bits; bit 0 is the group of all.
    pub(super) fn eligible(&self, index: usize) -> u64 {
        let Some(entry) = self.rows.get(index) else { return 0 };
        let groups = entry.groups.bits() | 1;
        if !entry.backup {
            return groups;
        }
        let serving = self.pools.iter().enumerate().filter(|(_, pool)| pool.on_backups);
        groups & serving.fold(0, |bits, (group, _)| bits | 1 << group)
    }

    /// What is derived of a group.
    pub(super) fn pool(&self, group: GroupId) -> &Pool {
        self.pools.get(group.index()).unwrap_or(&NOBODY)
    }
}

/// Whether `cache` sizes can be used as widths: all known.
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

    fn view(caches: &[u64]) -> View {
        let mut view = View::default();
        for (index, cache) in caches.iter().enumerate() {
            let spec = NodeSpec { cache: Bytes(*cache), ..NodeSpec::named(format!("n{index}")) };
            view.put(index, &spec);
        }
        view.finish();
        view
    }

    fn share(view: &View, slot: usize) -> f64 {
        let hits = (0..40_000_u64)
            .filter(|i| view.pool(GroupId::ALL).position(crate::nodes::mix(*i)) == slot)
            .count();
        hits as f64 / 40_000.0
    }

    #[test]
    fn positions_follow_cache_sizes() {
        let even = view(&[7, 7, 7, 7]);
        let uneven = view(&[10, 30]);
        let unknown = view(&[10, 0]);
        assert!((share(&even, 2) - 0.25).abs() < 0.01);
        assert!((share(&uneven, 1) - 0.75).abs() < 0.01);
        assert!((share(&unknown, 1) - 0.5).abs() < 0.01, "an unknown size makes all equal");
    }

    #[test]
    fn a_groups_positions_are_its_members() {
        let two = GroupId::new(2).expect("at most 63");
        let mut view = view(&[7, 7, 7, 7]);
        for slot in [1, 3] {
            view.rows[slot].groups = Groups::NONE.with(two);
        }
        view.rows[3].state = NodeState::Down;
        view.finish();
        let pool = view.pool(two);
        let slots: Vec<usize> = (0..100).map(|i| pool.position(crate::nodes::mix(i))).collect();
        assert!(slots.iter().all(|slot| [1, 3].contains(slot)) && slots.contains(&1) && slots.contains(&3));
        assert_eq!((pool.open, pool.weight_sum), (1, 1000), "one of them is down");
        assert_eq!((pool.size(), [0, 1, 3].map(|slot| pool.rank(slot))), (2, [None, Some(0), Some(1)]));
        let nobody = view.pool(GroupId::new(9).expect("at most 63"));
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
