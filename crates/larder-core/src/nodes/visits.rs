//! Visits to state behind a lock, in their order.

use crate::tape::Lane;

/// The count of recorded visits to state behind a lock. It lies behind the same lock; see
/// [`Sight::visit`](super::Sight::visit).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visits {
    pub(super) lane: Lane,
    pub(super) count: u64,
}

impl Visits {
    /// Visits to a shard of the target map.
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 4,096 shards")]
    pub(crate) const fn to_shard(index: usize) -> Self {
        Self { lane: Lane::Shard(index as u16), count: 0 }
    }

    /// Visits to the joining nodes.
    pub(super) const fn to_joiners() -> Self {
        Self { lane: Lane::Joiners, count: 0 }
    }
}

/// Visits to the state of a policy that has one lock.
impl Default for Visits {
    fn default() -> Self {
        Self { lane: Lane::Own(0), count: 0 }
    }
}
