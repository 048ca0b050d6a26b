//! A node among equal peers, without a front-end: PRESS at work ([`larder_core::peers`]).
//!
//! Any node takes any client's request. Who serves it the protocol decides; this module keeps its state, tells it what
//! happens (requests, the memory's changes, members, messages), sends what it says, and moves requests: a forwarded one
//! goes to its service node over the [network of peers](crate::peers), and the reply through this node to the client
//! without being kept.
//!
//! A request that a peer forwards is served here, whatever this node believes, and goes no further. If the service node does
//! not answer, this node serves the request itself: only GET and HEAD are forwarded, so nothing happens twice. Once a part
//! of the reply has been sent, the connection to the client is cut when the rest does not come.
//!
//! One lock guards the protocol's state; it is held for a few look-ups and for the queueing of messages, in whose order
//! peers hear of changes.

use crate::body::Body;
use crate::http::cache_status::{Outcome, Why};
use crate::memory::Memory;
use crate::node::Node;
use crate::origin::fields;
use crate::peers::{Event, Events, ForwardError, Name, Network, NetworkError, PeersConfig, ReplyBody, Way};
use crate::report::TARGET;
use crate::report::residents::{Change, Subscription};
use crate::store::{Store, StoreError};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::Empty;
use larder_core::peers::{Message, Outgoing, Press, PressSettings, To, Verdict, Why as Placed};
use larder_core::{NodeId, TargetId, Time};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// This node, among its peers.
const ME: NodeId = NodeId(0);
/// Changes of the memory that may wait to be told; a node that lags further behind goes through all it holds.
const CHANGES_MAX: usize = 1 << 16;
/// Names that are given numbers at most; further members are not used.
const NAMES_MAX: u16 = u16::MAX - 1;

/// How a node works with its peers.
#[derive(Clone, Debug)]
pub struct CooperateConfig {
    /// Their network.
    pub network: PeersConfig,
    /// The protocol. `large_min` bounds what this node keeps in memory too.
    pub press: PressSettings,
    /// How long a service node may take to begin its reply. Then this node serves the request.
    pub head_timeout: Duration,
}

/// A node's part of the cluster.
#[derive(Debug)]
pub(crate) struct Cooperation {
    network: Network,
    state: Mutex<State>,
    /// Something is due sooner than it was.
    sooner: Notify,
    began: Instant,
    head_timeout: Duration,
    /// Decisions by reason, as [`Placed::ALL`] has them.
    placed: [AtomicU64; Placed::ALL.len()],
    loads_told: AtomicU64,
    changes_told: AtomicU64,
}

#[derive(Debug)]
struct State {
    press: Press,
    numbers: BTreeMap<Name, NodeId>,
    names: BTreeMap<NodeId, Name>,
    out: Vec<Outgoing>,
}

/// What the cluster looks like from here.
#[derive(Clone, Debug, Serialize)]
pub struct PeersView {
    /// This node's name.
    pub name: String,
    /// Which life of it: milliseconds since 1970 at its start.
    pub incarnation: u64,
    /// Whether it takes part; by itself it forwards nothing and tells nothing.
    pub sharing: bool,
    /// Connections that it services.
    pub load: u32,
    /// Targets whose servers it knows.
    pub targets_known: usize,
    /// Targets that it holds in memory, of those that peers may ask for.
    pub targets_held: usize,
    /// Decisions by reason.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The other members.
    pub members: Vec<MemberView>,
    /// Broadcasts of load.
    pub loads_told: u64,
    /// Broadcasts of changes of memory.
    pub changes_told: u64,
    /// Requests that were forwarded.
    pub forwarded: u64,
    /// Requests that peers have forwarded.
    pub taken: u64,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Where it listens for peers.
    pub address: String,
    /// Which life of its name.
    pub incarnation: u64,
    /// Its load as it counts here; unknown is `null`.
    pub load: Option<u32>,
    /// Whether all that it has said of its memory is known.
    pub known: bool,
}

