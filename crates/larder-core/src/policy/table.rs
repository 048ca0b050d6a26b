//! A routing table computed from a log: the targets that every node serves, and the owners of the other targets.
//!
//! WARD (Cherkasova and Karlsson, HPL-2001-2, section 2) gives every node the same table. A target of the *core* is
//! served at the node where the request arrives, and a target of the *partition* by its owner. All other targets are
//! served at the node where the request arrives. A table without a core is the paper's PART. The table changes as a
//! whole, once a day in the paper. It is therefore built once, never modified, and read without a lock.
//!
//! Ids are hashes, hence evenly distributed. The table is a sorted array divided into buckets by the ids' highest bits. A
//! bucket contains two to four ids on average and is found by one read. The table takes 11 to 12 bytes per target, and
//! there are no probe sequences. Ids chosen to share a bucket cost a binary search.

use crate::id::{NodeId, TargetId};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The largest number of nodes in a table.
pub const ROUTE_NODES_MAX: u16 = u16::MAX - 1;

/// The largest number of targets in a table: 2^28.
pub const ROUTE_TARGETS_MAX: usize = 1 << 28;

/// The code of the core among the owners.
const CORE: u16 = u16::MAX;

/// The place at which a target of the table is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Any node: the node at which the request arrives.
    Core,
    /// The target's owner, by the node's number in the table.
    Node(u16),
}

impl Place {
    const fn code(self) -> u16 {
        match self {
            Self::Core => CORE,
            Self::Node(node) => node,
        }
    }

    const fn of_code(code: u16) -> Self {
        if code == CORE { Self::Core } else { Self::Node(code) }
    }

    /// Returns the owner; `None` for the core.
    pub const fn owner(self) -> Option<NodeId> {
        match self {
            Self::Core => None,
            Self::Node(node) => Some(NodeId(node)),
        }
    }
}

/// The reason why a table cannot be built. The same input fails again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteTableError {
    /// The number of nodes is out of range.
    #[error("a routing table is for 1 to {ROUTE_NODES_MAX} nodes, not {0}")]
    Nodes(u16),
    /// A target's owner is not one of the nodes.
    #[error("target {target} is given to node {node}, and there are {nodes} nodes, counted from 0")]
    NoSuchNode {
        /// The target.
        target: TargetId,
        /// The given owner.
        node: u16,
        /// The number of nodes.
        nodes: u16,
    },
    /// There are more targets than a table can contain.
    #[error("a routing table holds at most {ROUTE_TARGETS_MAX} targets")]
    TooManyTargets,
}

/// An immutable map from targets to their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    nodes: u16,
    /// The target ids in ascending order.
    targets: Box<[u64]>,
    /// The codes of the places of these ids.
    codes: Box<[u16]>,
    /// The start of each bucket in `targets`, and the end of the last bucket.
    buckets: Box<[u32]>,
    /// The number of bits by which an id is shifted to get its bucket.
    shift: u32,
    core: usize,
    repeated: usize,
}

impl RouteTable {
    /// Creates a table for `nodes` nodes, numbered from 0.
    ///
    /// If a target occurs more than once, its first place counts, and the others are counted in
    /// [`RouteTable::repeated`]. Two keys with the same hash are such a case: the second is placed with the first,
    /// which costs locality but not correctness.
    ///
    /// # Errors
    /// `nodes` is out of range, an owner is not one of the nodes, or there are too many targets.
    pub fn new(
        nodes: u16,
        places: impl IntoIterator<Item = (TargetId, Place)>,
    ) -> Result<Self, RouteTableError> {
        if !(1..=ROUTE_NODES_MAX).contains(&nodes) {
            return Err(RouteTableError::Nodes(nodes));
        }
        let mut rows: Vec<(u64, u16)> = Vec::new();
        for (target, place) in places {
            match place {
                Place::Node(node) if node >= nodes => {
                    return Err(RouteTableError::NoSuchNode { target, node, nodes });
                }
                _ if rows.len() == ROUTE_TARGETS_MAX => return Err(RouteTableError::TooManyTargets),
                _ => rows.push((target.0, place.code())),
            }
        }
        let named = rows.len();
        // The sort is stable: of equal ids the first one in the input stays first and is kept.
        rows.sort_by_key(|&(target, _)| target);
        rows.dedup_by_key(|&mut (target, _)| target);
        let bits = (rows.len() / 2).max(2).ilog2();
        let shift = u64::BITS - bits;
        let mut buckets = vec![0_u32; (1 << bits) + 1];
        for &(target, _) in &rows {
            buckets[(target >> shift) as usize + 1] += 1;
        }
        let mut begin = 0;
        for bucket in &mut buckets {
            begin += *bucket;
            *bucket = begin;
        }
        Ok(Self {
            nodes,
            core: rows.iter().filter(|&&(_, code)| code == CORE).count(),
            repeated: named - rows.len(),
            targets: rows.iter().map(|&(target, _)| target).collect(),
            codes: rows.iter().map(|&(_, code)| code).collect(),
            buckets: buckets.into_boxed_slice(),
            shift,
        })
    }

    /// Returns the place of a target; `None` if the table does not contain it, so that it is served where it
    /// arrives.
    pub fn get(&self, target: TargetId) -> Option<Place> {
        let bucket = (target.0 >> self.shift) as usize;
        let (begin, end) = (self.buckets[bucket] as usize, self.buckets[bucket + 1] as usize);
        let at = self.targets[begin..end].binary_search(&target.0).ok()?;
        Some(Place::of_code(self.codes[begin + at]))
    }

