//! Sockets on their way to peers, and those that were given up.

use super::event::{Heard, Output, Slot};
use std::collections::BTreeMap;

/// A socket on its way.
#[derive(Debug)]
pub(super) struct Move<K, W> {
    pub(super) slot: Slot,
    pub(super) key: K,
    /// Of the peer's channel, when it was sent.
    pub(super) epoch: u64,
    pub(super) waits: W,
}

/// A move that was given up.
#[derive(Debug)]
struct Lost<K> {
    slot: Slot,
    key: K,
    /// The client has been told.
    told: bool,
    /// The peer has said since that it has the connection.
    there: bool,
}

/// All of them, by number.
#[derive(Debug)]
pub(super) struct Moves<K, W> {
    last: u64,
    moves: BTreeMap<u64, Move<K, W>>,
    /// Of more than `lost_max` the oldest is forgotten.
    lost: BTreeMap<u64, Lost<K>>,
    lost_max: usize,
    /// How many there are of a connection.
    keys: BTreeMap<K, u32>,
}

impl<K: Copy + Ord, W> Moves<K, W> {
    pub(super) fn new(lost_max: usize) -> Self {
        Self { last: 0, moves: BTreeMap::new(), lost: BTreeMap::new(), lost_max, keys: BTreeMap::new() }
    }

    pub(super) fn begin(&mut self, one: Move<K, W>) -> u64 {
        self.last += 1;
        *self.keys.entry(one.key).or_default() += 1;
        self.moves.insert(self.last, one);
        self.last
    }

