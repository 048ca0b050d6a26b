//! The replay of recorded decisions and changes.

use crate::dispatch::{Arrival, Cause, Change, Dispatcher, Request};
use crate::id::NodeId;
use crate::read_log::{ReadLog, ReadLogEntry, ReplayFault, SequenceVisit};
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::vec::Vec;

/// The reason why a recorded decision or change cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayStepError {
    /// The read log does not match.
    #[error(transparent)]
    ReadLog(#[from] ReplayFault),
    /// A change concerns a node that does not exist, has no effect, or is a join that is impossible.
    #[error("the change has no effect")]
    NoChange,
}

impl Dispatcher {
    /// Replays a recorded decision. Returns its outcome, and the visits to sequences in order. The visits must be
    /// this dispatcher's next ones; see [`SequenceVisit`]. The request is not counted as load, so it must not be
    /// ended.
    ///
    /// # Errors
    /// The read log does not match the decision. The dispatcher's state is then invalid.
    pub fn replay_decision(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        read_log: Vec<ReadLogEntry>,
    ) -> Result<(Arrival, Vec<SequenceVisit>), ReplayStepError> {
        let read_log = ReadLog::new_replay(read_log);
        let outcome = self.decide_with(at, cause, request, ReadSource::logged(&read_log));
        Ok((outcome, read_log.finish_replay()?))
    }

    /// Replays a recorded change. Returns the node that changed, and the visits to sequences in order.
    ///
    /// # Errors
    /// The read log does not match, or nothing changes. The dispatcher's state is then invalid.
    pub fn replay_change(
        &self,
        at: Time,
        change: &Change,
        read_log: Vec<ReadLogEntry>,
    ) -> Result<(NodeId, Vec<SequenceVisit>), ReplayStepError> {
        let read_log = ReadLog::new_replay(read_log);
        let node = self.apply(at, change, ReadSource::logged(&read_log));
        let visits = read_log.finish_replay()?;
        Ok((node.ok_or(ReplayStepError::NoChange)?, visits))
    }
}
