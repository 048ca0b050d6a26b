//! One connection on its way to a peer.
//!
//! The frozen socket is kept until the peer has answered: a refusal brings it back to life. While nothing is known (the
//! channel broke in the middle) it stays frozen; the peer says after its return what it has.

use super::choice::Unmoved;
use super::members::Soon;
use super::table::Handed;
use super::{Handover, State};
use crate::cooperate::{Held, Serviced};
use larder_core::{Bytes, NodeId, TargetId};
use larder_handoff::FlowKey;
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_handoff::plane::FlowTo;
use larder_handoff::repair::{self, Mends, Unfrozen};
use larder_peers::Name;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a socket stays frozen while nothing is known of it. Then its client is told that the connection is gone.
const DOUBT: Duration = Duration::from_secs(30);

/// Moves that were given up and are remembered, for a peer that answers late; further ones displace the oldest.
const LOST_MAX: usize = 1_024;

/// A connection that is to be handed over, as its request's handler leaves it.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(crate) to: Name,
    /// The same, by its number among the peers.
    pub(crate) node: NodeId,
    pub(crate) flow: FlowKey,
    /// The request's head.
    pub(crate) head: Vec<u8>,
    pub(crate) target: TargetId,
    /// It counts here until it has been sent; at a dispatcher until it ends.
    pub(crate) serviced: Serviced,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Moved {
    /// The peer has it.
    Gone,
    /// It is still here; why is in the log.
    Stays(OwnedFd),
    /// It is lost; its client has been told.
    Lost,
}

/// What a peer has said of a socket on its way.
#[derive(Debug)]
pub(super) enum Arrived {
    Restored,
    Refused(String),
}

/// A socket on its way.
#[derive(Debug)]
struct Move {
    slot: u16,
    key: FlowKey,
    /// Of the peer's channel, when it was sent.
    epoch: u64,
    answer: oneshot::Sender<Arrived>,
}

/// A move that was given up.
#[derive(Debug)]
struct Lost {
    slot: u16,
    key: FlowKey,
    /// The client has been told.
    told: bool,
    /// The peer has said since that it has the connection.
    there: bool,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(super) struct Moves {
    last: u64,
    moves: HashMap<u64, Move>,
    lost: BTreeMap<u64, Lost>,
    /// How many there are of a connection.
    keys: HashMap<FlowKey, u32>,
}

impl Moves {
    fn begin(&mut self, slot: u16, epoch: u64, key: FlowKey) -> (u64, oneshot::Receiver<Arrived>) {
        let (answer, arrived) = oneshot::channel();
        self.last += 1;
        self.moves.insert(self.last, Move { slot, key, epoch, answer });
        *self.keys.entry(key).or_default() += 1;
        (self.last, arrived)
    }

    fn end(&mut self, id: u64) -> Option<Move> {
        let one = self.moves.remove(&id)?;
        if let Some(count) = self.keys.get_mut(&one.key) {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&one.key);
            }
        }
        Some(one)
    }

    /// A peer has answered. A number is only good from the one that it was given to. Gives the connection if the peer has it, and
    /// its client has been told meanwhile that it is gone.
    pub(super) fn answer(&mut self, slot: u16, id: u64, arrived: Arrived) -> Option<FlowKey> {
        if matches!(arrived, Arrived::Restored)
            && let Some(lost) = self.lost.get_mut(&id).filter(|lost| lost.slot == slot)
        {
            lost.there = true;
            return self.take_told(id);
        }
        if self.moves.get(&id).is_some_and(|one| one.slot == slot)
            && let Some(one) = self.end(id)
        {
            // Nobody waits for it if the node ends.
            let _ = one.answer.send(arrived);
        }
        None
    }

    /// A peer names what it has. What was given up, and whose client is still to be told, may be among it.
    pub(super) fn named(&mut self, slot: u16, has: impl Fn(FlowKey) -> bool) {
        let lost = self.lost.values_mut().filter(|lost| lost.slot == slot && !lost.told);
        lost.for_each(|lost| lost.there |= has(lost.key));
    }

    /// The client of a move that was given up has been told. Gives the connection if the peer has it all the same.
    fn told(&mut self, id: u64) -> Option<FlowKey> {
        self.lost.get_mut(&id)?.told = true;
        self.take_told(id)
    }

    fn take_told(&mut self, id: u64) -> Option<FlowKey> {
        let lost = self.lost.get(&id).filter(|lost| lost.told && lost.there)?.key;
        self.lost.remove(&id);
        Some(lost)
    }

    /// Nothing more is waited for.
    fn lose(&mut self, id: u64) {
        let Some(Move { slot, key, .. }) = self.end(id) else { return };
        self.lost.insert(id, Lost { slot, key, told: false, there: false });
        if self.lost.len() > LOST_MAX {
            self.lost.pop_first();
        }
    }

    pub(super) fn has(&self, key: FlowKey) -> bool {
        self.keys.contains_key(&key)
    }

    /// A peer has named all that it has since its channel came up the `epoch`th time.
    pub(super) fn resolve(&mut self, slot: u16, epoch: u64, has: impl Fn(FlowKey) -> bool) {
        for one in self.take(|one| one.slot == slot && one.epoch < epoch) {
            let arrived = if has(one.key) {
                Arrived::Restored
            } else {
                Arrived::Refused("the peer does not know the connection".to_owned())
            };
            let _ = one.answer.send(arrived);
        }
    }

    /// Nothing more is waited for of what was sent to a peer.
    pub(super) fn give_up(&mut self, slot: u16) {
        self.which(|one| one.slot == slot).into_iter().for_each(|id| self.lose(id));
    }

    fn take(&mut self, which: impl Fn(&Move) -> bool) -> Vec<Move> {
        self.which(which).into_iter().filter_map(|id| self.end(id)).collect()
    }

    fn which(&self, which: impl Fn(&Move) -> bool) -> Vec<u64> {
        self.moves.iter().filter(|(_, one)| which(one)).map(|(id, _)| *id).collect()
    }
}

