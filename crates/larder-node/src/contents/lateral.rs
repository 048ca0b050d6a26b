//! Later requests of handed-over connections: served here, or fetched from the node that has them.
//!
//! The front-end has decided by a connection's first request and is not on its way any more. For later ones the node decides
//! by extended LARD ([`larder_core::lateral`]), which it can only where its disk is busy and the target is not in its cache:
//! then it asks the front-end who has it, and may fetch the reply over a kept connection and pass it on (*lateral fetch*). A
//! fetch carries `Larder-Lateral`, and a request that does is never fetched once more.
//!
//! All that goes wrong ends in the same: the request is served here. Answers are kept for [`LateralConfig::age`] in a table of
//! [`SLOTS`] places, where the later one displaces the earlier.

use crate::config::OriginConfig;
use crate::counts::Counters;
use crate::http::hop::TARGET;
use crate::memory::Memory;
use crate::object::Keeping;
use crate::origin::{Client, Fetched, Origin};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Uri};
use larder_core::lateral::{self, Candidate, Choice, Costs, Here};
use larder_core::{NodeId, TargetId};
use larder_handoff::agent::HolderResolver;
use larder_handoff::channel::holders::{HolderReply, RequestSummary};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Answers that are kept at most; a power of two.
pub(crate) const SLOTS: usize = 1 << 12;
/// A later answer than this is of no use to anybody.
const LATE: Duration = Duration::from_secs(1);
/// Nodes that connections are kept to; all are dropped beyond.
const PEERS_MAX: usize = 256;
/// Fetches from one node at a time; further requests are served here.
const FETCHES_MAX: usize = 1_024;
/// Time to a connection to another node.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to the head of its reply. Its disk may be busy too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

const LARDER_LATERAL: HeaderName = HeaderName::from_static("larder-lateral");

/// Settings of decisions about later requests.
#[derive(Clone, Debug)]
pub struct LateralConfig {
    /// Asks front-ends who has a target.
    pub asker: HolderResolver,
    /// The constants of the rule.
    pub costs: Costs,
    /// Time that an answer is waited for. Then the request is served here.
    pub wait: Duration,
    /// Time that an answer holds, loads included.
    pub age: Duration,
}

impl LateralConfig {
    /// The paper's constants, 2 ms for an answer, which holds for 250 ms.
    pub fn new(asker: HolderResolver) -> Self {
        Self { asker, costs: Costs::PAPER, wait: Duration::from_millis(2), age: Duration::from_millis(250) }
    }
}

/// The means to decide about a connection's later requests.
#[derive(Clone, Debug)]
pub(crate) struct Later {
    /// The address that the client connected to.
    pub(crate) service: SocketAddr,
    /// `None`: all are served here.
    pub(crate) lateral: Option<Arc<Lateral>>,
}

/// The decision about a later request.
pub(crate) enum Elsewhere {
    /// Another node, reached this way, has answered.
    Fetched(Arc<Origin>, Fetched),
    /// It is served here.
    Here(Keeping),
}

/// Lateral fetching at a node.
#[derive(Debug)]
pub(crate) struct Lateral {
    config: LateralConfig,
    name: Box<str>,
    hasher: RandomState,
    answers: Mutex<Box<[Option<Answer>]>>,
    peers: Mutex<HashMap<SocketAddr, Arc<Origin>>>,
}

