//! CARD at a running node: the live node with the lowest name places the requests of all nodes.
//!
//! The task of a request asks for a placement and waits for it. The answer carries the ticket of the request.
//! If the task is dropped meanwhile, [`super::place`] releases the placement and the dispatcher's count.

use super::side::{FORWARDED, ME, Say, Side, UNANSWERED};
use larder_core::dispatch::SettingsError;
use larder_core::peers::{Card, CardMessage, CardOutput, CardSettings, CardWhy, Placed};
use larder_core::{NodeId, TargetId, Time, WireError};
use larder_peers::Name;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct CardSide {
    pub(super) card: Card,
    /// The requests that wait for a placement, by ticket. Never more than requests in flight.
    waiters: BTreeMap<u64, oneshot::Sender<Placed>>,
    tickets: u64,
    /// A buffer that is empty between two calls.
    out: Vec<CardOutput>,
}

impl CardSide {
    pub(super) fn new(name: &Name, epoch: u64, settings: CardSettings) -> Result<Self, SettingsError> {
        let card = Card::new(ME, name.as_str(), epoch, settings)?;
        Ok(Self { card, waiters: BTreeMap::new(), tickets: 0, out: Vec::new() })
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        let own = CardWhy::ALL.iter().map(|why| why.name());
        own.chain([FORWARDED, UNANSWERED]).collect()
    }

    /// Asks for a placement.
    pub(super) fn ask(
        &mut self,
        now: Time,
        target: TargetId,
        out: &mut Vec<Say>,
    ) -> oneshot::Receiver<Placed> {
        let (sender, receiver) = oneshot::channel();
        self.tickets += 1;
        let ticket = self.tickets;
        self.waiters.insert(ticket, sender);
        self.with(now, out, |card, out| card.ask(now, ticket, target, out));
        receiver
    }

    fn with(&mut self, now: Time, out: &mut Vec<Say>, act: impl FnOnce(&mut Card, &mut Vec<CardOutput>)) {
        act(&mut self.card, &mut self.out);
        for output in self.out.drain(..) {
            match output {
                CardOutput::Send { to, message } => out.push(Say::To(to, message.encode())),
                CardOutput::Placed(placed) => {
                    let waiter = self.waiters.remove(&placed.ticket);
                    let left = waiter.map_or(Some(placed), |waiter| waiter.send(placed).err());
                    if let Some(claim) = left.and_then(|placed| placed.claim) {
                        // The client has left.
                        self.card.ended(now, claim);
                    }
                }
            }
        }
    }
}

impl Side for CardSide {
    fn due(&self) -> Time {
        self.card.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Say>) {
        self.with(now, out, |card, out| card.tick(now, out));
    }

    fn joined(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<Say>) {
        let before = self.card.unseated();
        self.with(now, out, |card, out| card.joined(now, node, name.as_str(), out));
        if self.card.unseated() > before {
            tracing::warn!(peer = %name, "more nodes than the dispatcher takes: nothing is placed at this one");
        }
    }

    fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>) {
        self.with(now, out, |card, out| card.left(now, node, out));
    }

    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError> {
        let message = CardMessage::decode(bytes)?;
        self.with(now, out, |card, out| card.hear(now, from, message, out));
        Ok(())
    }

    fn answered(&mut self, node: NodeId) {
        self.card.replied(node);
    }

    fn unanswered(&mut self, now: Time, node: NodeId, _target: TargetId, to_blame: bool) {
        if to_blame {
            self.card.unanswered(now, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);

    fn side(own: &str, peer: &str) -> CardSide {
        let (own, peer): (Name, Name) = (own.parse().expect("a name"), peer.parse().expect("a name"));
        let mut side = CardSide::new(&own, 1, CardSettings::default()).expect("defaults are in range");
        side.joined(Time::ZERO, PEER, &peer, &mut Vec::new());
        side
    }

    /// Passes messages between two nodes until neither has any left.
    fn talk(now: Time, from: &mut CardSide, to: &mut CardSide, said: Vec<Say>) {
        let mut answers = Vec::new();
        for say in said {
            let Say::To(PEER, bytes) = say else { panic!("{say:?}") };
            to.hear(now, PEER, &bytes, &mut answers).expect("it can be read");
        }
        if !answers.is_empty() {
            talk(now, to, from, answers);
        }
    }

    #[test]
    fn who_goes_away_before_his_place_comes_leaves_no_load() {
        let (mut dispatcher, mut node) = (side("a", "b"), side("b", "a"));
        let now = Time::from_millis(1);
        let mut said = Vec::new();
        let stays = node.ask(now, TargetId(7), &mut said);
        talk(now, &mut node, &mut dispatcher, std::mem::take(&mut said));
        drop(node.ask(now, TargetId(7), &mut said));
        talk(now, &mut node, &mut dispatcher, std::mem::take(&mut said));
        let load = |side: &CardSide| side.card.load_at_desk(ME) + side.card.load_at_desk(PEER);
        assert_eq!(load(&dispatcher), 2);
        node.tick(now, &mut said);
        talk(now, &mut node, &mut dispatcher, said);
        assert_eq!(load(&dispatcher), 1, "that of the one who stays");
        let placed = stays.blocking_recv().expect("it was placed");
        assert!(placed.claim.is_some() && node.waiters.is_empty());
    }
}
