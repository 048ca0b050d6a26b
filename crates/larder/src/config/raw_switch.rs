//! `[switch]` as written, with its defaults.

use larder_core::rules::KeyTemplate;
use larder_core::{Bytes, PolicyKind, Settings};
use larder_edge::Forwarded;
use larder_front::{HealthCheck, HealthConfig, Limits, Timeouts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_discover::RawDiscover;
use super::raw_edits::{RawCompress, RawHeaders, RawHedge, RawRequestId, RawSticky};
use super::raw_guard::RawGuard;
use super::raw_handoff::RawHandoff;
use super::raw_peer::RawPeer;
use super::raw_policy::{
    Parameters, RawBounded, RawCap, RawEwma, RawHacc, RawMaglev, RawRendezvous, RawStatic, RawUtil, RawWard,
    RawWrr,
};
use super::raw_reach::RawNodeTls;
use super::raw_route::RawRoute;
use super::raw_rule::RawClass;
use super::raw_safety::{RawClients, RawLongLived, RawOutliers, RawRetries};
use super::raw_shadow::RawShadow;
use super::raw_signals::RawSignals;
use super::raw_switches::RawSwitches;
use super::raw_threshold::{RawCost, RawHigh, RawLow, RawTraining};
use super::raw_tls::RawTls;
use super::raw_traces::RawTraces;
use super::text::{Size, Span, Texts};

/// `[switch]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSwitch {
    #[schemars(example = "127.0.0.1:8080")]
    /// Where clients connect: one "address:port" or a list. Port 0 takes any free port. Required, unless there is [switch.tls].
    pub(crate) listen: Texts,
    /// Whether clients may speak HTTP/2 without TLS, knowing that it is spoken here.
    pub(crate) h2c: bool,
    /// Addresses of balancers before the switch that announce with the PROXY protocol (1 or 2) whom each connection is from, as
    /// "10.0.0.0/8". From them every connection must begin with it; from others none may.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["10.0.0.0/8", "2001:db8::/32"])]
    pub(crate) proxy_protocol_from: Texts,
    /// Relays before the switch whose identity fields are believed, as "10.0.0.2" or "10.0.0.0/24".
    /// From them X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept as they are. List only
    /// relays that set these fields themselves, and that clients cannot pass by.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["10.0.0.2", "2001:db8::/32"])]
    pub(crate) trusted_relays: Texts,
    /// X-Forwarded-For of any other sender: "append" its address, or "overwrite" the field. Forwarded (where present),
    /// X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such a sender are always overwritten.
    #[schemars(extend("enum" = ["append", "overwrite"]))]
    pub(crate) forwarded: String,
    /// Keep header fields whose names contain an underscore, such as Client_Cert. Many applications read them as the field with
    /// hyphens, so they are dropped by default.
    pub(crate) underscores_in_headers: bool,
    /// Keep header fields of any other sender that may tell an application another URL, such as X-Forwarded-Prefix; the guide to
    /// operation lists them. Dropped by default.
    pub(crate) url_fields_in_headers: bool,
    #[schemars(example = ["127.0.0.1:9001", "127.0.0.1:9002"])]
    /// The nodes: each an "address:port", or a table with `address` and, if wanted, `name`, `weight`, `cache`,
    /// `groups`, `backup` (true: it takes requests only while no ordinary node of its group is up), `http2` (true: it is asked by HTTP/2, as gRPC needs), `tls` (true, false, or a table as [switch.node_tls]),
    /// `proxy_protocol` (as node_proxy_protocol), `handoff`. Nodes are known by name (by default the address): one that returns under its name keeps its targets. Required, unless
    /// `discover` finds some.
    pub(crate) nodes: Vec<RawPeer>,
    /// Whether connections to nodes begin with the PROXY protocol, and so announce the client that they are for: "off", "v1" or "v2".
    /// Such a connection is for one client, and ends with the client's. A node's `proxy_protocol` says otherwise for itself.
    #[schemars(extend("enum" = ["off", "v1", "v2"]))]
    pub(crate) node_proxy_protocol: String,
    /// The user as whom the work is done, by name or number: the process that keeps the listeners stays who it is, and those that
    /// read what clients send give up all rights but this user's. The files that they read and write must be this user's to
    /// read and write. Needs root. Unset: nobody changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"larder")]
    pub(crate) user: Option<String>,
    /// The group, by name or number. Unset: the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"larder")]
    pub(crate) group: Option<String>,
    /// How often names in nodes' addresses are looked up anew: a node whose name leads elsewhere moves there, and keeps its
    /// targets. 1s to 1h; 0s: once, at the start.
    pub(crate) follow_names: Span,
    /// Sources of nodes beside `nodes`: the DNS, files. Nodes come and go as they say, without a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) discover: Vec<RawDiscover>,
    /// Which node serves a target; `larder check --policies` says what each of them does.
    #[schemars(extend("enum" = PolicyKind::ALL.map(PolicyKind::name)))]
    pub(crate) policy: String,
    /// What counts as the same target, of parts of the request: {host} {path} {path:2} {path:2..4} {extension} {query}
    /// {query:a,b} {query:#1} {header:name} {cookie:name} {method}, and any text between them.
    pub(crate) key: String,
    /// Seed of the policies that draw lots.
    pub(crate) seed: u64,
    /// T_low: a node of weight 1 with fewer active requests has spare room. 1 to 100000, below t_high; or "learned", in
    /// a training phase, from the nodes' load reports.
    pub(crate) t_low: RawLow,
    /// T_high: a node of weight 1 with more active requests gives targets away. Above t_low, to 100000; or by the
    /// paper's rule, { delay = "500ms" }: how much longer a request may take at one node than at another.
    pub(crate) t_high: RawHigh,
    /// K of LARD/R: a target's server set that did not change for this long shrinks by one.
    pub(crate) replication_decay: Span,
    /// Targets remembered; beyond that the least recently asked is forgotten and placed anew when asked again.
    pub(crate) targets_max: usize,
    /// Nodes the cluster may grow to. 1 to 65534.
    pub(crate) nodes_max: u16,
    /// Requests admitted at once; the rest wait. "auto": S = (n-1) t_high + t_low - 1 for n > 1 nodes if a policy of theirs
    /// goes by t_low and t_high (lard, lard-r), and t_high for the last of several; else 1000 per node, or t_high if that is
    /// more. "derived": S in any case.
    /// "unlimited", or a number. Long-lived requests do not count, see [switch.long_lived].
    pub(crate) admission: RawAdmission,
    /// Requests that may wait for admission; the next one gets 503 with Retry-After. 0 to 1000000.
    pub(crate) queue_max: usize,
    /// Longest wait for admission; then 503 with Retry-After.
    pub(crate) queue_timeout: Span,
    /// New targets a second that a joining node may take until it is warm.
    pub(crate) join_targets_per_s: u32,
    /// Targets after which a joining node counts as warm.
    pub(crate) join_warm_targets: u32,
    /// Shards of the target map; a power of two up to 4096. More shards let more threads decide at once.
    pub(crate) shards: usize,
    /// Worker threads; 0 takes one for each core.
    pub(crate) threads: usize,
    /// File the access log is appended to (Combined Log Format with node, reason and times), or "-" for stdout.
    /// Unset: no access log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/log/larder/access.log")]
    pub(crate) access_log: Option<String>,
    /// How a line of the access log looks: "combined", "json" (an object per line), or parts of what is known, such as
    /// "{client} {target} {status} {node} {total_us} {header:x-user}"; docs/operating.md lists them.
    pub(crate) access_log_format: String,
    /// File with the token of those that may purge, which is shown to nodes too: 16 to 256 characters. A second line
    /// may hold another token that is accepted. Unset: nobody may purge.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/purge.token")]
    pub(crate) purge_token: Option<String>,
    /// File to record the dispatcher's inputs and decisions in, for `larder sim replay`; replaced if it exists. Some 40
    /// bytes a request. The recording ends by itself, and says so, where the disk cannot follow. Unset: no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/lib/larder/decisions.rec")]
    pub(crate) record: Option<String>,
    /// File for the decision log of the record as text; replaced if it exists. Needs `record`. Unset: no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/lib/larder/decisions.log")]
    pub(crate) record_log: Option<String>,
    /// The word the switch puts into Via: letters, digits and "-".
    pub(crate) via: String,
    /// Service classes, for cap and static: the first rule that holds decides, and a request that none holds for is of
    /// class n. All conditions that are given must hold; of several values, one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) classes: Vec<RawClass>,
    /// Routes: requests with a policy, nodes, key or classes of their own. The first whose conditions hold takes a
    /// request; what none takes is as said under [switch]. No access control: what is compared is as it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) routes: Vec<RawRoute>,
    /// Rules for the header of requests to nodes, on all routes, after what the switch adds itself (X-Forwarded-For, Via) and
    /// before the route's own. With rules no connection is handed over.
    #[serde(skip_serializing_if = "RawHeaders::is_empty")]
    pub(crate) request_headers: RawHeaders,
    /// Rules for the header of replies to clients, the switch's own replies among them, on all routes, before the route's own.
    #[serde(skip_serializing_if = "RawHeaders::is_empty")]
    pub(crate) reply_headers: RawHeaders,
    /// Where routes take shares (`of = "default"`) of the requests that no route matches, by what: as split_by of a route.
    pub(crate) split_by: String,
    /// Requests that are refused: by the client's network, without a password, with too large a body. On the default route, and on
    /// routes that say nothing else. Such requests are relayed. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard: Option<RawGuard>,
    /// Clients come back to the node that served them: on the default route, and on routes that say nothing else. A node at T_high,
    /// or one that is down, gives way. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sticky: Option<RawSticky>,
    /// Replies are compressed for clients that ask for it, on the default route and on routes that say nothing else. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compress: Option<RawCompress>,
    /// GET and HEAD are asked of another node too where the first has not begun to answer after a while, and the first answer is
    /// taken: on the default route, and on routes that say nothing else and are not sticky. Unset: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hedge: Option<RawHedge>,
    /// Ids by which a request is found again in all logs.
    pub(crate) request_id: RawRequestId,
    /// TLS, at addresses of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls: Option<RawTls>,
    /// TLS to the nodes, to all that do not say `tls` for themselves. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_tls: Option<RawNodeTls>,
    /// Traces of requests, sent to an OpenTelemetry collector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) traces: Option<RawTraces>,
    /// Shadow mode: on live traffic, the hit ratio and the imbalance that other policies would have had.
    pub(crate) shadow: RawShadow,
    /// Other switches in front of the same nodes, behind a balancer: they tell each other of loads and server sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches: Option<RawSwitches>,
    /// What is heard of the nodes besides replies: how loaded they are, and what their caches hold.
    pub(crate) signals: RawSignals,
    /// How connections reach the nodes.
    pub(crate) handoff: RawHandoff,
    /// How t_low = "learned" is learned.
    pub(crate) training: RawTraining,
    /// What lard-cost goes by instead of t_low and t_high.
    pub(crate) cost: RawCost,
    /// What cap-load goes by.
    pub(crate) cap: RawCap,
    /// What hacc goes by.
    pub(crate) hacc: RawHacc,
    /// What bounded (consistent hashing with bounded loads) goes by.
    pub(crate) bounded: RawBounded,
    /// What maglev goes by.
    pub(crate) maglev: RawMaglev,
    /// What rendezvous goes by.
    pub(crate) rendezvous: RawRendezvous,
    /// What peak-ewma goes by.
    pub(crate) ewma: RawEwma,
    /// What wrr-num and wrr-time go by.
    pub(crate) wrr: RawWrr,
    /// What static goes by.
    #[serde(rename = "static")]
    pub(crate) fixed: RawStatic,
    /// What lard-util goes by.
    pub(crate) util: RawUtil,
    /// Where ward and part have their routing table from: a file, or the switch's own traffic, or both.
    pub(crate) ward: RawWard,
    /// How nodes are found to have failed, and to be back.
    pub(crate) health: RawHealth,
    /// How long things may take.
    pub(crate) timeouts: RawTimeouts,
    /// How large things may be.
    pub(crate) limits: RawSwitchLimits,
    /// Requests that last, such as WebSockets and streams: they have a limit of their own.
    pub(crate) long_lived: RawLongLived,
    /// What one client may take. Off by default.
    pub(crate) clients: RawClients,
    /// How many requests may be tried again.
    pub(crate) retries: RawRetries,
    /// When nodes that answer, but worse than the others, are taken out for a while. Off by default.
    pub(crate) outliers: RawOutliers,
}

