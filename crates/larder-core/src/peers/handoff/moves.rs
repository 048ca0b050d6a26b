//! Moves of sockets to peers, and abandoned moves.

use super::event::{HandoffOutput, PeerMoveOutcome, PeerSlot};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Move in progress.
#[derive(Debug)]
pub(super) struct PeerMove<K, W> {
    pub(super) slot: PeerSlot,
    pub(super) key: K,
    /// Epoch of the peer's channel when the socket was sent.
    pub(super) epoch: u64,
    pub(super) waiter: W,
}

/// Abandoned move.
#[derive(Debug)]
struct AbandonedMove<K> {
    slot: PeerSlot,
    key: K,
    /// True if the client was reset.
    was_reset: bool,
    /// True if the peer has reported the connection since.
    is_at_peer: bool,
}

/// All moves, by number.
#[derive(Debug)]
pub(super) struct PeerMoves<K, W> {
    last: u64,
    moves: BTreeMap<u64, PeerMove<K, W>>,
    /// Abandoned moves. Beyond `abandoned_max` the oldest is dropped.
    abandoned: BTreeMap<u64, AbandonedMove<K>>,
    abandoned_max: usize,
    /// Number of moves of each connection.
    keys: BTreeMap<K, u32>,
}

impl<K: Copy + Ord, W> PeerMoves<K, W> {
    pub(super) fn new(abandoned_max: usize) -> Self {
        Self {
            last: 0,
            moves: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            abandoned_max,
            keys: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, one: PeerMove<K, W>) -> u64 {
        self.last += 1;
        *self.keys.entry(one.key).or_default() += 1;
        self.moves.insert(self.last, one);
        self.last
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<PeerMove<K, W>> {
        let one = self.moves.remove(&id)?;
        if let Some(count) = self.keys.get_mut(&one.key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&one.key);
            }
        }
        Some(one)
    }

    pub(super) fn has(&self, key: K) -> bool {
        self.keys.contains_key(&key)
    }

    /// Processes the answer of a peer. A move number is only valid from the peer that it was sent to. Returns the
    /// connection if the peer has it and its client was already reset.
    pub(super) fn answer(
        &mut self,
        slot: PeerSlot,
        id: u64,
        outcome: PeerMoveOutcome,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) -> Option<(PeerSlot, K)> {
        if outcome == PeerMoveOutcome::Restored
            && let Some(abandoned) = self.abandoned.get_mut(&id).filter(|abandoned| abandoned.slot == slot)
        {
            abandoned.is_at_peer = true;
            return self.take_reset(id);
        }
        if self.moves.get(&id).is_some_and(|one| one.slot == slot)
            && let Some(one) = self.remove(id)
        {
            out.push(HandoffOutput::Answer { waiter: one.waiter, outcome });
        }
        None
    }

    /// Processes the list of a peer's connections for abandoned moves whose clients are not yet reset.
    pub(super) fn receive_list(&mut self, slot: PeerSlot, has: impl Fn(K) -> bool) {
        let abandoned =
            self.abandoned.values_mut().filter(|abandoned| abandoned.slot == slot && !abandoned.was_reset);
        abandoned.for_each(|abandoned| abandoned.is_at_peer |= has(abandoned.key));
    }

    /// Records that the client of an abandoned move was reset. Returns the connection if the peer has it.
    pub(super) fn record_client_reset(&mut self, id: u64) -> Option<(PeerSlot, K)> {
        self.abandoned.get_mut(&id)?.was_reset = true;
        self.take_reset(id)
    }

    fn take_reset(&mut self, id: u64) -> Option<(PeerSlot, K)> {
        let abandoned =
            self.abandoned.get(&id).filter(|abandoned| abandoned.was_reset && abandoned.is_at_peer)?;
        let abandoned = (abandoned.slot, abandoned.key);
        self.abandoned.remove(&id);
        Some(abandoned)
    }

    /// Abandons a move. Returns the connection and the waiter.
    pub(super) fn abandon(&mut self, id: u64) -> Option<(PeerSlot, K, W)> {
        let PeerMove { slot, key, waiter, .. } = self.remove(id)?;
        self.abandoned.insert(id, AbandonedMove { slot, key, was_reset: false, is_at_peer: false });
        if self.abandoned.len() > self.abandoned_max {
            self.abandoned.pop_first();
        }
        Some((slot, key, waiter))
    }

    /// Resolves the moves that were sent before this epoch of a peer's channel, by the complete list of its
    /// connections.
    pub(super) fn resolve(
        &mut self,
        slot: PeerSlot,
        epoch: u64,
        has: impl Fn(K) -> bool,
        out: &mut Vec<HandoffOutput<K, W>>,
    ) {
        for id in self.ids_where(|one| one.slot == slot && one.epoch < epoch) {
            let Some(PeerMove { key, waiter, .. }) = self.remove(id) else { continue };
            let outcome = if has(key) {
                PeerMoveOutcome::Restored
            } else {
                PeerMoveOutcome::Refused("the peer does not know the connection".to_owned())
            };
            out.push(HandoffOutput::Answer { waiter, outcome });
        }
    }

