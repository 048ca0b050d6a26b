//! What a switch is told: a plain struct with documented ranges, checked once before anything is opened.

use crate::beside::SwitchesConfig;
use crate::budget::RetryConfig;
use crate::clients::ClientLimits;
use crate::dial::{AnnounceOf, Reach, TlsOf};
use crate::edits::{Compression, FieldRules, RequestId, Sticky};
use crate::guard::Guard;
use crate::handoff::{HandoffConfig, NodeHandoff};
use crate::health::OutlierConfig;
use crate::hedge::Hedge;
use crate::long_lived::LongLivedConfig;
use crate::recorder::RecordConfig;
use crate::routes::{self, Route};
use crate::shadow::ShadowConfig;
use crate::signals::SignalsConfig;
use crate::split::SplitBy;
use larder_core::rules::{ClassRules, KeyTemplate};
use larder_core::{NodeSpec, Settings};
use larder_edge::access::AccessLogConfig;
use larder_edge::{AddressRange, EntryRules, RELOAD_MAX, RELOAD_MIN, TlsConfig, TlsConfigFault, Tokens};
use larder_spans::TracerConfig;
use std::net::SocketAddr;
use std::time::Duration;

/// A node: who it is and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Name, weight and cache size, as the dispatcher knows it. Its groups are set by the switch.
    pub spec: NodeSpec,
    /// Whether it is asked by HTTP/2, which carries trailers and so gRPC: where there is no TLS knowing that it speaks that (RFC
    /// 9113 section 3.3). Default false.
    pub http2: bool,
    /// TLS to it. By default as all nodes.
    pub tls: TlsOf,
    /// Whether connections to it begin with an announcement of the client. By default as all nodes.
    pub announce: AnnounceOf,
    /// `host:port`. A host name is resolved once, when the switch is bound; the first address is used.
    pub address: String,
    /// The groups it is in, by the names that routes use; none by default. A node in no group serves the routes that
    /// use all nodes, the default one among them.
    pub groups: Vec<String>,
    /// How it takes connections; `None` if it only answers relayed requests.
    pub handoff: Option<NodeHandoff>,
}

impl NodeEntry {
    /// A node in no group.
    pub fn new(spec: NodeSpec, address: impl Into<String>) -> Self {
        Self {
            spec,
            http2: false,
            tls: TlsOf::AsAll,
            announce: AnnounceOf::AsAll,
            address: address.into(),
            groups: Vec::new(),
            handoff: None,
        }
    }
}

