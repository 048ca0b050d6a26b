//! A decision's tape: what it read that other threads change, and where it stood in the order of what is locked.
//!
//! A decision depends on the request, the time, state that only changes of membership touch, state behind a lock,
//! and values that other threads may change at any moment (loads, turns). With the last written down, and the order
//! of the visits to each lock, the same code comes to the same decision again, alone and later. A [`Tape`] is handed
//! to the policy in its [`Sight`](crate::nodes::Sight); the policy does not know whether it is recorded, played or
//! absent.
//!
//! When a tape is played, state behind locks is the player's own: a [`Entry::Visit`] says only which visit it is, and
//! the tape [faults](Fault) if the player's own count differs. Values are never invented: a tape that runs short, or
//! says something else than what is asked for, faults and yields zeros from there on, and the decision is void.

use crate::id::RouteId;
use core::cell::RefCell;

/// A value that other threads change without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// A node's requests in flight (low 32 bits) and whether it is joining (bit 32).
    Load,
    /// The least key of a block of nodes, 48 bits.
    Minimum,
    /// The requests outstanding at all nodes.
    Outstanding,
    /// A turn counter before it is passed on.
    Turn,
    /// What the admission gate answered: 0 enters, 1 full, 2 + ticket waits.
    Gate,
    /// What a policy has learned from requests that ended, as it counts at the time of the decision.
    Learned,
}

impl Read {
    /// Every kind, in the order of [`Read::code`].
    pub const ALL: [Self; 6] =
        [Self::Load, Self::Minimum, Self::Outstanding, Self::Turn, Self::Gate, Self::Learned];

    /// The number that stands for this kind in a record.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// State whose visits have an order: it is behind a lock, or one atomic counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A shard of the target map.
    Shard(u16),
    /// A turn counter; the order is its value.
    Turn,
    /// The counter of lots drawn; the order is its value.
    Lots,
    /// The joining nodes and their share of new targets.
    Joiners,
    /// A policy's own state behind one lock; the number tells several apart.
    Own(u16),
}

impl core::fmt::Display for Lane {
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

/// A lane of one route: each route's policy has lanes of its own. The joining nodes, which all share, are on the default
/// route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Track {
    /// The route.
    pub route: RouteId,
    /// The lane.
    pub lane: Lane,
}

impl core::fmt::Display for Track {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.route != RouteId::DEFAULT {
            write!(f, "route{}.", self.route.0)?;
        }
        write!(f, "{}", self.lane)
    }
}

/// One thing on a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A value was read.
    Read(Read, u64),
    /// A lane was visited; its place in the lane's order.
    Visit(Track, u64),
}

/// A lane visited while a tape was played. A decision can be made anew once every lane it visits has come to the
/// place that its tape names: lanes begin at 0 and go from `at` to `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The lane.
    pub track: Track,
    /// Its place, by the player's own count.
    pub at: u64,
    /// The place it has come to.
    pub next: u64,
}

/// Why a tape cannot be played to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// More is read than the tape holds.
    #[error("the tape runs short after {0} entries")]
    Short(usize),
    /// Something else is read than the tape holds.
    #[error("entry {at} of the tape is {found:?} where a {wanted} is read")]
    Kind {
        /// The entry, counted from 0.
        at: usize,
        /// What the tape holds.
        found: Entry,
        /// What is read.
        wanted: &'static str,
    },
    /// A lane is visited out of its order.
    #[error("entry {at} of the tape is visit {recorded} to {track}, which is at {own}")]
    Order {
        /// The entry, counted from 0.
        at: usize,
        /// The lane.
        track: Track,
        /// Its place by the tape.
        recorded: u64,
        /// Its place by the player's own count.
        own: u64,
    },
    /// Less is read than the tape holds.
    #[error("the tape has {0} entries that nothing reads")]
    Left(usize),
}

/// The tape of one decision.
#[derive(Debug)]
pub struct Tape(RefCell<Reel>);

#[derive(Debug)]
struct Reel {
    entries: Vec<Entry>,
    /// The next entry to play; `None` while recording.
    at: Option<usize>,
    fault: Option<Fault>,
    /// Lanes visited while playing.
    visited: Vec<Visit>,
}

impl Tape {
    /// An empty tape to record on.
    pub fn blank() -> Self {
        Self(RefCell::new(Reel { entries: Vec::new(), at: None, fault: None, visited: Vec::new() }))
    }

    /// A recorded tape to play.
    pub fn recorded(entries: Vec<Entry>) -> Self {
        Self(RefCell::new(Reel { entries, at: Some(0), fault: None, visited: Vec::new() }))
    }

    /// Whether the tape is played, so that what is counted live must not be counted.
    pub fn is_playing(&self) -> bool {
        self.0.borrow().at.is_some()
    }

    /// What was recorded.
    pub fn into_entries(self) -> Vec<Entry> {
        self.0.into_inner().entries
    }

