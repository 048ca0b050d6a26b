//! `[node.peers]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::peers::{CardSettings, PressSettings, SharingSettings, WardSettings};
use larder_core::{Bytes, PolicyKind};
use larder_node::HANDOFF_SERVICES_MAX;
use larder_peers::{Name, Seed};
use larder_trace::ward::WardCosts;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::node::NodeSection;
use crate::config::sections::node::peers_handoff::{PeersHandoffRole, handoff};
use crate::config::sections::node::peers_policy::{PeersPolicy, policy};
use crate::config::text::{Size, Span, Texts};
use crate::config::values::addresses;
use crate::config::words::choice;

keys! {
    /// `[node.peers]`.
    table PeersSection, press = PressSettings::default();

    /// Where peers connect to, TCP and UDP: "address:port". Required.
    listen: Texts, example "10.0.0.11:7950";
    /// Where peers reach it, if not at `listen`; needed where that is all addresses.
    advertise: Option<String>, example "10.0.0.11:7950";
    /// File with the secret that all nodes of the cluster share, for its owner only. Made by `larder keys new FILE`. A second
    /// line may hold another secret that is accepted too, so that the secret can be rotated. Read at each reload. Required.
    secret: String, example "/etc/larder/cluster.key", reload true;
    /// Where to look for others: "host:port". A name is resolved again and again and all of its addresses count, such as a
    /// headless service of Kubernetes. None: this node waits to be found.
    seeds: Texts, entries 256, example "larder-peers.default.svc:7950";
    /// Who decides where a request is served, the same on all nodes: "press", each node by what the others say they have in
    /// memory; "card", one node for all, by a policy of the switch; "ward", each node by a routing table that all have.
    policy: PeersKind = PeersKind::Press;
    /// Press: T: connections above which a node is overloaded, so that a target gets a further server.
    overload: u32 = press.overload, range "1 to 1000000", when "policy = press";
    /// Press: objects of this size and more are served by the node that is asked for them, and no node keeps them in memory. By
    /// default a 64th of `cache.size`.
    large_min: Option<Size>, range "1B or more", when "policy = press", example "16MB";
    /// Press: a node tells its load when it differs by so much from what it told last.
    load_step: u32 = press.load_step, range "1 to 10000", when "policy = press";
    /// Press: changes of memory are told together after this time; "0s" tells each at once.
    gather: Span = Span(press.gather), range "0s to 10s", when "policy = press";
    /// Press: a node takes part when more than this share of its clients' requests are not in its memory; before, and with
    /// memory enough, it works by itself. 0, with `alone_below` 0 too: always.
    share_above: f64 = f64::from(press.sharing.on_permille) / 1_000.0, range "0 to 1", when "policy = press";
    /// Press: it works by itself again when less than this share would be missed, 16 times `window` on end.
    alone_below: f64 = f64::from(press.sharing.off_permille) / 1_000.0, range "0 to share_above",
        when "policy = press";
    /// Press: requests after which that is judged.
    window: u32 = press.sharing.window, range "10 to 1000000", when "policy = press";
    /// Press: targets whose servers are known at most; some 60 bytes each.
    targets_max: usize = press.targets_max, range "1000 to 100000000", when "policy = press";
    /// How long the node that has a target may take to begin its reply; then the request is served where it arrived.
    head_timeout: Span = Span(Duration::from_secs(10)), range "10ms to 10m";
    /// Whether a connection is handed over to the node that has what it asks for, so that this one answers the client itself:
    /// "off" (replies are relayed), "auto" (where this machine can; `larder doctor` says whether), "required" (or the node does
    /// not start).
    handoff: PeersHandoff = PeersHandoff::Off;
    /// Requests for less are relayed all the same, and as much again is asked for each later request that is expected on the
    /// connection, by what the node has seen of others; "0B" hands all over. Less than `large_min`.
    handoff_min: Size = Size(larder_core::Bytes::kib(16));
    /// Where clients connect to, of all nodes, the same list on each: "address:port". A node has its own on the interface that
    /// takes clients' packets, and those of the others on its loopback interface. Required with `handoff`.
    handoff_services: Texts, entries HANDOFF_SERVICES_MAX, when "handoff", example "10.0.1.11:80";
    /// TCP port of the nodes' handoff channels, at the address of `listen`; the same on all nodes.
    handoff_port: u16 = 7951, range "1 to 65535", when "handoff";
    /// Settings of nodes that ask one of them (CARD).
    card: CardSection, when "policy = card";
    /// Settings of nodes that have a routing table (WARD).
    ward: TablesSection, when "policy = ward";
}

