//! Replay: a recorded live run, decided anew.
//!
//! A record ([`larder_core::record`]) holds what a switch's dispatcher was told and what its decisions read. The
//! replay gives the same settings and nodes to a dispatcher of its own, the one the simulator uses, and lets it make
//! every decision again, on one thread: membership changes in their order, and between two changes the decisions in
//! the order in which they visited what is behind a lock (the shards of the target map, the turn, the lots, the
//! joining nodes). Each decision becomes a line of the decision log ([`larder_core::record::decided_line`]), once as
//! the record says it was made live and once as it is made here; the two logs must be equal byte for byte.
//!
//! **What equality proves.** That the live switch and the simulator decide alike: same code, same state, no decision
//! that hangs on something neither recorded nor derived (a clock, a hash order, a thread's number, a forgotten race).
//! Target maps, server sets, evictions from the map, turns, lots, weights, closed nodes, join shares and reasons
//! are all derived here; a single one that went astray would show in every later decision of its target.
//!
//! **What it does not prove.** Values that other threads change without a lock come from the record: loads, the count
//! of outstanding requests, the turn as it was read, and whether the gate let a request in. That they were right when
//! they were read is for the tests of those counters to show. Times and targets are inputs.
//!
//! A record may be cut, damaged or forged: every such record ends in a [`ReplayError`] that names the frame.

mod error;
mod frames;
mod order;

pub use error::{ReplayError, Trouble};

use frames::Frames;
use larder_core::record::{Changed, Decided, End, Frame, changed_line, decided_line, first_visit};
use larder_core::{Dispatcher, Settings};
use order::Order;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;

/// Frames that may wait for one that comes before them in its lane. Live threads tell what they decided a moment
/// after they did, so that a few wait; more than this many mean that a frame is missing.
pub const WAITING_MAX: usize = 1 << 20;

/// One line of both logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The frame of the record, counted from 1.
    pub frame: u64,
    /// The line as the record says it was decided live, with its line feed.
    pub live: String,
    /// The line as it was decided here, with its line feed.
    pub replayed: String,
}

impl Row {
    /// Whether both were decided alike.
    pub fn agrees(&self) -> bool {
        self.live == self.replayed
    }
}

/// What a replay has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Decisions made anew.
    pub decisions: u64,
    /// Changes made anew.
    pub changes: u64,
    /// Lines that differ.
    pub differing: u64,
    /// Frames behind a gap that the recorder left where it could not follow; they are in neither log.
    pub left_out: u64,
    /// The most frames that waited for an earlier one.
    pub waited_max: usize,
    /// How the record ends; `None` before its end.
    pub end: Option<&'static str>,
}

/// A replay under way: an iterator over the lines of both logs, in the order of the record.
#[derive(Debug)]
pub struct Replay<R> {
    frames: Frames<R>,
    dispatcher: Dispatcher,
    generation: u64,
    order: Order,
    /// Decisions read and not made yet, by frame.
    waiting: BTreeMap<u64, Decided>,
    /// Lines in the order of the record from `next_row` on; `None` where the decision waits.
    rows: VecDeque<Option<Row>>,
    next_row: u64,
    ended: bool,
    summary: Summary,
}

impl<R: BufRead> Replay<R> {
    /// Reads the header and sets the dispatcher up.
    ///
    /// # Errors
    /// It is no record, of another version, or its settings make no sense.
    pub fn open(input: R) -> Result<Self, ReplayError> {
        Self::open_with(input, |_| {})
    }

    /// Like [`Replay::open`], with settings altered: how the same inputs would have been decided otherwise. Decisions
    /// that then read something else than the record holds end the replay.
    ///
    /// # Errors
    /// As [`Replay::open`].
    pub fn open_with(input: R, alter: impl FnOnce(&mut Settings)) -> Result<Self, ReplayError> {
        let (frames, mut header) = Frames::open(input)?;
        alter(&mut header.settings);
        let policy = header.settings.policy.to_string();
        let dispatcher = Dispatcher::with_routes(header.settings, header.routes, &header.nodes)?;
        Ok(Self {
            frames,
            dispatcher,
            generation: 0,
            order: Order::default(),
            waiting: BTreeMap::new(),
            rows: VecDeque::new(),
            next_row: 1,
            ended: false,
            summary: Summary { policy, ..Summary::default() },
        })
    }

    /// What was seen so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Reads one frame and makes what can be made with it.
    fn step(&mut self) -> Result<(), ReplayError> {
        let Some((number, frame)) = self.frames.next()? else {
            return self.frames.fail(Trouble::NoEnd);
        };
        match frame {
            Frame::Decided(decided) => self.take(number, decided),
            Frame::Changed(changed) => self.change(number, &changed),
            Frame::End(end, frames) => self.end(number, end, frames),
        }
    }

