//! Moves connections from one node to another: the first one gives them up because it drains.
//!
//! The node asks ([`FromNode::Leave`](larder_handoff::channel::message::FromNode::Leave)); the dispatcher chooses another
//! one; the plane sends it the connection's packets, which wait there (R1, R2); the first node freezes the connection and
//! sends its state; the other node restores it. A refusal puts everything back. The flow in the plane says whose the
//! connection is, so a node that has lost the answer asks again.

use super::edge::Edge;
use super::fabric::{Fabric as _, To};
use super::lock::lock;
use super::mechanism::{Delivery, Mechanism, Why};
use super::passing::Passing;
use super::peers::Arrived;
use super::table::End;
use crate::lease::Lease;
use larder_core::{Decision, NodeId, NodeState, Request, TargetId};
use larder_handoff::FlowKey;
use larder_handoff::abi::flow_state;
use larder_handoff::channel::message::{Connection, Handoff, ToNode};
use std::sync::Arc;
use std::time::Duration;

/// Connections that move at one time; further ones stay where they are.
const PASSING_MAX: usize = 16_384;
/// Time that the first node has to send the state.
const STATE_WAIT: Duration = Duration::from_secs(2);
/// Time that the second node has to say that it has the connection.
const DOUBT: Duration = Duration::from_secs(30);
/// Nodes that are asked for at most, when those that the dispatcher names take no sockets.
const NODES_TRIED: usize = 4;

impl Edge {
    fn tell(&self, node: NodeId, message: &ToNode) {
        if let Err(error) = self.peers.send(node, message) {
            // It asks again when its channel is up.
            tracing::debug!(%error, "a node could not be told of a connection that it gives up");
        }
    }

    /// A node wants to give a connection up.
    pub(super) fn leave(&self, from: NodeId, connection: Connection) {
        let key = FlowKey::from(connection);
        let mut passing = lock(&self.passing);
        if passing.contains_key(&key) {
            return;
        }
        let owner = self.fabric.flow(key).filter(|flow| flow.state == flow_state::NODE);
        match owner.map(|flow| flow.node) {
            Some(node) if node == from.0 => {}
            Some(_) => return self.tell(from, &ToNode::Taken(connection)),
            None => return self.tell(from, &ToNode::Keep(connection)),
        }
        let next = if passing.len() < PASSING_MAX { self.next_node(from, key) } else { None };
        let Some((lease, to)) = next else { return self.tell(from, &ToNode::Keep(connection)) };
        if let Err(error) = self.fabric.put_flow(key, To::Node(to.node)) {
            tracing::warn!(%error, %key, "a connection could not be pointed at another node");
            return self.tell(from, &ToNode::Keep(connection));
        }
        passing.insert(key, Passing { from, to, lease, since: self.decider.clock.now(), sent: false });
        self.tell(from, &ToNode::Give(connection));
    }

    /// A node for a connection that another one gives up.
    fn next_node(&self, from: NodeId, key: FlowKey) -> Option<(Lease, Decision)> {
        let request =
            lock(&self.table).get_mut(key).map_or(Request::new(TargetId(0)), |handed| handed.request);
        let mut exclude = request.exclude.with(from);
        for _ in 0..NODES_TRIED {
            let mut lease = Lease::new(self.decider.clone());
            let decision = lease.arrive(self.decider.clock.now(), Request { exclude, ..request }).ok()??;
            let peer = self.peers.capability(decision.node);
            if decision.node != from && peer.up && peer.repair && peer.linked {
                return Some((lease, decision));
            }
            exclude = exclude.with(decision.node);
        }
        None
    }

    /// The state of a connection that a node gives up.
    pub(super) fn pass(self: &Arc<Self>, from: NodeId, mut handoff: Handoff) {
        let connection = handoff.connection;
        let key = FlowKey::from(connection);
        let to = lock(&self.passing).get_mut(&key).filter(|one| one.from == from && !one.sent).map(|one| {
            one.sent = true;
            one.to
        });
        let Some(to) = to else { return self.tell(from, &ToNode::Keep(connection)) };
        let (id, arrived) = self.peers.begin_move(to.node, key);
        handoff.id = id;
        if let Err(error) = self.peers.send_move(id, &ToNode::Handoff(handoff)) {
            self.peers.end_move(id);
            tracing::debug!(%error, %key, "a connection could not be sent to another node");
            return self.put_back(key, connection);
        }
        let edge = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(DOUBT, arrived).await {
                Ok(Ok(Arrived::Restored)) => edge.arrived(key, connection),
                Ok(Ok(Arrived::Refused(why))) => {
                    tracing::info!(why, %key, "a node did not take a connection from another");
                    edge.put_back(key, connection);
                }
                // The node that gives it up asks the process that has the plane now.
                Ok(Err(_)) | Err(_) if edge.is_gone() => {
                    lock(&edge.passing).remove(&key);
                }
                // Whose it is nobody knows.
                Ok(Err(_)) | Err(_) => {
                    edge.peers.end_move(id);
                    tracing::warn!(%key, "nothing was heard of a connection between two nodes: its client is told");
                    lock(&edge.passing).remove(&key);
                    edge.tell(from, &ToNode::Taken(connection));
                    let _ = edge.fabric.reset_client(key);
                    edge.end(key, End::NodeLost);
                }
            }
        });
    }

    fn arrived(&self, key: FlowKey, connection: Connection) {
        let Some(Passing { from, to, mut lease, .. }) = lock(&self.passing).remove(&key) else { return };
        let now = self.decider.clock.now();
        if let Some(handed) = lock(&self.table).get_mut(key) {
            handed.decision = to;
            if !handed.idle {
                std::mem::swap(&mut handed.lease, &mut lease);
            }
        }
        lease.release(now);
        self.counts.delivered(Delivery { mechanism: Mechanism::Repair, why: Why::Drain });
        self.tell(from, &ToNode::Taken(connection));
    }

    /// The connection stays where it is.
    fn put_back(&self, key: FlowKey, connection: Connection) {
        let Some(Passing { from, .. }) = lock(&self.passing).remove(&key) else { return };
        if let Err(error) = self.fabric.put_flow(key, To::Node(from)) {
            tracing::warn!(%error, %key, "a connection could not be pointed back at its node");
        }
        self.tell(from, &ToNode::Keep(connection));
    }

    /// A node cannot give a connection up after all.
    pub(super) fn stay(&self, from: NodeId, connection: Connection) {
        let key = FlowKey::from(connection);
        if lock(&self.passing).get(&key).is_some_and(|one| one.from == from && !one.sent) {
            self.put_back(key, connection);
        }
    }

    /// Puts back what nothing more was heard of, and asks nodes that drain to give their connections up.
    pub(super) fn sweep_passing(&self) {
        let now = self.decider.clock.now();
        let late = |(key, one): (&FlowKey, &Passing)| {
            (!one.sent && now.since(one.since) > STATE_WAIT).then_some(*key)
        };
        let late: Vec<FlowKey> = lock(&self.passing).iter().filter_map(late).collect();
        late.into_iter().for_each(|key| self.put_back(key, key.into()));
        for row in self.decider.dispatcher.nodes().rows() {
            let drains = self.decider.dispatcher.nodes().state(row.id) == NodeState::Draining;
            if drains && self.peers.capability(row.id).up && !lock(&self.table).of_node(row.id).is_empty() {
                self.tell(row.id, &ToNode::Release);
            }
        }
    }
}
