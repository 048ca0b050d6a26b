//! Listings of the node's connections. They are made outside the agent's task: with many connections the kernel's
//! socket list takes long to read, and handoffs, closed connections and pings must not wait for it.

use super::{NodeKernel, stale};
use crate::channel::identity::PublicKey;
use larder_kernel::FlowKey;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Maximum number of waiting requests of one switch. Further requests are answered by the last of these.
const WAITING_MAX: usize = 2;

/// The node's connections at one time.
#[derive(Debug, Default)]
pub(super) struct ConnectionListing {
    /// From the table of the kernel programs: the connection and the sequence number of the client's first byte.
    pub(super) connections: Vec<(FlowKey, u32)>,
    /// From the stack: local address and client of each socket on one of the agent's listen addresses.
    pub(super) sockets: Vec<(SocketAddr, SocketAddr)>,
    /// The `connections` without a packet for [`stale::SILENT_FOR`]. Empty if the stack's sockets could not all be
    /// read.
    pub(super) silent: Vec<(FlowKey, u32)>,
}

/// A switch and the number of its link. The number keeps a listing for an older link from answering a newer request.
pub(super) type Requester = (PublicKey, u64);

/// Queue of requested listings, and the listing that is being made.
#[derive(Debug, Default)]
pub(super) struct ListingJobs {
    /// `None` stands for the agent itself.
    waiting: VecDeque<Option<Requester>>,
    running: JoinSet<(Option<Requester>, ConnectionListing)>,
}

impl ListingJobs {
    /// Queues a listing for a switch. It shows the connections at a time after this call.
    pub(super) fn request(&mut self, requester: Requester) {
        self.waiting.retain(|other| other.is_none_or(|other| other.0 != requester.0 || other == requester));
        if self.waiting.iter().filter(|other| **other == Some(requester)).count() < WAITING_MAX {
            self.waiting.push_back(Some(requester));
        }
    }

    /// Queues a listing for the agent itself, which looks for stale connections in it.
    pub(super) fn request_check(&mut self) {
        if !self.waiting.contains(&None) {
            self.waiting.push_back(None);
        }
    }

    /// Starts the next listing unless one is running. Listings are made in the order of their requests.
    pub(super) fn start_next(&mut self, kernel: Option<&Arc<dyn NodeKernel>>, addresses: &[SocketAddr]) {
        if !self.running.is_empty() {
            return;
        }
        let Some(requester) = self.waiting.pop_front() else { return };
        let (kernel, addresses) = (kernel.cloned(), addresses.to_vec());
        self.running.spawn_blocking(move || {
            let mut listing = ConnectionListing::default();
            if let Some(kernel) = kernel {
                kernel.each_connection(&mut |flow, first_seq| listing.connections.push((flow, first_seq)));
                kernel.each_silent(stale::SILENT_FOR, &mut |flow, first_seq| {
                    listing.silent.push((flow, first_seq));
                });
                let read = kernel.each_socket(&mut |local, client| {
                    if addresses.contains(&local) {
                        listing.sockets.push((local, client));
                    }
                });
                if let Err(error) = read {
                    tracing::warn!(%error, "connection table: socket list incomplete, stale connections are kept");
                    listing.silent.clear();
                }
            }
            (requester, listing)
        });
    }

    /// Waits for the running listing. Never returns if none is running.
    pub(super) async fn next(&mut self) -> (Option<Requester>, ConnectionListing) {
        loop {
            match self.running.join_next().await {
                Some(Ok(finished)) => return finished,
                // The switch asks again when it reconnects.
                Some(Err(error)) => tracing::warn!(%error, "connection table: listing panicked"),
                None => std::future::pending().await,
            }
        }
    }

    /// Stops the running listing and waits for its end.
    pub(super) async fn shut_down(mut self) {
        self.running.shutdown().await;
    }
}
