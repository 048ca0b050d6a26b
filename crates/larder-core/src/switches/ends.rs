//! Incarnations of other switches that have ended, as this switch has noticed.
//!
//! The last messages of a switch may have reached only some of the others. Each switch therefore reports in its hello
//! which incarnations it considers ended. From then on it ignores their messages. A switch that was not in sync with one
//! asks it for the changes it has received since. The last [`ENDS_MAX`] ends are reported; a switch that has missed more
//! asks for everything.

use crate::time::Time;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The largest number of ends that are reported.
pub(super) const ENDS_MAX: usize = 16;
/// The largest number of ended incarnations whose sync state is stored.
const GONE_MAX: usize = 256;

/// An incarnation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IncarnationEnd {
    pub(super) name: Arc<str>,
    pub(super) incarnation: u64,
    /// The reporting switch alone may have received this incarnation after this time of the shared clock, or it has
    /// reported an earlier end of it.
    pub(super) since: Time,
}

/// The sync state of an incarnation: how much of it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncState {
    pub(super) incarnation: u64,
    /// See [`super::peer_switch::PeerSwitch::until`].
    pub(super) until: Option<Time>,
    /// The number of ends that the incarnation had reported.
    pub(super) ends: Option<u64>,
}

/// The ended incarnations that were noticed.
#[derive(Debug, Default)]
pub(super) struct EndedIncarnations {
    count: u64,
    /// The last ended incarnations, the latest at the end.
    last: VecDeque<IncarnationEnd>,
    gone: BTreeMap<Arc<str>, SyncState>,
    is_reported: bool,
}

impl EndedIncarnations {
    /// Records the end of an incarnation.
    pub(super) fn record(&mut self, name: &Arc<str>, sync: SyncState, since: Time) {
        self.count += 1;
        self.last.push_back(IncarnationEnd { name: name.clone(), incarnation: sync.incarnation, since });
        if self.last.len() > ENDS_MAX {
            self.last.pop_front();
        }
        self.is_reported = false;
        self.gone.insert(name.clone(), sync);
        while self.gone.len() > GONE_MAX {
            let oldest = self.gone.iter().min_by_key(|(_, sync)| sync.until).map(|(name, _)| name.clone());
            oldest.inspect(|name| _ = self.gone.remove(name));
        }
    }

    /// Returns the sync state of the last ended incarnation of this name.
    pub(super) fn sync_state(&self, name: &str) -> Option<SyncState> {
        self.gone.get(name).copied()
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the last ended incarnations, the latest at the end.
    pub(super) fn last(&self) -> Vec<IncarnationEnd> {
        self.last.iter().cloned().collect()
    }

    /// Returns whether there are ends to be reported, and marks them as reported.
    pub(super) fn take_unreported(&mut self) -> bool {
        !core::mem::replace(&mut self.is_reported, true) && self.count > 0
    }
}
