//! Connections that go on although they were counted as ended, until their nodes have answered.

use larder_core::{NodeId, Time};
use larder_handoff::FlowKey;
use std::collections::HashMap;

/// Connections that wait for their node's answer; beyond, a connection waits for its next packet after an answer.
const RESUMED_MAX: usize = 4_096;

/// Waiting entries, each with its node and the time since which it waits.
#[derive(Debug, Default)]
pub(super) struct Resumed(HashMap<FlowKey, (NodeId, Time)>);

impl Resumed {
    /// Notes a connection. `false` if there is no room.
    pub(super) fn note(&mut self, key: FlowKey, node: NodeId, now: Time) -> bool {
        let room = self.0.len() < RESUMED_MAX || self.0.contains_key(&key);
        if room {
            self.0.insert(key, (node, now));
        }
        room
    }

    /// Takes those that a list of `node`, asked for at `as_of`, decides about.
    pub(super) fn take(&mut self, node: NodeId, as_of: Time) -> Vec<FlowKey> {
        self.0.extract_if(|_, (of, since)| *of == node && *since <= as_of).map(|(key, _)| key).collect()
    }
}
