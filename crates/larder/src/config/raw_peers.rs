//! `[node.peers]` as written, with its defaults.

use std::time::Duration;

use larder_core::PolicyKind;
use larder_core::peers::{CardSettings, PressSettings, WardSettings};
use larder_trace::ward::WardCosts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span, Texts};

/// `[node.peers]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPeers {
    /// Where peers connect to, TCP and UDP: "address:port". Required.
    #[schemars(example = "10.0.0.11:7950")]
    pub(crate) listen: Texts,
    /// Where peers reach it, if not at `listen`; needed where that is all addresses.
    #[schemars(example = "10.0.0.11:7950")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// File with the secret that all nodes of the cluster share, for its owner only. Made by `larder keys new FILE`. A second
    /// line may hold another secret that is accepted too, so that the secret can be rotated. Read at each reload. Required.
    #[schemars(example = "/etc/larder/cluster.key")]
    pub(crate) secret: String,
    /// Where to look for others: "host:port", at most 256. A name is resolved again and again and all of its addresses
    /// count, such as a headless service of Kubernetes. None: this node waits to be found.
    #[schemars(example = "larder-peers.default.svc:7950")]
    pub(crate) seeds: Texts,
    /// Who decides where a request is served, the same on all nodes: "press", each node by what the others say they have in
    /// memory; "card", one node for all, by a policy of the switch; "ward", each node by a routing table that all have.
    #[schemars(extend("enum" = ["press", "card", "ward"]))]
    pub(crate) policy: String,
    /// Press: T: connections above which a node is overloaded, so that a target gets a further server. 1 to 1,000,000.
    pub(crate) overload: u32,
    /// Press: objects of this size and more are served by the node that is asked for them, and no node keeps them in memory. By
    /// default a 64th of `cache.size`.
    #[schemars(example = "16MB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) large_min: Option<Size>,
    /// Press: a node tells its load when it differs by so much from what it told last. 1 to 10,000.
    pub(crate) load_step: u32,
    /// Press: changes of memory are told together after this time; "0s" tells each at once. At most 10 s.
    pub(crate) gather: Span,
    /// Press: a node takes part when more than this share of its clients' requests are not in its memory; before, and with
    /// memory enough, it works by itself. 0 to 1; 0, with `alone_below` 0 too: always.
    pub(crate) share_above: f64,
    /// Press: it works by itself again when less than this share would be missed, 16 times `window` on end. At most `share_above`.
    pub(crate) alone_below: f64,
    /// Press: requests after which that is judged. 10 to 1,000,000.
    pub(crate) window: u32,
    /// Press: targets whose servers are known at most; some 60 bytes each. 1,000 to 100,000,000.
    pub(crate) targets_max: usize,
    /// How long the node that has a target may take to begin its reply; then the request is served where it arrived.
    /// 10 ms to 10 min.
    pub(crate) head_timeout: Span,
    /// Whether a connection is handed over to the node that has what it asks for, so that this one answers the client itself:
    /// "off" (replies are relayed), "auto" (where this machine can; `larder doctor` says whether), "required" (or the node does
    /// not start).
    pub(crate) handoff: String,
    /// Requests for less are relayed all the same, and as much again is asked for each later request that is expected on the
    /// connection, by what the node has seen of others; "0B" hands all over. Less than `large_min`.
    pub(crate) handoff_min: Size,
    /// Where clients connect to, of all nodes, the same list on each: "address:port", at most 64. A node has its own on the
    /// interface that takes clients' packets, and those of the others on its loopback interface. Required with `handoff`.
    #[schemars(example = "10.0.1.11:80")]
    pub(crate) handoff_services: Texts,
    /// TCP port of the nodes' handoff channels, at the address of `listen`; the same on all nodes. 1 to 65535.
    pub(crate) handoff_port: u16,
    /// What nodes go by that ask one of them (CARD).
    pub(crate) card: RawCard,
    /// What nodes go by that have a routing table (WARD).
    pub(crate) ward: RawTables,
}

/// `[node.peers.card]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCard {
    /// How the dispatcher decides, one of the switch's policies that go by targets and connections.
    #[schemars(extend("enum" = BY_CONNECTIONS.map(PolicyKind::name)))]
    pub(crate) policy: String,
    /// Connections below which a node has room to spare. 1 to 100000.
    pub(crate) t_low: u32,
    /// Connections above which a node is to be relieved. Above t_low, to 100000.
    pub(crate) t_high: u32,
    /// How long a target's set of nodes must have been unchanged before it shrinks. At most a year.
    pub(crate) replication_decay: Span,
    /// Targets that the dispatcher remembers; some 60 bytes each. 1 to 4294967296.
    pub(crate) targets_max: usize,
    /// Longer than this no request waits for the dispatcher; then it is served where it arrived. 1ms to 10s.
    pub(crate) patience: Span,
    /// A dispatcher that was silent is asked again after this time. 10ms to 1m.
    pub(crate) retry: Span,
    /// Requests that wait for the dispatcher at most; further ones are served where they arrived. 1 to 1000000.
    pub(crate) waiting_max: usize,
}