    fn take(&mut self, number: u64, decided: Decided) -> Result<(), ReplayError> {
        if decided.generation != self.generation {
            let (found, expected) = (decided.generation, self.generation);
            return self.frames.fail(Trouble::Generation { found, expected });
        }
        self.rows.push_back(None);
        if self.rows.len() > WAITING_MAX {
            return self.frames.fail(Trouble::TooManyWaiting(self.next_row));
        }
        if let Some((lane, place)) = self.order.missing(&decided.tape) {
            self.order.wait(lane, place, number).map_err(|trouble| self.frames.error(trouble))?;
            self.waiting.insert(number, decided);
            self.summary.waited_max = self.summary.waited_max.max(self.waiting.len());
            return Ok(());
        }
        let mut ready = vec![(number, decided)];
        while let Some((number, decided)) = ready.pop() {
            for number in self.decide(number, decided)? {
                // One that waited for this lane may wait for another one still.
                let Some(decided) = self.waiting.get(&number) else { continue };
                match self.order.missing(&decided.tape) {
                    Some((lane, place)) => {
                        self.order.wait(lane, place, number).map_err(|trouble| self.frames.error(trouble))?;
                    }
                    None => ready.extend(self.waiting.remove(&number).map(|decided| (number, decided))),
                }
            }
        }
        Ok(())
    }

    /// Makes a decision anew; gives the frames that have waited for it.
    fn decide(&mut self, number: u64, decided: Decided) -> Result<Vec<u64>, ReplayError> {
        let Decided { at, cause, request, tape, outcome, .. } = decided;
        let first = first_visit(&tape);
        let made = self.dispatcher.redecide(at, cause, &request, tape);
        let (again, visits) = made.map_err(|error| ReplayError::at(number, error))?;
        let (mut live, mut replayed) = (String::new(), String::new());
        decided_line(&mut live, self.generation, first, at, request.target, outcome);
        let own = visits.first().map(|visit| (visit.track, visit.at));
        decided_line(&mut replayed, self.generation, own, at, request.target, again);
        self.summary.decisions += 1;
        self.put(Row { frame: number, live, replayed });
        Ok(visits.iter().filter_map(|visit| self.order.pass(*visit)).collect())
    }

    fn change(&mut self, number: u64, changed: &Changed) -> Result<(), ReplayError> {
        if let Some((frame, decided)) = self.waiting.first_key_value() {
            let waits = self.order.missing(&decided.tape).map(|(lane, place)| Trouble::Gap { lane, place });
            return Err(ReplayError::at(*frame, waits.unwrap_or(Trouble::NoEnd)));
        }
        if changed.generation != self.generation + 1 {
            let (found, expected) = (changed.generation, self.generation + 1);
            return self.frames.fail(Trouble::Generation { found, expected });
        }
        self.generation += 1;
        let made = self.dispatcher.rechange(changed.at, &changed.change, changed.tape.clone());
        let (node, visits) = made.map_err(|error| ReplayError::at(number, error))?;
        // Nothing waits at a change.
        visits.iter().for_each(|visit| _ = self.order.pass(*visit));
        let (mut live, mut replayed) = (String::new(), String::new());
        changed_line(&mut live, self.generation, changed.at, &changed.change, changed.node);
        changed_line(&mut replayed, self.generation, changed.at, &changed.change, node);
        self.summary.changes += 1;
        self.rows.push_back(None);
        self.put(Row { frame: number, live, replayed });
        Ok(())
    }

    fn end(&mut self, number: u64, end: End, frames: u64) -> Result<(), ReplayError> {
        if frames != number - 1 {
            return self.frames.fail(Trouble::Count { said: frames, found: number - 1 });
        }
        self.frames.finish()?;
        if end == End::Complete
            && let Some((frame, decided)) = self.waiting.first_key_value()
        {
            let waits = self.order.missing(&decided.tape).map(|(lane, place)| Trouble::Gap { lane, place });
            return Err(ReplayError::at(*frame, waits.unwrap_or(Trouble::NoEnd)));
        }
        let made = self.rows.iter().take_while(|row| row.is_some()).count();
        self.summary.left_out = (self.rows.len() - made) as u64;
        self.rows.truncate(made);
        self.summary.end = Some(end.name());
        self.ended = true;
        Ok(())
    }

    fn put(&mut self, row: Row) {
        self.summary.differing += u64::from(!row.agrees());
        let at = usize::try_from(row.frame - self.next_row).unwrap_or(usize::MAX);
        if let Some(slot) = self.rows.get_mut(at) {
            *slot = Some(row);
        }
    }
}

impl<R: BufRead> Iterator for Replay<R> {
    type Item = Result<Row, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(Some(_)) = self.rows.front() {
                self.next_row += 1;
                return self.rows.pop_front().flatten().map(Ok);
            }
            if self.ended {
                return None;
            }
            if let Err(error) = self.step() {
                self.ended = true;
                self.rows.clear();
                return Some(Err(error));
            }
        }
    }
}
