//! The keys of `[switch]`.

use larder_core::rules::KeyTemplate;
use larder_core::{PolicyKind, Settings};

use crate::config::keys::keys;
use crate::config::sections::access_log::SwitchAccessLogSection;
use crate::config::sections::entry::TrustSection;
use crate::config::sections::policy::{Parameters, PoliciesSection};
use crate::config::sections::switch::admission::{AdmissionSection, JoinSection};
use crate::config::sections::switch::clients::{ClientsSection, RetriesSection};
use crate::config::sections::switch::connect::ConnectSection;
use crate::config::sections::switch::discover::DiscoverSection;
use crate::config::sections::switch::edits::{CompressSection, HedgeSection, StickySection};
use crate::config::sections::switch::guard::GuardSection;
use crate::config::sections::switch::handoff::HandoffSection;
use crate::config::sections::switch::headers::HeadersSection;
use crate::config::sections::switch::limits::{HealthSection, LimitsSection, TimeoutsSection};
use crate::config::sections::switch::nodes::NodeKey;
use crate::config::sections::switch::process::ProcessSection;
use crate::config::sections::switch::record::RecordSection;
use crate::config::sections::switch::route::RouteSection;
use crate::config::sections::switch::rule::ClassSection;
use crate::config::sections::switch::shadow::ShadowSection;
use crate::config::sections::switch::signals::SignalsSection;
use crate::config::sections::switch::switches::SwitchesSection;
use crate::config::sections::switch::tls::TlsSection;
use crate::config::sections::traces::TracesSection;
use crate::config::text::Texts;

keys! {
    /// `[switch]`.
    table SwitchSection, settings = Settings::default();

    /// Where clients connect: one "address:port" or a list. Port 0 takes any free port. Required, unless there is [switch.tls].
    listen: Texts, example "127.0.0.1:8080";
    /// The nodes: each an "address:port", or a table with `address` and, if wanted, `name`, `weight`, `cache`,
    /// `groups`, `backup` (true: it takes requests only while no ordinary node of its group is up), `http2` (true: it is asked by HTTP/2, as gRPC needs), `tls` (true, false, or a table as [switch.connect.tls]),
    /// `proxy_protocol` (as switch.connect.proxy_protocol), `handoff`. Nodes are known by name (by default the address): one that returns under its name keeps its targets. Required, unless
    /// `discover` finds some.
    nodes: Vec<NodeKey>, example ["127.0.0.1:9001", "127.0.0.1:9002"];
    /// Which node serves a target; `larder check --policies` says what each of them does.
    #[schemars(extend("enum" = PolicyKind::ALL.map(PolicyKind::name)))]
    policy: String = settings.policy.to_string();
    /// What counts as the same target, of parts of the request: {host} {path} {path:2} {path:2..4} {extension} {query}
    /// {query:a,b} {query:#1} {header:name} {cookie:name} {method}, and any text between them.
    key: String = KeyTemplate::DEFAULT.to_owned();
    /// Whether clients may speak HTTP/2 without TLS, knowing that it is spoken here.
    h2c: bool = false;
    /// Where routes take shares (`of = "default"`) of the requests that no route matches, by what: as split_by of a route.
    split_by: String = "client".to_owned();
    /// File with the token of those that may purge, which is shown to nodes too: 16 to 256 characters. A second line
    /// may hold another token that is accepted. Unset: nobody may purge.
    purge_token: Option<String>, example "/etc/larder/purge.token";
    /// Sources of nodes beside `nodes`: the DNS, files. Nodes come and go as they say, without a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discover: Vec<DiscoverSection>;
    /// Service classes, for cap and static: the first rule that holds decides, and a request that none holds for is of
    /// class n. All conditions that are given must hold; of several values, one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<ClassSection>;
    /// Routes: requests with a policy, nodes, key or classes of their own. The first whose conditions hold takes a
    /// request; what none takes is as said under [switch]. No access control: what is compared is as it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteSection>;
    /// Requests admitted at once, and those that wait for it.
    admission: AdmissionSection;
    /// Settings of the policies.
    #[serde(deserialize_with = "PoliciesSection::over_standard")]
    policies: PoliciesSection = PoliciesSection::standard();
    /// How nodes are found to have failed, and to be back.
    health: HealthSection;
    /// How long things may take.
    timeouts: TimeoutsSection;
    /// How large things may be.
    limits: LimitsSection;
    /// How many requests may be tried again.
    retries: RetriesSection;
    /// Limits of one client. Off by default.
    clients: ClientsSection;
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
    /// Rules for header fields, ids of requests, and Via.
    headers: HeadersSection;
    /// Which senders are believed, and which header fields of others are kept.
    trust: TrustSection;
    /// TLS, at addresses of its own.
    tls: Option<TlsSection>;
    /// How the switch connects to the nodes.
    connect: ConnectSection;
    /// How connections reach the nodes.
    handoff: HandoffSection;
    /// Signals from the nodes besides replies: their load, and the contents of their caches.
    signals: SignalsSection;
    /// How fast nodes that join are given targets.
    join: JoinSection;
    /// The access log: a line for each request.
    access_log: SwitchAccessLogSection;
    /// Traces of requests, sent to an OpenTelemetry collector.
    traces: Option<TracesSection>;
    /// Shadow mode: on live traffic, the hit ratio and the imbalance that other policies would have had.
    shadow: ShadowSection;
    /// A record of decisions, for `larder sim replay`.
    record: RecordSection;
    /// Other switches in front of the same nodes, behind a balancer: they tell each other of loads and server sets.
    switches: Option<SwitchesSection>;
    /// The processes that do the work.
    process: ProcessSection;
}

impl SwitchSection {
    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters { policy: Some(&self.policy), policies: &self.policies, training_above: None }
    }
}
