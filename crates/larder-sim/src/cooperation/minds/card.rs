//! CARD: one state machine of the live node per node. The node with the lowest name decides for all.

use larder_core::peers::{Card, CardOutput, CardSettings, CardWhy, Claim, Placed, To};
use larder_core::{NodeId, Time};

use super::mind::{Asked, Decision, Minds, Place, State, TARGET_BYTES, Wish, Words, name_of, put, take};
use crate::SimError;
use crate::cooperation::cluster::Cooperation;
use crate::cooperation::servers::Counted;

/// Bytes of a peer: every node keeps the dispatcher's state ready, with the peer's slot, name and load.
const PEER_BYTES: usize = 575;
/// Bytes of a distributor's last batch at the dispatcher, without its answers.
const CLIENT_BYTES: usize = 100;

/// The state machines of the nodes.
#[derive(Debug)]
pub(super) struct Cards {
    cards: Vec<Card>,
    /// The claims by which the dispatcher counts requests, by task.
    claims: Vec<Option<Claim>>,
    counted: Counted,
    /// An empty buffer between two calls.
    out: Vec<CardOutput>,
}

impl Cards {
    pub(super) fn new(cluster: &Cooperation) -> Result<Self, SimError> {
        let mut settings: CardSettings = cluster.card.clone();
        settings.dispatcher.nodes_max = cluster.nodes;
        let card = |node| Ok(Card::new(NodeId(node), &name_of(node), 1, settings.clone())?);
        let cards = (0..cluster.nodes).map(card).collect::<Result<Vec<Card>, SimError>>()?;
        Ok(Self { cards, claims: Vec::new(), counted: cluster.counted, out: Vec::new() })
    }

    fn with(&mut self, node: u16, out: &mut Vec<Wish>, act: impl FnOnce(&mut Card, &mut Vec<CardOutput>)) {
        act(&mut self.cards[usize::from(node)], &mut self.out);
        for output in self.out.drain(..) {
            out.push(match output {
                CardOutput::Send { to, message } => {
                    Wish::Say { to: To::One(to), words: Words::Card(message) }
                }
                CardOutput::Placed(Placed { ticket, node, why, claim }) => {
                    let task = ticket as u32;
                    if let Some(claim) = claim {
                        put(&mut self.claims, task, claim);
                    }
                    Wish::Placed { task, place: Place { node: node.0, why: why as usize, keep: true } }
                }
            });
        }
    }

    fn release(&mut self, now: Time, node: u16, task: u32) -> bool {
        let claim = take(&mut self.claims, task);
        if let Some(claim) = claim {
            self.cards[usize::from(node)].ended(now, claim);
        }
        claim.is_some()
    }
}

impl Minds for Cards {
    fn reasons(&self) -> Vec<&'static str> {
        CardWhy::ALL.map(CardWhy::name).to_vec()
    }

    fn speakers(&self) -> u16 {
        self.cards.len() as u16
    }

    fn leader(&self) -> Option<u16> {
        self.cards.first().map(|card| card.dispatcher().0)
    }

    fn joined(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |card, out| card.joined(now, NodeId(peer), &name_of(peer), out));
    }

    fn decide(&mut self, now: Time, task: u32, asked: &Asked, out: &mut Vec<Wish>) -> Decision {
        if self.leader() == Some(asked.node) {
            out.push(Wish::Decided);
        }
        self.with(asked.node, out, |card, out| card.ask(now, u64::from(task), asked.target, out));
        Decision::Later
    }

    fn moved(&mut self, now: Time, node: u16, task: u32) -> bool {
        self.counted == Counted::UntilMoved && self.release(now, node, task)
    }

    fn over(&mut self, now: Time, node: u16, task: u32) -> bool {
        self.release(now, node, task)
    }

    fn hear(&mut self, now: Time, node: u16, from: u16, words: Words, out: &mut Vec<Wish>) {
        let Words::Card(message) = words else { return };
        self.with(node, out, |card, out| card.hear(now, NodeId(from), message, out));
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<Wish>) {
        self.with(node, out, |card, out| card.tick(now, out));
    }

    fn due(&self, node: u16) -> Time {
        self.cards[usize::from(node)].due()
    }

    /// Counts the peers and, at the dispatcher, the last batch of each distributor and the targets.
    fn states(&self) -> Vec<State> {
        let peers = self.cards.len() - 1;
        let state = |card: &Card| {
            let targets = card.targets_known();
            let clients = if targets > 0 { CLIENT_BYTES * peers } else { 0 };
            State { bytes: TARGET_BYTES * targets + PEER_BYTES * peers + clients, targets }
        };
        self.cards.iter().map(state).collect()
    }
}