/// A connection serviced here counts as load until this goes.
#[derive(Debug)]
pub(crate) struct Serviced {
    cooperation: Arc<Cooperation>,
    /// The node that serves it, if not this one.
    at: Option<NodeId>,
}

impl Serviced {
    /// Its service node has answered, or will not.
    fn returned(&mut self) {
        if let Some(node) = self.at.take() {
            self.cooperation.with(|press, _, _| press.returned(node));
        }
    }
}

impl Drop for Serviced {
    fn drop(&mut self) {
        self.returned();
        self.cooperation.with(Press::ended);
    }
}

impl Cooperation {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does something with the protocol, and sends what it says.
    fn with<R>(&self, act: impl FnOnce(&mut Press, Time, &mut Vec<Outgoing>) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let State { press, names, out, .. } = &mut *state;
        let due = press.due();
        let result = act(press, now, out);
        for Outgoing { to, message } in out.drain(..) {
            self.send(names, to, &message);
        }
        if press.due() < due {
            self.sooner.notify_one();
        }
        result
    }

    /// What cannot be sent is asked for by those who miss it.
    fn send(&self, names: &BTreeMap<NodeId, Name>, to: To, message: &Message) {
        let bytes = Bytes::from(message.encode());
        match (to, message) {
            (To::All, Message::Load { .. }) => self.loads_told.fetch_add(1, Relaxed),
            (To::All, _) => self.changes_told.fetch_add(1, Relaxed),
            (To::One(_), _) => 0,
        };
        let sent = match to {
            To::All => self.network.broadcast(&bytes).map(drop),
            To::One(node) => names.get(&node).map_or(Ok(()), |name| self.network.send(name, bytes)),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a message to a peer was not sent");
        }
    }

    fn begin(self: &Arc<Self>) -> Serviced {
        self.with(Press::begun);
        Serviced { cooperation: Arc::clone(self), at: None }
    }

    /// Who serves a request, the name of that node if it is not this one, and whether this node has it in memory.
    fn decide(&self, target: TargetId) -> (Verdict, Option<Name>, bool) {
        let mut state = self.lock();
        let now = self.now();
        let State { press, names, .. } = &mut *state;
        let verdict = press.decide(now, target, None);
        let name = names.get(&verdict.node).filter(|_| verdict.node != ME).cloned();
        let held = press.holds(target);
        drop(state);
        self.placed[verdict.why as usize].fetch_add(1, Relaxed);
        if verdict.why == Placed::Spread {
            // What it has assumed expires.
            self.sooner.notify_one();
        }
        (verdict, name, held)
    }

    /// A request that could not be forwarded is this node's. Whoever is only busy is not shunned for it.
    fn take_back(&self, node: NodeId, target: TargetId, error: Option<&ForwardError>) {
        self.placed[Placed::Unanswered as usize].fetch_add(1, Relaxed);
        if !matches!(error, Some(ForwardError::Full(_) | ForwardError::Target)) {
            self.with(|press, _, _| press.unanswered(node, target));
        }
    }

