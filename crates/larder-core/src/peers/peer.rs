//! State that a PRESS node keeps about one peer.

use super::message::{CacheChange, PressMessage};
use super::trust::Trust;
use crate::id::TargetId;
use crate::time::Time;
use alloc::vec::Vec;
use core::time::Duration;

/// Time that a gap in the changes of a peer must last before they are requested. The missing message may still be in
/// flight.
pub(super) const GAP_PATIENCE: Duration = Duration::from_millis(50);
/// Time after which a request is repeated.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(500);

/// State of one peer.
#[derive(Debug)]
pub(super) struct PressPeer {
    pub(super) epoch: u64,
    /// True if the peer shares its cache, according to its last message.
    pub(super) sharing: bool,
    /// Last reported load, and the time of the report.
    load: Option<(u32, Time)>,
    /// Requests that were forwarded to the peer since the report and have not ended.
    pub(super) sent: u32,
    /// Whether the peer answers forwarded requests.
    pub(super) trust: Trust,
    /// Number of the peer's last change up to which all changes are known here.
    known: u64,
    /// Number of the latest change that the peer has mentioned.
    latest: u64,
    /// Time of the next request for the list or the missing changes.
    request_at: Option<Time>,
    /// Target after which the next requested part of the list begins; `None` while no list is being received.
    list_after: Option<Option<TargetId>>,
}

/// Update of the known contents of a peer's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PeerUpdate {
    /// No change.
    Nothing,
    /// All known contents of the peer are void.
    Clear,
    /// Changes to apply.
    Apply(Vec<CacheChange>),
}

impl PressPeer {
    /// Creates the state of a peer that has sent nothing yet.
    pub(super) const fn new() -> Self {
        Self {
            epoch: 0,
            sharing: false,
            load: None,
            sent: 0,
            trust: Trust::NEW,
            known: 0,
            latest: 0,
            request_at: None,
            list_after: None,
        }
    }

    /// Returns the load: the last report plus the requests forwarded since. `None` if the last report is older than
    /// `stale_after`, or there is none.
    pub(super) fn load(&self, now: Time, stale_after: Duration) -> Option<u32> {
        let (load, at) = self.load?;
        (now.since(at) <= stale_after).then_some(load.saturating_add(self.sent))
    }

    /// Returns true if all changes that the peer has mentioned are known.
    pub(super) fn is_current(&self) -> bool {
        self.sharing && self.known == self.latest && self.list_after.is_none()
    }

    /// Returns the time of the next request: for missing changes, or to a peer that was silent for `stale_after`.
    /// The message that it stopped sharing may have been lost.
    pub(super) fn due(&self, stale_after: Duration) -> Option<Time> {
        let stale_at = self.load.filter(|_| self.sharing).map(|(_, at)| at + stale_after);
        self.request_at.or(stale_at)
    }

    /// Returns the request that is due.
    pub(super) fn next_request(&mut self, now: Time, stale_after: Duration) -> Option<PressMessage> {
        self.due(stale_after).filter(|at| *at <= now)?;
        self.request_at = Some(now + RETRY_DELAY);
        Some(match self.list_after {
            Some(after) => PressMessage::ListRequest { epoch: self.epoch, after },
            None => PressMessage::ChangesRequest { epoch: self.epoch, after: self.known },
        })
    }

    /// Compares the epoch of a message, from 1. Returns false for an older epoch. Sets `fresh` if a new epoch has
    /// begun.
    pub(super) fn check_epoch(&mut self, epoch: u64, fresh: &mut bool) -> bool {
        if epoch > self.epoch {
            *self = Self { epoch, ..Self::new() };
            *fresh = true;
        }
        epoch == self.epoch && epoch > 0
    }

    /// Processes the peer's load. If the peer does not share its cache, its known contents are void.
    pub(super) fn receive_load(&mut self, now: Time, load: u32, sharing: bool, changes: u64) -> PeerUpdate {
        let was_sharing = core::mem::replace(&mut self.sharing, sharing);
        if !sharing {
            *self = Self { epoch: self.epoch, trust: self.trust, ..Self::new() };
            return if was_sharing { PeerUpdate::Clear } else { PeerUpdate::Nothing };
        }
        self.load = Some((load, now));
        self.sent = 0;
        if self.known == self.latest && self.list_after.is_none() {
            self.request_at = None;
        }
        self.note_latest(now, changes, GAP_PATIENCE);
        PeerUpdate::Nothing
    }

