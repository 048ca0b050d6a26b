//! Tests of the edge with a datapath that only records calls.

mod edits;
mod ends;
mod gates;
mod moves;
mod reloads;
mod slots;

use super::accepted::AcceptedDelivery;
use super::channels::{NodeChannels, UP_FOR_TESTS};
use super::config::{Encapsulation, HandoffConfig, NodeHandoff, RESEND_MIN};
use super::datapath::{Datapath, DatapathEvent, Destination, NodeLink, ReusableDecision};
use super::edge::Edge;
use super::mechanism::{Mechanism, MechanismSetting};
use crate::config::SwitchConfig;
use crate::decider::ForwardingPlane;
use crate::lock::lock;
use crate::node::NodeCondition;
use crate::node_entry::NodeEntry;
use crate::shared::Shared;
use larder_core::dispatch::Admission;
use larder_core::handoff::Input;
use larder_core::{NodeId, NodeSpec, NodeState, PolicyKind, Refusal, Settings, Time};
use larder_handoff::channel::client::ChannelEvent;
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{ConnectionId, CookieKeys, FromNode, Hello};
use larder_kernel::abi::{self, flow_flag, flow_state};
use larder_kernel::plane::{FlowTotals, SlotOwner};
use larder_kernel::{CookieKey, FlowKey};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Recorded calls and prepared events of the datapath.
#[derive(Debug, Default)]
struct Recording {
    flows: BTreeMap<FlowKey, Destination>,
    /// Connections that the plane holds, with first sequence number 1.
    holds: Vec<FlowKey>,
    forwarded: Vec<(NodeId, usize)>,
    accepted: Vec<usize>,
    targets: Vec<(u64, ReusableDecision)>,
    removed: Vec<FlowKey>,
    idle: Vec<FlowKey>,
    reset: Vec<FlowKey>,
    /// Acknowledgement numbers of the resets.
    reset_at: Vec<Option<u32>>,
    seen_ns: BTreeMap<FlowKey, u64>,
    opened_ns: BTreeMap<FlowKey, u64>,
    flags: BTreeMap<FlowKey, u8>,
    /// Openings by the fast path that the plane has not reported yet.
    unreported: Vec<(FlowKey, ReusableDecision)>,
    /// Connections that end right after the flow table was read.
    end_meanwhile: Vec<FlowKey>,
    now_ns: u64,
    /// Limit of each gate, and whether it is open.
    gates: BTreeMap<Option<NodeId>, (u32, bool)>,
    /// Counted connections at each gate, and those of the fast path among them.
    bases: BTreeMap<Option<NodeId>, (u32, u32)>,
    /// The bases when the latest flow was added.
    bases_then: BTreeMap<Option<NodeId>, (u32, u32)>,
    /// Events to report, in order. Opened connections count at once.
    to_report: VecDeque<PreparedEvent>,
    opened: u32,
    /// Nodes whose links are closed.
    closed: Vec<NodeId>,
    owners: BTreeMap<NodeId, SlotOwner>,
    taken_off: bool,
    /// Connections that the hosts of their clients have reset.
    denied: Vec<FlowKey>,
    /// Whether the flow table is full.
    full: bool,
    /// Time that setting a link takes.
    link_takes: Duration,
    links_begun: usize,
    /// Events that appear after the first read.
    late: VecDeque<PreparedEvent>,
}

/// A prepared event.
#[derive(Clone, Copy, Debug)]
enum PreparedEvent {
    Punt(FlowKey),
    /// The same event, a minute old.
    Stale(FlowKey),
    Opened(FlowKey, ReusableDecision),
    /// Ended by the client's reset.
    Ended(FlowKey),
}

#[derive(Clone, Debug, Default)]
struct RecordingDatapath(Arc<Mutex<Recording>>);

