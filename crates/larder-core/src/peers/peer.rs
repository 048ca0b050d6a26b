//! What this node knows of one other.

use super::message::{Change, Message};
use super::trust::Trust;
use crate::id::TargetId;
use crate::time::Time;
use core::time::Duration;

/// A gap in the changes of a peer is asked about when it has lasted so long: what fills it may be on its way.
pub(super) const GAP_PATIENCE: Duration = Duration::from_millis(50);
/// What was asked for is asked for again after this time.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(500);

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) epoch: u64,
    /// Whether it has said that it takes part.
    pub(super) sharing: bool,
    /// As it said last, and when.
    load: Option<(u32, Time)>,
    /// Requests sent to it since that have not come back.
    pub(super) sent: u32,
    /// Whether it answers what is forwarded to it.
    pub(super) trust: Trust,
    /// The last of its changes that is known here, with all before it.
    known: u64,
    /// The last that it has spoken of.
    latest: u64,
    /// When its list, or what is missing, is to be asked for.
    ask_at: Option<Time>,
    /// Its list is being told: the next part begins after this target.
    listing: Option<Option<TargetId>>,
}

/// What is to be done with what a peer has in memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lesson {
    /// Nothing.
    Nothing,
    /// Everything that was known of it is void.
    Forget,
    /// It has these, or has them no longer.
    Learn(Vec<Change>),
}

impl Peer {
    /// One that nothing is known of but that it is there.
    pub(super) const fn new() -> Self {
        Self {
            epoch: 0,
            sharing: false,
            load: None,
            sent: 0,
            trust: Trust::NEW,
            known: 0,
            latest: 0,
            ask_at: None,
            listing: None,
        }
    }

    /// Its load with what was sent to it since it said so; None where that is unknown: never said, or longer ago than
    /// `stale_after`.
    pub(super) fn load(&self, now: Time, stale_after: Duration) -> Option<u32> {
        let (load, at) = self.load?;
        (now.since(at) <= stale_after).then_some(load.saturating_add(self.sent))
    }

    /// Whether all of its changes that it has spoken of are known.
    pub(super) fn is_known(&self) -> bool {
        self.sharing && self.known == self.latest && self.listing.is_none()
    }

    /// When something is to be asked: what is missing, or, where nothing was heard for `stale_after`, whether it takes part
    /// still. That it does not any more may have been lost.
    pub(super) fn due(&self, stale_after: Duration) -> Option<Time> {
        let silent_at = self.load.filter(|_| self.sharing).map(|(_, at)| at + stale_after);
        self.ask_at.or(silent_at)
    }

    /// What is to be asked by now.
    pub(super) fn ask(&mut self, now: Time, stale_after: Duration) -> Option<Message> {
        self.due(stale_after).filter(|at| *at <= now)?;
        self.ask_at = Some(now + ASK_AGAIN);
        Some(match self.listing {
            Some(after) => Message::AskList { of: self.epoch, after },
            None => Message::Ask { of: self.epoch, after: self.known },
        })
    }

    /// Hears an epoch, from 1. Returns false if the message is of an older one; `fresh` is set if a new one has begun.
    pub(super) fn hear_epoch(&mut self, epoch: u64, fresh: &mut bool) -> bool {
        if epoch > self.epoch {
            *self = Self { epoch, ..Self::new() };
            *fresh = true;
        }
        epoch == self.epoch && epoch > 0
    }

    /// Hears of its load. What it has in memory is of no use while it does not take part.
    pub(super) fn hear_load(&mut self, now: Time, load: u32, sharing: bool, changes: u64) -> Lesson {
        let was_sharing = core::mem::replace(&mut self.sharing, sharing);
        if !sharing {
            *self = Self { epoch: self.epoch, trust: self.trust, ..Self::new() };
            return if was_sharing { Lesson::Forget } else { Lesson::Nothing };
        }
        self.load = Some((load, now));
        self.sent = 0;
        if self.known == self.latest && self.listing.is_none() {
            self.ask_at = None;
        }
        self.heard_of(now, changes, GAP_PATIENCE);
        Lesson::Nothing
    }

