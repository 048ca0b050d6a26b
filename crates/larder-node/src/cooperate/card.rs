//! CARD at a running node: the live node with the lowest name places the requests of all nodes.
//!
//! The task of a request asks for a placement and waits for it. The answer carries the ticket of the request.
//! If the task is dropped meanwhile, [`super::placement`] releases the placement and the dispatcher's count.

use super::adapter::{FORWARDED, LOCAL, PolicyAdapter, PolicyOutput, UNANSWERED};
use larder_core::dispatch::SettingsError;
use larder_core::peers::{Card, CardMessage, CardOutput, CardPlacement, CardReason, CardSettings};
use larder_core::{NodeId, TargetId, Time, WireError};
use larder_peers::Name;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// The protocol's state at this node.
#[derive(Debug)]
pub(super) struct CardAdapter {
    pub(super) card: Card,
    /// The requests that wait for a placement, by ticket. Never more than requests in flight.
    waiters: BTreeMap<u64, oneshot::Sender<CardPlacement>>,
    tickets: u64,
    /// A buffer that is empty between two calls.
    out: Vec<CardOutput>,
}

impl CardAdapter {
    pub(super) fn new(name: &Name, epoch: u64, settings: CardSettings) -> Result<Self, SettingsError> {
        let card = Card::new(LOCAL, name.as_str(), epoch, settings)?;
        Ok(Self { card, waiters: BTreeMap::new(), tickets: 0, out: Vec::new() })
    }

    pub(super) fn reasons() -> Vec<&'static str> {
        let own = CardReason::ALL.iter().map(|why| why.name());
        own.chain([FORWARDED, UNANSWERED]).collect()
    }

    /// Asks for a placement.
    pub(super) fn request_placement(
        &mut self,
        now: Time,
        target: TargetId,
        out: &mut Vec<PolicyOutput>,
    ) -> oneshot::Receiver<CardPlacement> {
        let (sender, receiver) = oneshot::channel();
        self.tickets += 1;
        let ticket = self.tickets;
        self.waiters.insert(ticket, sender);
        self.with(now, out, |card, out| card.ask(now, ticket, target, out));
        receiver
    }

    fn with(
        &mut self,
        now: Time,
        out: &mut Vec<PolicyOutput>,
        act: impl FnOnce(&mut Card, &mut Vec<CardOutput>),
    ) {
        act(&mut self.card, &mut self.out);
        for output in self.out.drain(..) {
            match output {
                CardOutput::Send { to, message } => out.push(PolicyOutput::Send(to, message.encode())),
                CardOutput::Placement(placed) => {
                    let waiter = self.waiters.remove(&placed.ticket);
                    let left = waiter.map_or(Some(placed), |waiter| waiter.send(placed).err());
                    if let Some(claim) = left.and_then(|placed| placed.claim) {
                        // The client has left.
                        self.card.end_request(now, claim);
                    }
                }
            }
        }
    }
}

impl PolicyAdapter for CardAdapter {
    fn next_deadline(&self) -> Time {
        self.card.due()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<PolicyOutput>) {
        self.with(now, out, |card, out| card.tick(now, out));
    }

    fn add_member(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<PolicyOutput>) {
        let before = self.card.nodes_over_limit();
        self.with(now, out, |card, out| card.add_node(now, node, name.as_str(), out));
        if self.card.nodes_over_limit() > before {
            tracing::warn!(peer = %name, "peer: over the limit of the dispatcher, no targets are placed at it");
        }
    }

    fn remove_member(&mut self, now: Time, node: NodeId, out: &mut Vec<PolicyOutput>) {
        self.with(now, out, |card, out| card.remove_node(now, node, out));
    }

    fn handle_message(
        &mut self,
        now: Time,
        from: NodeId,
        bytes: &[u8],
        out: &mut Vec<PolicyOutput>,
    ) -> Result<(), WireError> {
        let message = CardMessage::decode(bytes)?;
        self.with(now, out, |card, out| card.receive(now, from, message, out));
        Ok(())
    }

    fn record_answer(&mut self, node: NodeId) {
        self.card.record_reply(node);
    }

    fn record_no_answer(&mut self, now: Time, node: NodeId, _target: TargetId, is_fault: bool) {
        if is_fault {
            self.card.record_failure(now, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);

    fn adapter(own: &str, peer: &str) -> CardAdapter {
        let (own, peer): (Name, Name) = (own.parse().expect("a name"), peer.parse().expect("a name"));
        let mut adapter = CardAdapter::new(&own, 1, CardSettings::default()).expect("defaults are in range");
        adapter.add_member(Time::ZERO, PEER, &peer, &mut Vec::new());
        adapter
    }

    /// Passes messages between two nodes until neither has any left.
    fn deliver(now: Time, from: &mut CardAdapter, to: &mut CardAdapter, outputs: Vec<PolicyOutput>) {
        let mut answers = Vec::new();
        for output in outputs {
            let PolicyOutput::Send(PEER, bytes) = output else { panic!("{output:?}") };
            to.handle_message(now, PEER, &bytes, &mut answers).expect("it can be read");
        }
        if !answers.is_empty() {
            deliver(now, to, from, answers);
        }
    }

    #[test]
    fn a_request_dropped_before_its_placement_leaves_no_load() {
        let (mut dispatcher, mut node) = (adapter("a", "b"), adapter("b", "a"));
        let now = Time::from_millis(1);
        let mut outputs = Vec::new();
        let stays = node.request_placement(now, TargetId(7), &mut outputs);
        deliver(now, &mut node, &mut dispatcher, std::mem::take(&mut outputs));
        drop(node.request_placement(now, TargetId(7), &mut outputs));
        deliver(now, &mut node, &mut dispatcher, std::mem::take(&mut outputs));
        let load =
            |adapter: &CardAdapter| adapter.card.dispatcher_load(LOCAL) + adapter.card.dispatcher_load(PEER);
        assert_eq!(load(&dispatcher), 2);
        node.tick(now, &mut outputs);
        deliver(now, &mut node, &mut dispatcher, outputs);
        assert_eq!(load(&dispatcher), 1, "that of the one who stays");
        let placed = stays.blocking_recv().expect("it was placed");
        assert!(placed.claim.is_some() && node.waiters.is_empty());
    }
}
