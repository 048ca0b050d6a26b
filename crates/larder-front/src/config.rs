//! What a switch is told: a plain struct with documented ranges, checked once before anything is opened.

use crate::beside::config::SwitchesConfig;
use crate::budget::RetryConfig;
use crate::clients::config::ClientLimits;
use crate::config_error::{ConfigError, range, span};
use crate::dial::reach::Reach;
use crate::edits::{Compression, FieldRules, RequestId, Sticky};
use crate::guard::Guard;
use crate::handoff::config::HandoffConfig;
use crate::health::config::OutlierConfig;
use crate::hedge::Hedge;
use crate::limits::{HealthConfig, Limits, Timeouts};
use crate::long_lived::LongLivedConfig;
use crate::node_entry::NodeEntry;
use crate::recorder::RecordConfig;
use crate::routes::{self, Route};
use crate::shadow::config::ShadowConfig;
use crate::signals::config::SignalsConfig;
use crate::split::SplitBy;
use larder_core::Settings;
use larder_core::rules::{ClassRules, KeyTemplate};
use larder_edge::access::AccessLogConfig;
use larder_edge::{AddressRange, EntryRules, RELOAD_MAX, RELOAD_MIN, TlsConfig, TlsConfigFault, Tokens};
use larder_spans::TracerConfig;
use std::net::SocketAddr;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Check;
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
