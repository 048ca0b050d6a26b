//! `[switch]`.

pub(crate) mod acme;
pub(crate) mod covers;
pub(crate) mod discover;
pub(crate) mod edits;
pub(crate) mod guard;
pub(crate) mod habits;
pub(crate) mod handoff;
pub(crate) mod limits;
pub(crate) mod nodes;
pub(crate) mod reach;
pub(crate) mod route;
pub(crate) mod rule;
pub(crate) mod safety;
pub(crate) mod shadow;
pub(crate) mod signals;
pub(crate) mod split;
pub(crate) mod switches;
pub(crate) mod tls;
pub(crate) mod together;
pub(crate) mod user;
pub(crate) mod ward;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::dispatch::Admission;
use larder_core::rules::KeyTemplate;
use larder_core::{PolicyKind, Settings};
use larder_edge::Forwarded;
use larder_switch::{ACCESS_FIELDS, ConfigError, ProxyVersion, RecordConfig, SwitchConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::acme::AcmeRole;
use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::access_log::access_log;
use crate::config::sections::entry::entry;
use crate::config::sections::policy::hacc::level_key;
use crate::config::sections::policy::threshold::{CostSection, HighKey, LowKey, TrainingSection};
use crate::config::sections::policy::{
    BoundedSection, CapSection, EwmaSection, HaccSection, MaglevSection, Parameters, RendezvousSection,
    StaticSection, UtilSection, WardSection, WrrSection, apply,
};
use crate::config::sections::switch::acme::writable;
use crate::config::sections::switch::discover::{Discover, DiscoverSection, Place, sources};
use crate::config::sections::switch::edits::{
    CompressSection, HeadersSection, HedgeSection, RequestIdSection, StickySection, against_mechanism,
    edits_of_all,
};
use crate::config::sections::switch::guard::{GuardSection, warn_of_bypasses};
use crate::config::sections::switch::habits::habits;
use crate::config::sections::switch::handoff::{HandoffSection, handoff};
use crate::config::sections::switch::limits::{
    HealthSection, LimitsSection, TimeoutsSection, health, limits, timeouts,
};
use crate::config::sections::switch::nodes::{NodeKey, peers};
use crate::config::sections::switch::reach::{ReachTlsSection, reach};
use crate::config::sections::switch::route::{RouteSection, routes};
use crate::config::sections::switch::rule::{ClassSection, classes, key};
use crate::config::sections::switch::safety::{
    ClientsSection, LongLivedSection, OutliersSection, RetriesSection, clients, long_lived, outliers, retries,
};
use crate::config::sections::switch::shadow::{ShadowSection, shadow};
use crate::config::sections::switch::signals::{SignalsSection, signals};
use crate::config::sections::switch::split::split_by;
use crate::config::sections::switch::switches::{SwitchesRole, SwitchesSection, switches};
use crate::config::sections::switch::tls::{TlsSection, against_handoff, ranges, tls};
use crate::config::sections::switch::together::together;
use crate::config::sections::switch::user::{RunAs, run_as};
use crate::config::sections::switch::ward::{WardRole, wards};
use crate::config::sections::traces::{TracesSection, traces};
use crate::config::text::{Span, Texts};
use crate::config::valid::addresses;
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

/// `[switch]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRole {
    pub(crate) switch: SwitchConfig,
    /// 0: one for each core.
    pub(crate) threads: usize,
    /// Where nodes are found beside those of the config.
    pub(crate) discover: Vec<Discover>,
    /// How often names are looked up anew; zero: never.
    pub(crate) follow: Duration,
    /// Routes that go by a routing table.
    pub(crate) wards: Vec<WardRole>,
    /// File with the secret that nodes want proved before they report. Read when the role starts.
    pub(crate) report_secret: Option<PathBuf>,
    /// File with the tokens of those that may purge. Read when the role starts.
    pub(crate) purge_token: Option<PathBuf>,
    /// Other switches in front of the same nodes.
    pub(crate) beside: Option<SwitchesRole>,
    /// As whom the work is done.
    pub(crate) run_as: Option<RunAs>,
    /// Certificates that an authority issues.
    pub(crate) acme: Option<AcmeRole>,
}