impl Datapath for RecordingDatapath {
    fn put_flow(&self, key: FlowKey, to: Destination) -> io::Result<()> {
        let mut notes = lock(&self.0);
        if notes.full {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let now = notes.now_ns;
        notes.holds.retain(|held| *held != key);
        notes.bases_then = notes.bases.clone();
        notes.flows.insert(key, to);
        notes.seen_ns.insert(key, now);
        notes.opened_ns.entry(key).or_insert(now);
        Ok(())
    }

    fn add_flow(&self, key: FlowKey, node: NodeId) -> io::Result<()> {
        if self.flow(key).is_some() { Ok(()) } else { self.put_flow(key, Destination::Node(node)) }
    }

    fn note_frozen(&self, _key: FlowKey, _seq: u32, _ack: u32) {}

    fn remove_flow(&self, key: FlowKey) {
        let mut notes = lock(&self.0);
        notes.flows.remove(&key);
        notes.opened_ns.remove(&key);
        notes.removed.push(key);
    }

    fn flow(&self, key: FlowKey) -> Option<abi::Flow> {
        let notes = lock(&self.0);
        if notes.holds.contains(&key) {
            return Some(abi::Flow { state: flow_state::HOLD, first_seq: 1, ..Default::default() });
        }
        let (state, node) = match notes.flows.get(&key)? {
            Destination::Node(node) => (flow_state::NODE, node.0),
            Destination::Here => (flow_state::LOCAL, abi::NO_NODE),
        };
        let seen_ns = notes.seen_ns.get(&key).copied().unwrap_or(0);
        Some(abi::Flow {
            state,
            node,
            seen_ns,
            opened_ns: notes.opened_ns.get(&key).copied().unwrap_or(0),
            flags: notes.flags.get(&key).copied().unwrap_or(0),
            first_ack: 1,
            last_ack: 1_002,
            requests: 1,
            packets: 3,
            denied: notes.denied.contains(&key).into(),
            ..Default::default()
        })
    }

    fn each_flow(&self, visit: &mut dyn FnMut(FlowKey, abi::Flow)) {
        let keys: Vec<FlowKey> = lock(&self.0).flows.keys().copied().collect();
        for key in keys {
            if let Some(flow) = self.flow(key) {
                visit(key, flow);
            }
        }
        let ended = std::mem::take(&mut lock(&self.0).end_meanwhile);
        ended.into_iter().for_each(|key| self.set_ended(key));
    }

    fn set_ended(&self, key: FlowKey) {
        *lock(&self.0).flags.entry(key).or_default() |= flow_flag::CLIENT_FIN | flow_flag::END_REPORTED;
    }

    fn set_resumed(&self, key: FlowKey) {
        lock(&self.0).flags.remove(&key);
    }

    fn set_idle(&self, key: FlowKey) {
        lock(&self.0).idle.push(key);
    }

    fn forward(&self, node: NodeId, packet: &[u8]) -> io::Result<()> {
        lock(&self.0).forwarded.push((node, packet.len()));
        Ok(())
    }

    fn accept_here(&self, packet: &[u8]) -> io::Result<()> {
        lock(&self.0).accepted.push(packet.len());
        Ok(())
    }

    fn put_target(&self, head: u64, reusable: &ReusableDecision, _lasts: Duration) {
        lock(&self.0).targets.push((head, *reusable));
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        lock(&self.0).gates.insert(node, (limit, usable));
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        lock(&self.0).bases.insert(node, (base, seen));
    }

    fn set_link(&self, _node: NodeId, _link: &NodeLink, _forward: Encapsulation) -> io::Result<()> {
        let takes = {
            let mut notes = lock(&self.0);
            notes.links_begun += 1;
            notes.link_takes
        };
        larder_testkit::take_time(takes);
        Ok(())
    }

    fn owner(&self, node: NodeId) -> Option<SlotOwner> {
        Some(lock(&self.0).owners.get(&node).copied().unwrap_or_default())
    }

    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool) {
        let since = after_another.then_some(Duration::ZERO);
        lock(&self.0).owners.insert(node, SlotOwner { key, since });
    }

