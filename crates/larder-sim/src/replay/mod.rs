//! Replay: repeats the decisions of a recorded live run.
//!
//! A record ([`larder_core::record`]) holds the inputs of a switch's dispatcher and the values that its
//! decisions read. The replay gives the same settings and nodes to a dispatcher of its own, the one that the
//! simulator uses. This dispatcher makes every decision again, on one thread. Changes of the membership are
//! repeated in their order. Between two changes, decisions are repeated in the order of their visits to
//! locked state (the shards of the target map, the turn, the random numbers, the joining nodes). Each
//! decision becomes a line of the decision log ([`larder_core::record::write_decision_line`]), once from the record
//! and once from the replay. The two logs must be equal byte for byte.
//!
//! **Equal logs prove** that the live switch and the simulator decide alike. Both have the same code and the
//! same state, and no decision depends on an input that is neither recorded nor derived (a clock, a hash
//! order, a thread's number, an overlooked race). Target maps, server sets, evictions from the map, turns,
//! random numbers, weights, closed nodes, join shares and reasons are all derived here. A single wrong value
//! would show in every later decision about its target.
//!
//! **Equal logs do not prove** that values which other threads change without a lock were right when they
//! were read. These values come from the record: loads, the count of outstanding requests, the turn as it was
//! read, and the verdict of the admission gate. The tests of these counters cover them. Times and targets are
//! inputs.
//!
//! If a record is cut, damaged or forged, the replay ends in a [`ReplayError`] that names the frame.

mod error;
mod frames;
mod order;

pub use error::{FrameError, ReplayError};

use frames::FrameReader;
use larder_core::record::{
    ChangeRecord, DecisionRecord, EndReason, Frame, first_visit, write_change_line, write_decision_line,
};
use larder_core::{Dispatcher, Settings};
use order::VisitOrder;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;

/// The largest number of frames that may wait for an earlier frame of their lane. Live threads report a
/// decision shortly after making it, so a few frames wait. If more than this number wait, a frame is missing.
pub const WAITING_MAX: usize = 1 << 20;

/// A line of both logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The number of the frame, from 1.
    pub frame: u64,
    /// The line of the recorded decision, with its line feed.
    pub live: String,
    /// The line of the repeated decision, with its line feed.
    pub replayed: String,
}

impl LogLine {
    /// Returns whether both lines are equal.
    pub fn agrees(&self) -> bool {
        self.live == self.replayed
    }
}

/// The summary of a replay so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Repeated decisions.
    pub decisions: u64,
    /// Repeated changes.
    pub changes: u64,
    /// Lines that differ.
    pub differing: u64,
    /// Frames behind a gap that the recorder left when it was overrun; they are in neither log.
    pub left_out: u64,
    /// The largest number of frames that waited for an earlier frame.
    pub waited_max: usize,
    /// The name of the record's end; `None` before its end.
    pub end: Option<&'static str>,
}

/// A replay in progress: an iterator over the lines of both logs, in the order of the record.
#[derive(Debug)]
pub struct Replay<R> {
    frames: FrameReader<R>,
    dispatcher: Dispatcher,
    generation: u64,
    order: VisitOrder,
    /// The decisions that have been read but not repeated, by frame.
    waiting: BTreeMap<u64, DecisionRecord>,
    /// Lines in the order of the record from `next_row` on; `None` if the decision waits.
    rows: VecDeque<Option<LogLine>>,
    next_row: u64,
    ended: bool,
    summary: Summary,
}

impl<R: BufRead> Replay<R> {
    /// Reads the header and creates the dispatcher.
    ///
    /// # Errors
    /// Returns an error if the input is not a record, has another version, or has invalid settings.
    pub fn open(input: R) -> Result<Self, ReplayError> {
        Self::open_with(input, |_| {})
    }

    /// Opens a replay with altered settings, which shows how the same inputs would be decided under them. The
    /// replay ends at a decision that reads other values than the record holds.
    ///
    /// # Errors
    /// Fails as [`Replay::open`] does.
    pub fn open_with(input: R, alter: impl FnOnce(&mut Settings)) -> Result<Self, ReplayError> {
        let (frames, mut header) = FrameReader::open(input)?;
        alter(&mut header.settings);
        let policy = header.settings.policy.to_string();
        let dispatcher = Dispatcher::with_routes(header.settings, header.routes, &header.nodes)?;
        Ok(Self {
            frames,
            dispatcher,
            generation: 0,
            order: VisitOrder::default(),
            waiting: BTreeMap::new(),
            rows: VecDeque::new(),
            next_row: 1,
            ended: false,
            summary: Summary { policy, ..Summary::default() },
        })
    }

    /// Returns the summary so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Reads one frame, and repeats the decisions that it completes.
    fn step(&mut self) -> Result<(), ReplayError> {
        let Some((number, frame)) = self.frames.next()? else {
            return self.frames.fail(FrameError::NoEnd);
        };
        match frame {
            Frame::Decision(decided) => self.replay_decision(number, decided),
            Frame::Change(changed) => self.replay_change(number, &changed),
            Frame::End(end, frames) => self.end(number, end, frames),
        }
    }