/// `switch.admission`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "admission is \"auto\", \"derived\", \"unlimited\" or a number of requests")]
pub(crate) enum RawAdmission {
    /// A number of requests.
    Fixed(u32),
    /// "auto", "derived" or "unlimited".
    Word(AdmissionWord),
}

/// The words of [`RawAdmission`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AdmissionWord {
    /// By thresholds where a policy goes by them, else a number per node.
    Auto,
    /// From the thresholds and the number of nodes that are up.
    Derived,
    /// No limit.
    Unlimited,
}

/// `[switch.health]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHealth {
    /// Failures in a row, seen by traffic, after which a node counts as down. 1 to 1000; 0 turns it off.
    pub(crate) passive_fall: u32,
    /// The switch's own check: "tcp" (a connection can be opened), "off", or a path (a GET of it is answered with a
    /// status from 200 to 399). larder's own nodes answer "/.larder/health", with 503 while they drain.
    pub(crate) check: String,
    /// Time from one check of a node to the next. 10ms to 1h.
    pub(crate) interval: Span,
    /// How long a check may take. 1ms to 1m.
    pub(crate) timeout: Span,
    /// Failed checks in a row after which a node counts as down. 1 to 1000.
    pub(crate) fall: u32,
    /// Good checks in a row after which a node that was down is used again. 1 to 1000.
    pub(crate) rise: u32,
    /// With `check = "off"`: how long a node stays down before it is tried again. 10ms to 1h.
    pub(crate) retry_after: Span,
}

