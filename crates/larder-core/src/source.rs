//! The source of what a decision reads: the one input through which it can be recorded and made anew.
//!
//! A decision depends on its request, its time, on state that only changes of the membership touch, on state behind locks,
//! and on values that other threads change at any moment (loads, turns, what was learned). The last two cannot be taken out
//! of it: which values it saw, and in which order it came to each lock, is known only while it runs. So each decision is
//! given a source. It hands out these values, live or as they were recorded, and is told of each visit to a lock. The
//! dispatcher and the policies know no more of recording than this type: the dispatcher gets one for each decision and
//! passes it to [`Sight`](crate::nodes::Sight), through which policies read.

use crate::tape::Tape;

/// The source of the values that one decision, or one change, reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a>(Option<&'a Tape>);

impl<'a> Source<'a> {
    /// Values are read as they are now; nothing is noted.
    pub(crate) const LIVE: Self = Self(None);

    /// Values are recorded on the tape, or played from it.
    pub(crate) const fn through(tape: &'a Tape) -> Self {
        Self(Some(tape))
    }

    /// Whether values are read as they are now and nothing is noted.
    #[inline]
    pub(crate) const fn is_live(self) -> bool {
        self.0.is_none()
    }

    /// Whether values are played, so that a request that is counted live must not be counted.
    #[inline]
    pub(crate) fn is_played(self) -> bool {
        self.0.is_some_and(Tape::is_playing)
    }

    /// The tape, if there is one. For the node table, which reads live where there is none.
    #[inline]
    pub(crate) const fn tape(self) -> Option<&'a Tape> {
        self.0
    }
}
