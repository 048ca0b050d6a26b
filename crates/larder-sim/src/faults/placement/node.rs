//! A node of CARD or WARD behind one interface.

use crate::faults::protocol::Protocol;
use core::time::Duration;
use larder_core::census::{CensusPeriod, TargetCount};
use larder_core::peers::{
    AnalysisInput, Card, CardMessage, CardOutput, CardSettings, Claim, Ward, WardMessage, WardOutput,
    WardSettings,
};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, NodeId, TargetId, Time};
use std::collections::BTreeMap;

/// The token that ends a request's load.
pub(super) type Token = Claim;

/// A message of either protocol.
#[derive(Clone, Debug)]
pub(in crate::faults) enum ProtocolMessage {
    Card(CardMessage),
    Ward(WardMessage),
}

impl ProtocolMessage {
    /// Returns the message after encoding and decoding, as it arrives.
    pub(super) fn reencode(&self) -> Self {
        match self {
            Self::Card(message) => {
                Self::Card(CardMessage::decode(&message.encode()).expect("what is sent can be read"))
            }
            Self::Ward(message) => {
                Self::Ward(WardMessage::decode(&message.encode()).expect("what is sent can be read"))
            }
        }
    }
}

/// An action that results from an input.
#[derive(Debug)]
pub(super) enum NodeAction {
    Send { to: usize, message: ProtocolMessage },
    Broadcast(ProtocolMessage),
    Placed { request: u64, node: usize, token: Option<Token> },
}

/// The state machine of a node.
#[derive(Debug)]
pub(in crate::faults) enum ProtocolNode {
    Card(Box<Card>),
    Ward(Box<Ward>, BTreeMap<u64, u64>),
}

impl ProtocolNode {
    pub(super) fn new(protocol: Protocol, me: usize, name: &str, epoch: u64) -> Self {
        let id = NodeId(me as u16);
        if protocol == Protocol::Card {
            let card = Card::new(id, name, epoch, CardSettings::default()).expect("defaults are in range");
            return Self::Card(Box::new(card));
        }
        // Periods are far shorter than live, so that tables are made and change during the faults.
        let settings = WardSettings {
            refresh: Some(Duration::from_secs(4)),
            first_requests: 20,
            settle: Duration::from_millis(500),
            heartbeat: Duration::from_millis(500),
            retry: Duration::from_millis(300),
            patience: Duration::from_secs(2),
            ..WardSettings::default()
        };
        Self::Ward(Box::new(Ward::new(id, name, epoch, settings)), BTreeMap::new())
    }

    pub(super) fn ask(&mut self, now: Time, request: u64, target: u64, actions: &mut Vec<NodeAction>) {
        match self {
            Self::Card(card) => {
                let mut out = Vec::new();
                card.ask(now, request, TargetId(target), &mut out);
                collect_card_outputs(out, actions);
            }
            Self::Ward(ward, census) => {
                *census.entry(target).or_default() += 1;
                let verdict = ward.decide(now, TargetId(target));
                actions.push(NodeAction::Placed { request, node: verdict.node.index(), token: None });
            }
        }
    }

    pub(super) fn end_request(&mut self, now: Time, token: Token) {
        if let Self::Card(card) = self {
            card.end_request(now, token);
        }
    }

    pub(super) fn record_reply(&mut self, node: NodeId) {
        match self {
            Self::Card(card) => card.record_reply(node),
            Self::Ward(ward, _) => ward.record_reply(node),
        }
    }

    pub(super) fn record_timeout(&mut self, now: Time, node: NodeId) {
        match self {
            Self::Card(card) => card.record_failure(now, node),
            Self::Ward(ward, _) => ward.record_failure(now, node),
        }
    }

    pub(super) fn add_peer(&mut self, now: Time, node: NodeId, name: &str, actions: &mut Vec<NodeAction>) {
        self.act(
            now,
            actions,
            |card, out| card.add_node(now, node, name, out),
            |ward, out| {
                ward.add_node(now, node, name, out);
            },
        );
    }

    pub(super) fn remove_peer(&mut self, now: Time, node: NodeId, actions: &mut Vec<NodeAction>) {
        self.act(
            now,
            actions,
            |card, out| card.remove_node(now, node, out),
            |ward, out| ward.remove_node(now, node, out),
        );
    }

