//! In which order decisions of one generation are to be made anew.
//!
//! A decision visits lanes (locked state, counters), each at a place that its tape names. It can be made once each of
//! those lanes has come to its place. Places are those of one real run, so that the order has no circle.

use super::error::Trouble;
use larder_core::tape::{Entry, Track, Visit};
use std::collections::{BTreeMap, BTreeSet};

/// Where each lane has come to, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Order {
    places: BTreeMap<Track, u64>,
    waiting: BTreeMap<(Track, u64), u64>,
}

impl Order {
    /// The first lane that has not come to where this tape needs it. Only the first visit to a lane counts: later
    /// ones of the same decision follow from it.
    pub(super) fn missing(&self, tape: &[Entry]) -> Option<(Track, u64)> {
        let mut seen = BTreeSet::new();
        for entry in tape {
            let Entry::Visit(lane, place) = *entry else { continue };
            let came = self.places.get(&lane).copied().unwrap_or(0);
            if seen.insert(lane) && came != place {
                return Some((lane, place));
            }
        }
        None
    }

    /// A frame waits until `lane` comes to `place`.
    pub(super) fn wait(&mut self, lane: Track, place: u64, frame: u64) -> Result<(), Trouble> {
        match self.waiting.insert((lane, place), frame) {
            None => Ok(()),
            Some(other) => Err(Trouble::Twice { lane, place, other }),
        }
    }

    /// A lane was visited; gives the frame that has waited for where it has come to.
    pub(super) fn pass(&mut self, visit: Visit) -> Option<u64> {
        self.places.insert(visit.track, visit.next);
        self.waiting.remove(&(visit.track, visit.next))
    }
}