/// The oldest that the dispatcher may let a load report become.
const REPORT_AGE_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn switch(
    raw: &SwitchSection,
    warnings: &mut Vec<Fault>,
    absent: &mut Vec<Fault>,
) -> Result<SwitchRole, Fault> {
    let listen = match &raw.tls {
        Some(_) if raw.listen.is_empty() => Vec::new(),
        _ => addresses("switch.listen", &raw.listen, "127.0.0.1:8080")?,
    };
    some_nodes(raw)?;
    let (tls, acme) = raw.tls.as_ref().map(|raw| tls(raw, &listen, warnings)).transpose()?.unzip();
    let mut switch = SwitchConfig::new(listen, peers("switch.nodes", &raw.nodes)?);
    let discover = sources(&raw.discover)?;
    switch.grows = !discover.is_empty();
    switch.settings = settings(raw)?;
    switch.key = match level_key(&switch.settings) {
        Some(_) if raw.key != KeyTemplate::DEFAULT => {
            let what = "contradicts key: both say what an assignment covers";
            return Err(Fault::new("switch.hacc.level", what).hint("leave one of them out"));
        }
        Some(text) => key("switch.hacc.level", &text)?,
        None => key("switch.key", &raw.key)?,
    };
    switch.classes = classes("switch", &raw.classes, warnings)?;
    switch.routes = routes(raw, &switch.settings, &switch.nodes, &discover, warnings)?;
    warn_of_backups_alone(&switch, &discover, warnings);
    edits_of_all(raw, &mut switch)?;
    switch.split_by = split_by("switch.split_by", &raw.split_by)?;
    switch.signals = signals(&raw.signals)?;
    switch.traces = raw.traces.as_ref().map(|traced| traces(traced, "switch", &raw.via)).transpose()?;
    switch.shadow = shadow(&raw.shadow, switch.settings.policy)?;
    switch.handoff = handoff(&raw.handoff, absent)?;
    (switch.tls, switch.h2c, switch.announcers) =
        (tls, raw.h2c, ranges("switch.proxy_protocol_from", &raw.proxy_protocol_from)?);
    let kept = (raw.underscores_in_headers, raw.url_fields_in_headers);
    switch.entry = entry("switch", &raw.trusted_relays, raw.forwarded.0, kept)?;
    against_handoff(switch.tls.as_ref(), &switch.announcers, &switch.handoff)?;
    against_mechanism(&switch, warnings)?;
    warn_of_bypasses(raw, warnings);
    reach(raw, &mut switch, warnings)?;
    switch.census_targets_max = raw.ward.targets_max.unwrap_or(switch.census_targets_max);
    safety(raw, &mut switch)?;
    switch.access_log =
        access_log("switch", raw.access_log.as_deref(), &raw.access_log_format, &ACCESS_FIELDS)?;
    switch.record = record(raw)?;
    switch.via.clone_from(&raw.via);
    if raw.threads > 0 {
        switch.threads = raw.threads;
    }
    switch.validate().map_err(|error| fault(&error))?;
    let wards = wards(raw, &switch)?;
    against_wards(&discover, &wards)?;
    habits(raw, warnings);
    together(&switch, warnings)?;
    let beside = raw.switches.as_ref().map(|raw| switches(raw, absent)).transpose()?;
    let run_as = run_as(raw.user.as_deref(), raw.group.as_deref(), &switch.handoff)?;
    let acme = acme.flatten().map(|role| writable(role, run_as, absent)).transpose()?;
    let report_secret = raw.signals.secret.as_ref().map(PathBuf::from);
    let purge_token = raw.purge_token.as_ref().map(PathBuf::from);
    Ok(SwitchRole {
        switch,
        threads: raw.threads,
        discover,
        follow: raw.follow_names.0,
        wards,
        report_secret,
        purge_token,
        beside,
        run_as,
        acme,
    })
}

/// Checks the settings that protect nodes, clients and the switch itself.
fn safety(raw: &SwitchSection, switch: &mut SwitchConfig) -> Result<(), Fault> {
    switch.health = health(&raw.health)?;
    (switch.timeouts, switch.limits) = (timeouts(&raw.timeouts), limits(&raw.limits));
    switch.clients = clients(&raw.clients, &switch.handoff)?;
    switch.long_lived = long_lived(&raw.long_lived);
    (switch.retries, switch.outliers) = (retries(&raw.retries), outliers(&raw.outliers));
    Ok(())
}

/// Refuses a switch without nodes, or with more than it may have.
fn some_nodes(raw: &SwitchSection) -> Result<(), Fault> {
    if raw.nodes.is_empty() && raw.discover.is_empty() {
        let hint =
            "write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"], or where they are found: [[switch.discover]]";
        return Err(Fault::new("switch.nodes", "missing: a switch needs at least one node").hint(hint));
    }
    if raw.nodes.len() > usize::from(raw.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", raw.nodes.len(), raw.nodes_max);
        return Err(Fault::new("switch.nodes_max", what).hint("raise nodes_max"));
    }
    Ok(())
}