/// `[node.peers.ward]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTables {
    /// File of a routing table, as `larder trace ward --names .. --output` writes it. It is read at the start and again when
    /// it changes, and takes the place of the table that the nodes have. Unset: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/lib/larder/www.routes")]
    pub(crate) table: Option<String>,
    /// Host of the table's rows that name none, for nodes before an origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "www.example.com")]
    pub(crate) host: Option<String>,
    /// How often a new table is computed from the nodes' own traffic, such as "15m" or "24h"; "off" for never. 1s to 31d.
    pub(crate) refresh: String,
    /// Requests counted at one node after which the first table is computed. 1 to 1000000000.
    pub(crate) first_requests: u64,
    /// After the last change of who is there, a new table is computed. 100ms to 1h.
    pub(crate) settle: Span,
    /// Memory of this node's cache that a table may count on. Unset: `cache.size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "8GiB")]
    pub(crate) memory: Option<Size>,
    /// Price of a forwarded request in microseconds. 0 to 1000000.
    pub(crate) forward_us: f64,
    /// Extra time of a byte from disk over memory in microseconds. 0 to 1000000.
    pub(crate) disk_us_per_byte: f64,
    /// How much of a target's count goes over into the next period. 0 to 1.
    pub(crate) carry: f64,
    /// Targets counted, and in a table, at most; beyond that the least requested are left out. The same on all nodes. 64 to
    /// 100000000.
    pub(crate) targets_max: usize,
    /// Where targets go that the table does not have: "hash", to a node that their hash names, or "here", where they are
    /// asked for, as in the paper.
    #[schemars(extend("enum" = ["hash", "here"]))]
    pub(crate) unnamed: String,
}

/// The policies that need to know no more than a dispatcher among peers does.
pub(super) const BY_CONNECTIONS: [PolicyKind; 11] = [
    PolicyKind::LardR,
    PolicyKind::Lard,
    PolicyKind::Random,
    PolicyKind::Rr,
    PolicyKind::Wrr,
    PolicyKind::LeastConn,
    PolicyKind::Hash,
    PolicyKind::Bounded,
    PolicyKind::Maglev,
    PolicyKind::Rendezvous,
    PolicyKind::P2c,
];

impl Default for RawPeers {
    fn default() -> Self {
        let press = PressSettings::default();
        Self {
            listen: Texts::default(),
            advertise: None,
            secret: String::new(),
            seeds: Texts::default(),
            policy: "press".to_owned(),
            overload: press.overload,
            large_min: None,
            load_step: press.load_step,
            gather: Span(press.gather),
            share_above: f64::from(press.sharing.on_permille) / 1_000.0,
            alone_below: f64::from(press.sharing.off_permille) / 1_000.0,
            window: press.sharing.window,
            targets_max: press.targets_max,
            head_timeout: Span(Duration::from_secs(10)),
            handoff: "off".to_owned(),
            handoff_min: Size(larder_core::Bytes::kib(16)),
            handoff_services: Texts::default(),
            handoff_port: 7951,
            card: RawCard::default(),
            ward: RawTables::default(),
        }
    }
}

impl Default for RawCard {
    fn default() -> Self {
        let CardSettings { patience, retry, waiting_max, dispatcher, .. } = CardSettings::default();
        Self {
            policy: dispatcher.policy.to_string(),
            t_low: dispatcher.t_low,
            t_high: dispatcher.t_high,
            replication_decay: Span(dispatcher.replication_decay),
            targets_max: dispatcher.targets_max,
            patience: Span(patience),
            retry: Span(retry),
            waiting_max,
        }
    }
}

impl Default for RawTables {
    /// The paper's prices (WARD, section 3.2) and its shorter period (section 3.4).
    fn default() -> Self {
        let WardSettings { first_requests, settle, targets_max, .. } = WardSettings::default();
        let costs = WardCosts::ward01();
        Self {
            table: None,
            host: None,
            refresh: "15m".to_owned(),
            first_requests,
            settle: Span(settle),
            memory: None,
            forward_us: costs.forward_us,
            disk_us_per_byte: costs.disk_us_per_byte,
            carry: 0.5,
            targets_max,
            unnamed: "hash".to_owned(),
        }
    }
}