    /// Ends playing: the lanes visited, in order.
    ///
    /// # Errors
    /// What went wrong first, or that something is left on the tape.
    pub fn played(self) -> Result<Vec<Visit>, Fault> {
        let reel = self.0.into_inner();
        let left = reel.entries.len() - reel.at.unwrap_or(reel.entries.len()).min(reel.entries.len());
        match reel.fault {
            Some(fault) => Err(fault),
            None if left > 0 => Err(Fault::Left(left)),
            None => Ok(reel.visited),
        }
    }

    /// A value that other threads change: read `live` and recorded, or played.
    #[cold]
    pub(crate) fn read(&self, kind: Read, live: impl FnOnce() -> u64) -> u64 {
        let mut reel = self.0.borrow_mut();
        let Some(at) = reel.at else {
            let value = live();
            reel.entries.push(Entry::Read(kind, value));
            return value;
        };
        match reel.next(at) {
            Some(Entry::Read(found, value)) if found == kind => value,
            Some(found) => reel.fail(Fault::Kind { at, found, wanted: kind.name() }),
            None => 0,
        }
    }

    /// A lane is visited that is at `own`, and will be at `next`.
    #[cold]
    pub(crate) fn visit(&self, track: Track, own: u64, next: u64) {
        let mut reel = self.0.borrow_mut();
        let Some(at) = reel.at else {
            reel.entries.push(Entry::Visit(track, own));
            return;
        };
        match reel.next(at) {
            Some(Entry::Visit(found, recorded)) if found == track => {
                reel.visited.push(Visit { track, at: own, next });
                if recorded != own {
                    reel.fail(Fault::Order { at, track, recorded, own });
                }
            }
            Some(found) => {
                reel.fail(Fault::Kind { at, found, wanted: "visit" });
            }
            None => {}
        }
    }
}

impl Reel {
    /// The entry at `at`, passed over; `None` after a fault.
    fn next(&mut self, at: usize) -> Option<Entry> {
        if self.fault.is_some() {
            return None;
        }
        self.at = Some(at + 1);
        let entry = self.entries.get(at).copied();
        if entry.is_none() {
            self.fail(Fault::Short(at));
        }
        entry
    }

    fn fail(&mut self, fault: Fault) -> u64 {
        self.fault.get_or_insert(fault);
        0
    }
}

impl Read {
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

    const SHARD: Track = Track { route: RouteId(2), lane: Lane::Shard(3) };
    const TURN: Track = Track { route: RouteId::DEFAULT, lane: Lane::Turn };

    #[test]
    fn tracks_name_their_route() {
        assert_eq!((SHARD.to_string(), TURN.to_string()), ("route2.shard3".to_owned(), "turn".to_owned()));
    }

    fn played(entries: &[Entry], play: impl Fn(&Tape)) -> Result<Vec<Visit>, Fault> {
        let tape = Tape::recorded(entries.to_vec());
        play(&tape);
        tape.played()
    }

    #[test]
    fn what_was_read_is_played_back() {
        let script = |tape: &Tape, value: u64| {
            tape.visit(SHARD, 7, 8);
            tape.read(Read::Load, || value)
        };
        let tape = Tape::blank();
        assert_eq!(script(&tape, 42), 42);
        let entries = tape.into_entries();
        assert_eq!(entries, [Entry::Visit(SHARD, 7), Entry::Read(Read::Load, 42)]);
        let tape = Tape::recorded(entries);
        assert_eq!(script(&tape, 0), 42, "the live value is not looked at");
        assert_eq!(tape.played(), Ok(vec![Visit { track: SHARD, at: 7, next: 8 }]));
    }

    #[test]
    fn a_tape_that_does_not_fit_faults_once_and_yields_zeros() {
        let load = Entry::Read(Read::Load, 5);
        let read = |kind| move |tape: &Tape| assert_eq!(tape.read(kind, || 9), 0);
        assert_eq!(played(&[], read(Read::Load)), Err(Fault::Short(0)));
        let wrong = Fault::Kind { at: 0, found: load, wanted: "turn" };
        assert_eq!(played(&[load], read(Read::Turn)), Err(wrong));
        assert_eq!(played(&[load], |_| {}), Err(Fault::Left(1)));
        let order = Fault::Order { at: 0, track: TURN, recorded: 4, own: 3 };
        let visit = |tape: &Tape| {
            tape.visit(TURN, 3, 4);
            assert_eq!(tape.read(Read::Load, || 9), 0, "nothing is played after a fault");
        };
        assert_eq!(played(&[Entry::Visit(TURN, 4), load], visit), Err(order));
    }

    #[test]
    fn codes_are_positions() {
        assert!(Read::ALL.iter().enumerate().all(|(at, kind)| usize::from(kind.code()) == at));
    }
}