/// The front's own checks, in the words of the config file.
fn fault(error: &ConfigError) -> Fault {
    match error {
        ConfigError::HealthPath(_) => Fault::new("switch.health.check", error.to_string()),
        ConfigError::Path(name, path) => Fault::new(format!("switch.{name}"), format!("'{path}' is no path"))
            .hint("it begins with '/' and holds no space or control character"),
        ConfigError::Name(name, text) => Fault::new(format!("switch.{name}"), format!("'{text}' is no name"))
            .hint("1 to 200 characters, without spaces"),
        ConfigError::HandoffName(_) => Fault::new("switch.handoff.name", error.to_string()),
        ConfigError::HandoffIdentity => Fault::new("switch.handoff.identity", error.to_string()),
        ConfigError::NodeTransport { .. } => Fault::new("switch.nodes", error.to_string()),
        ConfigError::Via => Fault::new("switch.via", error.to_string()),
        // Routes, groups and ranges have been checked before, with their lines.
        ConfigError::Route { .. } | ConfigError::Routes(_) | ConfigError::NodeGroup { .. } => {
            Fault::new("switch.routes", error.to_string())
        }
        ConfigError::Empty(_)
        | ConfigError::OutOfRange { .. }
        | ConfigError::SpanOutOfRange { .. }
        | ConfigError::Share(..)
        | ConfigError::HandoffShare(_) => Fault::new("switch", error.to_string()),
    }
}

/// Refuses nodes that come and go where routes go by a routing table.
fn against_wards(discover: &[Discover], wards: &[WardRole]) -> Result<(), Fault> {
    if wards.is_empty() || discover.is_empty() {
        return Ok(());
    }
    let what = "contradicts ward and part: a routing table is for the nodes of the config";
    let hint = "list the nodes in switch.nodes, or take another policy";
    Err(Fault::new("switch.discover", what).hint(hint))
}

fn record(raw: &SwitchSection) -> Result<Option<RecordConfig>, Fault> {
    let hint = "a path, or leave it out";
    let named = |key: &str, file: &Option<String>| match file.as_deref() {
        Some("" | "-") => Err(Fault::new(format!("switch.{key}"), "names no file").hint(hint)),
        file => Ok(file.map(PathBuf::from)),
    };
    let (file, log) = (named("record", &raw.record)?, named("record_log", &raw.record_log)?);
    match (file, log) {
        (None, Some(_)) => {
            Err(Fault::new("switch.record_log", "there is no record to log").hint("set record"))
        }
        (Some(file), Some(log)) if file == log => {
            Err(Fault::new("switch.record_log", "is the same file as record").hint("give each its own"))
        }
        (file, log) => Ok(file.map(|file| RecordConfig { log, ..RecordConfig::file(file) })),
    }
}

/// Warns of groups that have backups and no ordinary node. What a file of nodes says is not known here.
fn warn_of_backups_alone(switch: &SwitchConfig, discover: &[Discover], warnings: &mut Vec<Fault>) {
    if discover.iter().any(|source| matches!(source.place, Place::File(_))) {
        return;
    }
    let named: BTreeSet<&str> = switch.routes.iter().filter_map(|route| route.group.as_deref()).collect();
    for group in std::iter::once(None).chain(named.into_iter().map(Some)) {
        let inside = |groups: &[String]| group.is_none_or(|group| groups.iter().any(|name| name == group));
        let nodes = switch.nodes.iter().map(|node| (&node.groups, node.spec.backup));
        let sources = discover.iter().map(|source| (&source.groups, source.backup));
        let mut members = nodes.chain(sources).filter(|(groups, _)| inside(groups)).peekable();
        if members.peek().is_some() && members.all(|(_, backup)| backup) {
            let of = group.map_or_else(String::new, |group| format!(" of group '{group}'"));
            let what = format!("every node{of} is a backup: the backups take all requests");
            warnings.push(
                Fault::new("switch.nodes", what).hint("leave backup out of the nodes that are to serve"),
            );
        }
    }
}

/// What concerns the dispatcher as a whole, and the default route's policy.
fn settings(raw: &SwitchSection) -> Result<Settings, Fault> {
    let mut settings = Settings {
        nodes_max: raw.nodes_max,
        admission: match raw.admission {
            AdmissionKey::Fixed(limit) => Admission::Fixed(limit),
            AdmissionKey::Word(AdmissionWord::Auto) => Admission::Auto,
            AdmissionKey::Word(AdmissionWord::Derived) => Admission::Derived,
            AdmissionKey::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
        },
        long_lived_max: raw.long_lived.max_per_node,
        queue_max: raw.queue_max,
        queue_timeout: raw.queue_timeout.0,
        join_targets_per_s: raw.join_targets_per_s,
        join_warm_targets: raw.join_warm_targets,
        shards: raw.shards,
        ..Settings::default()
    };
    // Reports that come more rarely than the standard allows are not too old for that.
    settings.report_age_max = settings.report_age_max.max(raw.signals.missing_after.0.min(REPORT_AGE_MAX));
    apply("switch", &raw.parameters(), &mut settings)?;
    Ok(settings)
}
