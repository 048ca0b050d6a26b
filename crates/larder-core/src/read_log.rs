//! The read log of a decision: the values it read that other threads change, and its place in the order of each
//! lock.
//!
//! A decision depends on the request, the time, the membership, state behind locks, and values that other threads
//! may change at any moment (loads, turns). If the values and the order of the visits to each lock are logged, the
//! same code makes the same decision again, alone and later. The policy reads through its
//! `ClusterView`. It does not know whether the log is recorded, replayed or absent.
//!
//! During a replay, state behind locks is the replaying dispatcher's own. A [`ReadLogEntry::Visit`] states only the
//! number of the visit. If the dispatcher's own count differs, the replay fails with a [`ReplayFault`]. Values are
//! never invented: if the log ends early or contains another kind of entry, the replay fails. All later reads return
//! zero, and the decision is invalid.
//!
//! A decision visits a sequence at most once. Between two visits another decision could visit it, and decisions are
//! replayed one after another.

use crate::id::RouteId;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The kind of a value that other threads change without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadKind {
    /// A node's requests in flight (low 32 bits) and whether it is joining (bit 32).
    Load,
    /// The lowest key of a block of nodes, 48 bits.
    Minimum,
    /// The number of requests outstanding at all nodes.
    Outstanding,
    /// A turn counter before it advances.
    Turn,
    /// The answer of the admission queue: 0 admitted, 1 full, 2 + ticket queued.
    Gate,
    /// A value that a policy has learned from ended requests, as of the time of the decision.
    Learned,
}

impl ReadKind {
    /// All kinds, in the order of [`ReadKind::code`].
    pub const ALL: [Self; 6] =
        [Self::Load, Self::Minimum, Self::Outstanding, Self::Turn, Self::Gate, Self::Learned];

    /// Returns the code of this kind in a record.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// State whose visits have an order: it is behind a lock, or it is one atomic counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sequence {
    /// A shard of the target map.
    Shard(u16),
    /// A turn counter; its value is the order.
    Turn,
    /// The counter of random draws; its value is the order.
    Lots,
    /// The joining nodes and their share of new targets.
    Joiners,
    /// A policy's own state behind one lock. The number distinguishes several locks.
    Own(u16),
}

impl core::fmt::Display for Sequence {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Shard(index) => write!(f, "shard{index}"),
            Self::Turn => f.write_str("turn"),
            Self::Lots => f.write_str("lots"),
            Self::Joiners => f.write_str("joiners"),
            Self::Own(index) => write!(f, "own{index}"),
        }
    }
}

/// A sequence of one route; each route's policy has its own sequences. The joining nodes, which all routes share,
/// belong to the default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteSequence {
    /// The route.
    pub route: RouteId,
    /// The sequence.
    pub sequence: Sequence,
}

impl core::fmt::Display for RouteSequence {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.route != RouteId::DEFAULT {
            write!(f, "route{}.", self.route.0)?;
        }
        write!(f, "{}", self.sequence)
    }
}

/// One entry of a read log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLogEntry {
    /// A value was read.
    Read(ReadKind, u64),
    /// A sequence was visited at this position of its order.
    Visit(RouteSequence, u64),
}

/// A visit to a sequence during a replay. A sequence begins at position 0, and this visit moves it from `at` to
/// `next`. A decision can be replayed once every sequence it visits has reached the position in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceVisit {
    /// The sequence.
    pub track: RouteSequence,
    /// The position before the visit, by the replaying dispatcher's count.
    pub at: u64,
    /// The position after the visit.
    pub next: u64,
}

/// The reason why a read log cannot be replayed completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayFault {
    /// The decision reads more than the log contains.
    #[error("the tape runs short after {0} entries")]
    Short(usize),
    /// The decision reads another kind of value than the log contains.
    #[error("entry {at} of the tape is {found:?} where a {wanted} is read")]
    Kind {
        /// The index of the entry, from 0.
        at: usize,
        /// The logged entry.
        found: ReadLogEntry,
        /// The kind of value that the decision reads.
        wanted: &'static str,
    },
    /// A sequence is visited out of its order.
    #[error("entry {at} of the tape is visit {recorded} to {track}, which is at {own}")]
    Order {
        /// The index of the entry, from 0.
        at: usize,
        /// The sequence.
        track: RouteSequence,
        /// The logged position.
        recorded: u64,
        /// The position by the replaying dispatcher's count.
        own: u64,
    },
    /// The decision reads less than the log contains.
    #[error("the tape has {0} entries that nothing reads")]
    Left(usize),
}

/// The read log of one decision.
#[derive(Debug)]
pub(crate) struct ReadLog(RefCell<ReadLogState>);

#[derive(Debug)]
struct ReadLogState {
    entries: Vec<ReadLogEntry>,
    /// The index of the next entry to replay; `None` while recording.
    at: Option<usize>,
    fault: Option<ReplayFault>,
    /// The sequences visited during the replay.
    visited: Vec<SequenceVisit>,
}

impl ReadLog {
    /// Creates an empty log for recording.
    pub(crate) fn new_recording() -> Self {
        Self(RefCell::new(ReadLogState { entries: Vec::new(), at: None, fault: None, visited: Vec::new() }))
    }

    /// Creates a log that replays recorded entries.
    pub(crate) fn new_replay(entries: Vec<ReadLogEntry>) -> Self {
        Self(RefCell::new(ReadLogState { entries, at: Some(0), fault: None, visited: Vec::new() }))
    }

    /// Returns whether the log is replayed. Requests must not be counted then.
    pub(crate) fn is_replaying(&self) -> bool {
        self.0.borrow().at.is_some()
    }

    /// Returns the recorded entries.
    pub(crate) fn into_entries(self) -> Vec<ReadLogEntry> {
        self.0.into_inner().entries
    }