    pub(super) fn receive(
        &mut self,
        now: Time,
        from: NodeId,
        message: ProtocolMessage,
        actions: &mut Vec<NodeAction>,
    ) {
        match message {
            ProtocolMessage::Card(message) => {
                self.act(now, actions, |card, out| card.receive(now, from, message, out), |_, _| {});
            }
            ProtocolMessage::Ward(message) => {
                self.act(now, actions, |_, _| {}, |ward, out| ward.receive(now, from, message, out));
            }
        }
    }

    pub(super) fn tick(&mut self, now: Time, actions: &mut Vec<NodeAction>) {
        self.act(now, actions, |card, out| card.tick(now, out), |ward, out| ward.tick(now, out));
    }

    pub(super) fn next_tick(&self) -> Time {
        match self {
            Self::Card(card) => card.due(),
            Self::Ward(ward, _) => ward.due(),
        }
    }

    /// Returns the dispatcher or table maker in this node's view.
    pub(super) fn leader(&self) -> NodeId {
        match self {
            Self::Card(card) => card.dispatcher(),
            Self::Ward(ward, _) => ward.table_maker(),
        }
    }

    fn act(
        &mut self,
        now: Time,
        actions: &mut Vec<NodeAction>,
        of_card: impl FnOnce(&mut Card, &mut Vec<CardOutput>),
        of_ward: impl FnOnce(&mut Ward, &mut Vec<WardOutput>),
    ) {
        match self {
            Self::Card(card) => {
                let mut out = Vec::new();
                of_card(card, &mut out);
                collect_card_outputs(out, actions);
            }
            Self::Ward(ward, census) => {
                let mut out = Vec::new();
                of_ward(ward, &mut out);
                collect_ward_outputs(now, ward, census, out, actions);
            }
        }
    }
}

fn collect_card_outputs(out: Vec<CardOutput>, actions: &mut Vec<NodeAction>) {
    actions.extend(out.into_iter().map(|output| match output {
        CardOutput::Send { to, message } => {
            NodeAction::Send { to: to.index(), message: ProtocolMessage::Card(message) }
        }
        CardOutput::Placement(placed) => {
            NodeAction::Placed { request: placed.ticket, node: placed.node.index(), token: placed.claim }
        }
    }));
}

fn collect_ward_outputs(
    now: Time,
    ward: &mut Ward,
    census: &mut BTreeMap<u64, u64>,
    mut out: Vec<WardOutput>,
    actions: &mut Vec<NodeAction>,
) {
    while !out.is_empty() {
        for output in core::mem::take(&mut out) {
            match output {
                WardOutput::Send { to, message } => {
                    actions
                        .push(NodeAction::Send { to: to.index(), message: ProtocolMessage::Ward(message) });
                }
                WardOutput::Broadcast(message) => {
                    actions.push(NodeAction::Broadcast(ProtocolMessage::Ward(message)));
                }
                WardOutput::TakeCensus { keep: whole } => {
                    ward.receive_census(now, take_census(census, whole), &mut out);
                }
                WardOutput::Analyse(analyse) => match build_table(&analyse) {
                    Some(table) => ward.receive_table(now, analyse.round, table, &mut out),
                    None => ward.record_analysis_failure(now, analyse.round),
                },
            }
        }
    }
}

fn take_census(census: &mut BTreeMap<u64, u64>, whole: bool) -> CensusPeriod {
    let row = |(target, requests)| TargetCount {
        target: TargetId(target),
        requests,
        bytes: Bytes(requests * 10),
        size: Bytes(10),
    };
    let counts = if whole { census.clone() } else { core::mem::take(census) };
    let rows = counts.into_iter().map(row).collect();
    CensusPeriod { rows, ..CensusPeriod::default() }
}

/// Makes a table: the most requested targets are the core, and the other targets are dealt to the nodes in
/// turn.
fn build_table(analyse: &AnalysisInput) -> Option<RouteTable> {
    let owners = analyse.nodes.len() as u64;
    let most = analyse.counts.iter().map(|count| count.requests).max()?;
    let places = analyse.counts.iter().map(|count| {
        let core = count.requests * 2 > most;
        let owner = (count.target.0 % owners) as u16;
        (count.target, if core { Place::Core } else { Place::Node(owner) })
    });
    RouteTable::new(owners as u16, places).ok()
}
