//! Purges at all nodes.
//!
//! | limit | outcome |
//! |---|---|
//! | [`NODES_AT_ONCE`] nodes are asked at one time | the others wait |
//! | [`NODE_LIMITS`] for a node | it counts as failed |
//! | [`TOTAL_TIMEOUT`] for all of them | those that have not been asked count as failed |

use crate::dial::{Dialer, NodeProtocol};
use crate::nodes::Nodes;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use larder_edge::{PURGE_FIELD, PURGE_PATH, PermissionError, Purge, Tokens, permit};
use larder_http::client::{Client, Limits};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// Number of nodes that are asked at the same time.
const NODES_AT_ONCE: usize = 32;
/// Limits on the reply of one node.
const NODE_LIMITS: Limits = Limits { time: Duration::from_secs(10), body_bytes: 64 << 10 };
/// Time for all nodes.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a purge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PurgeReport {
    /// Kind and text of the purge.
    pub purge: String,
    /// Number of nodes that succeeded.
    pub done: usize,
    /// Number of nodes that may still have the objects.
    pub failed: usize,
    /// Objects and chunks that were removed.
    pub removed: u64,
    /// Results of the nodes by name.
    pub nodes: Vec<NodePurge>,
}

/// The result of a purge at a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodePurge {
    /// The node's name.
    pub node: String,
    /// Whether the purge succeeded.
    pub done: bool,
    /// Objects and chunks that were removed.
    pub removed: u64,
    /// Error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Tokens for purges, and counters of purges.
#[derive(Debug, Default)]
pub(crate) struct Purges {
    tokens: Option<Tokens>,
    done: AtomicU64,
    failed: AtomicU64,
    denied: AtomicU64,
}

impl Purges {
    pub(crate) fn new(tokens: Option<Tokens>) -> Self {
        Self { tokens, ..Self::default() }
    }

    /// Returns the number of purges by outcome.
    pub(crate) fn outcomes(&self) -> [(&'static str, u64); 3] {
        let read = |count: &AtomicU64| count.load(Relaxed);
        [("done", read(&self.done)), ("failed", read(&self.failed)), ("denied", read(&self.denied))]
    }

    /// Checks whether a client with this `Authorization` may purge. Counts refusals.
    ///
    /// # Errors
    /// The switch has no token, or a different one.
    pub(crate) fn permit(&self, authorization: Option<&[u8]>) -> Result<(), PermissionError> {
        let permitted = permit(self.tokens.as_ref(), authorization);
        if permitted.is_err() {
            self.denied.fetch_add(1, Relaxed);
        }
        permitted
    }

    /// Purges at all nodes, including draining and down ones. Must be called within the runtime.
    pub(crate) async fn purge(&self, nodes: &Nodes, purge: &Purge) -> PurgeReport {
        let deadline = Instant::now() + TOTAL_TIMEOUT;
        let (places, mut asked) = (Arc::new(Semaphore::new(NODES_AT_ONCE)), JoinSet::new());
        let token = self.tokens.as_ref().map_or("", Tokens::first);
        for node in nodes.members() {
            let (name, dial, places) = (node.name.to_string(), node.dial.clone(), Arc::clone(&places));
            let request = request(&dial, purge, token);
            asked.spawn(async move {
                let done = match timeout_at(deadline, places.acquire_owned()).await {
                    Ok(_place) => purge_node(&dial, request).await,
                    Err(_) => Err(format!("not asked within {} s", TOTAL_TIMEOUT.as_secs())),
                };
                let (removed, error) = (*done.as_ref().unwrap_or(&0), done.err());
                NodePurge { node: name, done: error.is_none(), removed, error }
            });
        }
        let mut nodes = Vec::with_capacity(asked.len());
        while let Some(node) = asked.join_next().await {
            nodes.extend(node);
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        let done = nodes.iter().filter(|node| node.done).count();
        let failed = nodes.len() - done;
        let removed = nodes.iter().map(|node| node.removed).sum();
        let outcome = if failed == 0 { &self.done } else { &self.failed };
        outcome.fetch_add(1, Relaxed);
        tracing::info!(purge = purge.to_string(), done, failed, removed, "purge: asked all nodes");
        for NodePurge { node, error, .. } in nodes.iter().filter(|node| !node.done) {
            tracing::warn!(
                purge = purge.to_string(),
                node,
                error,
                "purge: failed at a node, which may still have the objects"
            );
        }
        PurgeReport { purge: purge.to_string(), done, failed, removed, nodes }
    }
}

#[derive(Deserialize)]
struct PurgeReply {
    removed: u64,
}

fn request(dial: &Dialer, purge: &Purge, token: &str) -> Result<Request<Bytes>, http::Error> {
    let mut shown = HeaderValue::try_from(format!("Bearer {token}"))?;
    shown.set_sensitive(true);
    Request::post(PURGE_PATH)
        .header(HOST, dial.address.to_string())
        .header(USER_AGENT, "larder-switch")
        .header(AUTHORIZATION, shown)
        .header(PURGE_FIELD, purge.to_string())
        .body(Bytes::new())
}

/// Purges at a node. Returns the number of removed objects, or the error.
async fn purge_node(dial: &Dialer, request: Result<Request<Bytes>, http::Error>) -> Result<u64, String> {
    let request = request.map_err(|error| error.to_string())?;
    let asked = Client::default().exchange(dial.open(None, NodeProtocol::Http1), request, NODE_LIMITS).await;
    let reply = asked.map_err(|error| error.to_string())?;
    if reply.status() != StatusCode::OK {
        return Err(refusal(reply.status()));
    }
    let PurgeReply { removed } =
        serde_json::from_slice(reply.body()).map_err(|_| "the reply is not a larder node's".to_owned())?;
    Ok(removed)
}

fn refusal(status: StatusCode) -> String {
    let why = match status {
        StatusCode::NOT_FOUND => ": it has no node.purge_token, a different one, or is not a larder node",
        StatusCode::SERVICE_UNAVAILABLE => ": it is full",
        _ => "",
    };
    format!("status {}{why}", status.as_u16())
}
