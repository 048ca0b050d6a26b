//! A content node: its parts, and what it does with one request.

mod peers;

use crate::access::Access;
use crate::body::{Body, streams_max};
use crate::bound::Bound;
use crate::config::{ConfigError, NodeConfig, Preload, StoreConfig};
use crate::connection::Shared;
use crate::cooperate::Cooperation;
use crate::counts::Counters;
use crate::dynamic::Dynamic;
use crate::edge::{Edge, TlsView};
use crate::entry::Admitted;
use crate::http::cache_status::{Outcome, Speller, Why};
use crate::http::condition;
use crate::http::hop::{REQUESTS, told};
use crate::http::path::{self, PathError};
use crate::lateral::{Elsewhere, Later};
use crate::machine::{Machine, ScratchError, Usage};
use crate::memory::Memory;
use crate::object::Keeping;
use crate::origin::OriginStats;
use crate::origin::tunnel;
use crate::purge::PURGES_MAX;
use crate::reloads::ReloadCounts;
use crate::reply::Ask;
use crate::report::Report;
use crate::stats::{NodeStats, Rest};
use crate::store::{DirectoryError, ManifestError, Store, StoreError};
use crate::terms::{Own, Terms};
use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri};
use larder_edge::{Announcers, CertificateFault};
use larder_http::relay::{InterimSender, RequestBody, StreamMemory};
use larder_spans::Tracer;
use std::borrow::Cow;
use std::error::Error;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// Why a node cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration has a value out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The directory cannot be served.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The list of modelled targets cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The file that dynamic content reads cannot be made.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The thread that sends spans cannot be started.
    #[error("cannot trace requests: {0}")]
    Traces(#[source] std::io::Error),
    /// The access log's file cannot be opened.
    #[error("cannot open the access log: {0}")]
    AccessLog(#[source] std::io::Error),
    /// A thread that serves connections cannot be started.
    #[error("cannot start the threads that serve connections: {0}")]
    Threads(#[source] std::io::Error),
    /// The listening socket is not one any more. Retrying does not help.
    #[error("the listening socket failed")]
    Listener(#[source] std::io::Error),
    /// Nothing changes any more. Retrying does not help.
    #[error("the node is ending")]
    Ending,
}

/// A content node. Shared by all its connections.
#[derive(Debug)]
pub struct Node {
    pub(crate) name: String,
    pub(crate) speller: Speller,
    /// What may change while the node runs.
    pub(crate) terms: ArcSwap<Terms>,
    /// Held while it does.
    pub(crate) changing: Mutex<()>,
    /// Whether the node ends: how many connections there may be stays as it is.
    pub(crate) ending: Mutex<bool>,
    /// The terms are others than they were.
    pub(crate) changed: Notify,
    pub(crate) reloads: Mutex<ReloadCounts>,
    /// For connections.
    pub(crate) places: Bound,
    pub(crate) memory: Arc<Memory>,
    pub(crate) store: Store,
    pub(crate) machine: Machine,
    pub(crate) dynamic: Option<Dynamic>,
    /// Bounds look-ups without a read, as `reads_max` bounds reads.
    pub(crate) stats_at_once: Bound,
    /// Memory for replies to clients of HTTP/2.
    pub(crate) http2_memory: Arc<StreamMemory>,
    /// Threads that serve connections.
    pub(crate) threads: usize,
    /// Bounds replies in chunks.
    pub(crate) streams: Bound,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report: Report,
    pub(crate) access: Arc<Access>,
    /// Requests may be answered as [`crate::at_once`] says.
    pub(crate) answers_at_once: bool,
    /// For purges of switches.
    pub(crate) purges: Arc<Semaphore>,
    /// Where requests are traced.
    tracer: Option<Arc<Tracer>>,
    /// Set once, where there are peers.
    pub(crate) cooperation: OnceLock<Arc<Cooperation>>,
    pub(crate) chunk: u64,
    /// A relay that is not trusted has been noted in the log.
    pub(crate) relay_doubted: AtomicBool,
    draining: AtomicBool,
    started: Instant,
}

impl Node {
    /// A node that serves nothing yet. Opens the directory, or reads the manifest, and reads certificates; blocks while it does.
    ///
    /// # Errors
    /// If a value is out of range, or the directory, the manifest or a certificate cannot be used.
    pub fn new(config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        config.check()?;
        let edge = Edge::new(config.tls.clone(), Announcers(config.announcers.clone()))?;
        let terms = Terms::new(&config, edge);
        let NodeConfig { name, cache, store, dynamic, limits, report, traces, access_log, threads, .. } =
            config;
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        };
        let tracer = traces.map(Tracer::start).transpose().map_err(NodeError::Traces)?.map(Arc::new);
        let report = Report::new(report.cpu, &store);
        let machine = Machine::new(&store, dynamic.as_ref(), limits.reads_at_once)?;
        let preload = match store {
            StoreConfig::Model { preload, .. } => preload,
            _ => Preload::Nothing,
        };
        let store = machine.store(&store, &name, limits.reads_at_once)?;
        let speller = Speller::new(&name);
        let node = Arc::new(Self {
            access: Access::new(&name, speller.name(), access_log.as_ref()).map_err(NodeError::AccessLog)?,
            speller,
            answers_at_once: dynamic.is_none() && tracer.is_none() && !machine.cpu.is_modelled(),
            name,
            terms: ArcSwap::from_pointee(terms),
            changing: Mutex::default(),
            ending: Mutex::default(),
            changed: Notify::new(),
            reloads: Mutex::default(),
            places: Bound::new(limits.connections_max as usize),
            memory: Arc::new(Memory::new(&cache, limits.reads_max)),
            store,
            machine,
            dynamic: dynamic.as_ref().map(Dynamic::new),
            stats_at_once: Bound::new(limits.reads_max),
            purges: Arc::new(Semaphore::new(PURGES_MAX)),
            http2_memory: Arc::new(StreamMemory::new(limits.http2_bytes_max)),
            threads,
            streams: Bound::new(streams_max(&cache)),
            counters: Arc::default(),
            report,
            tracer,
            cooperation: OnceLock::new(),
            chunk: cache.chunk.0,
            relay_doubted: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            started: Instant::now(),
        });
        if preload != Preload::Nothing {
            node.preload(preload == Preload::Shared);
        }
        Ok(node)
    }

    /// By which it is known.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A place for each connection that may be served at once. Who hands one to [`serve_with`](Self::serve_with) with a place is
    /// sure that it is served.
    pub fn places(&self) -> Arc<Semaphore> {
        Arc::clone(self.places.permits())
    }

    /// Lines for the log at the start: the store and how it is read, the processor, the programs, the memory cache. A modelled
    /// store says that it is one.
    pub fn start_lines(&self) -> Vec<String> {
        let capacity = larder_core::Bytes(self.memory.stats().capacity).exact();
        let (store, cpu) = (self.store.describe(), self.machine.cpu.describe());
        let programs = self.dynamic.as_ref().map_or(0, Dynamic::len);
        let mut lines = vec![format!("store: ready {store}"), format!("processor: ready {cpu}")];
        if programs > 0 {
            lines.push(format!("dynamic content: ready programs={programs}"));
        }
        lines.push(format!("memory cache: ready size={capacity:#}"));
        lines
    }

    /// What the node has done and its levels now. Takes the cache's lock for a moment.
    pub fn stats(&self) -> NodeStats {
        let (mut memory, mut limits) = (self.memory.stats(), OriginStats::default());
        if let Store::Origin(origin) = &self.store {
            memory.reading = origin.asking();
            limits = origin.stats();
        }
        self.counters.snapshot(Rest {
            name: self.name.clone(),
            kind: self.store.kind(),
            draining: self.is_draining(),
            memory,
            store: self.store.stats(),
            origin: limits,
            usage: self.usage(),
            access_log_dropped: self.access.dropped(),
        })
    }

    /// How much the node's processor and disks have worked, and who waits for them.
    pub fn usage(&self) -> Usage {
        let mut usage = self.machine.usage();
        if let Store::Directory(directory) = &self.store {
            let stats = directory.stats();
            usage.disk_reads += stats.reads;
            usage.disk_bytes += stats.bytes;
        }
        usage
    }

    /// [`Node::stats`] and how reloads went, and [`Node::tls`] and [`Node::peers`] if there are any, in the Prometheus text format.
    pub fn metrics_text(&self) -> String {
        let (tls, peers) = (self.tls(), self.peers());
        let reloads = Some(self.reloads().metrics_text(&self.name));
        let more = [reloads, tls.map(|tls| tls.metrics_text()), peers.map(|peers| peers.metrics_text())];
        let join = |text: String, more: String| text.trim_end_matches("# EOF\n").to_owned() + &more;
        more.into_iter().flatten().fold(self.stats().metrics_text(), join)
    }

    /// Makes the health path answer 503 (or 200 again), while everything else is served on: front-ends that watch
    /// it send no more. A shutdown sets it too.
    pub fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Relaxed);
    }

    /// Whether the health path answers 503.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Opens the access log's file anew by its name, for log rotation. Does not wait for it.
    pub fn reopen_access_log(&self) {
        self.access.reopen();
    }

    /// Lets the node tell how reloads of it went.
    pub fn set_reloads(&self, counts: ReloadCounts) {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(crate) fn reloads(&self) -> ReloadCounts {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands with TLS; `None` where there is none.
    pub fn tls(&self) -> Option<TlsView> {
        self.terms().edge.view(&self.name)
    }

    /// Milliseconds since the node was made.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Time from the making of the node until `at`.
    pub(crate) fn uptime_at(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    /// Answers a request. It counts as in flight until the reply's body is dropped.
    pub(crate) async fn handle(
        self: Arc<Self>,
        shared: Arc<Shared>,
        request: Request<RequestBody>,
        interim: Option<InterimSender>,
    ) -> Response<Body> {
        let mut in_flight = shared.begin(Instant::now());
        let (mut parts, body) = request.into_parts();
        in_flight.log(&self.access, &self.terms().entry.trusted_relays, &parts);
        let head = parts.method == Method::HEAD;
        let websocket = tunnel::is_asked(&parts);
        let admitted = self.admit(&shared, &mut parts);
        if !shared.is_taken() {
            parts.headers.remove(REQUESTS);
        }
        let own = !admitted.is_contents();
        if matches!(admitted, Admitted::Own(_)) {
            in_flight.leaves_no_line();
        }
        if own {
            in_flight.set_own();
        } else if let Some(tracer) = &self.tracer {
            in_flight.trace(tracer, &mut parts);
        }
        let location = shared.entered().filter(|_| !own).and_then(|entered| entered.sends_on(&parts));
        if let Some(location) = location {
            let reply = self.sent_on(location);
            in_flight.answers(&reply);
            return reply.map(|body| body.with(in_flight));
        }
        let tunnels = websocket && !own && self.opens_tunnels();
        if let Some(interim) = interim {
            parts.extensions.insert(interim);
        }
        if tunnels {
            parts.extensions.insert(tunnel::Line(Arc::clone(&shared)));
        }
        let later = in_flight.later().filter(|_| !own);
        if later.is_some() {
            self.counters.later.add(1);
        }
        let cooperation = self.cooperation.get().filter(|_| later.is_none() && !tunnels);
        let reply = match (admitted, cooperation) {
            (Admitted::Own(own), _) => Box::pin(self.answer_own(own, &parts)).await,
            (Admitted::Denied, _) => self.denied(),
            (Admitted::Contents, Some(cooperation)) => {
                Box::pin(self.answer_client(&Arc::clone(cooperation), &shared, &mut parts, body)).await
            }
            (Admitted::Contents, None) => self.reply(&parts, body, later.as_ref()).await,
        };
        in_flight.answers(&reply);
        if reply.status() == StatusCode::SWITCHING_PROTOCOLS {
            in_flight.becomes_tunnel();
        }
        reply.map(|body| if head { body.of_head() } else { body }.with(in_flight))
    }

    /// Whether a request for a WebSocket goes to the origin as such.
    fn opens_tunnels(&self) -> bool {
        matches!(&self.store, Store::Origin(origin) if origin.opens_tunnels())
    }

    /// The reply to a request that is to be made again with TLS.
    fn sent_on(&self, location: HeaderValue) -> Response<Body> {
        self.counters.requests.add(1);
        let mut reply = self.plain(StatusCode::PERMANENT_REDIRECT, Outcome::Local("https"), "");
        reply.headers_mut().insert(header::LOCATION, location);
        reply
    }

    pub(crate) async fn reply<B>(
        self: &Arc<Self>,
        parts: &Parts,
        body: B,
        later: Option<&Later>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let path = parts.uri.path();
        let uri_bytes_max = self.terms().limits.uri_bytes_max;
        self.counters.requests.add(1);
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        if target.len() > uri_bytes_max {
            return self.plain(StatusCode::URI_TOO_LONG, Outcome::Local("uri-length"), "");
        }
        if let Some(dynamic) = &self.dynamic
            && let Some(handler) = dynamic.find(path, target)
        {
            return Box::pin(self.run(dynamic, handler, parts, body)).await;
        }
        if let Store::Origin(origin) = &self.store {
            return Box::pin(self.pull(origin, parts, body)).await;
        }
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            let mut reply = self.plain(StatusCode::METHOD_NOT_ALLOWED, Outcome::Local("method"), "");
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return reply;
        }
        let name = match self.name_of(&parts.uri) {
            Ok(name) => name,
            Err(PathError::Malformed) => {
                return self.plain(StatusCode::BAD_REQUEST, Outcome::Local("path"), "malformed path");
            }
            Err(PathError::Hidden) => {
                return self.plain(StatusCode::NOT_FOUND, Outcome::Local("hidden"), "not-found");
            }
        };
        let mut why = Why::Miss;
        match self.get(parts, &name, &mut why, later).await {
            Ok(reply) => {
                self.machine.cpu.reply(http_body::Body::size_hint(reply.body()).lower()).await;
                reply
            }
            Err(error) => self.answer_error(&error, path, why),
        }
    }

    async fn get(
        self: &Arc<Self>,
        request: &Parts,
        name: &[u8],
        why: &mut Why,
        later: Option<&Later>,
    ) -> Result<Response<Body>, StoreError> {
        let hash = self.memory.hash(name);
        let ask = Ask { method: &request.method, headers: &request.headers, hash };
        let (cached, reason) = self.cached(hash, name).await?;
        *why = reason;
        if let Some(object) = cached {
            return self.answer(ask, object, Outcome::Hit).await;
        }
        // Boxed, as all that is not a hit: a hit's future stays small to move.
        Box::pin(self.get_missing((request, ask), name, *why, later)).await
    }

    async fn get_missing(
        self: &Arc<Self>,
        (request, ask): (&Parts, Ask<'_>),
        name: &[u8],
        why: Why,
        later: Option<&Later>,
    ) -> Result<Response<Body>, StoreError> {
        // Whoever asks for no body, or may have it already, must not push out what others ask for.
        let head = ask.method == Method::HEAD;
        if head || condition::is_conditional(ask.headers) {
            let object = self.stat(name).await?;
            let outcome = Outcome::Forward { why, stored: false, collapsed: false };
            if head {
                return self.answer(ask, Arc::new(object), outcome).await;
            }
            if let Some(reply) = self.answer_condition(ask, &object, outcome) {
                return Ok(reply);
            }
        }
        let keeping = match later {
            None => Keeping { told: told(ask.headers), keep: true },
            Some(later) => match self.elsewhere(later, request, why).await {
                Elsewhere::Fetched(reply) => return Ok(reply),
                Elsewhere::Here(keeping) => keeping,
            },
        };
        let (object, outcome) = self.object(ask.hash, name, why, keeping).await?;
        self.answer(ask, object, outcome).await
    }

    /// The name of contents that a request asks for: the path in a directory; path and query, as they are, in a
    /// model.
    pub(crate) fn name_of<'a>(&self, uri: &'a Uri) -> Result<Cow<'a, [u8]>, PathError> {
        match &self.store {
            Store::Directory(_) | Store::Origin(_) => path::resolve(uri.path()),
            Store::Model(_) => {
                let target = uri.path_and_query().map_or("", |target| target.as_str());
                if target.starts_with('/') {
                    Ok(Cow::Borrowed(target.as_bytes()))
                } else {
                    Err(PathError::Malformed)
                }
            }
        }
    }

    /// Whether the node keeps a path for itself.
    pub(crate) fn is_own(&self, path: &str) -> bool {
        self.terms().own(path).is_some()
    }

    /// The reply to a request for one of the node's own paths.
    async fn answer_own(self: &Arc<Self>, own: Own, parts: &Parts) -> Response<Body> {
        match own {
            Own::Health => self.health(),
            Own::Stats => {
                let json = serde_json::to_vec(&self.stats()).unwrap_or_default();
                self.text(StatusCode::OK, Outcome::Local("stats"), "application/json", Bytes::from(json))
            }
            Own::Report => self.report(&parts.method, parts.uri.path()).await,
            Own::Purge => self.answer_purge(parts).await,
        }
    }

    /// The reply to a sender that may not ask for one of the node's own paths. The path is never the origin's either.
    fn denied(&self) -> Response<Body> {
        self.counters.own_denied.add(1);
        self.plain(StatusCode::NOT_FOUND, Outcome::Local("denied"), "not-found")
    }

    fn health(&self) -> Response<Body> {
        let outcome = Outcome::Local("health");
        match self.is_draining() {
            false => self.plain(StatusCode::OK, outcome, "ok"),
            true => self.plain(StatusCode::SERVICE_UNAVAILABLE, outcome, "draining"),
        }
    }
}
