//! Counts connections again that go on although they were counted as ended: after a forged RST or FIN, or after a long silence. Packets
//! alone do not prove that, because late ones follow a real end too. So the node is asked for its connections, and those that it has
//! count again.

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::lock::lock;
use super::mechanism::Why;
use larder_core::{NodeId, Time};
use larder_handoff::FlowKey;
use larder_handoff::abi::flow_state;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Time to gather connections, so that the node is asked once for all of them.
const GATHER: Duration = Duration::from_millis(300);

/// A node is asked for its connections this often at most, whatever clients send.
const ASK_EVERY: Duration = Duration::from_secs(1);

impl Edge {
    /// Notes that a connection goes on which is not counted.
    pub(super) fn resumes(&self, key: FlowKey, node: NodeId) {
        let now = self.decider.clock.now();
        if lock(&self.resumed).note(key, node, now) {
            self.peers.ask_soon(node, now + GATHER, ASK_EVERY);
        } else {
            self.fabric.set_idle(key);
        }
    }

    /// Counts the connections again that their node has.
    pub(super) fn count_resumed(self: &Arc<Self>, node: NodeId, live: &HashSet<FlowKey>, as_of: Time) {
        let resumed = lock(&self.resumed).take(node, as_of);
        for key in resumed.into_iter().filter(|key| live.contains(key)) {
            let goes_there =
                self.fabric.flow(key).filter(|flow| flow.state == flow_state::NODE && flow.node == node.0);
            if let Some(flow) = goes_there
                && !lock(&self.table).contains(key)
            {
                self.fabric.set_resumed(key);
                self.adopt(key, flow, Why::Resumed);
            }
        }
    }
}