    /// Processes changes. Known changes are skipped.
    pub(super) fn receive_changes(
        &mut self,
        now: Time,
        first: u64,
        mut items: Vec<CacheChange>,
    ) -> PeerUpdate {
        let Some(last) = first.checked_add(items.len() as u64).and_then(|after| after.checked_sub(1)) else {
            return PeerUpdate::Nothing;
        };
        if !self.sharing || last <= self.known {
            return PeerUpdate::Nothing;
        }
        if first > self.known + 1 {
            self.note_latest(now, last, GAP_PATIENCE);
            return PeerUpdate::Nothing;
        }
        let known_of_these = usize::try_from(self.known + 1 - first).unwrap_or(usize::MAX);
        items.drain(..known_of_these.min(items.len()));
        self.mark_known(last);
        PeerUpdate::Apply(items)
    }

    /// Processes a part of the peer's list. The part holds all targets from `after` to its last target, at the time
    /// of change number `changes`.
    pub(super) fn receive_list(
        &mut self,
        now: Time,
        changes: u64,
        after: Option<TargetId>,
        last: bool,
        targets: Vec<TargetId>,
    ) -> Vec<PeerUpdate> {
        let expected = self.list_after.is_some_and(|next| next == after)
            || (after.is_none() && self.known < self.latest);
        // An older part would undo newer changes.
        if !self.sharing || !expected || changes < self.known {
            return Vec::new();
        }
        let mut updates = Vec::new();
        if after.is_none() {
            // Every further part is at least as new as the first one, so only the changes after the first part
            // matter.
            updates.push(PeerUpdate::Clear);
            self.mark_known(changes);
        } else {
            self.note_latest(now, changes, GAP_PATIENCE);
        }
        self.list_after = if last { None } else { targets.last().map(|target| Some(*target)) };
        if self.list_after.is_some() {
            self.request_at = Some(now);
        } else if self.known == self.latest {
            self.request_at = None;
        }
        let change = |target| CacheChange { target, cached: true };
        updates.push(PeerUpdate::Apply(targets.into_iter().map(change).collect()));
        updates
    }

    fn note_latest(&mut self, now: Time, changes: u64, patience: Duration) {
        self.latest = self.latest.max(changes);
        if self.known < self.latest && self.request_at.is_none() {
            self.request_at = Some(now + patience);
        }
    }