/// Everything a switch needs. Only `listen` and `nodes` have no default.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Address to which clients connect. At least one; port 0 takes any free port.
    pub listen: Vec<SocketAddr>,
    /// TLS, at addresses of its own; none by default.
    pub tls: Option<TlsConfig>,
    /// Whether clients may speak HTTP/2 without TLS, knowing that it is spoken here (RFC 9113 section 3.3). Default false.
    pub h2c: bool,
    /// Addresses that announce with the PROXY protocol whom each connection is from; none by default. At most 1,024.
    pub announcers: Vec<AddressRange>,
    /// Rules for the header fields of requests that enter. Default: no relay is trusted. At most 1,024 trusted relays.
    pub entry: EntryRules,
    /// The nodes. At least one, unless the cluster `grows`; names are unique.
    pub nodes: Vec<NodeEntry>,
    /// How nodes are reached that say nothing else.
    pub reach: Reach,
    /// Nodes join later ([`crate::SwitchHandle::join`]), so that there may be none yet, neither here nor in a group that a
    /// route uses. Default false.
    pub grows: bool,
    /// The default route's policy, and the dispatcher's settings.
    pub settings: Settings,
    /// What counts as the same target, where a route says nothing else. Default `{host}{path}{query}`.
    pub key: KeyTemplate,
    /// The service classes, where a route says nothing else. By default all requests are of class N.
    pub classes: ClassRules,
    /// Routes beside the default one, the first that matches a request first. At most 255; none by default.
    pub routes: Vec<Route>,
    /// Rules for the header of requests to nodes, on all routes; none by default.
    pub request_fields: FieldRules,
    /// Rules for the header of replies to clients, on all routes, the switch's own replies among them; none by default.
    pub reply_fields: FieldRules,
    /// By what requests of the default route are split, where others take shares of them.
    pub split_by: SplitBy,
    /// What the default route compresses; nothing by default.
    pub compress: Option<Compression>,
    /// Which of the default route's requests are refused; none by default.
    pub guard: Option<Guard>,
    /// When the default route's requests are hedged; never by default.
    pub hedge: Option<Hedge>,
    /// Sticky sessions of the default route; none by default.
    pub sticky: Option<Sticky>,
    /// Ids of requests; none by default.
    pub request_id: Option<RequestId>,
    /// Targets that are counted for each route whose policy goes by a routing table (`ward`, `part`); beyond it, rare
    /// ones are forgotten. 1 to 100,000,000; default 1,000,000, which takes up to 76 MB where it is used.
    pub census_targets_max: usize,
    /// How nodes are watched.
    pub health: HealthConfig,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How large things may be.
    pub limits: Limits,
    /// The access log; none by default.
    pub access_log: Option<AccessLogConfig>,
    /// Tokens of those that may purge, of which nodes are shown the first. None by default: nobody may.
    pub purge: Option<Tokens>,
    /// Which requests are long-lived, and so leave the admission limit.
    pub long_lived: LongLivedConfig,
    /// What one client may take; anything by default.
    pub clients: ClientLimits,
    /// How many tries there may be beyond the first.
    pub retries: RetryConfig,
    /// When nodes that answer are taken out; never by default.
    pub outliers: OutlierConfig,
    /// The record of decisions; none by default.
    pub record: Option<RecordConfig>,
    /// Where spans of traced requests go; nowhere by default.
    pub traces: Option<TracerConfig>,
    /// Shadow mode; off by default.
    pub shadow: Option<ShadowConfig>,
    /// What is heard of the nodes besides replies: their load and their caches.
    pub signals: SignalsConfig,
    /// Other switches in front of the same nodes; none by default.
    pub switches: Option<SwitchesConfig>,
    /// How connections are delivered; relayed by default.
    pub handoff: HandoffConfig,
    /// Worker threads of the runtime that [`crate::Switch::run`] is driven by. It sizes the accept loops, the
    /// connection pool and the metric shards; the runtime itself is the caller's. 1 to 1,024; default: one a core.
    pub threads: usize,
    /// The word used in `Via`, and so the switch's name to others. Default `larder`.
    pub via: String,
}

impl SwitchConfig {
    /// A switch with the defaults.
    pub fn new(listen: Vec<SocketAddr>, nodes: Vec<NodeEntry>) -> Self {
        Self {
            listen,
            tls: None,
            h2c: false,
            announcers: Vec::new(),
            entry: EntryRules::default(),
            nodes,
            reach: Reach::default(),
            grows: false,
            settings: Settings::default(),
            key: KeyTemplate::default(),
            classes: ClassRules::default(),
            routes: Vec::new(),
            request_fields: FieldRules::default(),
            reply_fields: FieldRules::default(),
            split_by: SplitBy::default(),
            compress: None,
            guard: None,
            hedge: None,
            sticky: None,
            request_id: None,
            census_targets_max: 1_000_000,
            health: HealthConfig::default(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            long_lived: LongLivedConfig::default(),
            clients: ClientLimits::default(),
            retries: RetryConfig::default(),
            outliers: OutlierConfig::default(),
            access_log: None,
            purge: None,
            record: None,
            traces: None,
            shadow: None,
            signals: SignalsConfig::default(),
            switches: None,
            handoff: HandoffConfig::default(),
            threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            via: "larder".to_owned(),
        }
    }

    /// Where clients connect: without TLS, then with it.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let secure = self.tls.iter().flat_map(|tls| &tls.listen);
        self.listen.iter().chain(secure).copied()
    }