/// `[switch.timeouts]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTimeouts {
    /// For a client's request header to arrive; then 408. 10ms to 1h.
    pub(crate) header: Span,
    /// Between two requests on a client's connection; then it is closed. 10ms to 24h.
    pub(crate) keepalive: Span,
    /// Between two reads of a request body; then 408. 10ms to 1h.
    pub(crate) client_read: Span,
    /// Without progress in writing a reply; then it is aborted. 10ms to 24h.
    pub(crate) client_write: Span,
    /// To connect to a node; then another node, or 504. 1ms to 1m.
    pub(crate) connect: Span,
    /// Between two reads from a node; then another node where that is safe, or 504. 10ms to 1h.
    pub(crate) node_read: Span,
    /// Between two writes to a node; then as for node_read. 10ms to 1h.
    pub(crate) node_write: Span,
    /// An idle connection to a node is kept this long. 10ms to 1h.
    pub(crate) node_idle: Span,
    /// Requests in flight may go on this long once the switch is told to stop. 0s to 1h.
    pub(crate) drain: Span,
}

/// `[switch.limits]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSwitchLimits {
    /// Client connections; 503 and close beyond. 1 to 1000000.
    pub(crate) connections_max: usize,
    /// A request's header; 431 beyond. 512 to 1000000 bytes.
    pub(crate) header_max: Size,
    /// The request target; 414 beyond. 64 to 1000000 bytes.
    pub(crate) uri_max: Size,
    /// Bytes a second that a request body comes with at least, after timeouts.client_read; 408 below. "0B" for any; to 1GiB.
    pub(crate) body_rate_min: Size,
    /// Memory that replies to all HTTP/2 clients may hold, 128KiB for each request beside another one of its connection; then requests
    /// wait, and are refused if their client takes nothing. 0B to 1TiB.
    pub(crate) http2_bytes_max: Size,
    /// How often a request is tried again after a node failed it. 0 to 8.
    pub(crate) retries_max: u8,
    /// Idle connections kept per node and thread. 0 to 100000.
    pub(crate) node_idle_max: usize,
}