impl Handover {
    /// Hands a connection over: `socket`, of which there is no other descriptor, whose request is `first`, with what was
    /// read behind it. `sent` is called when it is on its way; what it returns is dropped when the connection is the peer's
    /// no more.
    pub(crate) async fn hand_over(
        &self,
        to: &Name,
        key: FlowKey,
        socket: OwnedFd,
        first: Vec<u8>,
        sent: impl FnOnce() -> Option<Held>,
    ) -> Moved {
        let Some((slot, epoch, id, mut arrived)) = self.point_at(to, key) else {
            self.count(Unmoved::Failed);
            return Moved::Stays(socket);
        };
        let frozen = match repair::freeze(socket.as_fd(), &Mends::default()) {
            Ok(frozen) => frozen,
            Err(Unfrozen { usable, why }) => {
                tracing::debug!(why, %key, "a connection cannot be handed over");
                self.tell(to, &ToNode::Forget(key.into()));
                self.turn_back(key, id);
                self.count(Unmoved::Failed);
                return if usable { Moved::Stays(socket) } else { Moved::Lost };
            }
        };
        if let Some(handed) = self.state().table.get_mut(key) {
            (handed.first_seq, handed.first_ack) = (Some(frozen.first_seq), Some(frozen.first_ack));
        }
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            first_seq: frozen.first_seq,
            checkpoint: Blob(frozen.frame),
            request: Blob(first),
        });
        if !self.send_move(to, epoch, &message) {
            return self.thaw(key, id, socket);
        }
        if let Some(held) = sent() {
            self.state().table.hold(key, held);
        }
        let answer = match tokio::time::timeout(DOUBT, &mut arrived).await {
            Ok(answer) => answer.ok(),
            Err(_) => self.last_word(id, &mut arrived),
        };
        match answer {
            Some(Arrived::Restored) => {
                self.moved.fetch_add(1, Relaxed);
                close(key, socket);
                Moved::Gone
            }
            Some(Arrived::Refused(why)) => {
                tracing::info!(peer = %to, why, %key, "a peer did not take a connection");
                self.thaw(key, id, socket)
            }
            // Whether the peer has it is not known, and two hosts must not answer.
            None => {
                tracing::warn!(peer = %to, slot, %key, "nothing was heard of a connection on its way: its client is told");
                self.abort(slot, id, key, socket);
                Moved::Lost
            }
        }
    }

    /// What has been heard of a move in the moment in which it is given up.
    fn last_word(&self, id: u64, arrived: &mut oneshot::Receiver<Arrived>) -> Option<Arrived> {
        // Answers are given under the same lock.
        let mut state = self.state();
        let answer = arrived.try_recv().ok();
        if answer.is_none() {
            state.moves.lose(id);
        }
        answer
    }

    /// The peer gets the connection's packets from here on, where they wait for it.
    fn point_at(&self, to: &Name, key: FlowKey) -> Option<(u16, u64, u64, oneshot::Receiver<Arrived>)> {
        // Locked for all: nobody may find one without the other.
        let mut state = self.state();
        let State { members, table, moves, .. } = &mut *state;
        let (slot, epoch) = members.place(to, key.service)?;
        if let Err(error) = self.plane.put_flow(key, FlowTo::Node(slot)) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
            return None;
        }
        let (id, arrived) = moves.begin(slot, epoch, key);
        table.put(key, Handed { slot, epoch, first_seq: None, first_ack: None });
        Some((slot, epoch, id, arrived))
    }

    /// The connection's packets come here again.
    fn turn_back(&self, key: FlowKey, id: u64) {
        let mut state = self.state();
        state.moves.end(id);
        state.table.remove(key);
        if let Err(error) = self.plane.remove_flow(key) {
            tracing::warn!(%error, %key, "a connection could not be pointed back at this host");
        }
    }

    /// The frozen socket goes on here.
    fn thaw(&self, key: FlowKey, id: u64, socket: OwnedFd) -> Moved {
        self.count(Unmoved::Failed);
        // First the plane, so that nothing the thawed socket sends is dropped on its way out.
        self.turn_back(key, id);
        match repair::resume(socket.as_fd()) {
            Ok(()) => Moved::Stays(socket),
            Err(error) => {
                tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                Moved::Lost
            }
        }
    }

    /// Tells the client that its connection is gone, with the number that only the socket knows.
    fn abort(&self, slot: u16, id: u64, key: FlowKey, socket: OwnedFd) {
        self.count(Unmoved::Failed);
        self.state().table.remove(key);
        // The peer may have it all the same, and say so later.
        let reset = self.plane.put_flow(key, FlowTo::Reset).map_err(std::io::Error::other);
        let reset = reset
            .and_then(|()| repair::resume(socket.as_fd()))
            .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        drop(socket);
        if let Err(error) = reset {
            tracing::debug!(%error, %key, "a lost connection's socket could not be reset");
        }
        let mut state = self.state();
        let late = state.moves.told(id);
        state.soon.extend(late.map(|key| Soon::StillHas(slot, key)));
        drop(state);
        self.settle();
    }

    /// How large a target is, if that is known.
    pub(crate) fn size_of(&self, target: TargetId) -> Option<Bytes> {
        super::lock(&self.sizes).of(target)
    }
}

