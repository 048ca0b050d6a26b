//! Lookups of the nodes that hold a target: a server in this process asks, and a switch answers.
//!
//! Up to [`HOLDER_QUEUE_MAX`] requests wait for the agent, and up to [`HOLDER_PENDING_MAX`] wait for their replies.
//! Beyond these limits, or if no switch is connected, the lookup returns nothing.

use crate::channel::holders::{HolderReply, RequestSummary};
use crate::channel::identity::PublicKey;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of requests that wait for the agent.
pub const HOLDER_QUEUE_MAX: usize = 1_024;
/// Maximum number of requests that wait for a reply. A further request displaces the oldest.
pub const HOLDER_PENDING_MAX: usize = 4_096;

/// A lookup on its way to the agent.
#[derive(Debug)]
pub struct HolderRequest {
    /// The listen address that the client's request came in by. The agent asks a switch that has this address.
    pub service: SocketAddr,
    /// The client's request, reduced to the parts that identify its target.
    pub request: RequestSummary,
    /// Receives the reply. Dropped if there will be none.
    pub answer: oneshot::Sender<HolderReply>,
}

/// Handle for lookups. Clones share one queue.
#[derive(Clone, Debug)]
pub struct HolderResolver {
    queue: mpsc::Sender<HolderRequest>,
}

impl HolderResolver {
    /// Returns a resolver and the receiver of its requests.
    pub fn new() -> (Self, mpsc::Receiver<HolderRequest>) {
        let (queue, requests) = mpsc::channel(HOLDER_QUEUE_MAX);
        (Self { queue }, requests)
    }

    /// Asks a switch which nodes hold the target of `request`, and waits at most `wait` for the reply.
    ///
    /// Returns `None` if too many requests wait, a part of the request is too long, no switch is connected, or no
    /// switch replies in time.
    pub async fn resolve(
        &self,
        service: SocketAddr,
        request: RequestSummary,
        wait: Duration,
    ) -> Option<HolderReply> {
        request.check().ok()?;
        let (answer, reply) = oneshot::channel();
        self.queue.try_send(HolderRequest { service, request, answer }).ok()?;
        tokio::time::timeout(wait, reply).await.ok()?.ok()
    }
}

/// Requests that were sent to a switch and have no reply yet.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    next_id: u64,
    /// Keyed by request id, so that the first entry is the oldest.
    by_id: BTreeMap<u64, (PublicKey, oneshot::Sender<HolderReply>)>,
}

impl PendingRequests {
    /// Adds a request to `switch` and returns its id. If the table is full, the oldest request is dropped.
    pub(super) fn insert(&mut self, switch: PublicKey, answer: oneshot::Sender<HolderReply>) -> u64 {
        if self.by_id.len() >= HOLDER_PENDING_MAX {
            // The callers of most of them no longer wait.
            self.by_id.retain(|_, (_, answer)| !answer.is_closed());
        }
        if self.by_id.len() >= HOLDER_PENDING_MAX {
            self.by_id.pop_first();
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.by_id.insert(id, (switch, answer));
        id
    }

    /// Passes a reply to its caller. A reply from a switch other than the one that was asked is ignored.
    pub(super) fn complete(&mut self, switch: PublicKey, reply: HolderReply) {
        if self.by_id.get(&reply.id).is_some_and(|(asked, _)| *asked == switch)
            && let Some((_, answer)) = self.by_id.remove(&reply.id)
        {
            // Fails if the caller no longer waits.
            let _ = answer.send(reply);
        }
    }

    /// Drops all requests to a switch that has disconnected.
    pub(super) fn remove_switch(&mut self, switch: PublicKey) {
        self.by_id.retain(|_, (asked, _)| *asked != switch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PublicKey = PublicKey([1; 32]);
    const B: PublicKey = PublicKey([2; 32]);

    fn reply(id: u64) -> HolderReply {
        HolderReply { id, target: Some(7), is_holder: false, load: 1, holders: Vec::new() }
    }

    #[test]
    fn only_the_asked_switch_can_reply_and_only_once() {
        let mut pending = PendingRequests::default();
        let (answer, mut receiver) = oneshot::channel();
        let id = pending.insert(A, answer);
        pending.complete(B, reply(id));
        pending.complete(A, reply(id + 1));
        assert!(receiver.try_recv().is_err());
        pending.complete(A, reply(id));
        assert_eq!(receiver.try_recv(), Ok(reply(id)));
        pending.complete(A, reply(id));
        let (answer, mut receiver) = oneshot::channel();
        pending.insert(A, answer);
        pending.remove_switch(B);
        assert_eq!(receiver.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        pending.remove_switch(A);
        assert_eq!(receiver.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[test]
    fn a_full_table_drops_abandoned_requests_and_then_the_oldest() {
        let mut pending = PendingRequests::default();
        let mut all = Vec::new();
        for _ in 0..HOLDER_PENDING_MAX {
            let (answer, receiver) = oneshot::channel();
            pending.insert(A, answer);
            all.push(receiver);
        }
        // An abandoned request makes room.
        drop(all.remove(5));
        let (answer, _kept) = oneshot::channel();
        pending.insert(A, answer);
        assert_eq!(all[0].try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let (answer, _kept) = oneshot::channel();
        pending.insert(A, answer);
        assert_eq!(all[0].try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(pending.by_id.len(), HOLDER_PENDING_MAX);
    }

    #[tokio::test]
    async fn a_lookup_without_a_reply_returns_none() {
        let request = |target: &str| RequestSummary {
            method: "GET".to_owned(),
            host: "h".to_owned(),
            target: target.to_owned(),
        };
        let service = SocketAddr::from(([10, 9, 0, 100], 80));
        let (resolver, mut requests) = HolderResolver::new();
        let wait = Duration::from_millis(1);
        assert_eq!(resolver.resolve(service, request("/a"), wait).await, None, "no reply in time");
        assert_eq!(requests.recv().await.map(|lookup| lookup.request), Some(request("/a")));
        assert_eq!(resolver.resolve(service, request(&"/".repeat(9_999)), wait).await, None);
        assert!(requests.try_recv().is_err(), "a target that is too long is not sent");
        drop(requests);
        assert_eq!(
            resolver.resolve(service, request("/a"), Duration::from_secs(60)).await,
            None,
            "the agent has ended"
        );
    }
}
