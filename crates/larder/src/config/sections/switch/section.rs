//! The keys of `[switch]`.

use larder_core::rules::KeyTemplate;
use larder_core::{PolicyKind, Settings};
use larder_edge::Forwarded;
use larder_switch::ProxyVersion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::keys::keys;
use crate::config::sections::policy::threshold::{CostSection, HighKey, LowKey, TrainingSection};
use crate::config::sections::policy::{
    BoundedSection, CapSection, EwmaSection, HaccSection, MaglevSection, Parameters, RendezvousSection,
    StaticSection, UtilSection, WardSection, WrrSection,
};
use crate::config::sections::switch::discover::DiscoverSection;
use crate::config::sections::switch::edits::{
    CompressSection, HeadersSection, HedgeSection, RequestIdSection, StickySection,
};
use crate::config::sections::switch::guard::GuardSection;
use crate::config::sections::switch::handoff::HandoffSection;
use crate::config::sections::switch::limits::{HealthSection, LimitsSection, TimeoutsSection};
use crate::config::sections::switch::nodes::NodeKey;
use crate::config::sections::switch::reach::ReachTlsSection;
use crate::config::sections::switch::route::RouteSection;
use crate::config::sections::switch::rule::ClassSection;
use crate::config::sections::switch::safety::{
    ClientsSection, LongLivedSection, OutliersSection, RetriesSection,
};
use crate::config::sections::switch::shadow::ShadowSection;
use crate::config::sections::switch::signals::SignalsSection;
use crate::config::sections::switch::switches::SwitchesSection;
use crate::config::sections::switch::tls::TlsSection;
use crate::config::sections::traces::TracesSection;
use crate::config::text::{Span, Texts};
use crate::config::words::Word;