/// A socket whose connection is elsewhere. It says nothing.
fn close(key: FlowKey, socket: OwnedFd) {
    if let Err(error) = repair::close_silently(socket) {
        tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        FlowKey::new(([192, 0, 2, 1], port).into(), 0)
    }

    #[test]
    fn an_answer_counts_from_the_peer_that_was_asked() {
        let mut moves = Moves::default();
        let (id, mut arrived) = moves.begin(3, 1, key(1));
        moves.answer(4, id, Arrived::Restored);
        assert!(arrived.try_recv().is_err() && moves.has(key(1)));
        moves.answer(3, id, Arrived::Restored);
        assert!(matches!(arrived.try_recv(), Ok(Arrived::Restored)) && !moves.has(key(1)));
    }

    #[test]
    fn what_a_peer_names_after_its_return_answers_what_was_sent_before() {
        let mut moves = Moves::default();
        let (_, mut named) = moves.begin(3, 1, key(1));
        let (_, mut unnamed) = moves.begin(3, 1, key(2));
        let (_, mut later) = moves.begin(3, 2, key(3));
        let (_, mut other) = moves.begin(4, 1, key(4));
        moves.resolve(3, 2, |key| key.client.port() == 1);
        assert!(matches!(named.try_recv(), Ok(Arrived::Restored)));
        assert!(matches!(unnamed.try_recv(), Ok(Arrived::Refused(_))));
        assert!(later.try_recv().is_err() && other.try_recv().is_err());
        moves.give_up(3);
        assert!(!moves.has(key(3)) && moves.has(key(4)));
        let (again, _answer) = moves.begin(4, 1, key(4));
        moves.end(again);
        assert!(moves.has(key(4)), "the other of these addresses");
        assert!(
            matches!(later.try_recv(), Err(oneshot::error::TryRecvError::Closed)),
            "nothing more is heard"
        );
    }

    /// Whether the peer says so before the client has been told or after, and by which message.
    #[test]
    fn what_was_given_up_and_is_there_all_the_same_is_known_once() {
        let given_up = || {
            let mut moves = Moves::default();
            let (id, _) = moves.begin(3, 1, key(1));
            moves.give_up(3);
            (moves, id)
        };
        let (mut moves, id) = given_up();
        assert_eq!((moves.told(id), moves.answer(4, id, Arrived::Restored)), (None, None), "another's word");
        assert_eq!(moves.answer(3, id, Arrived::Refused(String::new())), None);
        assert_eq!(moves.answer(3, id, Arrived::Restored), Some(key(1)), "late");
        assert_eq!(moves.answer(3, id, Arrived::Restored), None);

        let (mut moves, id) = given_up();
        assert_eq!(moves.answer(3, id, Arrived::Restored), None, "its client is told first");
        assert_eq!((moves.told(id), moves.told(id)), (Some(key(1)), None));

        let (mut moves, id) = given_up();
        moves.named(4, |_| true);
        moves.named(3, |named| named == key(2));
        assert_eq!(moves.told(id), None);
        let (mut moves, id) = given_up();
        moves.named(3, |named| named == key(1));
        assert_eq!(moves.told(id), Some(key(1)));
    }

    #[test]
    fn no_more_than_some_of_what_was_given_up_is_remembered() {
        let mut moves = Moves::default();
        let last = u16::try_from(LOST_MAX).expect("a port");
        let ids: Vec<u64> = (0..=last).map(|port| moves.begin(3, 1, key(port)).0).collect();
        ids.iter().for_each(|id| moves.lose(*id));
        assert_eq!((moves.lost.len(), moves.told(ids[0]), moves.moves.len()), (LOST_MAX, None, 0));
        assert_eq!(moves.told(ids[1]), None);
        assert_eq!(moves.answer(3, ids[1], Arrived::Restored), Some(key(1)));
    }
}