impl RawSwitch {
    pub(super) fn parameters(&self) -> Parameters<'_> {
        Parameters {
            policy: Some(&self.policy),
            seed: Some(self.seed),
            t_low: Some(self.t_low),
            t_high: Some(self.t_high),
            replication_decay: Some(self.replication_decay),
            targets_max: Some(self.targets_max),
            training: Some(&self.training),
            training_above: None,
            cost: Some(&self.cost),
            cap: Some(&self.cap),
            hacc: Some(&self.hacc),
            bounded: Some(&self.bounded),
            maglev: Some(&self.maglev),
            rendezvous: Some(&self.rendezvous),
            ewma: Some(&self.ewma),
            wrr: Some(&self.wrr),
            fixed: Some(&self.fixed),
            util: Some(&self.util),
        }
    }
}

impl Default for RawSwitch {
    #[expect(clippy::too_many_lines, reason = "one line per key")]
    fn default() -> Self {
        let settings = Settings::default();
        Self {
            listen: Texts::default(),
            h2c: false,
            proxy_protocol_from: Texts::default(),
            trusted_relays: Texts::default(),
            forwarded: Forwarded::default().name().to_owned(),
            underscores_in_headers: false,
            url_fields_in_headers: false,
            nodes: Vec::new(),
            node_proxy_protocol: "off".to_owned(),
            node_tls: None,
            user: None,
            group: None,
            follow_names: Span(std::time::Duration::from_secs(10)),
            discover: Vec::new(),
            policy: settings.policy.to_string(),
            key: KeyTemplate::DEFAULT.to_owned(),
            seed: settings.seed,
            t_low: RawLow::Fixed(settings.t_low),
            t_high: RawHigh::Fixed(settings.t_high),
            replication_decay: Span(settings.replication_decay),
            targets_max: settings.targets_max,
            nodes_max: settings.nodes_max,
            admission: RawAdmission::Word(AdmissionWord::Auto),
            queue_max: settings.queue_max,
            queue_timeout: Span(settings.queue_timeout),
            join_targets_per_s: settings.join_targets_per_s,
            join_warm_targets: settings.join_warm_targets,
            shards: settings.shards,
            threads: 0,
            access_log: None,
            access_log_format: "combined".to_owned(),
            purge_token: None,
            record: None,
            record_log: None,
            via: "larder".to_owned(),
            classes: Vec::new(),
            routes: Vec::new(),
            request_headers: RawHeaders::default(),
            reply_headers: RawHeaders::default(),
            split_by: "client".to_owned(),
            guard: None,
            sticky: None,
            compress: None,
            hedge: None,
            request_id: RawRequestId::default(),
            tls: None,
            traces: None,
            shadow: RawShadow::default(),
            switches: None,
            signals: RawSignals::default(),
            handoff: RawHandoff::default(),
            training: RawTraining::standard(),
            cost: RawCost::standard(),
            cap: RawCap::standard(),
            hacc: RawHacc::standard(),
            bounded: RawBounded::standard(),
            maglev: RawMaglev::standard(),
            rendezvous: RawRendezvous::standard(),
            ewma: RawEwma::standard(),
            wrr: RawWrr::standard(),
            fixed: RawStatic::standard(),
            util: RawUtil::standard(),
            ward: RawWard::standard(),
            health: RawHealth::default(),
            timeouts: RawTimeouts::default(),
            limits: RawSwitchLimits::default(),
            long_lived: RawLongLived::default(),
            clients: RawClients::default(),
            retries: RawRetries::default(),
            outliers: RawOutliers::default(),
        }
    }
}