    /// Works until the network ends.
    async fn run(self: Arc<Self>, mut events: Events, memory: Arc<Memory>) {
        let mut changes = self.follow(&memory);
        loop {
            let due = self.began + Duration::from_nanos(self.lock().press.due().as_nanos().min(u64::MAX / 4));
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.happened(event),
                    None => return,
                },
                change = next_change(&mut changes) => match change {
                    Some(change) => self.changed(change),
                    // Cut for lagging behind, or the node ends.
                    None => changes = self.follow(&memory),
                },
                () = tokio::time::sleep_until(due.into()) => self.with(Press::tick),
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Subscribes to changes of the memory, and goes through what it holds. None when the node ends.
    fn follow(&self, memory: &Memory) -> Option<Subscription> {
        let subscription = memory.subscribe(usize::MAX, CHANGES_MAX)?;
        let (mut from, mut held) = (0, BTreeSet::new());
        loop {
            let page = memory.resident_page(from);
            let Some(last) = page.last() else { break };
            from = last.place + 1;
            held.extend(page.iter().map(|resident| resident.target));
        }
        self.with(|press, now, out| {
            let gone = press.held().into_iter().filter(|target| !held.contains(target));
            gone.for_each(|target| press.noted(now, target, false, out));
            held.iter().for_each(|target| press.noted(now, *target, true, out));
        });
        Some(subscription)
    }

    fn changed(&self, change: Change) {
        let (target, cached) = match change {
            Change::Stored(target, _) => (target, true),
            Change::Evicted(target) => (target, false),
        };
        self.with(|press, now, out| press.noted(now, target, cached, out));
    }

    fn happened(&self, event: Event) {
        match event {
            Event::Joined(member) => {
                let Some(node) = self.number(&member.name) else { return };
                tracing::info!(peer = %member.name, address = %member.address, "a peer has come");
                self.with(|press, now, out| press.joined(now, node, out));
            }
            Event::Left(member, why) => {
                tracing::info!(peer = %member.name, ?why, "a peer has gone");
                let mut state = self.lock();
                if let Some(node) = state.numbers.remove(&member.name) {
                    state.press.left(node);
                    state.names.remove(&node);
                }
            }
            Event::Up(peer, Way::To) => self.of(&peer.name, Press::greet),
            Event::Up(_, Way::From) | Event::Down(..) => {}
            Event::Message(peer, bytes) => match Message::decode(&bytes) {
                Ok(message) => {
                    self.of(&peer.name, |press, now, node, out| press.hear(now, node, message, out));
                }
                Err(error) => tracing::warn!(peer = %peer.name, %error, "a message means nothing"),
            },
        }
    }

    fn of(&self, name: &Name, act: impl FnOnce(&mut Press, Time, NodeId, &mut Vec<Outgoing>)) {
        let node = self.lock().numbers.get(name).copied();
        if let Some(node) = node {
            self.with(|press, now, out| act(press, now, node, out));
        }
    }

    /// The number of a member, the lowest that is free if it has none yet.
    fn number(&self, name: &Name) -> Option<NodeId> {
        let mut state = self.lock();
        if let Some(node) = state.numbers.get(name) {
            return Some(*node);
        }
        let node = (1..NAMES_MAX).map(NodeId).find(|node| !state.names.contains_key(node))?;
        state.numbers.insert(name.clone(), node);
        state.names.insert(node, name.clone());
        Some(node)
    }

    fn view(&self) -> PeersView {
        let (state, now) = (self.lock(), self.now());
        let State { press, numbers, .. } = &*state;
        let (targets_known, targets_held) = press.sizes();
        let counts = self.network.counters().read();
        let decided = Placed::ALL.iter().zip(&self.placed);
        let members = self.network.members();
        let member = |member: &crate::peers::Member| {
            let node = numbers.get(&member.name).copied();
            MemberView {
                name: member.name.to_string(),
                address: member.address.to_string(),
                incarnation: member.incarnation,
                load: node.and_then(|node| press.load_of(now, node)),
                known: node.is_some_and(|node| press.knows(node)),
            }
        };
        PeersView {
            name: self.network.name().to_string(),
            incarnation: self.network.incarnation(),
            sharing: press.shares(),
            load: press.load(),
            targets_known,
            targets_held,
            decisions: decided.map(|(why, count)| (why.name(), count.load(Relaxed))).collect(),
            members: members.iter().map(member).collect(),
            loads_told: self.loads_told.load(Relaxed),
            changes_told: self.changes_told.load(Relaxed),
            forwarded: counts.requests_out,
            taken: counts.requests_in,
        }
    }
}

async fn next_change(changes: &mut Option<Subscription>) -> Option<Change> {
    match changes {
        Some(subscription) => subscription.changes.recv().await.map(|told| told.change),
        None => std::future::pending().await,
    }
}

/// A reply that comes from a peer.
pub(crate) struct Relayed {
    body: ReplyBody,
}

impl Relayed {
    /// The next bytes; `None` at the end.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => None,
                Some(Err(_)) => Some(Err(StoreError::PeerBroke)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if !bytes.is_empty() => Some(Ok(bytes)),
                    // Trailers are not passed on.
                    _ => continue,
                },
            });
        }
    }
}

