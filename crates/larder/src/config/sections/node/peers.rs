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
use crate::config::sections::node::peers_profile::with_profile;
use crate::config::text::{Size, Span, Texts};
use crate::config::values::addresses;
use crate::config::words::choice;

keys! {
    /// `[node.peers]`.
    table PeersSection, press = PressSettings::default();

    /// Address that peers connect to, TCP and UDP: "address:port". Required.
    listen: Texts, example "10.0.0.11:7950";
    /// Address that peers use to reach this node. Required if `listen` is a wildcard address. Unset: `listen`.
    advertise: Option<String>, example "10.0.0.11:7950";
    /// File with the secret that all nodes of the cluster share, readable by its owner only. `larder keys new FILE`
    /// makes it. A second line may contain another accepted secret, for rotation. It is read at each reload.
    /// Required.
    secret: String, example "/etc/larder/cluster.key", reload true;
    /// Addresses of other nodes: "host:port". Names, such as a headless service of Kubernetes, are resolved
    /// repeatedly, and all their addresses count. Empty: this node waits for others to connect.
    seeds: Texts, entries 256, example "larder-peers.default.svc:7950";
    /// Policy of the cluster, the same on all nodes. "press": each node decides by what its peers have in memory.
    /// "card": one node decides for all, by a policy of the switch. "ward": each node decides by a common routing
    /// table.
    policy: PeersKind = PeersKind::Press;
    /// Settings of the policy. "own": those of this section. "paper": as published, for comparisons. Under "press": T of 80,
    /// large objects from 128 KiB on, changes sent at once, reads not announced, loads compared as reported, no way back to working alone, no
    /// handoff. Under "ward": targets that are not in the table are served where they are requested. A table is
    /// computed each day, and after changes of the membership, from the requests since the last one.
    profile: PeersProfile = PeersProfile::Own;
    /// T of PRESS: number of connections above which a node is overloaded, so that its targets get further servers.
    overload: u32 = press.overload, range "1 to 1000000", when "policy = press";
    /// PRESS: size from which on objects are served where they are requested, and no node stores them. Unset: a 64th
    /// of `cache.size`.
    large_min: Option<Size>, range "1B or more", when "policy = press", example "16MB";
    /// PRESS: difference to the last sent load at which a node sends its load again.
    load_step: u32 = press.load_step, range "1 to 10000", when "policy = press";
    /// PRESS: time for which changes of the memory are gathered before they are sent. 0s sends each change at once.
    gather: Span = Span(press.gather), range "0s to 10s", when "policy = press";
    /// PRESS: share of its clients' requests that miss, above which a node begins to share with its peers. Until then
    /// it works alone. 0, with alone_below 0: it always shares.
    share_above: f64 = f64::from(press.sharing.on_permille) / 1_000.0, range "0 to 1", when "policy = press";
    /// PRESS: share of misses below which a node works alone again, in 16 consecutive windows.
    alone_below: f64 = f64::from(press.sharing.off_permille) / 1_000.0, range "0 to share_above",
        when "policy = press";
    /// PRESS: number of requests in a window.
    window: u32 = press.sharing.window, range "10 to 1000000", when "policy = press";
    /// PRESS: number of targets with known servers, about 60 bytes each.
    targets_max: usize = press.targets_max, range "1000 to 100000000", when "policy = press";
    /// Time for the peer that has a target to begin its reply. After it, the request is served where it arrived.
    head_timeout: Span = Span(Duration::from_secs(10)), range "10ms to 10m";
    /// Whether a connection moves to the peer that has its target, which then replies to the client directly. "off":
    /// replies are relayed. "auto": if this machine supports it, see `larder doctor`. "required": else the node does
    /// not start.
    handoff: PeersHandoff = PeersHandoff::Off;
    /// Size of a reply below which it is relayed instead. Each later request that is expected on the connection adds
    /// the same size. "0B" hands off all connections. Below large_min.
    handoff_min: Size = Size(larder_core::Bytes::kib(16));
    /// Addresses that clients connect to, of all nodes, as "address:port"; the list is the same on each node. A node
    /// has its own address on the interface for clients, and the others on its loopback interface. Required with
    /// `handoff`.
    handoff_services: Texts, entries HANDOFF_SERVICES_MAX, when "handoff", example "10.0.1.11:80";
    /// TCP port of the handoff channels at the address of `listen`, the same on all nodes.
    handoff_port: u16 = 7951, range "1 to 65535", when "handoff";
    /// Settings of policy = "card", where one node decides for all.
    card: CardSection, when "policy = card";
    /// Settings of policy = "ward", where nodes use a common routing table.
    ward: TablesSection, when "policy = ward";
}

