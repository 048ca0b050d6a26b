//! Counters of recorded accesses to state behind a lock.

use crate::read_log::Sequence;

/// The number of recorded accesses to state behind a lock. The same lock protects the counter; see
/// [`ClusterView::record_visit`](super::ClusterView::record_visit).
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisitCounter {
    pub(super) sequence: Sequence,
    pub(super) count: u64,
}

impl VisitCounter {
    /// Creates a counter of accesses to a shard of the target map.
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 4,096 shards")]
    pub(crate) const fn to_shard(index: usize) -> Self {
        Self { sequence: Sequence::Shard(index as u16), count: 0 }
    }

    /// Creates a counter of accesses to the joining nodes.
    pub(super) const fn to_joiners() -> Self {
        Self { sequence: Sequence::Joiners, count: 0 }
    }
}

/// Creates a counter of accesses to the state of a policy that has one lock.
impl Default for VisitCounter {
    fn default() -> Self {
        Self { sequence: Sequence::Own(0), count: 0 }
    }
}
