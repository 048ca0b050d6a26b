//! Lists of what the node has, made beside the agent's task: where there are many connections the kernel's own list takes
//! long to read, and packets of connections on their way, closings and pings do not wait for it.

use super::{Forwarding, vanished};
use crate::channel::identity::PublicKey;
use larder_kernel::FlowKey;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Lists of one front-end that are to be made; further questions are answered by the last of them.
const WAITING_MAX: usize = 2;

/// What there is.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// By the programs' table: with the sequence number of the client's first byte.
    pub(super) connections: Vec<(FlowKey, u32)>,
    /// By the stack: local address, client. Those of the agent's listen addresses.
    pub(super) sockets: Vec<(SocketAddr, SocketAddr)>,
    /// Of the connections, those of which nothing has been seen for long; none if not all sockets could be read.
    pub(super) silent: Vec<(FlowKey, u32)>,
}

/// A front-end, and the number of its link: a list for an older link would pass for the answer to another question.
pub(super) type Asker = (PublicKey, u64);

/// Who is to get a list, and who gets the one that is being made.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// `None`: the agent itself.
    waiting: VecDeque<Option<Asker>>,
    making: JoinSet<(Option<Asker>, Listed)>,
}

impl Lists {
    /// A front-end is to get a list of what there is from now on.
    pub(super) fn ask(&mut self, asker: Asker) {
        self.waiting.retain(|other| other.is_none_or(|other| other.0 != asker.0 || other == asker));
        if self.waiting.iter().filter(|other| **other == Some(asker)).count() < WAITING_MAX {
            self.waiting.push_back(Some(asker));
        }
    }

    /// The agent itself looks at what there is.
    pub(super) fn look(&mut self) {
        if !self.waiting.contains(&None) {
            self.waiting.push_back(None);
        }
    }

    /// Begins with the next one, if none is being made: they are told in the order in which they were asked for.
    pub(super) fn begin(&mut self, forwarding: Option<&Arc<dyn Forwarding>>, addresses: &[SocketAddr]) {
        if !self.making.is_empty() {
            return;
        }
        let Some(asker) = self.waiting.pop_front() else { return };
        let (forwarding, addresses) = (forwarding.cloned(), addresses.to_vec());
        self.making.spawn_blocking(move || {
            let mut listed = Listed::default();
            if let Some(forwarding) = forwarding {
                forwarding.each_connection(&mut |flow, first_seq| listed.connections.push((flow, first_seq)));
                forwarding.each_silent(vanished::SILENT_FOR, &mut |flow, first_seq| {
                    listed.silent.push((flow, first_seq));
                });
                let read = forwarding.each_socket(&mut |local, client| {
                    if addresses.contains(&local) {
                        listed.sockets.push((local, client));
                    }
                });
                if let Err(error) = read {
                    tracing::warn!(%error, "the stack's connections were not all read: silent ones stay");
                    listed.silent.clear();
                }
            }
            (asker, listed)
        });
    }

    /// Waits for the one that is being made; for ever if there is none.
    pub(super) async fn made(&mut self) -> (Option<Asker>, Listed) {
        loop {
            match self.making.join_next().await {
                Some(Ok(made)) => return made,
                // The front-end asks again when its channel is up anew.
                Some(Err(error)) => tracing::error!(%error, "the node's connections could not be listed"),
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until nothing of it is at work any more.
    pub(super) async fn end(mut self) {
        self.making.shutdown().await;
    }
}
