//! Recorded decisions and changes, made anew.

use crate::dispatch::{Arrival, Cause, Change, Dispatcher, Request};
use crate::id::NodeId;
use crate::source::Source;
use crate::tape::{Entry, Fault, Tape, Visit};
use crate::time::Time;

/// The reason why a recorded decision cannot be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedoError {
    /// The tape does not fit.
    #[error(transparent)]
    Tape(#[from] Fault),
    /// A change names a node that is not there, or repeats what is so already, or a join is impossible.
    #[error("the change has no effect")]
    NoChange,
}

impl Dispatcher {
    /// Makes a recorded decision anew. Gives what comes of it, and the lanes it visited in their order. The visits
    /// must be this dispatcher's next: see [`Visit`]. The request is counted nowhere, so that none is to be ended.
    ///
    /// # Errors
    /// The tape does not fit the decision; what the dispatcher remembers is void then.
    pub fn redecide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        tape: Vec<Entry>,
    ) -> Result<(Arrival, Vec<Visit>), RedoError> {
        let tape = Tape::recorded(tape);
        let outcome = self.decision(at, cause, request, Source::through(&tape));
        Ok((outcome, tape.played()?))
    }

    /// Makes a recorded change anew; gives the node that changed, and the lanes visited in their order.
    ///
    /// # Errors
    /// The tape does not fit, or nothing changes; what the dispatcher remembers is void then.
    pub fn rechange(
        &self,
        at: Time,
        change: &Change,
        tape: Vec<Entry>,
    ) -> Result<(NodeId, Vec<Visit>), RedoError> {
        let tape = Tape::recorded(tape);
        let node = self.apply(at, change, Source::through(&tape));
        let visits = tape.played()?;
        Ok((node.ok_or(RedoError::NoChange)?, visits))
    }
}
