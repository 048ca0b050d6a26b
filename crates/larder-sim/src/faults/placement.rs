//! The world of nodes whose requests are placed by a dispatcher (CARD) or by a routing table (WARD).
//!
//! Memories and their contents are not modelled.

mod node;

use super::outcome::Violation;
use super::protocol::{BrokenRule, Protocol};
use super::rng::FaultRng;
use super::simulation::{Id, RequestStage, SimEvent, Simulation, TIMEOUT, World, node_id};
use core::time::Duration;
use larder_core::Time;
use larder_core::peers::{Miscount, WardStatus};
use node::{NodeAction, ProtocolMessage, ProtocolNode, Token};
use std::collections::BTreeMap;

/// The flag of a request's number if its service node has asked for its placement
/// ([`BrokenRule::ForwardsAgain`]).
const AGAIN: u64 = 1 << 63;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    /// A node has served a request of its own client.
    Served {
        request: Id,
        epoch: u64,
    },
    /// The reply's head, and its end, reach the initial node.
    Head {
        request: Id,
    },
    End {
        request: Id,
    },
}

/// The world of CARD or WARD.
#[derive(Debug)]
pub(super) struct PlacementWorld {
    protocol: Protocol,
    names: Vec<String>,
    targets: u64,
    /// The tokens that end the load of requests, by initial node and request.
    tokens: BTreeMap<(Id, Id), Token>,
}

impl PlacementWorld {
    pub(super) fn draw(protocol: Protocol, rng: &mut FaultRng, nodes: usize) -> Self {
        // Slots are not in the order of names.
        let turn = rng.draw_below(nodes as u64) as usize;
        let names = (0..nodes).map(|node| format!("n{}", (node + turn) % nodes)).collect();
        Self { protocol, names, targets: 20 + rng.draw_below(300), tokens: BTreeMap::new() }
    }
}

impl World for PlacementWorld {
    type Machine = ProtocolNode;
    type Message = ProtocolMessage;
    type Event = Event;

    fn convergence_time(&self) -> Duration {
        self.protocol.convergence_time()
    }

    fn create_machine(&self, me: Id, epoch: u64) -> ProtocolNode {
        ProtocolNode::new(self.protocol, me, &self.names[me], epoch)
    }

    /// Returns a target; some targets are requested far more often than others.
    fn draw_target(&self, rng: &mut FaultRng) -> u64 {
        rng.draw_below(self.targets).min(rng.draw_below(self.targets))
    }

    fn node_of_event(sim: &Simulation<'_, Self>, event: &Event) -> Option<Id> {
        let (Event::Served { request, .. } | Event::Head { request } | Event::End { request }) = event;
        Some(sim.requests[*request].initial)
    }

    fn handle_event(sim: &mut Simulation<'_, Self>, event: Event) -> Result<(), Violation> {
        match event {
            Event::Served { request, epoch } => sim.finish_local_service(request, epoch),
            Event::Head { request } => {
                sim.begin_reply(request);
                Ok(())
            }
            Event::End { request } => sim.finish_reply(request),
        }
    }

    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        sim.request_placement(sim.requests[request].initial, request as u64, sim.requests[request].target)
    }

    fn receive_forwarded(
        sim: &mut Simulation<'_, Self>,
        request: Id,
        to: Id,
        there: bool,
    ) -> Result<(), Violation> {
        if there && sim.broken_rule == Some(BrokenRule::ForwardsAgain) {
            // The node asks as for a client's request; the answer may come later.
            return sim.request_placement(to, request as u64 | AGAIN, sim.requests[request].target);
        }
        if there {
            sim.schedule_reply(request, to);
        }
        Ok(())
    }

    /// Serves a request at its initial node and ends its load at the dispatcher. In the middle of a reply,
    /// the request is aborted.
    fn handle_broken_connection(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        let to = match sim.requests[request].stage {
            RequestStage::Sent { to, .. } => to,
            RequestStage::Begun { .. } => {
                sim.stats.aborted += 1;
                sim.log(|| format!("request {request} is aborted"));
                return sim.end_request(request);
            }
            RequestStage::Waits | RequestStage::Here | RequestStage::Ended => return Ok(()),
        };
        sim.stats.taken_back += 1;
        let initial = sim.requests[request].initial;
        sim.nodes[initial].machine.record_timeout(sim.now, node_id(to));
        match sim.broken_rule {
            Some(BrokenRule::ForgetsRequests) => return Ok(()),
            Some(BrokenRule::EndsTwice) => {
                sim.end_request(request)?;
                return sim.end_request(request);
            }
            _ => sim.end_token(request)?,
        }
        sim.serve_locally(request);
        Ok(())
    }

    fn update_liveness(sim: &mut Simulation<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        let name = sim.world.names[of].clone();
        sim.act_on_node(by, |machine, now, actions| {
            if there {
                machine.add_peer(now, node_id(of), &name, actions);
            } else {
                machine.remove_peer(now, node_id(of), actions);
            }
        })
    }

    fn receive(
        sim: &mut Simulation<'_, Self>,
        to: Id,
        from: Id,
        message: ProtocolMessage,
    ) -> Result<(), Violation> {
        sim.act_on_node(to, |machine, now, actions| machine.receive(now, node_id(from), message, actions))?;
        sim.check_counts(from, to)
    }

    fn next_tick(sim: &Simulation<'_, Self>, node: Id) -> Time {
        let stopped = sim.broken_rule == Some(BrokenRule::NeverAsks);
        if stopped { Time::MAX } else { sim.nodes[node].machine.next_tick() }
    }

    fn tick(sim: &mut Simulation<'_, Self>, node: Id) -> Result<(), Violation> {
        sim.act_on_node(node, ProtocolNode::tick)
    }

    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String> {
        sim.find_leader_mismatch().or_else(|| sim.find_load_mismatch()).or_else(|| sim.find_table_mismatch())
    }
}