    fn mark_known(&mut self, changes: u64) {
        self.known = self.known.max(changes);
        self.latest = self.latest.max(self.known);
        if self.known == self.latest && self.list_after.is_none() {
            self.request_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PressPeer {
        fn request_soon(&mut self, now: Time) -> Option<PressMessage> {
            self.next_request(now, Duration::from_secs(60))
        }
    }

    #[test]
    fn a_silent_peer_is_asked_whether_it_still_shares() {
        let (mut peer, stale_after) = (sharing(0), Duration::from_secs(3));
        assert_eq!(peer.due(stale_after), Some(ms(3_000)));
        assert_eq!(
            peer.next_request(ms(3_000), stale_after),
            Some(PressMessage::ChangesRequest { epoch: 5, after: 0 })
        );
        assert_eq!(peer.due(stale_after), Some(ms(3_500)));
        peer.receive_load(ms(3_100), 1, true, 0);
        assert_eq!(peer.due(stale_after), Some(ms(6_100)));
        peer.receive_load(ms(3_200), 1, false, 0);
        assert_eq!(peer.due(stale_after), None);
    }

    fn change(target: u64) -> CacheChange {
        CacheChange { target: TargetId(target), cached: true }
    }

    fn sharing(changes: u64) -> PressPeer {
        let mut peer = PressPeer::new();
        assert!(peer.check_epoch(5, &mut false));
        assert_eq!(peer.receive_load(Time::ZERO, 3, true, changes), PeerUpdate::Nothing);
        peer
    }

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn missing_changes_are_requested_after_a_delay() {
        let mut peer = sharing(0);
        assert_eq!(peer.receive_changes(ms(1), 3, vec![change(3)]), PeerUpdate::Nothing);
        assert_eq!(peer.request_soon(ms(20)), None, "it may be on its way");
        assert_eq!(peer.request_soon(ms(51)), Some(PressMessage::ChangesRequest { epoch: 5, after: 0 }));
        assert_eq!(peer.request_soon(ms(52)), None);
        let items = vec![change(1), change(2), change(3)];
        assert_eq!(peer.receive_changes(ms(60), 1, items.clone()), PeerUpdate::Apply(items));
        assert!(peer.is_current() && peer.request_at.is_none());
    }

    #[test]
    fn known_changes_are_skipped() {
        let mut peer = sharing(0);
        peer.receive_changes(ms(1), 1, vec![change(1), change(2)]);
        assert_eq!(peer.receive_changes(ms(1), 1, vec![change(1), change(2)]), PeerUpdate::Nothing);
        let overlap = vec![change(2), change(3)];
        assert_eq!(peer.receive_changes(ms(1), 2, overlap), PeerUpdate::Apply(vec![change(3)]));
        assert_eq!(peer.receive_changes(ms(1), u64::MAX, vec![change(3), change(4)]), PeerUpdate::Nothing);
        assert_eq!(peer.receive_changes(ms(1), 0, Vec::new()), PeerUpdate::Nothing);
    }

    #[test]
    fn a_list_is_received_in_parts() {
        let mut peer = sharing(10_000);
        assert_eq!(peer.request_soon(ms(60)), Some(PressMessage::ChangesRequest { epoch: 5, after: 0 }));
        let part = |from: u64| (from..from + 3).map(TargetId).collect::<Vec<_>>();
        let applied = |from: u64| PeerUpdate::Apply((from..from + 3).map(change).collect());
        assert_eq!(peer.receive_list(ms(61), 10_000, None, false, part(0)), [PeerUpdate::Clear, applied(0)]);
        assert!(!peer.is_current());
        assert_eq!(
            peer.request_soon(ms(61)),
            Some(PressMessage::ListRequest { epoch: 5, after: Some(TargetId(2)) })
        );
        assert_eq!(peer.request_soon(ms(400)), None);
        assert!(peer.request_soon(ms(561)).is_some(), "the answer was lost");
        assert_eq!(peer.receive_list(ms(562), 10_000, Some(TargetId(1)), true, part(2)), [], "nobody asked");
        assert_eq!(peer.receive_list(ms(563), 10_000, Some(TargetId(2)), true, part(3)), [applied(3)]);
        assert!(peer.is_current() && peer.request_at.is_none());
        assert_eq!(peer.receive_list(ms(564), 10_000, None, true, part(0)), [], "an echo");
    }

    #[test]
    fn a_list_part_older_than_known_changes_is_requested_again() {
        let mut peer = sharing(9);
        peer.request_soon(ms(60));
        peer.receive_list(ms(61), 9, None, false, vec![TargetId(1)]);
        peer.receive_changes(ms(62), 10, vec![CacheChange { target: TargetId(7), cached: false }]);
        assert_eq!(peer.receive_list(ms(63), 9, Some(TargetId(1)), true, vec![TargetId(7)]), []);
        assert!(peer.request_at.is_some());
        assert_eq!(
            peer.receive_list(ms(700), 10, Some(TargetId(1)), true, vec![]),
            [PeerUpdate::Apply(vec![])]
        );
        assert!(peer.is_current());
    }

    #[test]
    fn a_new_epoch_resets_the_peer() {
        let mut peer = sharing(0);
        peer.receive_changes(ms(1), 1, vec![change(1)]);
        let mut fresh = false;
        assert!(!peer.check_epoch(4, &mut fresh) && !fresh);
        assert!(peer.check_epoch(6, &mut fresh) && fresh);
        assert!(!peer.is_current() && peer.load(ms(1), Duration::from_secs(1)).is_none());
    }

    #[test]
    fn an_old_load_is_unknown() {
        let mut peer = sharing(0);
        peer.sent = 2;
        assert_eq!(peer.load(ms(3_000), Duration::from_secs(3)), Some(5));
        assert_eq!(peer.load(ms(3_001), Duration::from_secs(3)), None);
        peer.receive_load(ms(3_001), 1, true, 0);
        assert_eq!(peer.load(ms(3_001), Duration::from_secs(3)), Some(1));
        assert_eq!(peer.receive_load(ms(3_002), 1, false, 0), PeerUpdate::Clear);
        assert_eq!(peer.load(ms(3_002), Duration::from_secs(3)), None);
    }
}