#[derive(Clone, Debug)]
struct Answer {
    hash: u64,
    since: Instant,
    has: Arc<HolderReply>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lateral {
    /// For the node of this name.
    pub(crate) fn new(config: LateralConfig, name: &str) -> Self {
        Self {
            config,
            name: name.into(),
            hasher: RandomState::new(),
            answers: Mutex::new(vec![None; SLOTS].into()),
            peers: Mutex::default(),
        }
    }

    /// Returns the nodes that have a target; `None` if they are not known in time. A late answer is kept for the next request.
    async fn whereabouts(self: &Arc<Self>, service: SocketAddr, request: &Parts) -> Option<Arc<HolderReply>> {
        let asked = asked(request)?;
        let hash = self.hasher.hash_one((service, &asked));
        let slot = hash as usize & (SLOTS - 1);
        let kept = lock(&self.answers)[slot].clone();
        if let Some(kept) = kept.filter(|kept| kept.hash == hash && kept.since.elapsed() < self.config.age) {
            return Some(kept.has);
        }
        let lateral = Arc::clone(self);
        let asking = tokio::spawn(async move {
            let has = Arc::new(lateral.config.asker.resolve(service, asked, LATE).await?);
            lock(&lateral.answers)[slot] =
                Some(Answer { hash, since: Instant::now(), has: Arc::clone(&has) });
            Some(has)
        });
        tokio::time::timeout(self.config.wait, asking).await.ok()?.ok()?
    }

    /// The way to another node.
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

    /// Sends a request on to another node. `None` if there is no reply that the client could have.
    async fn fetch(
        &self,
        address: SocketAddr,
        request: &Parts,
        told: Option<u64>,
    ) -> Option<(Arc<Origin>, Fetched)> {
        let peer = self.peer(address)?;
        let host = peer.host(request)?;
        let mut headers = peer.outgoing(&request.headers, &host);
        headers.insert(LARDER_LATERAL, HeaderValue::from_static("1"));
        if let Some(told) = told.and_then(|id| HeaderValue::try_from(TargetId(id).to_string()).ok()) {
            headers.insert(TARGET, told);
        }
        let place = peer.try_place(Client::Unknown)?;
        let target = request.uri.path_and_query()?;
        let fetched = peer.send(place, &request.method, target, headers, None, None).await.ok()?;
        // Whatever else it says, this node may know better.
        is_use(fetched.reply.status()).then_some((peer, fetched))
    }
}

impl Later {
    /// Decides about a later request for a target that is not in `memory` here, and fetches its reply if that is the
    /// decision.
    pub(super) async fn decide(&self, memory: &Memory, counters: &Counters, request: &Parts) -> Elsewhere {
        let keep = |keep| Elsewhere::Here(Keeping { told: None, keep });
        let Some(lateral) = self.lateral.as_ref().filter(|_| may_be_fetched(request)) else {
            return keep(true);
        };
        let here = Here { disk_queue: memory.reading(), ..Here::default() };
        let costs = &lateral.config.costs;
        if !lateral::asks(costs, &here) {
            return keep(true);
        }
        let Some(has) = lateral.whereabouts(self.service, request).await else {
            counters.later_unknown.add(1);
            return keep(false);
        };
        let here = Here { mapped: has.is_holder, load: has.load, ..here };
        let candidates: Vec<Candidate> = has
            .holders
            .iter()
            .map(|holder| Candidate { node: NodeId(holder.node), load: holder.load })
            .collect();
        if candidates.is_empty() && !has.is_holder {
            counters.later_unknown.add(1);
        }
        let verdict = lateral::decide(costs, &here, &candidates);
        let keeping = Keeping { told: has.target.map(TargetId), keep: verdict.keep };
        let Choice::Fetch(node) = verdict.choice else { return Elsewhere::Here(keeping) };
        let address = has.holders.iter().find(|holder| holder.node == node.0).map(|holder| holder.address);
        let fetched = match address {
            Some(address) => lateral.fetch(address, request, has.target).await,
            None => None,
        };
        let Some((peer, fetched)) = fetched else {
            counters.later_failed.add(1);
            return Elsewhere::Here(keeping);
        };
        counters.later_fetched.add(1);
        Elsewhere::Fetched(peer, fetched)
    }
}

/// The question to a front-end; `None` if the request's host or target is not text.
fn asked(request: &Parts) -> Option<RequestSummary> {
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

/// Whether another node may be asked: a GET without a body that nobody has fetched already.
fn may_be_fetched(request: &Parts) -> bool {
    let headers: &HeaderMap = &request.headers;
    let bodiless = !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0");
    request.method == Method::GET && bodiless && !headers.contains_key(LARDER_LATERAL)
}

/// Whether a status is the answer; errors may be the other node's alone.
fn is_use(status: StatusCode) -> bool {
    status.is_success()
        || matches!(
            status,
            StatusCode::NOT_MODIFIED | StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE
        )
}
