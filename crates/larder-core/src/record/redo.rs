//! Recorded decisions and changes, made anew.

use crate::dispatch::{Arrival, Cause, Change, Dispatcher, Request};
use crate::id::NodeId;
use crate::read_log::{ReadLog, ReadLogEntry, ReplayFault, SequenceVisit};
use crate::read_source::ReadSource;
use crate::time::Time;

/// The reason why a recorded decision cannot be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedoError {
    /// The tape does not fit.
    #[error(transparent)]
    ReadLog(#[from] ReplayFault),
    /// A change names a node that is not there, or repeats what is so already, or a join is impossible.
    #[error("the change has no effect")]
    NoChange,
}

impl Dispatcher {
    /// Makes a recorded decision anew. Gives what comes of it, and the lanes it visited in their order. The visits
    /// must be this dispatcher's next: see [`SequenceVisit`]. The request is counted nowhere, so that none is to be ended.
    ///
    /// # Errors
    /// The tape does not fit the decision; what the dispatcher remembers is void then.
    pub fn redecide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        read_log: Vec<ReadLogEntry>,
    ) -> Result<(Arrival, Vec<SequenceVisit>), RedoError> {
        let read_log = ReadLog::new_replay(read_log);
        let outcome = self.decision(at, cause, request, ReadSource::logged(&read_log));
        Ok((outcome, read_log.finish_replay()?))
    }

    /// Makes a recorded change anew; gives the node that changed, and the lanes visited in their order.
    ///
    /// # Errors
    /// The tape does not fit, or nothing changes; what the dispatcher remembers is void then.
    pub fn rechange(
        &self,
        at: Time,
        change: &Change,
        read_log: Vec<ReadLogEntry>,
    ) -> Result<(NodeId, Vec<SequenceVisit>), RedoError> {
        let read_log = ReadLog::new_replay(read_log);
        let node = self.apply(at, change, ReadSource::logged(&read_log));
        let visits = read_log.finish_replay()?;
        Ok((node.ok_or(RedoError::NoChange)?, visits))
    }
}