impl Default for RawHealth {
    fn default() -> Self {
        let health = HealthConfig::default();
        Self {
            passive_fall: health.passive_fall,
            check: match health.active {
                None => "off".to_owned(),
                Some(HealthCheck::Tcp) => "tcp".to_owned(),
                Some(HealthCheck::Http { path }) => path,
            },
            interval: Span(health.interval),
            timeout: Span(health.timeout),
            fall: health.fall,
            rise: health.rise,
            retry_after: Span(health.retry_after),
        }
    }
}

impl Default for RawTimeouts {
    fn default() -> Self {
        let timeouts = Timeouts::default();
        Self {
            header: Span(timeouts.header),
            keepalive: Span(timeouts.keepalive),
            client_read: Span(timeouts.client_read),
            client_write: Span(timeouts.client_write),
            connect: Span(timeouts.connect),
            node_read: Span(timeouts.node_read),
            node_write: Span(timeouts.node_write),
            node_idle: Span(timeouts.node_idle),
            drain: Span(timeouts.drain),
        }
    }
}

impl Default for RawSwitchLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            connections_max: limits.connections_max,
            header_max: Size(Bytes(limits.header_bytes_max as u64)),
            uri_max: Size(Bytes(limits.uri_bytes_max as u64)),
            body_rate_min: Size(Bytes(limits.body_rate_min)),
            http2_bytes_max: Size(Bytes(limits.http2_bytes_max as u64)),
            retries_max: limits.retries_max,
            node_idle_max: limits.node_idle_max,
        }
    }
}