    fn replay_decision(&mut self, number: u64, decided: DecisionRecord) -> Result<(), ReplayError> {
        if decided.generation != self.generation {
            let (found, expected) = (decided.generation, self.generation);
            return self.frames.fail(FrameError::Generation { found, expected });
        }
        self.rows.push_back(None);
        if self.rows.len() > WAITING_MAX {
            return self.frames.fail(FrameError::TooManyWaiting(self.next_row));
        }
        if let Some((lane, place)) = self.order.find_missing(&decided.read_log) {
            self.order.add_waiting(lane, place, number).map_err(|cause| self.frames.error(cause))?;
            self.waiting.insert(number, decided);
            self.summary.waited_max = self.summary.waited_max.max(self.waiting.len());
            return Ok(());
        }
        let mut ready = vec![(number, decided)];
        while let Some((number, decided)) = ready.pop() {
            for number in self.decide(number, decided)? {
                // A frame that waited for this lane may have to wait for another one.
                let Some(decided) = self.waiting.get(&number) else { continue };
                match self.order.find_missing(&decided.read_log) {
                    Some((lane, place)) => {
                        self.order
                            .add_waiting(lane, place, number)
                            .map_err(|cause| self.frames.error(cause))?;
                    }
                    None => ready.extend(self.waiting.remove(&number).map(|decided| (number, decided))),
                }
            }
        }
        Ok(())
    }

    /// Repeats a decision, and returns the frames that have waited for it.
    fn decide(&mut self, number: u64, decided: DecisionRecord) -> Result<Vec<u64>, ReplayError> {
        let DecisionRecord { at, cause, request, read_log: tape, outcome, .. } = decided;
        let first = first_visit(&tape);
        let made = self.dispatcher.replay_decision(at, cause, &request, tape);
        let (again, visits) = made.map_err(|error| ReplayError::at(number, error))?;
        let (mut live, mut replayed) = (String::new(), String::new());
        write_decision_line(&mut live, self.generation, first, at, request.target, outcome);
        let own = visits.first().map(|visit| (visit.track, visit.at));
        write_decision_line(&mut replayed, self.generation, own, at, request.target, again);
        self.summary.decisions += 1;
        self.put(LogLine { frame: number, live, replayed });
        Ok(visits.iter().filter_map(|visit| self.order.record_visit(*visit)).collect())
    }

    fn replay_change(&mut self, number: u64, changed: &ChangeRecord) -> Result<(), ReplayError> {
        if let Some((frame, decided)) = self.waiting.first_key_value() {
            let waits = self
                .order
                .find_missing(&decided.read_log)
                .map(|(lane, place)| FrameError::Gap { lane, place });
            return Err(ReplayError::at(*frame, waits.unwrap_or(FrameError::NoEnd)));
        }
        if changed.generation != self.generation + 1 {
            let (found, expected) = (changed.generation, self.generation + 1);
            return self.frames.fail(FrameError::Generation { found, expected });
        }
        self.generation += 1;
        let made = self.dispatcher.replay_change(changed.at, &changed.change, changed.read_log.clone());
        let (node, visits) = made.map_err(|error| ReplayError::at(number, error))?;
        // No frame waits at a change.
        visits.iter().for_each(|visit| _ = self.order.record_visit(*visit));
        let (mut live, mut replayed) = (String::new(), String::new());
        write_change_line(&mut live, self.generation, changed.at, &changed.change, changed.node);
        write_change_line(&mut replayed, self.generation, changed.at, &changed.change, node);
        self.summary.changes += 1;
        self.rows.push_back(None);
        self.put(LogLine { frame: number, live, replayed });
        Ok(())
    }

    fn end(&mut self, number: u64, end: EndReason, frames: u64) -> Result<(), ReplayError> {
        if frames != number - 1 {
            return self.frames.fail(FrameError::Count { stated: frames, found: number - 1 });
        }
        self.frames.finish()?;
        if end == EndReason::Complete
            && let Some((frame, decided)) = self.waiting.first_key_value()
        {
            let waits = self
                .order
                .find_missing(&decided.read_log)
                .map(|(lane, place)| FrameError::Gap { lane, place });
            return Err(ReplayError::at(*frame, waits.unwrap_or(FrameError::NoEnd)));
        }
        let made = self.rows.iter().take_while(|row| row.is_some()).count();
        self.summary.left_out = (self.rows.len() - made) as u64;
        self.rows.truncate(made);
        self.summary.end = Some(end.name());
        self.ended = true;
        Ok(())
    }

    fn put(&mut self, row: LogLine) {
        self.summary.differing += u64::from(!row.agrees());
        let at = usize::try_from(row.frame - self.next_row).unwrap_or(usize::MAX);
        if let Some(slot) = self.rows.get_mut(at) {
            *slot = Some(row);
        }
    }
}

impl<R: BufRead> Iterator for Replay<R> {
    type Item = Result<LogLine, ReplayError>;

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