    /// Returns a function from targets to places in which an owner is given by its position in `numbers`. The
    /// function returns `None` if the table does not contain the target or the owner is not in `numbers`. O(nodes),
    /// and then as [`RouteTable::get`].
    pub fn among(&self, numbers: &[u16]) -> impl Fn(TargetId) -> Option<Place> + '_ {
        let mut places = vec![None; usize::from(self.nodes)];
        for (place, number) in (0..).zip(numbers) {
            if let Some(owner) = places.get_mut(usize::from(*number)) {
                *owner = Some(Place::Node(place));
            }
        }
        move |target| match self.get(target)? {
            Place::Core => Some(Place::Core),
            Place::Node(owner) => places.get(usize::from(owner)).copied().flatten(),
        }
    }

    /// Returns the number of nodes of the table.
    pub const fn nodes(&self) -> u16 {
        self.nodes
    }

    /// Returns the number of targets in the table.
    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns whether the table is empty.
    pub const fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the number of targets in the core.
    pub const fn core_len(&self) -> usize {
        self.core
    }

    /// Returns the number of places that were ignored because their target had one already.
    pub const fn repeated(&self) -> usize {
        self.repeated
    }

    /// Returns every target and its place, in the order of the ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (TargetId, Place)> + '_ {
        self.rows(0, self.len())
    }

    /// Returns up to `count` targets and places, from the one at index `from`. O(count).
    pub fn rows(&self, from: usize, count: usize) -> impl ExactSizeIterator<Item = (TargetId, Place)> + '_ {
        let begin = from.min(self.len());
        let end = begin.saturating_add(count).min(self.len());
        let rows = self.targets[begin..end].iter().zip(&self.codes[begin..end]);
        rows.map(|(&target, &code)| (TargetId(target), Place::of_code(code)))
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    use super::*;

    fn place(code: u16) -> Place {
        if code == 0 { Place::Core } else { Place::Node(code - 1) }
    }

    proptest! {
        #[test]
        fn table_agrees_with_a_map(
            rows in prop::collection::vec((0_u64..300, 0_u16..9), 0..200),
            spread in any::<bool>(),
        ) {
            // Half of the runs use nearby ids, which fall into one bucket.
            let id = |n: u64| if spread { TargetId::of(&n.to_be_bytes()) } else { TargetId(n) };
            let mut expected = BTreeMap::new();
            for &(n, code) in &rows {
                expected.entry(id(n)).or_insert(place(code));
            }
            let table = RouteTable::new(8, rows.iter().map(|&(n, code)| (id(n), place(code))))
                .expect("places within the nodes");
            for n in 0..310 {
                prop_assert_eq!(table.get(id(n)), expected.get(&id(n)).copied());
            }
            prop_assert_eq!(table.len(), expected.len());
            prop_assert_eq!(table.is_empty(), expected.is_empty());
            prop_assert_eq!(table.repeated(), rows.len() - expected.len());
            prop_assert_eq!(table.core_len(), expected.values().filter(|&&p| p == Place::Core).count());
            prop_assert!(table.rows(rows.len() / 2, 3).eq(table.iter().skip(rows.len() / 2).take(3)));
            prop_assert!(table.iter().eq(expected));
        }
    }

    #[test]
    fn the_lowest_and_the_highest_id_are_found() {
        for n in [1, 3, 1_000] {
            let step = u64::MAX / n;
            let ids = (0..=n).map(|i| TargetId(if i == n { u64::MAX } else { i * step }));
            let table = RouteTable::new(1, ids.clone().map(|id| (id, Place::Node(0)))).expect("one node");
            assert!(ids.into_iter().all(|id| table.get(id) == Some(Place::Node(0))));
            assert_eq!(table.get(TargetId(1)), None);
        }
    }

    #[test]
    fn owner_outside_the_nodes_is_refused() {
        let target = TargetId(7);
        let table = |nodes, place| RouteTable::new(nodes, [(target, place)]).map(|table| table.len());
        assert_eq!(table(2, Place::Node(1)), Ok(1));
        assert_eq!(table(2, Place::Node(2)), Err(RouteTableError::NoSuchNode { target, node: 2, nodes: 2 }));
        assert_eq!(table(0, Place::Core), Err(RouteTableError::Nodes(0)));
        assert_eq!(table(u16::MAX, Place::Core), Err(RouteTableError::Nodes(u16::MAX)));
        assert_eq!(table(ROUTE_NODES_MAX, Place::Node(ROUTE_NODES_MAX - 1)), Ok(1));
    }

    #[test]
    fn a_target_takes_at_most_twelve_bytes() {
        for n in [2_000_u64, 4_096, 5_000, 8_191] {
            let places = (0..n).map(|i| (TargetId::of(&i.to_be_bytes()), Place::Core));
            let table = RouteTable::new(4, places).expect("four nodes");
            let bytes = 8 * table.targets.len() + 2 * table.codes.len() + 4 * (table.buckets.len() - 1);
            assert!(bytes as u64 <= 12 * n, "{n} targets: {bytes} bytes");
        }
    }

    #[test]
    fn among_translates_owners_to_positions() {
        let places = [(1, Place::Core), (2, Place::Node(1)), (3, Place::Node(2)), (4, Place::Node(3))];
        let places = places.map(|(target, place)| (TargetId(target), place));
        let table = RouteTable::new(4, places).expect("owners are in range");
        let among = table.among(&[3, 1, 9]);
        let found: Vec<_> = (1..6).map(|target| among(TargetId(target))).collect();
        let expected = [Some(Place::Core), Some(Place::Node(1)), None, Some(Place::Node(0)), None];
        assert_eq!(found, expected);
    }
}
