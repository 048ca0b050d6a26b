//! CARD: one state machine of the live node per node. The node with the lowest name decides for all.

use larder_core::peers::{Card, CardOutput, CardPlacement, CardReason, CardSettings, Claim, Recipient};
use larder_core::{NodeId, Time};

use super::interface::{
    ClusterProtocol, NodeMessage, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize,
    TARGET_BYTES, name_of, put, take,
};
use crate::SimError;
use crate::cooperation::cluster::CooperativeCluster;
use crate::cooperation::servers::LoadAccounting;

/// Bytes of a peer: every node keeps the dispatcher's state ready, with the peer's slot, name and load.
const PEER_BYTES: usize = 575;
/// Bytes of a distributor's last batch at the dispatcher, without its answers.
const CLIENT_BYTES: usize = 100;

/// The state machines of the nodes.
#[derive(Debug)]
pub(super) struct CardNodes {
    cards: Vec<Card>,
    /// The claims by which the dispatcher counts requests, by task.
    claims: Vec<Option<Claim>>,
    accounting: LoadAccounting,
    /// An empty buffer between two calls.
    out: Vec<CardOutput>,
}

impl CardNodes {
    pub(super) fn new(cluster: &CooperativeCluster) -> Result<Self, SimError> {
        let mut settings: CardSettings = cluster.card.clone();
        settings.dispatcher.nodes_max = cluster.nodes;
        let card = |node| Ok(Card::new(NodeId(node), &name_of(node), 1, settings.clone())?);
        let cards = (0..cluster.nodes).map(card).collect::<Result<Vec<Card>, SimError>>()?;
        Ok(Self { cards, claims: Vec::new(), accounting: cluster.accounting, out: Vec::new() })
    }

    fn with(
        &mut self,
        node: u16,
        out: &mut Vec<ProtocolAction>,
        act: impl FnOnce(&mut Card, &mut Vec<CardOutput>),
    ) {
        act(&mut self.cards[usize::from(node)], &mut self.out);
        for output in self.out.drain(..) {
            out.push(match output {
                CardOutput::Send { to, message } => {
                    ProtocolAction::Send { to: Recipient::One(to), message: NodeMessage::Card(message) }
                }
                CardOutput::Placement(CardPlacement { ticket, node, reason: why, claim }) => {
                    let task = ticket as u32;
                    if let Some(claim) = claim {
                        put(&mut self.claims, task, claim);
                    }
                    ProtocolAction::Placed {
                        task,
                        placement: Placement { node: node.0, why: why as usize, keep: true },
                    }
                }
            });
        }
    }

    fn release(&mut self, now: Time, node: u16, task: u32) -> bool {
        let claim = take(&mut self.claims, task);
        if let Some(claim) = claim {
            self.cards[usize::from(node)].end_request(now, claim);
        }
        claim.is_some()
    }
}

impl ClusterProtocol for CardNodes {
    fn reasons(&self) -> Vec<&'static str> {
        CardReason::ALL.map(CardReason::name).to_vec()
    }

    fn messaging_nodes(&self) -> u16 {
        self.cards.len() as u16
    }

    fn leader(&self) -> Option<u16> {
        self.cards.first().map(|card| card.dispatcher().0)
    }

    fn add_peer(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |card, out| card.add_node(now, NodeId(peer), &name_of(peer), out));
    }

    fn decide(
        &mut self,
        now: Time,
        task: u32,
        request: &PlacementRequest,
        out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision {
        if self.leader() == Some(request.node) {
            out.push(ProtocolAction::Decided);
        }
        self.with(request.node, out, |card, out| card.ask(now, u64::from(task), request.target, out));
        PlacementDecision::Later
    }

    fn complete_handoff(&mut self, now: Time, node: u16, task: u32) -> bool {
        self.accounting == LoadAccounting::UntilMoved && self.release(now, node, task)
    }

    fn end_request(&mut self, now: Time, node: u16, task: u32) -> bool {
        self.release(now, node, task)
    }

    fn receive(
        &mut self,
        now: Time,
        node: u16,
        from: u16,
        message: NodeMessage,
        out: &mut Vec<ProtocolAction>,
    ) {
        let NodeMessage::Card(message) = message else { return };
        self.with(node, out, |card, out| card.receive(now, NodeId(from), message, out));
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |card, out| card.tick(now, out));
    }

    fn next_timer(&self, node: u16) -> Time {
        self.cards[usize::from(node)].due()
    }

    /// Counts the peers and, at the dispatcher, the last batch of each distributor and the targets.
    fn state_sizes(&self) -> Vec<StateSize> {
        let peers = self.cards.len() - 1;
        let state = |card: &Card| {
            let targets = card.targets_known();
            let clients = if targets > 0 { CLIENT_BYTES * peers } else { 0 };
            StateSize { bytes: TARGET_BYTES * targets + PEER_BYTES * peers + clients, targets }
        };
        self.cards.iter().map(state).collect()
    }
}
