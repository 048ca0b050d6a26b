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

    /// Address for clients: one "address:port" or a list. Port 0 takes any free port. Required, unless there is
    /// [switch.tls].
    listen: Texts, example "127.0.0.1:8080";
    /// The nodes: each an "address:port", or a table with `address` and any of `name`, `weight`, `cache`, `groups`,
    /// `backup`, `http2`, `tls`, `proxy_protocol`, `handoff`. A node is identified by its name, by default the
    /// address. If it returns under its name, it keeps its targets. `backup = true`: the node takes requests only
    /// while no ordinary node of its group is up. `http2 = true`: the switch uses HTTP/2, which gRPC needs. `tls` is
    /// true, false, or a table as [switch.connect.tls]. Required, unless there is [[switch.discover]].
    nodes: Vec<NodeKey>, example ["127.0.0.1:9001", "127.0.0.1:9002"];
    /// Policy that chooses the node of a target. `larder check --policies` describes all policies.
    #[schemars(extend("enum" = PolicyKind::ALL.map(PolicyKind::name)))]
    policy: String = settings.policy.to_string();
    /// Parts of a request that make up its target: {host} {path} {path:2} {path:2..4} {extension} {query} {query:a,b}
    /// {query:#1} {header:name} {cookie:name} {method}. Any text may stand between them.
    key: String = KeyTemplate::DEFAULT.to_owned();
    /// Whether clients may use HTTP/2 without TLS (prior knowledge).
    h2c: bool = false;
    /// Key that assigns requests to the routes that take shares of the default route, as `split_by` of a route.
    split_by: String = "client".to_owned();
    /// File with the token that permits a purge, 16 to 256 characters. A second line may contain another token that
    /// is accepted. The switch sends the token to the nodes too. Unset: nobody may purge.
    purge_token: Option<String>, example "/etc/larder/purge.token";
    /// Sources of nodes besides `nodes`: DNS, Kubernetes, or a file. Nodes join and leave without a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    discover: Vec<DiscoverSection>;
    /// Rules for service classes, which cap, cap-load and static use. The first rule that matches decides; otherwise
    /// the class is n. All kinds of conditions that are given must match, and of several values of a kind, one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<ClassSection>;
    /// Routes: requests with their own policy, nodes, key or classes. The first route whose conditions match takes a
    /// request. All other requests take the default route, which is configured under [switch]. Routes are no access
    /// control, because requests are compared as they were sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteSection>;
    /// Admission: the limit of concurrent requests, and the queue of requests that wait.
    admission: AdmissionSection;
    /// Settings of the policies.
    #[serde(deserialize_with = "PoliciesSection::over_standard")]
    policies: PoliciesSection = PoliciesSection::standard();
    /// Health checks: when a node counts as down, and when it is used again.
    health: HealthSection;
    /// Timeouts.
    timeouts: TimeoutsSection;
    /// Limits of sizes and numbers.
    limits: LimitsSection;
    /// Limits of retries after a node has failed.
    retries: RetriesSection;
    /// Limits per client. Off by default.
    clients: ClientsSection;
    /// Refusal of requests: by the client's network, without a password, or with a body that is too large. It holds
    /// on the default route, and on routes without a guard of their own. Such requests are relayed. Unset: none.
    guard: Option<GuardSection>;
    /// Sticky sessions: a client returns to the node that served it, unless the node is down or at T_high. They hold
    /// on the default route, and on routes without their own setting. Unset: none.
    sticky: Option<StickySection>;
    /// Compression of replies for clients that accept it. It holds on the default route, and on routes without their
    /// own setting. Unset: none.
    compress: Option<CompressSection>;
    /// Hedging of GET and HEAD. If a node has not begun its reply after a while, another node is asked too, and the
    /// first reply is used. It holds on the default route, and on routes without their own setting that are not
    /// sticky. Unset: none.
    hedge: Option<HedgeSection>;
    /// Rules for header fields, request ids, and Via.
    headers: HeadersSection;
    /// Trust in the senders of requests: trusted relays, the PROXY protocol, and the header fields that are kept.
    trust: TrustSection;
    /// TLS for clients, at addresses of its own.
    tls: Option<TlsSection>;
    /// Connections to nodes.
    connect: ConnectSection;
    /// Handoff of connections to nodes.
    handoff: HandoffSection;
    /// Signals from nodes other than replies: their load, and the contents of their caches.
    signals: SignalsSection;
    /// Pace at which a joining node gets targets.
    join: JoinSection;
    /// The access log, one line for each request.
    access_log: SwitchAccessLogSection;
    /// Traces of requests for an OpenTelemetry collector.
    traces: Option<TracesSection>;
    /// Shadow mode: the hit ratio and the imbalance that other policies would have had on the live traffic.
    shadow: ShadowSection;
    /// A record of decisions for `larder sim replay`.
    record: RecordSection;
    /// Peer switches in front of the same nodes, behind a load balancer. They exchange loads and server sets.
    switches: Option<SwitchesSection>;
    /// Threads and users of the processes.
    process: ProcessSection;
}

impl SwitchSection {
    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters { policy: Some(&self.policy), policies: &self.policies, training_above: None }
    }
}