keys! {
    /// `[switch]`.
    table SwitchSection, settings = Settings::default();

    /// Where clients connect: one "address:port" or a list. Port 0 takes any free port. Required, unless there is [switch.tls].
    listen: Texts, example "127.0.0.1:8080";
    /// Whether clients may speak HTTP/2 without TLS, knowing that it is spoken here.
    h2c: bool = false;
    /// Addresses of balancers before the switch that announce with the PROXY protocol (1 or 2) whom each connection is from, as
    /// "10.0.0.0/8". From them every connection must begin with it; from others none may.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    proxy_protocol_from: Texts, entries 1024, example ["10.0.0.0/8", "2001:db8::/32"];
    /// Relays before the switch whose identity fields are believed, as "10.0.0.2" or "10.0.0.0/24".
    /// From them X-Forwarded-For, Forwarded, X-Forwarded-Proto, X-Forwarded-Host and Client-Cert are kept as they are. List only
    /// relays that set these fields themselves, and that clients cannot pass by.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    trusted_relays: Texts, entries 1024, example ["10.0.0.2", "2001:db8::/32"];
    /// X-Forwarded-For of any other sender: "append" its address, or "overwrite" the field. Forwarded (where present),
    /// X-Forwarded-Proto, X-Forwarded-Host and Client-Cert of such a sender are always overwritten.
    forwarded: Word<Forwarded> = Word(Forwarded::default());
    /// Keep header fields whose names contain an underscore, such as Client_Cert. Many applications read them as the field with
    /// hyphens, so they are dropped by default.
    underscores_in_headers: bool = false;
    /// Keep header fields of any other sender that may tell an application another URL, such as X-Forwarded-Prefix; the guide to
    /// operation lists them. Dropped by default.
    url_fields_in_headers: bool = false;
    /// The nodes: each an "address:port", or a table with `address` and, if wanted, `name`, `weight`, `cache`,
    /// `groups`, `backup` (true: it takes requests only while no ordinary node of its group is up), `http2` (true: it is asked by HTTP/2, as gRPC needs), `tls` (true, false, or a table as [switch.node_tls]),
    /// `proxy_protocol` (as node_proxy_protocol), `handoff`. Nodes are known by name (by default the address): one that returns under its name keeps its targets. Required, unless
    /// `discover` finds some.
    nodes: Vec<NodeKey>, example ["127.0.0.1:9001", "127.0.0.1:9002"];
    /// Whether connections to nodes begin with the PROXY protocol, and so announce the client that they are for: "off", "v1" or "v2".
    /// Such a connection is for one client, and ends with the client's. A node's `proxy_protocol` says otherwise for itself.
    node_proxy_protocol: Word<Option<ProxyVersion>> = Word(None);
    /// The user as whom the work is done, by name or number: the process that keeps the listeners stays who it is, and those that
    /// read what clients send give up all rights but this user's. The files that they read and write must be this user's to
    /// read and write. Needs root. Unset: nobody changes.
    user: Option<String>, example "larder";
    /// The group, by name or number. Unset: the user's own.
    group: Option<String>, example "larder";
    /// How often names in nodes' addresses are looked up anew: a node whose name leads elsewhere moves there, and keeps its
    /// targets. 0s: once, at the start.
    follow_names: Span = Span(std::time::Duration::from_secs(10)), range "1s to 1h, or 0s";
    /// Sources of nodes beside `nodes`: the DNS, files. Nodes come and go as they say, without a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discover: Vec<DiscoverSection>;
    /// Which node serves a target; `larder check --policies` says what each of them does.
    #[schemars(extend("enum" = PolicyKind::ALL.map(PolicyKind::name)))]
    policy: String = settings.policy.to_string();
    /// What counts as the same target, of parts of the request: {host} {path} {path:2} {path:2..4} {extension} {query}
    /// {query:a,b} {query:#1} {header:name} {cookie:name} {method}, and any text between them.
    key: String = KeyTemplate::DEFAULT.to_owned();
    /// Seed of the policies that draw lots.
    seed: u64 = settings.seed;
    /// T_low: a node of weight 1 with fewer active requests has spare room. Below t_high; or "learned", in a training phase,
    /// from the nodes' load reports.
    t_low: LowKey = LowKey::Fixed(settings.t_low), range "1 to 100000";
    /// T_high: a node of weight 1 with more active requests gives targets away. Above t_low; or by the paper's rule, { delay =
    /// "500ms" }: how much longer a request may take at one node than at another.
    t_high: HighKey = HighKey::Fixed(settings.t_high), range "2 to 100000";
    /// K of LARD/R: a target's server set that did not change for this long shrinks by one.
    replication_decay: Span = Span(settings.replication_decay), range "0s to 366d";
    /// Targets remembered; beyond that the least recently asked is forgotten and placed anew when asked again.
    targets_max: usize = settings.targets_max, range "1 to 4294967296";
    /// Nodes the cluster may grow to.
    nodes_max: u16 = settings.nodes_max, range "1 to 65534";
    /// Requests admitted at once; the rest wait. "auto": S = (n-1) t_high + t_low - 1 for n > 1 nodes if a policy of theirs
    /// goes by t_low and t_high (lard, lard-r), and t_high for the last of several; else 1000 per node, or t_high if that is
    /// more. "derived": S in any case.
    /// "unlimited", or a number. Long-lived requests do not count, see [switch.long_lived].
    admission: AdmissionKey = AdmissionKey::Word(AdmissionWord::Auto), range "1 to 4294967295";
    /// Requests that may wait for admission; the next one gets 503 with Retry-After.
    queue_max: usize = settings.queue_max, range "0 to 1000000";
    /// Longest wait for admission; then 503 with Retry-After.
    queue_timeout: Span = Span(settings.queue_timeout), range "0s to 366d";
    /// New targets a second that a joining node may take until it is warm.
    join_targets_per_s: u32 = settings.join_targets_per_s, range "1 to 1000000";
    /// Targets after which a joining node counts as warm.
    join_warm_targets: u32 = settings.join_warm_targets;
    /// Shards of the target map. More shards let more threads decide at once.
    shards: usize = settings.shards, range "a power of two from 1 to 4096";
    /// Worker threads; 0 takes one for each core.
    threads: usize = 0, range "0 to 1024";
    /// File the access log is appended to (Combined Log Format with node, reason and times), or "-" for stdout.
    /// Unset: no access log.
    access_log: Option<String>, example "/var/log/larder/access.log";
    /// How a line of the access log looks: "combined", "json" (an object per line), or parts of what is known, such as
    /// "{client} {target} {status} {node} {total_us} {header:x-user}"; docs/operating.md lists them.
    access_log_format: String = "combined".to_owned();
    /// File with the token of those that may purge, which is shown to nodes too: 16 to 256 characters. A second line
    /// may hold another token that is accepted. Unset: nobody may purge.
    purge_token: Option<String>, example "/etc/larder/purge.token";
    /// File to record the dispatcher's inputs and decisions in, for `larder sim replay`; replaced if it exists. Some 40
    /// bytes a request. The recording ends by itself, and says so, where the disk cannot follow. Unset: no record.
    record: Option<String>, example "/var/lib/larder/decisions.rec";
    /// File for the decision log of the record as text; replaced if it exists. Needs `record`. Unset: no text.
    record_log: Option<String>, example "/var/lib/larder/decisions.log";
    /// The word the switch puts into Via: letters, digits and "-".
    via: String = "larder".to_owned();
    /// Service classes, for cap and static: the first rule that holds decides, and a request that none holds for is of
    /// class n. All conditions that are given must hold; of several values, one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<ClassSection>;
    /// Routes: requests with a policy, nodes, key or classes of their own. The first whose conditions hold takes a
    /// request; what none takes is as said under [switch]. No access control: what is compared is as it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteSection>;
    /// Rules for the header of requests to nodes, on all routes, after what the switch adds itself (X-Forwarded-For, Via) and
    /// before the route's own. With rules no connection is handed over.
    #[serde(skip_serializing_if = "HeadersSection::is_empty")]
    request_headers: HeadersSection;
    /// Rules for the header of replies to clients, the switch's own replies among them, on all routes, before the route's own.
    #[serde(skip_serializing_if = "HeadersSection::is_empty")]
    reply_headers: HeadersSection;
    /// Where routes take shares (`of = "default"`) of the requests that no route matches, by what: as split_by of a route.
    split_by: String = "client".to_owned();
    /// Requests that are refused: by the client's network, without a password, with too large a body. On the default route, and on
    /// routes that say nothing else. Such requests are relayed. Unset: none.
    guard: Option<GuardSection>;
    /// Clients come back to the node that served them: on the default route, and on routes that say nothing else. A node at T_high,
    /// or one that is down, gives way. Unset: none.
    sticky: Option<StickySection>;
    /// Replies are compressed for clients that ask for it, on the default route and on routes that say nothing else. Unset: none.
    compress: Option<CompressSection>;
    /// GET and HEAD are asked of another node too where the first has not begun to answer after a while, and the first answer is
    /// taken: on the default route, and on routes that say nothing else and are not sticky. Unset: never.
    hedge: Option<HedgeSection>;
    /// Ids by which a request is found again in all logs.
    request_id: RequestIdSection;
    /// TLS, at addresses of its own.
    tls: Option<TlsSection>;
    /// TLS to the nodes, to all that do not say `tls` for themselves. Unset: none.
    node_tls: Option<ReachTlsSection>;
    /// Traces of requests, sent to an OpenTelemetry collector.
    traces: Option<TracesSection>;
    /// Shadow mode: on live traffic, the hit ratio and the imbalance that other policies would have had.
    shadow: ShadowSection;
    /// Other switches in front of the same nodes, behind a balancer: they tell each other of loads and server sets.
    switches: Option<SwitchesSection>;
    /// What is heard of the nodes besides replies: how loaded they are, and what their caches hold.
    signals: SignalsSection;
    /// How connections reach the nodes.
    handoff: HandoffSection;
    /// How t_low = "learned" is learned.
    training: TrainingSection = TrainingSection::standard();
    /// What lard-cost goes by instead of t_low and t_high.
    cost: CostSection = CostSection::standard();
    /// What cap-load goes by.
    cap: CapSection = CapSection::standard();
    /// What hacc goes by.
    hacc: HaccSection = HaccSection::standard();
    /// What bounded (consistent hashing with bounded loads) goes by.
    bounded: BoundedSection = BoundedSection::standard();
    /// What maglev goes by.
    maglev: MaglevSection = MaglevSection::standard();
    /// What rendezvous goes by.
    rendezvous: RendezvousSection = RendezvousSection::standard();
    /// What peak-ewma goes by.
    ewma: EwmaSection = EwmaSection::standard();
    /// What wrr-num and wrr-time go by.
    wrr: WrrSection = WrrSection::standard();
    /// What static goes by.
    #[serde(rename = "static")]
    fixed: StaticSection = StaticSection::standard();
    /// What lard-util goes by.
    util: UtilSection = UtilSection::standard();
    /// Where ward and part have their routing table from: a file, or the switch's own traffic, or both.
    ward: WardSection = WardSection::standard();
    /// How nodes are found to have failed, and to be back.
    health: HealthSection;
    /// How long things may take.
    timeouts: TimeoutsSection;
    /// How large things may be.
    limits: LimitsSection;
    /// Requests that last, such as WebSockets and streams: they have a limit of their own.
    long_lived: LongLivedSection;
    /// What one client may take. Off by default.
    clients: ClientsSection;
    /// How many requests may be tried again.
    retries: RetriesSection;
    /// When nodes that answer, but worse than the others, are taken out for a while. Off by default.
    outliers: OutliersSection;
}

/// `switch.admission`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "admission is \"auto\", \"derived\", \"unlimited\" or a number of requests")]
pub(crate) enum AdmissionKey {
    /// A number of requests.
    Fixed(u32),
    /// "auto", "derived" or "unlimited".
    Word(AdmissionWord),
}

/// The words of [`AdmissionKey`].
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

impl SwitchSection {
    pub(crate) fn parameters(&self) -> Parameters<'_> {
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