    pub(super) fn end(&mut self, id: u64) -> Option<Move<K, W>> {
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

    /// A peer has answered. A number is only good from the one that it was given to. Gives the connection if the peer has it, and
    /// its client has been told meanwhile that it is gone.
    pub(super) fn answer(
        &mut self,
        slot: Slot,
        id: u64,
        heard: Heard,
        out: &mut Vec<Output<K, W>>,
    ) -> Option<(Slot, K)> {
        if heard == Heard::Restored
            && let Some(lost) = self.lost.get_mut(&id).filter(|lost| lost.slot == slot)
        {
            lost.there = true;
            return self.take_told(id);
        }
        if self.moves.get(&id).is_some_and(|one| one.slot == slot)
            && let Some(one) = self.end(id)
        {
            out.push(Output::Answer { waits: one.waits, heard });
        }
        None
    }

    /// A peer names what it has. What was given up, and whose client is still to be told, may be among it.
    pub(super) fn named(&mut self, slot: Slot, has: impl Fn(K) -> bool) {
        let lost = self.lost.values_mut().filter(|lost| lost.slot == slot && !lost.told);
        lost.for_each(|lost| lost.there |= has(lost.key));
    }

    /// The client of a move that was given up has been told. Gives the connection if the peer has it all the same.
    pub(super) fn told(&mut self, id: u64) -> Option<(Slot, K)> {
        self.lost.get_mut(&id)?.told = true;
        self.take_told(id)
    }

    fn take_told(&mut self, id: u64) -> Option<(Slot, K)> {
        let lost = self.lost.get(&id).filter(|lost| lost.told && lost.there)?;
        let lost = (lost.slot, lost.key);
        self.lost.remove(&id);
        Some(lost)
    }

    /// Nothing more is waited for. Gives the connection, and who waits.
    pub(super) fn lose(&mut self, id: u64) -> Option<(Slot, K, W)> {
        let Move { slot, key, waits, .. } = self.end(id)?;
        self.lost.insert(id, Lost { slot, key, told: false, there: false });
        if self.lost.len() > self.lost_max {
            self.lost.pop_first();
        }
        Some((slot, key, waits))
    }

    /// A peer has named all that it has since its channel came up the `epoch`th time.
    pub(super) fn resolve(
        &mut self,
        slot: Slot,
        epoch: u64,
        has: impl Fn(K) -> bool,
        out: &mut Vec<Output<K, W>>,
    ) {
        for id in self.which(|one| one.slot == slot && one.epoch < epoch) {
            let Some(Move { key, waits, .. }) = self.end(id) else { continue };
            let heard = if has(key) {
                Heard::Restored
            } else {
                Heard::Refused("the peer does not know the connection".to_owned())
            };
            out.push(Output::Answer { waits, heard });
        }
    }

    /// Numbers of what is on its way to a peer.
    pub(super) fn of(&self, slot: Slot) -> Vec<u64> {
        self.which(|one| one.slot == slot)
    }

    fn which(&self, which: impl Fn(&Move<K, W>) -> bool) -> Vec<u64> {
        self.moves.iter().filter(|(_, one)| which(one)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: Slot = Slot(3);
    const FOUR: Slot = Slot(4);

    type Out = Vec<Output<u32, &'static str>>;

    fn moves() -> Moves<u32, &'static str> {
        Moves::new(100)
    }

    fn begin(moves: &mut Moves<u32, &'static str>, slot: Slot, epoch: u64, key: u32) -> u64 {
        let waits = ["zero", "one", "two", "three", "four"][key as usize % 5];
        moves.begin(Move { slot, key, epoch, waits })
    }

    fn restored(waits: &'static str) -> Output<u32, &'static str> {
        Output::Answer { waits, heard: Heard::Restored }
    }

    #[test]
    fn an_answer_counts_from_the_peer_that_was_asked() {
        let (mut moves, mut out) = (moves(), Out::new());
        let id = begin(&mut moves, THREE, 1, 1);
        moves.answer(FOUR, id, Heard::Restored, &mut out);
        assert!(out.is_empty() && moves.has(1));
        moves.answer(THREE, id, Heard::Restored, &mut out);
        assert!(out == [restored("one")] && !moves.has(1));
    }

    #[test]
    fn what_a_peer_names_after_its_return_answers_what_was_sent_before() {
        let (mut moves, mut out) = (moves(), Out::new());
        for (slot, epoch, key) in [(THREE, 1, 1), (THREE, 1, 2), (THREE, 2, 3), (FOUR, 1, 4)] {
            begin(&mut moves, slot, epoch, key);
        }
        moves.resolve(THREE, 2, |key| key == 1, &mut out);
        assert_eq!(out[0], restored("one"));
        assert!(matches!(out[1], Output::Answer { waits: "two", heard: Heard::Refused(_) }));
        assert_eq!(out.len(), 2);
        let of = moves.of(THREE);
        assert_eq!((of.len(), moves.lose(of[0])), (1, Some((THREE, 3, "three"))));
        assert!(!moves.has(3) && moves.has(4));
        let again = begin(&mut moves, FOUR, 1, 4);
        moves.end(again);
        assert!(moves.has(4), "the other of these addresses");
    }

    /// Whether the peer says so before the client has been told or after, and by which message.
    #[test]
    fn what_was_given_up_and_is_there_all_the_same_is_known_once() {
        let out = &mut Out::new();
        let given_up = || {
            let mut moves = moves();
            let id = begin(&mut moves, THREE, 1, 1);
            moves.lose(id);
            (moves, id)
        };
        let (mut moves, id) = given_up();
        assert_eq!((moves.told(id), moves.answer(FOUR, id, Heard::Restored, out)), (None, None));
        assert_eq!(moves.answer(THREE, id, Heard::Refused(String::new()), out), None);
        assert_eq!(moves.answer(THREE, id, Heard::Restored, out), Some((THREE, 1)), "late");
        assert_eq!(moves.answer(THREE, id, Heard::Restored, out), None);

        let (mut moves, id) = given_up();
        assert_eq!(moves.answer(THREE, id, Heard::Restored, out), None, "its client is told first");
        assert_eq!((moves.told(id), moves.told(id)), (Some((THREE, 1)), None));

        let (mut moves, id) = given_up();
        moves.named(FOUR, |_| true);
        moves.named(THREE, |named| named == 2);
        assert_eq!(moves.told(id), None);
        let (mut moves, id) = given_up();
        moves.named(THREE, |named| named == 1);
        assert_eq!(moves.told(id), Some((THREE, 1)));
        assert!(out.is_empty());
    }

    #[test]
    fn no_more_than_some_of_what_was_given_up_is_remembered() {
        let (mut moves, out) = (moves(), &mut Out::new());
        let ids: Vec<u64> = (0..=100).map(|key| begin(&mut moves, THREE, 1, key)).collect();
        for id in &ids {
            moves.lose(*id);
        }
        assert_eq!((moves.lost.len(), moves.told(ids[0]), moves.moves.len()), (100, None, 0));
        assert_eq!(moves.told(ids[1]), None);
        assert_eq!(moves.answer(THREE, ids[1], Heard::Restored, out), Some((THREE, 1)));
    }
}
