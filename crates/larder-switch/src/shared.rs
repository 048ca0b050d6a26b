//! State that all connections of a switch share.

use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::clock::Clock;
use crate::config::SwitchConfig;
use crate::config_error::ConfigError;
use crate::decider::Decider;
use crate::dial::NodeTransport;
use crate::edits::RequestIds;
use crate::guards::Guards;
use crate::handoff::{Edge, HandoffError, MechanismSetting};
use crate::hottest::HotList;
use crate::limits::Timeouts;
use crate::long_lived::LongLivedConfig;
use crate::node::{Node, NodeError};
use crate::node_entry::NodeEntry;
use crate::nodes::Nodes;
use crate::observers::Observers;
use crate::purge::Purges;
use crate::reload_counts::ReloadCounts;
use crate::routes;
use crate::routing::Routing;
use crate::shadow::ShadowFeed;
use crate::signals::{SignalNeeds, Signals};
use http::HeaderValue;
use larder_core::dispatch::SettingsError;
use larder_core::record::Header;
use larder_core::{Dispatcher, NodeId, NodeSpec};
use larder_edge::access::AccessLog;
use larder_edge::{AddressRanges, CertificateFault, Tls};
use larder_http::relay::StreamMemory;
use larder_peer_switches::PeerSwitches;
use larder_record::{RecordStartError, Recorder};
use larder_spans::Tracer;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, watch};