    fn close_link(&self, node: NodeId) -> io::Result<()> {
        lock(&self.0).closed.push(node);
        Ok(())
    }

    fn set_keys(&self, _keys: &[CookieKey; 2], _current: usize) {}

    fn set_expired_keys(&self, _keys: &[CookieKey]) {}

    fn reset_client_at(&self, key: FlowKey, ack: Option<u32>) -> io::Result<()> {
        lock(&self.0).reset.push(key);
        lock(&self.0).reset_at.push(ack);
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        lock(&self.0).now_ns
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn read_events(&self, visit: &mut dyn FnMut(DatapathEvent<'_>)) -> usize {
        let unreported = std::mem::take(&mut lock(&self.0).unreported);
        unreported
            .iter()
            .for_each(|&(key, reused)| visit(DatapathEvent::Opened { key, reused, age: Duration::ZERO }));
        let prepared_events = std::mem::take(&mut lock(&self.0).to_report);
        for prepared in &prepared_events {
            match *prepared {
                PreparedEvent::Punt(key) | PreparedEvent::Stale(key) => {
                    let age =
                        Duration::from_secs(if matches!(prepared, PreparedEvent::Stale(_)) { 60 } else { 0 });
                    let packet = super::frame::tests::frame(1, GET, false);
                    visit(DatapathEvent::Punt { key, first: true, head: None, packet: &packet, age });
                }
                PreparedEvent::Opened(key, reused) => {
                    visit(DatapathEvent::Opened { key, reused, age: Duration::ZERO });
                }
                PreparedEvent::Ended(key) => visit(ended(key, flow_flag::CLIENT_RST)),
            }
        }
        let mut notes = lock(&self.0);
        let late = std::mem::take(&mut notes.late);
        notes.opened +=
            late.iter().filter(|prepared| matches!(prepared, PreparedEvent::Opened(..))).count() as u32;
        notes.to_report.extend(late);
        unreported.len() + prepared_events.len()
    }

    fn opened(&self, _node: Option<NodeId>) -> u32 {
        lock(&self.0).opened
    }

    fn start(&self) -> io::Result<()> {
        Ok(())
    }

    fn enable_resets(&self) {}

    fn close(&self) {}

    fn uninstall(&self) {
        lock(&self.0).taken_off = true;
    }
}

pub(super) struct Bench {
    pub(super) shared: Arc<Shared>,
    pub(super) edge: Arc<Edge>,
    datapath: RecordingDatapath,
    /// Messages of nodes, until a task takes the receiver.
    messages: Option<tokio::sync::mpsc::Receiver<ChannelEvent>>,
}

impl Bench {
    pub(super) fn new(change: impl FnOnce(&mut SwitchConfig)) -> Self {
        let identity = Identity::generate().expect("randomness");
        let key = identity.public();
        let entry = |n: u8| NodeEntry {
            handoff: Some(NodeHandoff { control: "127.0.0.1:9".to_owned(), key }),
            ..NodeEntry::new(NodeSpec::named(format!("n{n}")), "127.0.0.1:9")
        };
        let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 80).into()], vec![entry(0), entry(1)]);
        config.settings.policy = PolicyKind::LardR;
        config.threads = 2;
        config.handoff = HandoffConfig {
            setting: MechanismSetting::Auto,
            identity: Some(identity),
            // An incomplete header is held throughout a test.
            header_wait: Duration::from_secs(3600),
            ..HandoffConfig::default()
        };
        change(&mut config);
        let listen = config.listen.clone();
        let handoff = config.handoff.clone();
        let mut shared =
            Shared::new(config, tokio::sync::mpsc::unbounded_channel().0, crate::clock::Clock::start())
                .expect("a valid config");
        let hello = Hello {
            name: "s".to_owned(),
            tag: 0,
            keys: CookieKeys::new([CookieKey([0; 2]); 2], 0),
            services: Vec::new(),
            tunnel: None,
        };
        let (channels, messages) = NodeChannels::new(8, handoff.identity.clone(), hello);
        for node in [NodeId(0), NodeId(1)] {
            channels.set_bits(node, UP_FOR_TESTS);
        }
        let datapath = RecordingDatapath::default();
        let parts = super::SwitchParts {
            decider: shared.decider.clone(),
            observers: shared.observers.clone(),
            timeouts: shared.timeouts.clone(),
        };
        let edge = Arc::new(Edge::new(handoff, Box::new(datapath.clone()), listen, channels, parts));
        let plane: Arc<dyn ForwardingPlane> = edge.clone();
        let _ = shared.decider.plane.set(Arc::downgrade(&plane));
        shared.handoff = Some(edge.clone());
        Self { shared: Arc::new(shared), edge, datapath, messages: Some(messages) }
    }

    pub(super) fn punt(&self, key: FlowKey, first: bool, seq: u32, payload: &[u8]) {
        let packet = super::frame::tests::frame(seq, payload, false);
        self.report(DatapathEvent::Punt {
            key,
            first,
            head: first.then_some(99),
            packet: &packet,
            age: Duration::ZERO,
        });
    }

    pub(super) fn report(&self, event: DatapathEvent<'_>) {
        if matches!(event, DatapathEvent::Opened { .. }) {
            self.notes(|notes| notes.opened += 1);
        }
        self.edge.enqueue(event);
        self.edge.process_events();
    }

    /// Reports that a connection has ended at a node.
    fn node_ended(&self, key: FlowKey, first_seq: u32, node: NodeId) {
        self.edge.handle_input(Input::Closed { node, key, first_seq });
    }

    /// Reports all connections of a node, requested at `as_of`.
    fn reconcile(&self, node: NodeId, live: &HashSet<FlowKey>, as_of: Time) {
        self.edge.handle_input_at(as_of, Input::Up { node });
        let connections = live.iter().map(|key| (*key, 0)).collect();
        self.edge.handle_input(Input::Listed { node, connections, last: true });
        while lock(&self.edge.machine).has_lists() {
            self.edge.handle_input(Input::CompareList);
        }
    }

    /// Returns the number of moves in progress.
    fn moves(&self) -> usize {
        lock(&self.edge.machine).moves()
    }

    pub(super) fn load(&self) -> u32 {
        self.edge.decider.dispatcher.nodes().rows().iter().map(|row| row.load).sum()
    }

    fn notes<R>(&self, look: impl FnOnce(&mut Recording) -> R) -> R {
        look(&mut lock(&self.datapath.0))
    }

    fn delivered(&self) -> Vec<(&'static str, &'static str, u64)> {
        let all = self.edge.counts.deliveries();
        all.map(|(delivery, count)| (delivery.mechanism.name(), delivery.reason.name(), count)).collect()
    }
}

