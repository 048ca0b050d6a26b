//! Lives of other switches that have ended, as one switch has noticed it.
//!
//! What a switch said last may have come to some of the others alone. So each tells, in its hello, which lives it takes for
//! ended: from then on it hears nothing of them, and who was not in step with one asks it for what it has learned since.
//! [`ENDS_MAX`] are told; who has missed more than that asks for everything.

use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Ends that are told.
pub(super) const ENDS_MAX: usize = 16;
/// Lives that have ended of which is remembered how far they were heard.
const GONE_MAX: usize = 256;

/// A life that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) name: Arc<str>,
    pub(super) life: u64,
    /// Who tells it has heard this life after this time of the common clock alone, or has told of an earlier end of it.
    pub(super) since: Time,
}

/// How far a life was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) life: u64,
    /// See [`super::other::Other::until`].
    pub(super) until: Option<Time>,
    /// How many ends it had told.
    pub(super) ends: Option<u64>,
}

/// The ends that were noticed.
#[derive(Debug, Default)]
pub(super) struct Ends {
    count: u64,
    /// The last ones, the latest at the end.
    last: VecDeque<End>,
    gone: BTreeMap<Arc<str>, Heard>,
    is_told: bool,
}

impl Ends {
    /// A life has ended.
    pub(super) fn note(&mut self, name: &Arc<str>, heard: Heard, since: Time) {
        self.count += 1;
        self.last.push_back(End { name: name.clone(), life: heard.life, since });
        if self.last.len() > ENDS_MAX {
            self.last.pop_front();
        }
        self.is_told = false;
        self.gone.insert(name.clone(), heard);
        while self.gone.len() > GONE_MAX {
            let oldest = self.gone.iter().min_by_key(|(_, heard)| heard.until).map(|(name, _)| name.clone());
            oldest.inspect(|name| _ = self.gone.remove(name));
        }
    }

    /// How far the last life of this name to end was heard.
    pub(super) fn heard(&self, name: &str) -> Option<Heard> {
        self.gone.get(name).copied()
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The last ones, the latest at the end.
    pub(super) fn last(&self) -> Vec<End> {
        self.last.iter().cloned().collect()
    }

    /// Whether there are some that are to be told, which they are now.
    pub(super) fn tell(&mut self) -> bool {
        !core::mem::replace(&mut self.is_told, true) && self.count > 0
    }
}