keys! {
    /// `[node.peers.card]`.
    table CardSection, CardSettings { patience, retry, waiting_max, dispatcher, .. } = CardSettings::default();

    /// Policy of the dispatcher: a policy of the switch that needs only targets and connections.
    #[schemars(extend("enum" = BY_CONNECTIONS.map(PolicyKind::name)))]
    policy: String = dispatcher.policy.to_string(), when "used";
    /// T_low: number of connections below which a node has spare capacity.
    t_low: u32 = dispatcher.t_low, range "1 to 100000";
    /// T_high: number of connections above which a node is overloaded. Above t_low.
    t_high: u32 = dispatcher.t_high, range "2 to 100000";
    /// Time for which a target's server set must be unchanged before it shrinks.
    replication_decay: Span = Span(dispatcher.replication_decay), range "0s to 366d";
    /// Number of targets that the dispatcher stores, about 60 bytes each.
    targets_max: usize = dispatcher.targets_max, range "1 to 4294967296";
    /// Longest time that a request waits for the dispatcher. After it, the request is served where it arrived.
    patience: Span = Span(patience), range "1ms to 10s";
    /// Time after which a silent dispatcher is asked again.
    retry: Span = Span(retry), range "10ms to 1m";
    /// Number of requests that wait for the dispatcher. Further requests are served where they arrived.
    waiting_max: usize = waiting_max, range "1 to 1000000";
}

keys! {
    /// `[node.peers.ward]`.
    table TablesSection,
        WardSettings { first_requests, settle, targets_max, .. } = WardSettings::default(),
        costs = WardCosts::ward01();

    /// File of a routing table, as `larder trace ward --names .. --output` writes it. It is read at the start and
    /// when it changes. It replaces the table in use. Unset: none.
    table: Option<String>, example "/var/lib/larder/www.routes";
    /// Host of table rows that name no host, for nodes before an origin.
    host: Option<String>, example "www.example.com";
    /// Interval at which a new table is computed from the nodes' own traffic, such as "15m" or "24h". "off": never.
    refresh: String = "15m".to_owned(), range "1s to 31d, or \"off\"";
    /// Number of requests at one node after which the first table is computed, and fewest requests for any table.
    first_requests: u64 = first_requests, range "1 to 1000000000";
    /// Time after the last change of the membership until a new table is computed.
    settle: Span = Span(settle), range "100ms to 1h";
    /// Size of this node's cache that a table may use. Unset: `cache.size`.
    memory: Option<Size>, example "8GiB";
    /// Cost of a forwarded request in microseconds.
    forward_us: f64 = costs.forward_us, range "0 to 1000000";
    /// Additional time of a byte from disk over memory, in microseconds.
    disk_us_per_byte: f64 = costs.disk_us_per_byte, range "0 to 1000000";
    /// Share of a target's count that is carried into the next period.
    carry: f64 = 0.5, range "0 to 1";
    /// Number of targets that are counted, and of targets in a table, the same on all nodes. Beyond it, the least
    /// requested are left out.
    targets_max: usize = targets_max, range "64 to 100000000";
    /// Rule for targets that are not in the table: "hash" sends them to a node by their hash. "here" serves them
    /// where they are requested, as in the paper.
    #[schemars(extend("enum" = ["hash", "here"]))]
    unnamed: String = "hash".to_owned();
}

/// Policies that a dispatcher among peers can use: they need only targets and connections.
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
    /// The words of `node.peers.profile`.
    PeersProfile { Own, Paper }
}

choice! {
    /// The words of `node.peers.handoff`.
    PeersHandoff { Off, Auto, Required }
}

/// Membership in a cluster of equal nodes, valid.
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
    /// Returns the largest object that a node of this cluster stores.
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
    let raw = &with_profile(raw)?;
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
        return Err(Fault::new("node.peers.advertise", "missing: an address of this node for its peers")
            .hint(format!("write the address that peers reach it by, such as \"{EXAMPLE}\"")));
    }
    if raw.secret.is_empty() {
        return Err(Fault::new("node.peers.secret", "missing: the secret that all peers share")
            .hint("name a file made by `larder keys new FILE`, the same on all nodes"));
    }
    if name == NodeSection::default().name {
        return Err(Fault::new("node.name", "missing: peers need a name that is unique in the cluster")
            .hint("write a name that no other node of the cluster has"));
    }
    let name =
        name.parse().map_err(|error| Fault::new("node.name", format!("invalid name for peers: {error}")))?;
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
        announce_reads: raw.profile == PeersProfile::Own,
        count_forwarded: raw.profile == PeersProfile::Own,
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