keys! {
    /// `[node.peers.card]`.
    table CardSection, CardSettings { patience, retry, waiting_max, dispatcher, .. } = CardSettings::default();

    /// How the dispatcher decides, one of the switch's policies that go by targets and connections.
    #[schemars(extend("enum" = BY_CONNECTIONS.map(PolicyKind::name)))]
    policy: String = dispatcher.policy.to_string(), when "used";
    /// Connections below which a node has room to spare.
    t_low: u32 = dispatcher.t_low, range "1 to 100000";
    /// Connections above which a node is to be relieved. Above t_low.
    t_high: u32 = dispatcher.t_high, range "2 to 100000";
    /// How long a target's set of nodes must have been unchanged before it shrinks.
    replication_decay: Span = Span(dispatcher.replication_decay), range "0s to 366d";
    /// Targets that the dispatcher remembers; some 60 bytes each.
    targets_max: usize = dispatcher.targets_max, range "1 to 4294967296";
    /// Longer than this no request waits for the dispatcher; then it is served where it arrived.
    patience: Span = Span(patience), range "1ms to 10s";
    /// A dispatcher that was silent is asked again after this time.
    retry: Span = Span(retry), range "10ms to 1m";
    /// Requests that wait for the dispatcher at most; further ones are served where they arrived.
    waiting_max: usize = waiting_max, range "1 to 1000000";
}

keys! {
    /// `[node.peers.ward]`.
    table TablesSection,
        WardSettings { first_requests, settle, targets_max, .. } = WardSettings::default(),
        costs = WardCosts::ward01();

    /// File of a routing table, as `larder trace ward --names .. --output` writes it. It is read at the start and again when
    /// it changes, and takes the place of the table that the nodes have. Unset: none.
    table: Option<String>, example "/var/lib/larder/www.routes";
    /// Host of the table's rows that name none, for nodes before an origin.
    host: Option<String>, example "www.example.com";
    /// How often a new table is computed from the nodes' own traffic, such as "15m" or "24h"; "off" for never.
    refresh: String = "15m".to_owned(), range "1s to 31d, or \"off\"";
    /// Requests counted at one node after which the first table is computed.
    first_requests: u64 = first_requests, range "1 to 1000000000";
    /// After the last change of who is there, a new table is computed.
    settle: Span = Span(settle), range "100ms to 1h";
    /// Memory of this node's cache that a table may count on. Unset: `cache.size`.
    memory: Option<Size>, example "8GiB";
    /// Price of a forwarded request in microseconds.
    forward_us: f64 = costs.forward_us, range "0 to 1000000";
    /// Extra time of a byte from disk over memory in microseconds.
    disk_us_per_byte: f64 = costs.disk_us_per_byte, range "0 to 1000000";
    /// How much of a target's count goes over into the next period.
    carry: f64 = 0.5, range "0 to 1";
    /// Targets counted, and in a table, at most; beyond that the least requested are left out. The same on all nodes.
    targets_max: usize = targets_max, range "64 to 100000000";
    /// Where targets go that the table does not have: "hash", to a node that their hash names, or "here", where they are
    /// asked for, as in the paper.
    #[schemars(extend("enum" = ["hash", "here"]))]
    unnamed: String = "hash".to_owned();
}