    /// Hears changes. Those that are known already do nothing.
    pub(super) fn hear_changes(&mut self, now: Time, first: u64, mut items: Vec<Change>) -> Lesson {
        let Some(last) = first.checked_add(items.len() as u64).and_then(|after| after.checked_sub(1)) else {
            return Lesson::Nothing;
        };
        if !self.sharing || last <= self.known {
            return Lesson::Nothing;
        }
        if first > self.known + 1 {
            self.heard_of(now, last, GAP_PATIENCE);
            return Lesson::Nothing;
        }
        let known_of_these = usize::try_from(self.known + 1 - first).unwrap_or(usize::MAX);
        items.drain(..known_of_these.min(items.len()));
        self.know(last);
        Lesson::Learn(items)
    }

    /// Hears a part of its list, which holds all it had after `after` and up to the last of them when there had been `changes`.
    pub(super) fn hear_list(
        &mut self,
        now: Time,
        changes: u64,
        after: Option<TargetId>,
        last: bool,
        targets: Vec<TargetId>,
    ) -> Vec<Lesson> {
        let expected =
            self.listing.is_some_and(|next| next == after) || (after.is_none() && self.known < self.latest);
        // An older part would undo what changes have told since.
        if !self.sharing || !expected || changes < self.known {
            return Vec::new();
        }
        let mut lessons = Vec::new();
        if after.is_none() {
            // Every part is as late as the first at least, so only changes after it matter.
            lessons.push(Lesson::Forget);
            self.know(changes);
        } else {
            self.heard_of(now, changes, GAP_PATIENCE);
        }
        self.listing = if last { None } else { targets.last().map(|target| Some(*target)) };
        if self.listing.is_some() {
            self.ask_at = Some(now);
        } else if self.known == self.latest {
            self.ask_at = None;
        }
        let change = |target| Change { target, cached: true };
        lessons.push(Lesson::Learn(targets.into_iter().map(change).collect()));
        lessons
    }

    fn heard_of(&mut self, now: Time, changes: u64, patience: Duration) {
        self.latest = self.latest.max(changes);
        if self.known < self.latest && self.ask_at.is_none() {
            self.ask_at = Some(now + patience);
        }
    }