/// An error that keeps a switch from starting.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The system's random source cannot be read.
    #[error("cannot read the system's random source: {0}")]
    Random(#[source] rustix::io::Errno),
    /// The settings of the dispatcher are not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The random source of request ids cannot be read.
    #[error("cannot read /dev/urandom for request ids: {0}")]
    Chance(io::Error),
    /// A node cannot be reached as it is configured.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A listen address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A certificate or key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateFault),
    /// The access log cannot be opened.
    #[error("cannot open the access log: {0}")]
    AccessLog(#[source] io::Error),
    /// The thread that sends spans cannot be started.
    #[error("cannot start the thread that sends traces: {0}")]
    Traces(#[source] io::Error),
    /// The decision record cannot be started.
    #[error("cannot start the record of decisions: {0}")]
    Record(#[source] RecordStartError),
    /// The configuration of handoff is not valid.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
}

/// State that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) decider: Arc<Decider>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) guards: Arc<Guards>,
    /// Sender of the ids of nodes that have joined and are not watched yet.
    pub(crate) joined: mpsc::UnboundedSender<NodeId>,
    /// Rules that classify requests as long-lived.
    pub(crate) long_lived: LongLivedConfig,
    pub(crate) purges: Purges,
    pub(crate) signals: Arc<Signals>,
    /// The handoff edge; `None` if handoff is off. Set once the listen addresses are known.
    pub(crate) handoff: Option<Arc<Edge>>,
    /// Peer switches in front of the same nodes; none by default.
    pub(crate) peer_switches: Option<Arc<PeerSwitches>>,
    /// Certificates and TLS settings; `None` without TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Default transport to nodes, for nodes without settings of their own.
    pub(crate) reach: NodeTransport,
    /// Port of `https` to which requests without TLS are redirected; `None` for no redirect.
    pub(crate) redirect: Option<u16>,
    pub(crate) h2c: bool,
    /// Memory for replies to HTTP/2 clients.
    pub(crate) http2_memory: Arc<StreamMemory>,
    pub(crate) announcers: AddressRanges,
    pub(crate) timeouts: Timeouts,
    pub(crate) via: HeaderValue,
    /// Generator of request ids; `None` if requests have no ids.
    pub(crate) request_ids: Option<RequestIds>,
    /// Becomes true when another process takes over.
    pub(crate) retire: watch::Sender<bool>,
    pub(crate) reloads: Mutex<ReloadCounts>,
}

impl Shared {
    pub(crate) fn new(
        config: SwitchConfig,
        joined: mpsc::UnboundedSender<NodeId>,
        clock: Clock,
    ) -> Result<Self, SwitchError> {
        let routing = Routing::new(&config)?;
        let nodes = Nodes::new(config.settings.nodes_max);
        let (dispatcher, recorder) = dispatcher(&config, &routing)?;
        for entry in &config.nodes {
            let id = dispatcher.nodes().id_of(&entry.spec.name).unwrap_or(NodeId(u16::MAX));
            let dial = Node::dial(entry, &config.reach, config.handoff.setting != MechanismSetting::Relay)?;
            nodes.insert(Node::new(id, entry, dial));
        }
        let needs = SignalNeeds::new(routing.all().map(|(id, _)| dispatcher.settings_of(id)));
        let specs = routes::specs(&config, &routing.groups);
        let shadow = config
            .shadow
            .as_ref()
            .map(|shadow| ShadowFeed::new(shadow, &config.settings, &specs))
            .transpose()?;
        let tls = config.tls.map(Tls::load).transpose()?.map(Arc::new);
        let opened = |log| AccessLog::open(log, Arc::default());
        let access = config.access_log.as_ref().map(opened).transpose();
        let names = || routing.all().map(|(id, route)| (id, route.name.to_string())).collect();
        let chains = || routing.chains().map(|(id, _, chains)| (id, chains.clone())).collect();
        let peer_switches = |others| PeerSwitches::new(others, clock.now(), names(), chains(), &dispatcher);
        let peer_switches = config.switches.map(peer_switches).transpose()?.map(Arc::new);
        let observers = Observers {
            access: access.map_err(SwitchError::AccessLog)?,
            tracer: config.traces.map(Tracer::start).transpose().map_err(SwitchError::Traces)?,
            recorder,
            shadow: shadow.map(Arc::new),
            hottest: HotList::new(clock.now()),
        };
        let http2_bytes_max = config.limits.http2_bytes_max;
        let guards = Guards {
            entry: config.entry,
            clients: AtomicUsize::new(0),
            per_client: Clients::new(config.clients),
            retries: RetryBudget::new(config.retries, clock.now()),
            health: config.health,
            outliers: config.outliers,
            ejecting: Mutex::new(()),
            limits: config.limits,
        };
        Ok(Self {
            retire: watch::Sender::new(false),
            reloads: Mutex::default(),
            decider: Arc::new(Decider::new(clock, dispatcher, routing, nodes, config.threads)),
            observers: Arc::new(observers),
            guards: Arc::new(guards),
            joined,
            long_lived: config.long_lived,
            purges: Purges::new(config.purge),
            signals: Arc::new(Signals::new(config.signals, needs)),
            handoff: None,
            peer_switches,
            tls,
            reach: config.reach,
            redirect: None,
            h2c: config.h2c,
            http2_memory: Arc::new(StreamMemory::new(http2_bytes_max)),
            announcers: AddressRanges(config.announcers),
            timeouts: config.timeouts,
            request_ids: config.request_id.map(RequestIds::new).transpose().map_err(SwitchError::Chance)?,
            via: HeaderValue::try_from(format!("1.1 {}", config.via)).map_err(|_| ConfigError::Via)?,
        })
    }
}

/// Returns the settings, routes and nodes of the dispatcher that a config describes.
pub(crate) fn header(config: &SwitchConfig, routing: &Routing) -> Result<Header, SwitchError> {
    let spec = |node: &NodeEntry| routing.node_spec(node).map_err(SwitchError::from);
    let nodes = config.nodes.iter().map(spec).collect::<Result<Vec<NodeSpec>, _>>()?;
    let (mut settings, mut routes) = (config.settings.clone(), routes::specs(config, &routing.groups));
    for settings in routes.iter_mut().map(|route| &mut route.settings).chain([&mut settings]) {
        if settings.spread_key == 0 {
            settings.spread_key = spread_key()?;
        }
    }
    Ok(Header { settings, routes, nodes })
}

/// Creates the dispatcher, and its recorder if decisions are recorded.
fn dispatcher(
    config: &SwitchConfig,
    routing: &Routing,
) -> Result<(Dispatcher, Option<Arc<Recorder>>), SwitchError> {
    let header = header(config, routing)?;
    let Some(record) = &config.record else {
        return Ok((Dispatcher::with_routes(header.settings, header.routes, &header.nodes)?, None));
    };
    let recorder = Arc::new(Recorder::open(record, &header).map_err(SwitchError::Record)?);
    let witness = Box::new(recorder.clone());
    let dispatcher = Dispatcher::with_record_sink(header.settings, header.routes, &header.nodes, witness)?;
    Ok((dispatcher, Some(recorder)))
}

/// Returns a random key that spreads the targets of a route over the shards of its map.
fn spread_key() -> Result<u64, SwitchError> {
    let mut key = [0; 8];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty()).map_err(SwitchError::Random)?;
    // 0 means no key.
    Ok(u64::from_ne_bytes(key).max(1))
}