pub(super) fn key(port: u16) -> FlowKey {
    FlowKey::new(([192, 0, 2, 1], port).into(), 0)
}

pub(super) const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

/// Returns the event for a client that has received 1,000 bytes.
fn ended(key: FlowKey, flags: u8) -> DatapathEvent<'static> {
    DatapathEvent::Ended {
        key,
        flags,
        account: FlowTotals { acknowledged: 1_001, requests: 1 },
        age: Duration::ZERO,
    }
}

/// The client may have resent its first packet to another switch, which has given the connection to a node. A switch that
/// shares its secret with no other switch serves it.
#[tokio::test]
async fn late_first_packets_are_dropped_if_switches_share_connections() {
    let late = RESEND_MIN + Duration::from_millis(1);
    let punt = |bench: &Bench, first: bool, age: Duration| {
        let packet = super::frame::tests::frame(1, GET, false);
        bench.report(DatapathEvent::Punt { key: key(1), first, head: None, packet: &packet, age });
        bench.edge.sizes()
    };
    let alone = Bench::new(|_| {});
    assert_eq!((punt(&alone, true, late), alone.edge.counts.losses()), ((0, 1, 0), [0; 3]));
    let bench = Bench::new(|config| config.handoff.secret = Some("secret".into()));
    assert_eq!(punt(&bench, true, RESEND_MIN), (0, 1, 0), "the next connection with these addresses ends it");
    bench.notes(|notes| notes.holds.push(key(1)));
    assert_eq!((punt(&bench, true, late), bench.load()), ((0, 0, 0), 0));
    assert_eq!(punt(&bench, false, late), (0, 0, 0), "resent to this switch, and late again");
    assert_eq!(bench.edge.counts.losses(), [0, 2, 0]);
    assert_eq!(punt(&bench, false, Duration::ZERO), (0, 1, 0), "resent to this switch");
}