    fn know(&mut self, changes: u64) {
        self.known = self.known.max(changes);
        self.latest = self.latest.max(self.known);
        if self.known == self.latest && self.listing.is_none() {
            self.ask_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Peer {
        fn ask_soon(&mut self, now: Time) -> Option<Message> {
            self.ask(now, Duration::from_secs(60))
        }
    }

    #[test]
    fn a_silent_one_is_asked_whether_it_takes_part() {
        let (mut peer, stale_after) = (sharing(0), Duration::from_secs(3));
        assert_eq!(peer.due(stale_after), Some(ms(3_000)));
        assert_eq!(peer.ask(ms(3_000), stale_after), Some(Message::Ask { of: 5, after: 0 }));
        assert_eq!(peer.due(stale_after), Some(ms(3_500)));
        peer.hear_load(ms(3_100), 1, true, 0);
        assert_eq!(peer.due(stale_after), Some(ms(6_100)));
        peer.hear_load(ms(3_200), 1, false, 0);
        assert_eq!(peer.due(stale_after), None);
    }

    fn change(target: u64) -> Change {
        Change { target: TargetId(target), cached: true }
    }

    fn sharing(changes: u64) -> Peer {
        let mut peer = Peer::new();
        assert!(peer.hear_epoch(5, &mut false));
        assert_eq!(peer.hear_load(Time::ZERO, 3, true, changes), Lesson::Nothing);
        peer
    }

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn a_gap_is_asked_about_when_nothing_fills_it() {
        let mut peer = sharing(0);
        assert_eq!(peer.hear_changes(ms(1), 3, vec![change(3)]), Lesson::Nothing);
        assert_eq!(peer.ask_soon(ms(20)), None, "it may be on its way");
        assert_eq!(peer.ask_soon(ms(51)), Some(Message::Ask { of: 5, after: 0 }));
        assert_eq!(peer.ask_soon(ms(52)), None);
        let items = vec![change(1), change(2), change(3)];
        assert_eq!(peer.hear_changes(ms(60), 1, items.clone()), Lesson::Learn(items));
        assert!(peer.is_known() && peer.ask_at.is_none());
    }

    #[test]
    fn what_is_known_is_not_learnt_again() {
        let mut peer = sharing(0);
        peer.hear_changes(ms(1), 1, vec![change(1), change(2)]);
        assert_eq!(peer.hear_changes(ms(1), 1, vec![change(1), change(2)]), Lesson::Nothing);
        let overlap = vec![change(2), change(3)];
        assert_eq!(peer.hear_changes(ms(1), 2, overlap), Lesson::Learn(vec![change(3)]));
        assert_eq!(peer.hear_changes(ms(1), u64::MAX, vec![change(3), change(4)]), Lesson::Nothing);
        assert_eq!(peer.hear_changes(ms(1), 0, Vec::new()), Lesson::Nothing);
    }

    #[test]
    fn a_list_comes_part_by_part() {
        let mut peer = sharing(10_000);
        assert_eq!(peer.ask_soon(ms(60)), Some(Message::Ask { of: 5, after: 0 }));
        let part = |from: u64| (from..from + 3).map(TargetId).collect::<Vec<_>>();
        let learnt = |from: u64| Lesson::Learn((from..from + 3).map(change).collect());
        assert_eq!(peer.hear_list(ms(61), 10_000, None, false, part(0)), [Lesson::Forget, learnt(0)]);
        assert!(!peer.is_known());
        assert_eq!(peer.ask_soon(ms(61)), Some(Message::AskList { of: 5, after: Some(TargetId(2)) }));
        assert_eq!(peer.ask_soon(ms(400)), None);
        assert!(peer.ask_soon(ms(561)).is_some(), "the answer was lost");
        assert_eq!(peer.hear_list(ms(562), 10_000, Some(TargetId(1)), true, part(2)), [], "nobody asked");
        assert_eq!(peer.hear_list(ms(563), 10_000, Some(TargetId(2)), true, part(3)), [learnt(3)]);
        assert!(peer.is_known() && peer.ask_at.is_none());
        assert_eq!(peer.hear_list(ms(564), 10_000, None, true, part(0)), [], "an echo");
    }

    #[test]
    fn a_part_older_than_known_changes_is_asked_for_again() {
        let mut peer = sharing(9);
        peer.ask_soon(ms(60));
        peer.hear_list(ms(61), 9, None, false, vec![TargetId(1)]);
        peer.hear_changes(ms(62), 10, vec![Change { target: TargetId(7), cached: false }]);
        assert_eq!(peer.hear_list(ms(63), 9, Some(TargetId(1)), true, vec![TargetId(7)]), []);
        assert!(peer.ask_at.is_some());
        assert_eq!(peer.hear_list(ms(700), 10, Some(TargetId(1)), true, vec![]), [Lesson::Learn(vec![])]);
        assert!(peer.is_known());
    }

    #[test]
    fn another_epoch_begins_anew() {
        let mut peer = sharing(0);
        peer.hear_changes(ms(1), 1, vec![change(1)]);
        let mut fresh = false;
        assert!(!peer.hear_epoch(4, &mut fresh) && !fresh);
        assert!(peer.hear_epoch(6, &mut fresh) && fresh);
        assert!(!peer.is_known() && peer.load(ms(1), Duration::from_secs(1)).is_none());
    }

    #[test]
    fn a_load_is_unknown_when_it_is_old() {
        let mut peer = sharing(0);
        peer.sent = 2;
        assert_eq!(peer.load(ms(3_000), Duration::from_secs(3)), Some(5));
        assert_eq!(peer.load(ms(3_001), Duration::from_secs(3)), None);
        peer.hear_load(ms(3_001), 1, true, 0);
        assert_eq!(peer.load(ms(3_001), Duration::from_secs(3)), Some(1));
        assert_eq!(peer.hear_load(ms(3_002), 1, false, 0), Lesson::Forget);
        assert_eq!(peer.load(ms(3_002), Duration::from_secs(3)), None);
    }
}