    /// Checks every range that needs no look at the machine.
    ///
    /// # Errors
    /// The first field that is out of range, or an empty list.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() && self.tls.is_none() {
            return Err(ConfigError::Empty("listen"));
        }
        if let Some(tls) = &self.tls {
            tls.validate().map_err(|fault| of_tls(fault, tls))?;
        }
        range("announcers", self.announcers.len(), 0, 1024)?;
        range("trusted_relays", self.entry.trusted_relays.0.len(), 0, 1024)?;
        if self.nodes.is_empty() && !self.grows {
            return Err(ConfigError::Empty("nodes"));
        }
        range("threads", self.threads, 1, 1024)?;
        range("census_targets_max", self.census_targets_max, 1, 100_000_000)?;
        routes::validate(self)?;
        if let Some(guard) = &self.guard {
            guard.validate(routes::DEFAULT_ROUTE)?;
        }
        if let Some(hedge) = &self.hedge {
            hedge.validate(routes::DEFAULT_ROUTE)?;
        }
        if self.via.is_empty() || !self.via.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(ConfigError::Via);
        }
        if let Some(record) = &self.record {
            range("record.queue_max", record.queue_max, 1, 16_777_216)?;
        }
        if let Some(shadow) = &self.shadow {
            shadow.validate()?;
        }
        self.clients.validate()?;
        self.retries.validate()?;
        self.outliers.validate()?;
        self.health.validate()?;
        self.signals.validate()?;
        self.handoff.validate()?;
        self.timeouts.validate()?;
        self.long_lived.after.map_or(Ok(()), |after| span("long_lived.after", after, 1_000, 3_600_000))?;
        self.limits.validate()
    }
}

/// A check that the switch makes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A TCP connection can be opened.
    Tcp,
    /// A GET of this path (with its query) is answered with a status from 200 to 399.
    Http {
        /// Path and query, beginning with `/`.
        path: String,
    },
}

/// How a node is found to have failed, and to be back.
///
/// *Passive*: what traffic shows. Failures in a row, of any request, count: connections refused or timed out,
/// connections lost before the first byte of a reply, and first bytes that did not come in time. A reply resets the
/// count whatever its status: it is the content that has failed, not the node. A request counts against one node at
/// most, and traffic never takes out the last open node of a group, nor a node
/// when half of a group are down. *Active*: a check of its own per node at an interval. A node found down by either is used again when
/// `rise` active checks in a row succeed; with active checks off it is tried again after `retry_after`. A TCP check
/// only shows that somebody listens: where a node can hang while listening, use an HTTP check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// Failures in a row, seen by traffic, after which a node counts as down. 1 to 1,000; 0 turns it off. Default 3.
    pub passive_fall: u32,
    /// The active check; `None` turns it off. Default TCP.
    pub active: Option<Check>,
    /// Time from one active check of a node to the next, varied by a tenth so that nodes are not checked in step.
    /// 10 ms to 1 h; default 1 s.
    pub interval: Duration,
    /// How long an active check may take. 1 ms to 1 min; default 1 s.
    pub timeout: Duration,
    /// Failed active checks in a row after which a node counts as down. 1 to 1,000; default 2.
    pub fall: u32,
    /// Good active checks in a row after which a node that was down is used again. 1 to 1,000; default 2.
    pub rise: u32,
    /// Without active checks: how long a node stays down before it is tried again. 10 ms to 1 h; default 5 s.
    pub retry_after: Duration,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            passive_fall: 3,
            active: Some(Check::Tcp),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            fall: 2,
            rise: 2,
            retry_after: Duration::from_secs(5),
        }
    }
}

impl HealthConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        range("health.passive_fall", self.passive_fall as usize, 0, 1000)?;
        range("health.fall", self.fall as usize, 1, 1000)?;
        range("health.rise", self.rise as usize, 1, 1000)?;
        span("health.interval", self.interval, 10, 3_600_000)?;
        span("health.timeout", self.timeout, 1, 60_000)?;
        span("health.retry_after", self.retry_after, 10, 3_600_000)?;
        match &self.active {
            Some(Check::Http { path })
                if !path.starts_with('/') || path.bytes().any(|b| b <= b' ' || b == 127) =>
            {
                Err(ConfigError::HealthPath(path.chars().take(80).collect()))
            }
            _ => Ok(()),
        }
    }
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first byte of a request (on a new connection: from accepting it) to the end of its header.
    /// 10 ms to 1 h; default 10 s. Outcome: 408 `header_timeout`.
    pub header: Duration,
    /// How long a connection may be idle between requests. 10 ms to 24 h; default 60 s. Outcome: it is closed.
    pub keepalive: Duration,
    /// Between two reads of a request body. 10 ms to 1 h; default 30 s. Outcome: 408 `body_timeout`.
    pub client_read: Duration,
    /// Between two writes of a reply that make progress. 10 ms to 24 h; default 60 s. Outcome: the reply is aborted.
    pub client_write: Duration,
    /// To open a connection to a node. 1 ms to 1 min; default 2 s. Outcome: another node, or 504 `connect_timeout`.
    pub connect: Duration,
    /// Between two reads from a node, the first byte included. 10 ms to 1 h; default 60 s. Outcome: another node if
    /// nothing was sent to the client and the method allows it, or 504 `node_timeout`.
    pub node_read: Duration,
    /// Between two writes to a node. 10 ms to 1 h; default 30 s. Outcome: as for `node_read`.
    pub node_write: Duration,
    /// How long a pooled connection to a node may be idle. 10 ms to 1 h; default 55 s.
    pub node_idle: Duration,
    /// How long requests in flight may go on once the switch is told to stop. 0 to 1 h; default 30 s.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            keepalive: Duration::from_secs(60),
            client_read: Duration::from_secs(30),
            client_write: Duration::from_secs(60),
            connect: Duration::from_secs(2),
            node_read: Duration::from_secs(60),
            node_write: Duration::from_secs(30),
            node_idle: Duration::from_secs(55),
            drain: Duration::from_secs(30),
        }
    }
}