    /// Ends a replay and returns the visits in order.
    ///
    /// # Errors
    /// The first fault, or the number of entries that were not read.
    pub(crate) fn finish_replay(self) -> Result<Vec<SequenceVisit>, ReplayFault> {
        let state = self.0.into_inner();
        let left = state.entries.len() - state.at.unwrap_or(state.entries.len()).min(state.entries.len());
        match state.fault {
            Some(fault) => Err(fault),
            None if left > 0 => Err(ReplayFault::Left(left)),
            None => Ok(state.visited),
        }
    }

    /// Reads a value that other threads change: calls `live` and logs the result, or returns the logged value.
    #[cold]
    pub(crate) fn read(&self, kind: ReadKind, live: impl FnOnce() -> u64) -> u64 {
        let mut state = self.0.borrow_mut();
        let Some(at) = state.at else {
            let value = live();
            state.entries.push(ReadLogEntry::Read(kind, value));
            return value;
        };
        match state.next(at) {
            Some(ReadLogEntry::Read(found, value)) if found == kind => value,
            Some(found) => state.fail(ReplayFault::Kind { at, found, wanted: kind.name() }),
            None => 0,
        }
    }

    /// Logs or checks a visit to a sequence that is at position `own` and moves to `next`.
    #[cold]
    pub(crate) fn visit(&self, track: RouteSequence, own: u64, next: u64) {
        let mut state = self.0.borrow_mut();
        let Some(at) = state.at else {
            debug_assert!(
                !state
                    .entries
                    .iter()
                    .any(|entry| matches!(entry, ReadLogEntry::Visit(earlier, _) if *earlier == track)),
                "a second visit to {track} in one decision cannot be replayed"
            );
            state.entries.push(ReadLogEntry::Visit(track, own));
            return;
        };
        match state.next(at) {
            Some(ReadLogEntry::Visit(found, recorded)) if found == track => {
                state.visited.push(SequenceVisit { track, at: own, next });
                if recorded != own {
                    state.fail(ReplayFault::Order { at, track, recorded, own });
                }
            }
            Some(found) => {
                state.fail(ReplayFault::Kind { at, found, wanted: "visit" });
            }
            None => {}
        }
    }
}

impl ReadLogState {
    /// Returns the entry at `at` and advances; `None` after a fault.
    fn next(&mut self, at: usize) -> Option<ReadLogEntry> {
        if self.fault.is_some() {
            return None;
        }
        self.at = Some(at + 1);
        let entry = self.entries.get(at).copied();
        if entry.is_none() {
            self.fail(ReplayFault::Short(at));
        }
        entry
    }

    fn fail(&mut self, fault: ReplayFault) -> u64 {
        self.fault.get_or_insert(fault);
        0
    }
}

impl ReadKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Minimum => "minimum",
            Self::Outstanding => "count of outstanding requests",
            Self::Turn => "turn",
            Self::Gate => "gate's answer",
            Self::Learned => "thing learned",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: RouteSequence = RouteSequence { route: RouteId(2), sequence: Sequence::Shard(3) };
    const TURN: RouteSequence = RouteSequence { route: RouteId::DEFAULT, sequence: Sequence::Turn };

    #[test]
    fn display_names_the_route() {
        assert_eq!((SHARD.to_string(), TURN.to_string()), ("route2.shard3".to_owned(), "turn".to_owned()));
    }

    fn finish_replay(
        entries: &[ReadLogEntry],
        play: impl Fn(&ReadLog),
    ) -> Result<Vec<SequenceVisit>, ReplayFault> {
        let read_log = ReadLog::new_replay(entries.to_vec());
        play(&read_log);
        read_log.finish_replay()
    }

    #[test]
    fn replay_returns_recorded_values() {
        let script = |read_log: &ReadLog, value: u64| {
            read_log.visit(SHARD, 7, 8);
            read_log.read(ReadKind::Load, || value)
        };
        let read_log = ReadLog::new_recording();
        assert_eq!(script(&read_log, 42), 42);
        let entries = read_log.into_entries();
        assert_eq!(entries, [ReadLogEntry::Visit(SHARD, 7), ReadLogEntry::Read(ReadKind::Load, 42)]);
        let read_log = ReadLog::new_replay(entries);
        assert_eq!(script(&read_log, 0), 42, "the live value is not looked at");
        assert_eq!(read_log.finish_replay(), Ok(vec![SequenceVisit { track: SHARD, at: 7, next: 8 }]));
    }

    #[test]
    fn mismatched_log_faults_once_and_reads_zeros() {
        let load = ReadLogEntry::Read(ReadKind::Load, 5);
        let read = |kind| move |read_log: &ReadLog| assert_eq!(read_log.read(kind, || 9), 0);
        assert_eq!(finish_replay(&[], read(ReadKind::Load)), Err(ReplayFault::Short(0)));
        let wrong = ReplayFault::Kind { at: 0, found: load, wanted: "turn" };
        assert_eq!(finish_replay(&[load], read(ReadKind::Turn)), Err(wrong));
        assert_eq!(finish_replay(&[load], |_| {}), Err(ReplayFault::Left(1)));
        let order = ReplayFault::Order { at: 0, track: TURN, recorded: 4, own: 3 };
        let visit = |read_log: &ReadLog| {
            read_log.visit(TURN, 3, 4);
            assert_eq!(read_log.read(ReadKind::Load, || 9), 0, "nothing is played after a fault");
        };
        assert_eq!(finish_replay(&[ReadLogEntry::Visit(TURN, 4), load], visit), Err(order));
    }

    #[test]
    fn codes_are_positions() {
        assert!(ReadKind::ALL.iter().enumerate().all(|(at, kind)| usize::from(kind.code()) == at));
    }
}
