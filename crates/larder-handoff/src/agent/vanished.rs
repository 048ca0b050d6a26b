//! Connections that have ended without a word: of a client that has vanished the stack gives up by itself, after many minutes
//! and without a packet, so that the programs in the kernel see no end.

use super::core::Core;
use super::lists::Listed;
use larder_kernel::FlowKey;
use larder_kernel::plane::now_ns;
use std::collections::HashMap;
use std::time::Duration;

/// Time between two looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A connection is looked for once it has been silent for so long: a younger one may have no socket yet.
pub(super) const SILENT_FOR: Duration = Duration::from_secs(60);

impl Core {
    /// Forgets connections of a list that are silent and that the stack does not have, and tells front-ends that they have
    /// ended. Gives the rest of the list.
    pub(super) fn without_vanished(&mut self, mut listed: Listed) -> Listed {
        let Some(forwarding) = self.forwarding.clone() else { return listed };
        let mut gone: HashMap<FlowKey, u32> = std::mem::take(&mut listed.silent).into_iter().collect();
        for (local, client) in &listed.sockets {
            if let Some(ours) = self.switches.place(*local) {
                gone.remove(&FlowKey::new(*client, ours));
            }
        }
        if gone.is_empty() {
            return listed;
        }
        // Others may have begun on their addresses since the list was made.
        let mut still = HashMap::new();
        forwarding.each_silent(SILENT_FOR, &mut |flow, first_seq| {
            still.insert(flow, first_seq);
        });
        gone.retain(|flow, first_seq| still.get(flow) == Some(first_seq));
        for (&flow, &first_seq) in &gone {
            tracing::debug!(%flow, "the stack does not have a connection any more");
            forwarding.forget(flow);
            self.closed(flow, first_seq, now_ns());
        }
        listed.connections.retain(|(flow, _)| !gone.contains_key(flow));
        listed
    }
}
