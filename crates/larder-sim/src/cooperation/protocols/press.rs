//! PRESS: one state machine of the live node per node.

use larder_core::peers::{Press, PressOutput, PressReason, PressSettings};
use larder_core::{Bytes, NodeId, Time};

use super::interface::{
    ClusterProtocol, NodeMessage, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize,
};
use crate::cooperation::cluster::CooperativeCluster;

/// The state machines of the nodes.
#[derive(Debug)]
pub(super) struct PressNodes {
    presses: Vec<Press>,
    large_min: Bytes,
    /// An empty buffer between two calls.
    out: Vec<PressOutput>,
}

impl PressNodes {
    pub(super) fn new(cluster: &CooperativeCluster) -> Self {
        let settings = PressSettings { memory: cluster.memory, ..cluster.protocol };
        let press = |node| Press::new(NodeId(node), 1, settings);
        let presses = (0..cluster.nodes).map(press).collect();
        Self { presses, large_min: settings.large_min, out: Vec::new() }
    }

    fn with<R>(
        &mut self,
        node: u16,
        out: &mut Vec<ProtocolAction>,
        act: impl FnOnce(&mut Press, &mut Vec<PressOutput>) -> R,
    ) -> R {
        let result = act(&mut self.presses[usize::from(node)], &mut self.out);
        let action =
            |PressOutput { to, message }| ProtocolAction::Send { to, message: NodeMessage::Press(message) };
        out.extend(self.out.drain(..).map(action));
        result
    }
}

impl ClusterProtocol for PressNodes {
    fn reasons(&self) -> Vec<&'static str> {
        PressReason::ALL.map(PressReason::name).to_vec()
    }

    fn messaging_nodes(&self) -> u16 {
        self.presses.len() as u16
    }

    fn add_peer(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |press, out| press.add_peer(now, NodeId(peer), out));
    }

    fn decide(
        &mut self,
        now: Time,
        _task: u32,
        request: &PlacementRequest,
        out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision {
        let verdict = self.with(request.node, out, |press, out| {
            let verdict = press.decide(now, request.target, Some(request.size));
            press.begin_read(now, verdict, request.target, out);
            verdict
        });
        let here = verdict.node.0 == request.node;
        let keep = if here { verdict.keep } else { request.size < self.large_min };
        PlacementDecision::Placement(Placement { node: verdict.node.0, why: verdict.reason as usize, keep })
    }

    fn begin_connection(&mut self, now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |press, out| press.begin_connection(now, out));
    }

    fn end_connection(&mut self, now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |press, out| press.end_connection(now, out));
    }

    fn complete_request(
        &mut self,
        now: Time,
        request: &PlacementRequest,
        missed: bool,
        out: &mut Vec<ProtocolAction>,
    ) -> bool {
        self.with(request.node, out, |press, out| {
            let shared = press.is_sharing();
            press.record_served(now, request.target, request.size, missed, out);
            press.is_sharing() != shared
        })
    }

    fn receive_reply(&mut self, node: u16, from: u16) {
        self.presses[usize::from(node)].record_return(NodeId(from));
    }

    fn update_cache(
        &mut self,
        now: Time,
        change: &PlacementRequest,
        cached: bool,
        out: &mut Vec<ProtocolAction>,
    ) -> bool {
        self.with(change.node, out, |press, out| {
            let shares = press.is_sharing();
            press.set_cached(now, change.target, cached, out);
            shares
        })
    }

    fn receive(
        &mut self,
        now: Time,
        node: u16,
        from: u16,
        message: NodeMessage,
        out: &mut Vec<ProtocolAction>,
    ) {
        let NodeMessage::Press(message) = message else { return };
        self.with(node, out, |press, out| press.receive(now, NodeId(from), message, out));
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.with(node, out, |press, out| press.tick(now, out));
    }

    fn next_timer(&self, node: u16) -> Time {
        self.presses[usize::from(node)].due()
    }

    fn sharing(&self) -> u64 {
        self.presses.iter().filter(|press| press.is_sharing()).count() as u64
    }

    /// Counts 34 bytes per known target, 17 per cached target and 240 per peer.
    fn state_sizes(&self) -> Vec<StateSize> {
        let peers = self.presses.len() - 1;
        let state = |press: &Press| {
            let (targets, own) = press.table_sizes();
            StateSize { bytes: 34 * targets + 17 * own + 240 * peers, targets }
        };
        self.presses.iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_as_listed() {
        for (at, why) in PressReason::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, at, "{}", why.name());
        }
    }
}
