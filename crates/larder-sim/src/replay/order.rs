//! The order in which the decisions of one generation are repeated.
//!
//! A decision visits lanes (locked state, counters), each at a position that its tape names. It can be
//! repeated once each of these lanes has reached its position. Positions come from one real run, so the order
//! has no cycle.

use super::error::FrameError;
use larder_core::read_log::{ReadLogEntry, RouteSequence, SequenceVisit};
use std::collections::{BTreeMap, BTreeSet};

/// The position of each lane, and the frames that wait for positions.
#[derive(Debug, Default)]
pub(super) struct VisitOrder {
    places: BTreeMap<RouteSequence, u64>,
    waiting: BTreeMap<(RouteSequence, u64), u64>,
}

impl VisitOrder {
    /// Returns the first lane that has not reached the position that this tape needs. Only the first visit to
    /// a lane counts, because later visits of the same decision follow from it.
    pub(super) fn find_missing(&self, tape: &[ReadLogEntry]) -> Option<(RouteSequence, u64)> {
        let mut seen = BTreeSet::new();
        for entry in tape {
            let ReadLogEntry::Visit(lane, place) = *entry else { continue };
            let position = self.places.get(&lane).copied().unwrap_or(0);
            if seen.insert(lane) && position != place {
                return Some((lane, place));
            }
        }
        None
    }

    /// Makes a frame wait until `lane` reaches `place`.
    pub(super) fn add_waiting(
        &mut self,
        lane: RouteSequence,
        place: u64,
        frame: u64,
    ) -> Result<(), FrameError> {
        match self.waiting.insert((lane, place), frame) {
            None => Ok(()),
            Some(other) => Err(FrameError::Twice { lane, place, other }),
        }
    }

    /// Records a visit to a lane. Returns the frame that has waited for the lane's new position.
    pub(super) fn record_visit(&mut self, visit: SequenceVisit) -> Option<u64> {
        self.places.insert(visit.track, visit.next);
        self.waiting.remove(&(visit.track, visit.next))
    }
}