impl Timeouts {
    fn validate(&self) -> Result<(), ConfigError> {
        span("timeouts.header", self.header, 10, 3_600_000)?;
        span("timeouts.keepalive", self.keepalive, 10, 86_400_000)?;
        span("timeouts.client_read", self.client_read, 10, 3_600_000)?;
        span("timeouts.client_write", self.client_write, 10, 86_400_000)?;
        span("timeouts.connect", self.connect, 1, 60_000)?;
        span("timeouts.node_read", self.node_read, 10, 3_600_000)?;
        span("timeouts.node_write", self.node_write, 10, 3_600_000)?;
        span("timeouts.node_idle", self.node_idle, 10, 3_600_000)?;
        span("timeouts.drain", self.drain, 0, 3_600_000)
    }
}

/// How large things may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Client connections. 1 to 1,000,000; default 10,000. Outcome: 503 `connections_full` and close.
    pub connections_max: usize,
    /// A request's header, request line included. Bytes; 512 to 1,000,000; default 32 KiB. Outcome: 431
    /// `header_too_large`. A header of more than 256 fields is malformed (400) whatever its size.
    pub header_bytes_max: usize,
    /// The request target. Bytes; 64 to 1,000,000; default 8 KiB. Outcome: 414 `uri_too_long`.
    pub uri_bytes_max: usize,
    /// Bytes a second that a request body comes with at least: after n bytes it may have taken `Timeouts::client_read` and
    /// n / rate. 0 to 1 GiB; default 0: any. What a tunnel carries is no body. Outcome: 408 `body_timeout`.
    pub body_rate_min: u64,
    /// Memory that replies to all HTTP/2 clients may hold, beyond 704 KiB for each connection. Bytes; 0 to 1 TiB; default 128 MiB.
    /// Outcome: requests wait while their client takes bytes, then they are refused: `streams_full`.
    pub http2_bytes_max: usize,
    /// How many times a request is tried again after its first node failed. 0 to 8; default 3.
    pub retries_max: u8,
    /// Idle connections kept per node and thread; the pool is shared by all nodes, so a busy node may keep more and
    /// an idle one less. 0 to 100,000; default 128.
    pub node_idle_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_bytes_max: 32 << 10,
            uri_bytes_max: 8 << 10,
            body_rate_min: 0,
            http2_bytes_max: 128 << 20,
            retries_max: 3,
            node_idle_max: 128,
        }
    }
}

impl Limits {
    fn validate(&self) -> Result<(), ConfigError> {
        range("limits.connections_max", self.connections_max, 1, 1_000_000)?;
        range("limits.header_bytes_max", self.header_bytes_max, 512, 1_000_000)?;
        range("limits.uri_bytes_max", self.uri_bytes_max, 64, 1_000_000)?;
        range("limits.body_rate_min", usize::try_from(self.body_rate_min).unwrap_or(usize::MAX), 0, 1 << 30)?;
        range("limits.http2_bytes_max", self.http2_bytes_max, 0, 1 << 40)?;
        range("limits.retries_max", usize::from(self.retries_max), 0, 8)?;
        range("limits.node_idle_max", self.node_idle_max, 0, 100_000)
    }
}

