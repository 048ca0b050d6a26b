//! Later requests on handed-off connections: served here, or fetched from another node that has the target.
//!
//! The switch decides by a connection's first request and does not see later requests. The node decides about
//! them by extended LARD ([`larder_core::lateral`]). If its disk is busy and the target is not in its cache,
//! the node asks the switch which nodes hold the target. It may then fetch the reply over a kept connection and
//! pass it on (*lateral fetch*). A fetch carries `Larder-Lateral`, and such a request is never fetched again.
//!
//! If any step fails, the request is served here. Answers are kept for [`LateralConfig::age`] in a table of
//! [`ENTRIES`] entries. A later answer replaces an earlier one with the same index.

use crate::config::OriginConfig;
use crate::counters::Counters;
use crate::http::hop::LARDER_TARGET;
use crate::lock::lock;
use crate::memory::Memory;
use crate::object::StoragePolicy;
use crate::origin::{ClientKey, Origin, OriginReply};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Uri};
use larder_core::lateral::{self, Candidate, LateralChoice, LateralCosts, LocalState};
use larder_core::{NodeId, TargetId};
use larder_handoff::agent::HolderResolver;
use larder_handoff::channel::holders::{HolderReply, RequestSummary};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of entries in the table of answers; a power of two.
pub(crate) const ENTRIES: usize = 1 << 12;
/// Longest time that an answer is worth recording.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Most nodes to which connections are kept. If there are more, all connections are dropped.
const PEERS_MAX: usize = 256;
/// Most fetches from one node at a time. Further requests are served here.
const FETCHES_MAX: usize = 1_024;
/// Time to connect to another node.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to the head of the other node's reply. Its disk may be busy too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

const LARDER_LATERAL: HeaderName = HeaderName::from_static("larder-lateral");

/// Settings for decisions about later requests.
#[derive(Clone, Debug)]
pub struct LateralConfig {
    /// Asks the switches which nodes hold a target.
    pub resolver: HolderResolver,
    /// The constants of the decision rule.
    pub costs: LateralCosts,
    /// Time to wait for an answer. After it, the request is served here.
    pub wait: Duration,
    /// Time for which an answer is used, with the loads in it.
    pub age: Duration,
}

impl LateralConfig {
    /// Creates settings with the paper's constants, a wait of 2 ms and an age of 250 ms.
    pub fn new(resolver: HolderResolver) -> Self {
        Self {
            resolver,
            costs: LateralCosts::PAPER,
            wait: Duration::from_millis(2),
            age: Duration::from_millis(250),
        }
    }
}

/// The handoff of a connection: its service address, and the settings for its later requests.
#[derive(Clone, Debug)]
pub(crate) struct HandoffContext {
    /// The service address that the client connected to.
    pub(crate) service: SocketAddr,
    /// Fetches later requests from other nodes; `None` serves all of them here.
    pub(crate) lateral: Option<Arc<LateralFetcher>>,
}

/// The decision about a later request.
pub(crate) enum LateralDecision {
    /// Another node has replied.
    Fetched(Arc<Origin>, OriginReply),
    /// This node serves the request.
    Local(StoragePolicy),
}

/// Fetches replies from other nodes.
#[derive(Debug)]
pub(crate) struct LateralFetcher {
    config: LateralConfig,
    name: Box<str>,
    hasher: RandomState,
    answers: Mutex<Box<[Option<HolderEntry>]>>,
    peers: Mutex<HashMap<SocketAddr, Arc<Origin>>>,
}

#[derive(Clone, Debug)]
struct HolderEntry {
    hash: u64,
    since: Instant,
    has: Arc<HolderReply>,
}

impl LateralFetcher {
    /// Creates the fetcher of the named node.
    pub(crate) fn new(config: LateralConfig, name: &str) -> Self {
        Self {
            config,
            name: name.into(),
            hasher: RandomState::new(),
            answers: Mutex::new(vec![None; ENTRIES].into()),
            peers: Mutex::default(),
        }
    }

    /// Returns the nodes that hold a target; `None` if no answer comes in time. A late answer is kept for the
    /// next request.
    async fn find_holders(
        self: &Arc<Self>,
        service: SocketAddr,
        request: &Parts,
    ) -> Option<Arc<HolderReply>> {
        let summary = request_summary(request)?;
        let hash = self.hasher.hash_one((service, &summary));
        let index = hash as usize & (ENTRIES - 1);
        let cached = lock(&self.answers)[index].clone();
        if let Some(cached) =
            cached.filter(|cached| cached.hash == hash && cached.since.elapsed() < self.config.age)
        {
            return Some(cached.has);
        }
        let lateral = Arc::clone(self);
        let asking = tokio::spawn(async move {
            let has = Arc::new(lateral.config.resolver.resolve(service, summary, RESOLVE_TIMEOUT).await?);
            lock(&lateral.answers)[index] =
                Some(HolderEntry { hash, since: Instant::now(), has: Arc::clone(&has) });
            Some(has)
        });
        tokio::time::timeout(self.config.wait, asking).await.ok()?.ok()?
    }