    /// Returns the numbers of the moves to a peer.
    pub(super) fn ids_to(&self, slot: PeerSlot) -> Vec<u64> {
        self.ids_where(|one| one.slot == slot)
    }

    fn ids_where(&self, matches: impl Fn(&PeerMove<K, W>) -> bool) -> Vec<u64> {
        self.moves.iter().filter(|(_, one)| matches(one)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: PeerSlot = PeerSlot(3);
    const FOUR: PeerSlot = PeerSlot(4);

    type Out = Vec<HandoffOutput<u32, &'static str>>;

    fn moves() -> PeerMoves<u32, &'static str> {
        PeerMoves::new(100)
    }

    fn add(moves: &mut PeerMoves<u32, &'static str>, slot: PeerSlot, epoch: u64, key: u32) -> u64 {
        let waiter = ["zero", "one", "two", "three", "four"][key as usize % 5];
        moves.add(PeerMove { slot, key, epoch, waiter })
    }

    fn restored(waiter: &'static str) -> HandoffOutput<u32, &'static str> {
        HandoffOutput::Answer { waiter, outcome: PeerMoveOutcome::Restored }
    }

    #[test]
    fn an_answer_counts_only_from_the_requested_peer() {
        let (mut moves, mut out) = (moves(), Out::new());
        let id = add(&mut moves, THREE, 1, 1);
        moves.answer(FOUR, id, PeerMoveOutcome::Restored, &mut out);
        assert!(out.is_empty() && moves.has(1));
        moves.answer(THREE, id, PeerMoveOutcome::Restored, &mut out);
        assert!(out == [restored("one")] && !moves.has(1));
    }

    #[test]
    fn a_list_resolves_the_moves_of_earlier_epochs() {
        let (mut moves, mut out) = (moves(), Out::new());
        for (slot, epoch, key) in [(THREE, 1, 1), (THREE, 1, 2), (THREE, 2, 3), (FOUR, 1, 4)] {
            add(&mut moves, slot, epoch, key);
        }
        moves.resolve(THREE, 2, |key| key == 1, &mut out);
        assert_eq!(out[0], restored("one"));
        assert!(matches!(
            out[1],
            HandoffOutput::Answer { waiter: "two", outcome: PeerMoveOutcome::Refused(_) }
        ));
        assert_eq!(out.len(), 2);
        let ids = moves.ids_to(THREE);
        assert_eq!((ids.len(), moves.abandon(ids[0])), (1, Some((THREE, 3, "three"))));
        assert!(!moves.has(3) && moves.has(4));
        let again = add(&mut moves, FOUR, 1, 4);
        moves.remove(again);
        assert!(moves.has(4), "the other of these addresses");
    }

    /// The result does not depend on whether the peer reports it before or after the client's reset, or by which
    /// message.
    #[test]
    fn an_abandoned_move_that_succeeded_is_reported_once() {
        let out = &mut Out::new();
        let given_up = || {
            let mut moves = moves();
            let id = add(&mut moves, THREE, 1, 1);
            moves.abandon(id);
            (moves, id)
        };
        let (mut moves, id) = given_up();
        assert_eq!(
            (moves.record_client_reset(id), moves.answer(FOUR, id, PeerMoveOutcome::Restored, out)),
            (None, None)
        );
        assert_eq!(moves.answer(THREE, id, PeerMoveOutcome::Refused(String::new()), out), None);
        assert_eq!(moves.answer(THREE, id, PeerMoveOutcome::Restored, out), Some((THREE, 1)), "late");
        assert_eq!(moves.answer(THREE, id, PeerMoveOutcome::Restored, out), None);

        let (mut moves, id) = given_up();
        assert_eq!(moves.answer(THREE, id, PeerMoveOutcome::Restored, out), None, "its client is told first");
        assert_eq!((moves.record_client_reset(id), moves.record_client_reset(id)), (Some((THREE, 1)), None));

        let (mut moves, id) = given_up();
        moves.receive_list(FOUR, |_| true);
        moves.receive_list(THREE, |listed| listed == 2);
        assert_eq!(moves.record_client_reset(id), None);
        let (mut moves, id) = given_up();
        moves.receive_list(THREE, |listed| listed == 1);
        assert_eq!(moves.record_client_reset(id), Some((THREE, 1)));
        assert!(out.is_empty());
    }

    #[test]
    fn the_number_of_abandoned_moves_is_bounded() {
        let (mut moves, out) = (moves(), &mut Out::new());
        let ids: Vec<u64> = (0..=100).map(|key| add(&mut moves, THREE, 1, key)).collect();
        for id in &ids {
            moves.abandon(*id);
        }
        assert_eq!(
            (moves.abandoned.len(), moves.record_client_reset(ids[0]), moves.moves.len()),
            (100, None, 0)
        );
        assert_eq!(moves.record_client_reset(ids[1]), None);
        assert_eq!(moves.answer(THREE, ids[1], PeerMoveOutcome::Restored, out), Some((THREE, 1)));
    }
}