impl Node {
    /// Joins its peers, and works with them until [`Node::leave_peers`].
    ///
    /// # Errors
    /// The network cannot be started.
    pub async fn join_peers(self: &Arc<Self>, config: CooperateConfig) -> Result<(), NetworkError> {
        let CooperateConfig { network, press, head_timeout } = config;
        let node: Weak<Self> = Arc::downgrade(self);
        let service = move |request: Request<hyper::body::Incoming>, _from: Name| {
            let node = node.upgrade();
            async move {
                match node {
                    Some(node) => node.answer_peer(request).await,
                    None => gone(),
                }
            }
        };
        let (network, events) = Network::start(network, service).await?;
        let epoch = network.incarnation().max(1);
        let cooperation = Arc::new(Cooperation {
            network,
            state: Mutex::new(State {
                press: Press::new(ME, epoch, press),
                numbers: BTreeMap::new(),
                names: BTreeMap::new(),
                out: Vec::new(),
            }),
            sooner: Notify::new(),
            began: Instant::now(),
            head_timeout,
            placed: Default::default(),
            loads_told: AtomicU64::new(0),
            changes_told: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&cooperation).run(events, Arc::clone(&self.memory)));
        let _ = self.cooperation.set(cooperation);
        Ok(())
    }

    /// Tells the peers that this node goes, and lets end what they have forwarded. `true` if nothing was cut.
    pub async fn leave_peers(&self) -> bool {
        match self.cooperation.get() {
            Some(cooperation) => cooperation.network.leave().await,
            None => true,
        }
    }

    /// Where it listens to its peers; `None` if there are none.
    pub fn peers_address(&self) -> Option<SocketAddr> {
        self.cooperation.get().map(|cooperation| cooperation.network.local())
    }

    /// What the cluster looks like from here; `None` if there are no peers.
    pub fn peers(&self) -> Option<PeersView> {
        self.cooperation.get().map(|cooperation| cooperation.view())
    }

    /// Answers a client's request, here or by a peer.
    pub(crate) async fn answer_client<B>(
        self: &Arc<Self>,
        cooperation: &Arc<Cooperation>,
        parts: &mut Parts,
        body: B,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut serviced = cooperation.begin();
        // Whose id it is, is not the client's to say.
        parts.headers.remove(TARGET);
        let target = if self.is_shared(parts) && body.is_end_stream() { self.target_of(parts) } else { None };
        let Some(target) = target else {
            return self.reply(parts, body, None).await.map(|body| body.serviced(serviced));
        };
        name_target(&mut parts.headers, target);
        let (verdict, name, held) = cooperation.decide(target);
        if let Some(name) = name {
            serviced.at = Some(verdict.node);
            match self.forward(cooperation, &name, parts).await {
                Ok(reply) => {
                    self.count_served(cooperation, parts, target, &reply, false);
                    return self.relay(parts, reply).map(|body| body.serviced(serviced));
                }
                Err(error) => {
                    tracing::debug!(peer = %name, error = ?error.as_ref().map(ToString::to_string), "served here");
                    cooperation.take_back(verdict.node, target, error.as_ref());
                    serviced.returned();
                }
            }
        }
        let reply = self.reply(parts, body, None).await;
        self.count_served(cooperation, parts, target, &reply, !held);
        reply.map(|body| body.serviced(serviced))
    }