/// A config that makes no sense. The name is that of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The handoff's name cannot name what is left in the kernel.
    #[error("handoff.name = '{0}': 1 to 32 letters, digits, '-' or '_' are needed")]
    HandoffName(String),
    /// Nodes would not know who hands connections to them.
    #[error(
        "handoff.identity is missing: connections can only be handed over by a switch that has a key; make one with `larder keys new FILE`"
    )]
    HandoffIdentity,
    /// No share.
    #[error("handoff.locality_lost_max = {0} is out of range: 0 to 1")]
    HandoffShare(String),
    /// A share out of range.
    #[error("{0} = {1} is out of range: 0 to 1")]
    Share(&'static str, String),
    /// A list that needs an entry.
    #[error("{0} is empty: at least one is needed")]
    Empty(&'static str),
    /// A number out of range.
    #[error("{name} = {value} is out of range: {min} to {max}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The least allowed.
        min: usize,
        /// The most allowed.
        max: usize,
    },
    /// A duration out of range.
    #[error("{name} = {value:?} is out of range: {min:?} to {max:?}")]
    SpanOutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: Duration,
        /// The least allowed.
        min: Duration,
        /// The most allowed.
        max: Duration,
    },
    /// A health path that is no path.
    #[error("health path '{0}' is no path: it begins with '/' and holds no space or control character")]
    HealthPath(String),
    /// A path that is none.
    #[error("{0}: '{1}' is no path: it begins with '/' and holds no space or control character")]
    Path(&'static str, String),
    /// A name that is none.
    #[error("{0}: '{1}' is no name: 1 to 200 characters, without spaces")]
    Name(&'static str, String),
    /// A route's field that makes no sense.
    #[error("{at}: {what}")]
    Route {
        /// The route and the field, as `routes.NAME.FIELD`.
        at: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The routes together make no sense.
    #[error("routes: {0}")]
    Routes(String),
    /// A node is in a group that no route uses.
    #[error("nodes.{node}.groups: no route uses group '{group}': {known}")]
    NodeGroup {
        /// The node.
        node: String,
        /// The group.
        group: String,
        /// The groups that there are.
        known: String,
    },
    /// A node cannot be reached so.
    #[error("node '{node}': {what}")]
    Reach {
        /// The node.
        node: String,
        /// Why.
        what: &'static str,
    },
    /// A name that cannot stand in `Via`.
    #[error("via must be letters, digits and '-', at least one")]
    Via,
}

pub(crate) fn range(name: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { name, value, min, max }) }
}

fn of_tls(fault: TlsConfigFault, tls: &TlsConfig) -> ConfigError {
    match fault {
        TlsConfigFault::Listen => ConfigError::Empty("tls.listen"),
        TlsConfigFault::Certificates => ConfigError::Empty("tls.certificates"),
        TlsConfigFault::Reload => ConfigError::SpanOutOfRange {
            name: "tls.reload",
            value: tls.reload,
            min: RELOAD_MIN,
            max: RELOAD_MAX,
        },
    }
}

pub(crate) fn span(name: &'static str, value: Duration, min_ms: u64, max_ms: u64) -> Result<(), ConfigError> {
    let (min, max) = (Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::SpanOutOfRange { name, value, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> SwitchConfig {
        let node = NodeEntry::new(NodeSpec::named("a"), "127.0.0.1:1");
        SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![node])
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(valid().validate(), Ok(()));
    }

    #[test]
    fn each_fault_is_named() {
        type Spoil = fn(&mut SwitchConfig);
        let cases: [(&str, Spoil); 10] = [
            ("listen", |c| c.listen.clear()),
            ("nodes", |c| c.nodes.clear()),
            ("threads", |c| c.threads = 0),
            ("via", |c| c.via = "a b".to_owned()),
            ("health.rise", |c| c.health.rise = 0),
            ("health path", |c| c.health.active = Some(Check::Http { path: "x".to_owned() })),
            ("timeouts.header", |c| c.timeouts.header = Duration::ZERO),
            ("limits.body_rate_min", |c| c.limits.body_rate_min = u64::MAX),
            ("limits.http2_bytes_max", |c| c.limits.http2_bytes_max = usize::MAX),
            ("limits.retries_max", |c| c.limits.retries_max = 9),
        ];
        for (name, spoil) in cases {
            let mut config = valid();
            spoil(&mut config);
            let error = config.validate().expect_err(name).to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
