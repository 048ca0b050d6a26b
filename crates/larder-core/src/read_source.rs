//! The source of the values that a decision reads. It is the one input through which a decision can be recorded and
//! replayed.
//!
//! A decision depends on its request, its time, the membership, state behind locks, and values that other threads
//! change at any moment (loads, turns, learned values). The values of the last kind, and the order in which a
//! decision reached each lock, are known only while the decision runs. Each decision therefore gets a source, which
//! returns these values, live or from a record, and is told of each visit to a lock.
//!
//! The dispatcher and the policies know only this type of recording. The dispatcher gets a source for each decision
//! and passes it to [`ClusterView`](crate::nodes::ClusterView), through which policies read.

use crate::read_log::ReadLog;

/// The source of the values that one decision or one change reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSource<'a>(Option<&'a ReadLog>);

impl<'a> ReadSource<'a> {
    /// The source that reads current values and records nothing.
    pub(crate) const LIVE: Self = Self(None);

    /// Creates a source that records values in `read_log`, or replays them from it.
    pub(crate) const fn logged(read_log: &'a ReadLog) -> Self {
        Self(Some(read_log))
    }

    /// Returns whether values are read live and nothing is recorded.
    #[inline]
    pub(crate) const fn is_live(self) -> bool {
        self.0.is_none()
    }

    /// Returns whether values are replayed. Requests must not be counted then.
    #[inline]
    pub(crate) fn is_replayed(self) -> bool {
        self.0.is_some_and(ReadLog::is_replaying)
    }

    /// Returns the read log, if there is one. For the node table, which reads live if there is none.
    #[inline]
    pub(crate) const fn read_log(self) -> Option<&'a ReadLog> {
        self.0
    }
}