    /// Answers what a peer has forwarded.
    async fn answer_peer(self: Arc<Self>, request: Request<hyper::body::Incoming>) -> Response<Body> {
        let Some(cooperation) = self.cooperation.get() else { return gone() };
        let (mut parts, body) = request.into_parts();
        if !self.is_shared(&parts) || !body.is_end_stream() {
            // Nobody forwards such: its program or its settings are others than this node's.
            return self.plain(StatusCode::MISDIRECTED_REQUEST, Outcome::Local("not-shared"), "");
        }
        let serviced = cooperation.begin();
        parts.headers.remove(TARGET);
        if let Some(target) = self.target_of(&parts) {
            name_target(&mut parts.headers, target);
        }
        let reply = self.reply(&parts, body, None).await;
        reply.map(|body| body.serviced(serviced))
    }

    /// Whether peers may serve a request as well as this node: a GET or HEAD for contents.
    fn is_shared(&self, parts: &Parts) -> bool {
        let path = parts.uri.path();
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        let dynamic = self.dynamic.as_ref().is_some_and(|dynamic| dynamic.find(path, target).is_some());
        matches!(parts.method, Method::GET | Method::HEAD) && !dynamic && !self.is_own(path)
    }

    /// The target of a request: the file, the modelled name, or what an origin is asked for.
    fn target_of(&self, parts: &Parts) -> Option<TargetId> {
        if let Store::Origin(_) = &self.store {
            let host = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
            let host = host.or_else(|| parts.headers.get(header::HOST).map(HeaderValue::as_bytes));
            let rest = parts.uri.path_and_query()?.as_str().as_bytes();
            return Some(TargetId::of_parts(&[host.unwrap_or_default(), rest]));
        }
        self.name_of(&parts.uri).ok().map(|name| TargetId::of(&name))
    }

    /// Sends a request to a peer and waits for the head of its reply. The error is `None` where that took too long.
    async fn forward(
        &self,
        cooperation: &Cooperation,
        to: &Name,
        parts: &Parts,
    ) -> Result<Response<ReplyBody>, Option<ForwardError>> {
        let mut request = Request::new(Empty::<Bytes>::new());
        request.method_mut().clone_from(&parts.method);
        request.uri_mut().clone_from(&parts.uri);
        let mut headers = parts.headers.clone();
        fields::strip(&mut headers);
        if let Some(host) = parts.headers.get(header::HOST) {
            // Whatever the client's `Connection` names: the target goes by it.
            headers.insert(header::HOST, host.clone());
        }
        *request.headers_mut() = headers;
        let asked = cooperation.network.forward(to, request);
        let reply = match tokio::time::timeout(cooperation.head_timeout, asked).await {
            Ok(reply) => reply.map_err(Some)?,
            Err(_) => return Err(None),
        };
        Ok(reply)
    }

    /// Passes a peer's reply on to the client.
    fn relay(&self, parts: &Parts, reply: Response<ReplyBody>) -> Response<Body> {
        let (head, body) = reply.into_parts();
        let len = body.size_hint().exact();
        let mut headers = head.headers;
        fields::strip(&mut headers);
        let empty = parts.method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || len == Some(0);
        let body = if empty { Body::empty() } else { Body::relayed(Relayed { body }, len) };
        let outcome = Outcome::Lateral { why: Why::Miss, status: head.status.as_u16() };
        self.merged_with(head.status, headers, outcome, body)
    }

    /// Tells the protocol of a whole reply to a client's request: what it took from memory, and how large it is.
    fn count_served<B: http_body::Body>(
        &self,
        cooperation: &Cooperation,
        parts: &Parts,
        target: TargetId,
        reply: &Response<B>,
        missed: bool,
    ) {
        let size = reply.body().size_hint().exact();
        let whole = parts.method == Method::GET && reply.status() == StatusCode::OK;
        if let Some(size) = size.filter(|_| whole) {
            let size = larder_core::Bytes(size);
            cooperation.with(|press, now, out| press.served(now, target, size, missed, out));
        }
    }
}

fn name_target(headers: &mut HeaderMap, target: TargetId) {
    if let Ok(value) = HeaderValue::try_from(target.to_string()) {
        headers.insert(TARGET, value);
    }
}

/// The node is ending.
fn gone() -> Response<Body> {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    reply
}