    /// Returns the client for another node.
    fn peer(&self, address: SocketAddr) -> Option<Arc<Origin>> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(&address) {
            return Some(Arc::clone(peer));
        }
        let url: Uri = format!("http://{address}").parse().ok()?;
        let config = OriginConfig {
            connect_timeout: CONNECT_TIMEOUT,
            head_timeout: HEAD_TIMEOUT,
            requests_max: FETCHES_MAX,
            queue_max: 0,
            ..OriginConfig::new(url)
        };
        if peers.len() >= PEERS_MAX {
            peers.clear();
        }
        let peer = Arc::new(Origin::new(config, &self.name));
        peers.insert(address, Arc::clone(&peer));
        Some(peer)
    }

    /// Sends a request to another node; `None` if the reply is not usable for the client.
    async fn fetch(
        &self,
        address: SocketAddr,
        request: &Parts,
        target_id: Option<u64>,
    ) -> Option<(Arc<Origin>, OriginReply)> {
        let peer = self.peer(address)?;
        let host = peer.host(request)?;
        let mut headers = peer.request_headers(&request.headers, &host);
        headers.insert(LARDER_LATERAL, HeaderValue::from_static("1"));
        if let Some(target_id) = target_id.and_then(|id| HeaderValue::try_from(TargetId(id).to_string()).ok())
        {
            headers.insert(LARDER_TARGET, target_id);
        }
        let slot = peer.try_acquire_slot(ClientKey::Unknown)?;
        let target = request.uri.path_and_query()?;
        let fetched = peer.send(slot, &request.method, target, headers, None, None).await.ok()?;
        // For any other status, this node may have a better reply.
        is_usable(fetched.reply.status()).then_some((peer, fetched))
    }
}

impl HandoffContext {
    /// Decides about a later request for a target that is not in `memory`. Fetches the reply if the rule says
    /// so.
    pub(super) async fn decide(
        &self,
        memory: &Memory,
        counters: &Counters,
        request: &Parts,
    ) -> LateralDecision {
        let local = |may_store| LateralDecision::Local(StoragePolicy { target_id: None, may_store });
        let Some(lateral) = self.lateral.as_ref().filter(|_| is_fetchable(request)) else {
            return local(true);
        };
        let here = LocalState { disk_queue: memory.reads_in_flight(), ..LocalState::default() };
        let costs = &lateral.config.costs;
        if !lateral::needs_candidates(costs, &here) {
            return local(true);
        }
        let Some(has) = lateral.find_holders(self.service, request).await else {
            counters.later_unknown.add(1);
            return local(false);
        };
        let here = LocalState { mapped: has.is_holder, load: has.load, ..here };
        let candidates: Vec<Candidate> = has
            .holders
            .iter()
            .map(|holder| Candidate { node: NodeId(holder.node), load: holder.load })
            .collect();
        if candidates.is_empty() && !has.is_holder {
            counters.later_unknown.add(1);
        }
        let verdict = lateral::decide(costs, &here, &candidates);
        let storage = StoragePolicy { target_id: has.target.map(TargetId), may_store: verdict.keep };
        let LateralChoice::Fetch(node) = verdict.choice else { return LateralDecision::Local(storage) };
        let address = has.holders.iter().find(|holder| holder.node == node.0).map(|holder| holder.address);
        let fetched = match address {
            Some(address) => lateral.fetch(address, request, has.target).await,
            None => None,
        };
        let Some((peer, fetched)) = fetched else {
            counters.later_failed.add(1);
            return LateralDecision::Local(storage);
        };
        counters.later_fetched.add(1);
        LateralDecision::Fetched(peer, fetched)
    }
}

/// Returns the question to the switch; `None` if the request's host or target is not text.
fn request_summary(request: &Parts) -> Option<RequestSummary> {
    let host = match (request.uri.authority(), request.headers.get(header::HOST)) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(host)) => host.to_str().ok()?,
        (None, None) => "",
    };
    let target = request.uri.path_and_query()?.as_str();
    Some(RequestSummary {
        method: request.method.as_str().to_owned(),
        host: host.to_owned(),
        target: target.to_owned(),
    })
}

/// Returns whether another node may be asked: for a GET without a body that no node has fetched yet.
fn is_fetchable(request: &Parts) -> bool {
    let headers: &HeaderMap = &request.headers;
    let has_no_body = !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0");
    request.method == Method::GET && has_no_body && !headers.contains_key(LARDER_LATERAL)
}

/// Returns whether a status is final for the client. An error may be specific to the other node.
fn is_usable(status: StatusCode) -> bool {
    status.is_success()
        || matches!(
            status,
            StatusCode::NOT_MODIFIED | StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE
        )
}