/// The policies that need to know no more than a dispatcher among peers does.
pub(crate) const BY_CONNECTIONS: [PolicyKind; 11] = [
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

choice! {
    /// The words of `node.peers.policy`.
    PeersKind { Press, Card, Ward }
}

choice! {
    /// The words of `node.peers.handoff`.
    PeersHandoff { Off, Auto, Required }
}

/// How a node takes part in a cluster of equal nodes, valid.
#[derive(Clone, Debug)]
pub(crate) struct PeersRole {
    pub(crate) name: Name,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<SocketAddr>,
    /// File with the cluster's secret. Read when the role starts.
    pub(crate) secret: PathBuf,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) policy: PeersPolicy,
    pub(crate) head_timeout: Duration,
    pub(crate) handoff: Option<PeersHandoffRole>,
}

impl PeersRole {
    /// The largest object that a node of this cluster keeps.
    pub(crate) fn object_max(&self) -> Bytes {
        self.policy.large_min().map_or(Bytes(u64::MAX), |large_min| Bytes(large_min.0 - 1))
    }
}

pub(crate) fn peers(
    raw: &PeersSection,
    name: &str,
    memory: Bytes,
    clients: Option<SocketAddr>,
) -> Result<PeersRole, Fault> {
    const EXAMPLE: &str = "10.0.0.11:7950";
    let [listen] = addresses("node.peers.listen", &raw.listen, EXAMPLE)?[..] else {
        return Err(Fault::new("node.peers.listen", "a node listens to peers on one address")
            .hint("write one \"address:port\""));
    };
    let advertise = match &raw.advertise {
        Some(text) => {
            let texts = Texts(vec![text.clone()]);
            addresses("node.peers.advertise", &texts, EXAMPLE)?.first().copied()
        }
        None => None,
    };
    if advertise.unwrap_or(listen).ip().is_unspecified() {
        return Err(Fault::new("node.peers.advertise", "peers must be told an address of this node")
            .hint(format!("write the address that peers reach it by, such as \"{EXAMPLE}\"")));
    }
    if raw.secret.is_empty() {
        return Err(Fault::new("node.peers.secret", "peers must share a secret")
            .hint("name a file made by `larder keys new FILE`, the same on all nodes"));
    }
    if name == NodeSection::default().name {
        return Err(Fault::new("node.name", "peers are known by name, and this one has none of its own")
            .hint("write a name that no other node of the cluster has"));
    }
    let name =
        name.parse().map_err(|error| Fault::new("node.name", format!("no name for peers: {error}")))?;
    let policy = policy(raw, memory)?;
    // Only PRESS serves what is large where it is asked for.
    let large_min = policy.large_min().unwrap_or(Bytes(u64::MAX));
    let handoff = handoff(raw, clients, advertise.unwrap_or(listen), large_min)?;
    Ok(PeersRole {
        name,
        listen,
        advertise,
        secret: PathBuf::from(&raw.secret),
        seeds: seeds(&raw.seeds)?,
        policy,
        head_timeout: raw.head_timeout.0,
        handoff,
    })
}

fn seeds(texts: &Texts) -> Result<Vec<Seed>, Fault> {
    const KEY: &str = "node.peers.seeds";
    let seed = |text: &String| {
        let fault = |error| Fault::new(KEY, format!("'{text}': {error}"));
        text.parse().map_err(fault).map_err(|fault| fault.hint("write it as \"host:7950\""))
    };
    texts.0.iter().map(seed).collect()
}

pub(crate) fn press(raw: &PeersSection, memory: Bytes) -> PressSettings {
    let permille = |share: f64| (share * 1_000.0).round() as u32;
    PressSettings {
        overload: raw.overload,
        large_min: raw.large_min.map_or(Bytes((memory.0 / 64).max(1)), |size| size.0),
        load_step: raw.load_step,
        gather: raw.gather.0,
        targets_max: raw.targets_max,
        memory,
        sharing: SharingSettings {
            on_permille: permille(raw.share_above),
            off_permille: permille(raw.alone_below),
            window: raw.window,
            ..SharingSettings::default()
        },
        ..PressSettings::default()
    }
}
