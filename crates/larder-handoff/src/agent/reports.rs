//! Reports to switches: listings of connections, and the node's load.

use super::core::Core;
use super::listing::{ConnectionListing, Requester};
use crate::channel::identity::PublicKey;
use crate::channel::message::{
    Connection, ConnectionId, ConnectionPage, FromNode, LoadReport, PAGE_CONNECTIONS_MAX,
};
use std::collections::HashSet;

impl Core {
    /// Sends a listing to the switch that asked for it, in pages.
    pub(super) fn send_listing(&mut self, (key, number): Requester, listing: &ConnectionListing) {
        if self.connected.get(&key).is_none_or(|switch| switch.link.number != number) {
            return;
        }
        // Restored connections must be reported first: the switch takes one that is missing in the listing as closed.
        self.report_restored(key);
        let ConnectionListing { connections: known, sockets, .. } = listing;
        let mut connections = Vec::with_capacity(known.len());
        for &(flow, first_seq) in known {
            if let Some(service) = self.switches.switch_service(key, flow.service) {
                let connection = Connection { client: flow.client, service };
                // The kernel does not know the first sequence number of restored connections.
                let first_seq = if first_seq == 0 { self.first_seqs.get(flow) } else { first_seq };
                connections.push(ConnectionId { connection, first_seq });
            }
        }
        let mut named: HashSet<Connection> = connections.iter().map(|socket| socket.connection).collect();
        for &(local, client) in sockets {
            let service = self
                .switches
                .service_of(local)
                .and_then(|service| self.switches.switch_service(key, service));
            let Some(service) = service else { continue };
            let connection = Connection { client, service };
            if named.insert(connection) {
                connections.push(ConnectionId { connection, first_seq: 0 });
            }
        }
        let mut rest = &connections[..];
        loop {
            let (piece, later) = rest.split_at(rest.len().min(PAGE_CONNECTIONS_MAX));
            rest = later;
            let last = rest.is_empty();
            self.send(key, &FromNode::Connections(ConnectionPage { connections: piece.to_vec(), last }));
            if last {
                return;
            }
        }
    }

    /// Sends the node's load to all switches.
    pub(super) fn report_load(&mut self) {
        let mut counts = vec![0_u32; self.applied.rules.len()];
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !self.connected.is_empty()) {
            kernel.each_connection(&mut |flow, _| {
                if let Some(count) = counts.get_mut(usize::from(flow.service)) {
                    *count = count.saturating_add(1);
                }
            });
        }
        let cpu_permille = self.cpu.permille();
        let stashed = u32::try_from(self.stash.len()).unwrap_or(u32::MAX);
        let keys: Vec<PublicKey> = self.connected.keys().copied().collect();
        for key in keys {
            let of_its = |(service, &count): (u16, &u32)| {
                self.switches.switch_service(key, service).map_or(0, |_| count)
            };
            let connections = (0..).zip(&counts).map(of_its).fold(0, u32::saturating_add);
            self.send(key, &FromNode::Load(LoadReport { connections, cpu_permille, stashed }));
        }
    }
}