#[tokio::test]
async fn a_whole_request_goes_to_its_node_and_counts_until_it_ends() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 7, GET);
    let node = bench.notes(|notes| {
        let Destination::Node(node) = notes.flows[&key(1)] else { panic!("{notes:?}") };
        assert_eq!(notes.forwarded, [(node, 54 + GET.len())]);
        let (head, reusable) = notes.targets[0];
        assert_eq!((head, reusable.node, reusable.service), (99, node, 0));
        node
    });
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    // A packet that was handed over before the decision took effect follows the others.
    bench.punt(key(1), false, 7 + GET.len() as u32, b"x");
    assert_eq!(bench.notes(|notes| notes.forwarded.len()), 2);
    bench.report(ended(key(1), flow_flag::CLIENT_FIN));
    assert_eq!(bench.load(), 1, "a half-closed client still waits for its reply");
    bench.node_ended(key(1), 0, NodeId(1 - node.0));
    assert_eq!(bench.load(), 1, "another node says nothing about it");
    bench.node_ended(key(1), 0, node);
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    assert_eq!(bench.delivered(), [("cookie", "cookie", 1)]);
    let target = bench.notes(|notes| notes.targets[0].1.target);
    assert_eq!(bench.edge.history.reply_bytes(target), Some(1_000), "what the client has acknowledged");
}

#[tokio::test]
async fn a_node_that_shuts_down_gets_nothing_new() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 7, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    let state = || bench.edge.decider.dispatcher.nodes().state(node);
    bench.edge.node_shutting_down(node);
    assert_eq!((state(), bench.notes(|notes| notes.gates[&Some(node)].1)), (NodeState::Draining, false));
    bench.punt(key(2), true, 7, GET);
    assert_ne!(bench.notes(|notes| notes.forwarded[1].0), node);
    // Its kernel keeps sending data that clients have not acknowledged.
    bench.edge.node_down(node, "closed");
    bench.edge.drop_dead_nodes(false);
    assert_eq!((state(), bench.notes(|notes| notes.reset.clone())), (NodeState::Draining, vec![]));
    // The node returns only if it answers.
    let member = bench.edge.decider.nodes.get(node).expect("a member").to_arc().expect("a member");
    bench.edge.decider.change_condition(&member, "a test", |condition| condition.healthy = false);
    assert_eq!(state(), NodeState::Down);
    bench.edge.decider.change_condition(&member, "a test", NodeCondition::mark_healthy);
    assert_eq!(state(), NodeState::Up);
}

