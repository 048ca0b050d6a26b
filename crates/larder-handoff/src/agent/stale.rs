//! Removal of stale connections. If a client disappears, the stack gives its connection up after many minutes without
//! sending a packet. The kernel programs do not see that, so the agent compares their table with the stack's sockets.

use super::core::Core;
use super::listing::ConnectionListing;
use larder_kernel::FlowKey;
use larder_kernel::plane::now_ns;
use std::collections::HashMap;
use std::time::Duration;

/// Interval between two checks.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Time without a packet after which a connection is checked. A younger one may not have a socket yet.
pub(super) const SILENT_FOR: Duration = Duration::from_secs(60);

impl Core {
    /// Removes connections that are silent and have no socket, and reports them to the switches as closed. Returns the
    /// rest of the listing.
    pub(super) fn remove_stale(&mut self, mut listing: ConnectionListing) -> ConnectionListing {
        let Some(kernel) = self.kernel.clone() else { return listing };
        let mut stale: HashMap<FlowKey, u32> = std::mem::take(&mut listing.silent).into_iter().collect();
        for (local, client) in &listing.sockets {
            if let Some(service) = self.switches.service_of(*local) {
                stale.remove(&FlowKey::new(*client, service));
            }
        }
        if stale.is_empty() {
            return listing;
        }
        // New connections may have opened on the same addresses since the listing was made.
        let mut still_silent = HashMap::new();
        kernel.each_silent(SILENT_FOR, &mut |flow, first_seq| {
            still_silent.insert(flow, first_seq);
        });
        stale.retain(|flow, first_seq| still_silent.get(flow) == Some(first_seq));
        for (&flow, &first_seq) in &stale {
            tracing::debug!(%flow, "connection table: entry removed, it has no socket");
            kernel.remove_connection(flow);
            self.closed(flow, first_seq, now_ns());
        }
        listing.connections.retain(|(flow, _)| !stale.contains_key(flow));
        listing
    }
}
