//! Connections that have ended without a word: of a client that has vanished the stack gives up by itself, after many minutes
//! and without a packet, so that the programs in the kernel see no end.

use super::core::Core;
use crate::FlowKey;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time between two looks.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A connection is looked for once it has been silent for so long: a younger one may have no socket yet.
const SILENT_FOR: Duration = Duration::from_secs(60);

impl Core {
    /// Forgets connections that are silent and that the stack does not have, and tells front-ends that they have ended.
    pub(super) fn forget_vanished(&mut self, now: Instant) {
        let Some(forwarding) = self.forwarding.clone() else { return };
        let mut silent: HashMap<FlowKey, u32> = HashMap::new();
        forwarding.each_silent(SILENT_FOR, &mut |flow, first_seq| {
            silent.insert(flow, first_seq);
        });
        // The stack's list is long: it is read if there is something to look for.
        if silent.is_empty() {
            return;
        }
        let read = forwarding.each_socket(&mut |local, client| {
            if let Some(ours) = self.switches.place(local) {
                silent.remove(&FlowKey::new(client, ours));
            }
        });
        if let Err(error) = read {
            tracing::warn!(%error, "the stack's connections were not all read: silent ones stay");
            return;
        }
        for (flow, first_seq) in silent {
            tracing::debug!(%flow, "the stack does not have a connection any more");
            forwarding.forget(flow);
            self.closed(now, flow, first_seq);
        }
    }
}