#[tokio::test]
async fn a_request_in_pieces_is_reassembled() {
    let bench = Bench::new(|_| {});
    for at in 1..GET.len() {
        let key = key(at as u16);
        bench.punt(key, true, 1, &GET[..at]);
        assert_eq!(bench.edge.sizes().0, 1, "held");
        bench.punt(key, false, 1 + at as u32, &GET[at..]);
        assert!(bench.notes(|notes| matches!(notes.flows[&key], Destination::Node(_))), "cut at {at}");
    }
    assert_eq!(bench.notes(|notes| notes.forwarded.len()), 2 * (GET.len() - 1));
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_header_is_accepted_here() {
    let bench = Bench::new(|config| config.handoff.header_wait = Duration::from_millis(2));
    bench.punt(key(1), true, 1, &GET[..5]);
    let now = bench.edge.decider.clock.now();
    assert!(lock(&bench.edge.machine).due().is_some_and(|due| due <= now + Duration::from_millis(2)));
    bench.edge.tick(now + Duration::from_millis(2));
    assert_eq!(bench.notes(|notes| (notes.accepted.len(), notes.flows[&key(1)])), (1, Destination::Here));
    let placed =
        bench.edge.take_pending_accept(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!(placed.delivery.reason.name(), "incomplete");
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_admission_limit_are_held() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (1, 1, 0)));
    bench.punt(key(2), false, 1 + GET.len() as u32, b"GET ");
    bench.report(ended(key(1), flow_flag::CLIENT_RST));
    larder_testkit::take_time_async(Duration::from_millis(1)).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    assert!(bench.notes(|notes| matches!(notes.flows[&key(2)], Destination::Node(_)) && notes.forwarded.len() == 3));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_held_leaves_no_load() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    bench.report(ended(key(2), flow_flag::CLIENT_RST));
    bench.node_ended(key(1), 0, bench.notes(|notes| notes.forwarded[0].0));
    larder_testkit::take_time_async(Duration::from_millis(1)).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn connections_beyond_the_hold_limit_are_accepted_here() {
    let bench = Bench::new(|config| {
        config.settings.admission = Admission::Fixed(1);
        config.handoff.hold_max = 1;
    });
    for port in 1..=3 {
        bench.punt(key(port), true, 1, GET);
    }
    assert_eq!(bench.notes(|notes| notes.flows.get(&key(3)).copied()), Some(Destination::Here));
    let placed =
        bench.edge.take_pending_accept(key(3).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!(placed.delivery.reason.name(), "hold_full");
}

/// All packets of all held connections together have a limit too.
#[tokio::test]
async fn held_packets_have_a_limit_in_bytes() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    let payload = vec![b'x'; 60_000];
    let mut held = 0;
    while bench.edge.sizes().0 == 1 {
        held += payload.len();
        assert!(held <= super::parts::HELD_BYTES_MAX + payload.len(), "{held}");
        bench.punt(key(2), false, 1 + GET.len() as u32, &payload);
    }
    assert!(held > super::parts::HELD_BYTES_MAX / 2, "{held}");
    let accepted = bench.notes(|notes| (notes.flows[&key(2)], notes.accepted.iter().sum::<usize>()));
    assert!(accepted.0 == Destination::Here && accepted.1 > held);
    let placed =
        bench.edge.take_pending_accept(key(2).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!(placed.delivery.reason.name(), "hold_full");
    bench.punt(key(3), true, 1, GET);
    assert_eq!(bench.edge.sizes().0, 1, "there is room again");
}

/// A connection that has waited in vain is not made to wait again: it comes with its refusal.
#[tokio::test]
async fn a_refusal_comes_with_its_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let bench = Bench::new(|config| {
        config.listen = vec![address];
        config.settings.admission = Admission::Fixed(1);
        config.settings.queue_timeout = Duration::from_millis(1);
    });
    let client = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let (accepted, from) = listener.accept().await.expect("the connection");
    let key = FlowKey::new(client.local_addr().expect("an address"), 0);
    bench.punt(self::key(1), true, 1, GET);
    bench.punt(key, true, 1, GET);
    let mut expired = Vec::new();
    bench.edge.decider.dispatcher.expire(larder_core::Time::MAX, &mut expired);
    bench.edge.decider.waiters.expire(&expired);
    while bench.edge.sizes().2 == 0 {
        tokio::task::yield_now().await;
    }
    let AcceptedDelivery::Relay(_, delivery, outcome) = bench.edge.deliver(accepted, from).await else {
        panic!("it is relayed");
    };
    assert_eq!(delivery.reason.name(), "refused");
    assert!(matches!(outcome, Some(Err(Refusal::Deadline))), "{outcome:?}");
    assert_eq!(bench.edge.decider.dispatcher.queued(), 0);
}
