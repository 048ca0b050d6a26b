//! The configuration of a switch: a plain struct with documented ranges, validated once before anything is opened.

use crate::budget::RetryConfig;
use crate::clients::config::ClientLimits;
use crate::config_error::{ConfigError, range, span};
use crate::dial::transport::NodeTransport;
use crate::edits::{Compression, FieldRules, RequestId, Sticky};
use crate::guard::RouteGuard;
use crate::handoff::config::HandoffConfig;
use crate::health::config::OutlierConfig;
use crate::hedge::HedgeConfig;
use crate::limits::{HealthConfig, Limits, Timeouts};
use crate::long_lived::LongLivedConfig;
use crate::node_entry::NodeEntry;
use crate::routes::{self, Route};
use crate::shadow::config::ShadowConfig;
use crate::signals::config::SignalsConfig;
use crate::split::SplitBy;
use larder_core::Settings;
use larder_core::rules::{ClassRules, KeyTemplate};
use larder_edge::access::AccessLogConfig;
use larder_edge::{AddressRange, EntryRules, RELOAD_MAX, RELOAD_MIN, TlsConfig, TlsConfigFault, Tokens};
use larder_peer_switches::SwitchesConfig;
use larder_record::RecordConfig;
use larder_spans::TracerConfig;
use std::net::SocketAddr;

/// Configuration of a switch. Only `listen` and `nodes` have no default.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Addresses to which clients connect. At least one; port 0 takes any free port.
    pub listen: Vec<SocketAddr>,
    /// TLS listeners, with addresses of their own; none by default.
    pub tls: Option<TlsConfig>,
    /// Whether clients may speak HTTP/2 without TLS, by prior knowledge (RFC 9113 section 3.3). Default false.
    pub h2c: bool,
    /// Addresses of balancers that announce the client of each connection by the PROXY protocol; none by default. At
    /// most 1,024.
    pub announcers: Vec<AddressRange>,
    /// Rules for the header fields of incoming requests. Default: no relay is trusted. At most 1,024 trusted relays.
    pub entry: EntryRules,
    /// Nodes. At least one, unless `grows` is set; names are unique.
    pub nodes: Vec<NodeEntry>,
    /// Transport to nodes that have no settings of their own.
    pub reach: NodeTransport,
    /// Whether nodes may join later ([`crate::SwitchHandle::join`]), so that the list of nodes and the groups of
    /// routes may be empty. Default false.
    pub grows: bool,
    /// Policy of the default route, and settings of the dispatcher.
    pub settings: Settings,
    /// Template of target keys, for routes without their own. Default `{host}{path}{query}`.
    pub key: KeyTemplate,
    /// Rules for service classes, for routes without their own. By default all requests have class N.
    pub classes: ClassRules,
    /// Routes besides the default route. The first one that matches a request serves it. At most 255; none by
    /// default.
    pub routes: Vec<Route>,
    /// Rules for the header of requests to nodes, on all routes; none by default.
    pub request_fields: FieldRules,
    /// Rules for the header of replies to clients, on all routes, the switch's own replies among them; none by default.
    pub reply_fields: FieldRules,
    /// Key that assigns clients to shares of the default route.
    pub split_by: SplitBy,
    /// Compression on the default route; off by default.
    pub compress: Option<Compression>,
    /// Guard of the default route, which refuses requests; none by default.
    pub guard: Option<RouteGuard>,
    /// Hedging on the default route; off by default.
    pub hedge: Option<HedgeConfig>,
    /// Sticky sessions on the default route; none by default.
    pub sticky: Option<Sticky>,
    /// Request ids; none by default.
    pub request_id: Option<RequestId>,
    /// Number of targets counted for each route whose policy uses a routing table (`ward`, `part`). If there are
    /// more, rare targets are forgotten. 1 to 100,000,000; default 1,000,000, which takes up to 76 MB.
    pub census_targets_max: usize,
    /// Health checks of nodes.
    pub health: HealthConfig,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Limits on sizes and numbers.
    pub limits: Limits,
    /// The access log; none by default.
    pub access_log: Option<AccessLogConfig>,
    /// Tokens that authorize purges; nodes receive the first. None by default, which allows no purge.
    pub purge: Option<Tokens>,
    /// Rules that classify requests as long-lived. Such requests do not count against the admission limit.
    pub long_lived: LongLivedConfig,
    /// Limits per client; none by default.
    pub clients: ClientLimits,
    /// Budget of retries.
    pub retries: RetryConfig,
    /// Ejection of nodes that answer worse than others; off by default.
    pub outliers: OutlierConfig,
    /// Record of decisions; none by default.
    pub record: Option<RecordConfig>,
    /// Collector of spans; none by default.
    pub traces: Option<TracerConfig>,
    /// Shadow mode; off by default.
    pub shadow: Option<ShadowConfig>,
    /// Signals from nodes besides their replies: load and cache contents.
    pub signals: SignalsConfig,
    /// Peer switches in front of the same nodes; none by default.
    pub switches: Option<SwitchesConfig>,
    /// Delivery of connections; relay by default.
    pub handoff: HandoffConfig,
    /// Number of threads that serve connections. 1 to 1,024; default: one per core.
    pub threads: usize,
    /// Name of the switch in the header field `Via`. Default `larder`.
    pub via: String,
}

impl SwitchConfig {
    /// Returns a config with default settings.
    pub fn new(listen: Vec<SocketAddr>, nodes: Vec<NodeEntry>) -> Self {
        Self {
            listen,
            tls: None,
            h2c: false,
            announcers: Vec::new(),
            entry: EntryRules::default(),
            nodes,
            reach: NodeTransport::default(),
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

    /// Returns the listen addresses, first those without TLS, then those with TLS.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let secure = self.tls.iter().flat_map(|tls| &tls.listen);
        self.listen.iter().chain(secure).copied()
    }

    /// Checks every range that can be checked without looking at the machine.
    ///
    /// # Errors
    /// The first field that is out of range, or the first empty list.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() && self.tls.is_none() {
            return Err(ConfigError::Empty("listen"));
        }
        if let Some(tls) = &self.tls {
            tls.validate().map_err(|fault| tls_error(fault, tls))?;
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

fn tls_error(fault: TlsConfigFault, tls: &TlsConfig) -> ConfigError {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HealthCheck;
    use larder_core::NodeSpec;
    use std::time::Duration;

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
        type Mutation = fn(&mut SwitchConfig);
        let cases: [(&str, Mutation); 10] = [
            ("listen", |c| c.listen.clear()),
            ("nodes", |c| c.nodes.clear()),
            ("threads", |c| c.threads = 0),
            ("via", |c| c.via = "a b".to_owned()),
            ("health.rise", |c| c.health.rise = 0),
            ("health path", |c| c.health.active = Some(HealthCheck::Http { path: "x".to_owned() })),
            ("timeouts.header", |c| c.timeouts.header = Duration::ZERO),
            ("limits.body_rate_min", |c| c.limits.body_rate_min = u64::MAX),
            ("limits.http2_bytes_max", |c| c.limits.http2_bytes_max = usize::MAX),
            ("limits.retries_max", |c| c.limits.retries_max = 9),
        ];
        for (name, mutate) in cases {
            let mut config = valid();
            mutate(&mut config);
            let error = config.validate().expect_err(name).to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