impl Simulation<'_, PlacementWorld> {
    // -- requests

    fn request_placement(&mut self, node: Id, request: u64, target: u64) -> Result<(), Violation> {
        self.act_on_node(node, |machine, now, actions| machine.ask(now, request, target, actions))
    }

    /// Serves or forwards a request whose placement is known.
    fn record_placement(&mut self, request: Id, node: Id, token: Option<Token>) -> Result<(), Violation> {
        let (initial, stage) = (self.requests[request].initial, self.requests[request].stage);
        if stage != RequestStage::Waits {
            return Err(self.violation(format!("request {request} is placed twice: {stage:?}")));
        }
        self.world.tokens.extend(token.map(|token| ((initial, request), token)));
        self.log(|| format!("request {request} of {initial} is placed at {node}: {token:?}"));
        if node == initial {
            self.serve_locally(request);
            return Ok(());
        }
        self.forward(request, node)
    }

    fn forward(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.mark_forwarded(request, to)?;
        if self.can_communicate(self.requests[request].initial, to) {
            let wait = self.rng.draw_micros(10, self.delay_us + 10);
            self.schedule(wait, SimEvent::Forwarded { request });
        }
        self.schedule(TIMEOUT, SimEvent::ConnectionBroken { request });
        Ok(())
    }

    fn serve_locally(&mut self, request: Id) {
        self.requests[request].stage = RequestStage::Here;
        let epoch = self.nodes[self.requests[request].initial].epoch;
        let wait = self.rng.draw_micros(10, 50_000);
        self.schedule(wait, SimEvent::World(Event::Served { request, epoch }));
    }

    fn finish_local_service(&mut self, request: Id, epoch: u64) -> Result<(), Violation> {
        if self.is_alive(self.requests[request].initial, epoch)
            && self.requests[request].stage == RequestStage::Here
        {
            self.end_request(request)?;
        }
        Ok(())
    }

    /// Serves a request at its service node, and replies.
    fn schedule_reply(&mut self, request: Id, to: Id) {
        let wait = self.rng.draw_micros(10, 60_000);
        let rest = self.rng.draw_micros(10, 30_000);
        if self.can_communicate(to, self.requests[request].initial) {
            self.schedule(wait, SimEvent::World(Event::Head { request }));
            self.schedule(wait + rest, SimEvent::World(Event::End { request }));
        }
    }

    fn begin_reply(&mut self, request: Id) {
        let RequestStage::Sent { to, epoch } = self.requests[request].stage else { return };
        let initial = self.requests[request].initial;
        if !self.can_communicate(to, initial) || !self.is_alive(to, epoch) {
            return;
        }
        self.requests[request].stage = RequestStage::Begun { to, epoch };
        self.nodes[initial].machine.record_reply(node_id(to));
        self.schedule(TIMEOUT, SimEvent::ConnectionBroken { request });
    }

    fn finish_reply(&mut self, request: Id) -> Result<(), Violation> {
        let RequestStage::Begun { to, epoch } = self.requests[request].stage else { return Ok(()) };
        if !self.can_communicate(to, self.requests[request].initial) || !self.is_alive(to, epoch) {
            return Ok(());
        }
        self.end_request(request)
    }

    fn end_request(&mut self, request: Id) -> Result<(), Violation> {
        self.mark_ended(request)?;
        self.end_token(request)
    }

    fn end_token(&mut self, request: Id) -> Result<(), Violation> {
        let initial = self.requests[request].initial;
        let Some(token) = self.world.tokens.remove(&(initial, request)) else { return Ok(()) };
        self.log(|| format!("request {request} ends: {token:?}"));
        let times = match self.broken_rule {
            Some(BrokenRule::ForgetsEnds) => 0,
            Some(BrokenRule::EndsCountTwice) => 2,
            _ => 1,
        };
        (0..times).for_each(|_| self.nodes[initial].machine.end_request(self.now, token));
        self.schedule_tick(initial);
        self.check_counts(initial, initial)
    }

    /// Applies an input to a node's state machine and executes the resulting actions.
    fn act_on_node(
        &mut self,
        node: Id,
        act: impl FnOnce(&mut ProtocolNode, Time, &mut Vec<NodeAction>),
    ) -> Result<(), Violation> {
        let mut actions = Vec::new();
        act(&mut self.nodes[node].machine, self.now, &mut actions);
        for action in actions {
            match action {
                NodeAction::Send { to, message } => self.post_message(node, to, &message.reencode()),
                NodeAction::Broadcast(message) => self.broadcast(node, &message.reencode()),
                NodeAction::Placed { request, node: at, token } if request & AGAIN != 0 => {
                    let request = (request & !AGAIN) as Id;
                    token.into_iter().for_each(|token| self.nodes[node].machine.end_request(self.now, token));
                    if at != node {
                        self.forward(request, at)?;
                    } else if matches!(self.requests[request].stage, RequestStage::Sent { to, .. } if to == node)
                    {
                        self.schedule_reply(request, node);
                    }
                }
                NodeAction::Placed { request, node: at, token } => {
                    self.record_placement(request as Id, at, token)?;
                }
            }
        }
        self.schedule_tick(node);
        Ok(())
    }

    // -- the conditions

    /// Returns a node that takes another node than the first by name for the dispatcher or table maker.
    fn find_leader_mismatch(&self) -> Option<String> {
        let first = (0..self.nodes.len()).min_by_key(|node| &self.world.names[*node])?;
        let mut leaders = self.nodes.iter().map(|node| node.machine.leader()).enumerate();
        leaders
            .find(|(_, leader)| leader.index() != first)
            .map(|(at, leader)| format!("node {at} believes that {leader:?} is the first node, not {first}"))
    }

    /// Returns an error if a node's desk counts a wrong load for another node, as far as the two have no
    /// messages for each other.
    fn check_counts(&self, desk: Id, asker: Id) -> Result<(), Violation> {
        let (ProtocolNode::Card(at), ProtocolNode::Card(of)) =
            (&self.nodes[desk].machine, &self.nodes[asker].machine)
        else {
            return Ok(());
        };
        let tokens = self.world.tokens.range((asker, 0)..=(asker, Id::MAX));
        // Requests that were cut off with their node do not count.
        let out = tokens.filter(|((_, request), _)| self.requests[*request].stage != RequestStage::Ended);
        match at.miscount(of, out.map(|(_, token)| *token)) {
            None => Ok(()),
            Some(Miscount { counted, in_progress: under_way }) => Err(self.violation(format!(
                "the dispatcher of node {desk} counts {counted} for node {asker}, but {under_way} are in flight"
            ))),
        }
    }

    /// Returns a dispatcher that counts load without a cause.
    fn find_load_mismatch(&self) -> Option<String> {
        for (at, node) in self.nodes.iter().enumerate() {
            let ProtocolNode::Card(card) = &node.machine else { continue };
            if card.waiting_requests() > 0 {
                return Some(format!("{} requests wait at node {at}", card.waiting_requests()));
            }
            for of in 0..self.nodes.len() {
                let load = card.dispatcher_load(node_id(of));
                if load > 0 {
                    return Some(format!(
                        "the dispatcher of node {at} counts {load} at {of}, but none are in flight"
                    ));
                }
            }
        }
        None
    }

    /// Returns a node without a table, or with a different table. There is no table if the nodes that had one
    /// crashed and too few requests have arrived since; the maker has then tried to make one.
    fn find_table_mismatch(&self) -> Option<String> {
        let mut tables = self.nodes.iter().enumerate().filter_map(|(at, node)| match &node.machine {
            ProtocolNode::Ward(ward, _) => Some((at, ward.status())),
            ProtocolNode::Card(_) => None,
        });
        let tried = |status: &WardStatus| status.failed_rounds > 0;
        let (_, first) = tables.next()?;
        let all = core::iter::once((0, first.clone())).chain(tables).collect::<Vec<_>>();
        if first.id.is_none() && !all.iter().any(|(_, status)| tried(status)) {
            return Some("node 0 has no table".to_owned());
        }
        let mut tables = all.into_iter();
        tables
            .find(|(_, status)| status.id != first.id)
            .map(|(at, status)| format!("node {at} uses table {:?}, node 0 uses {:?}", status.id, first.id))
    }
}
