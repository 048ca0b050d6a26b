//! The edge against a machine that only takes notes.

mod edits;
mod ends;
mod gates;
mod moves;
mod reloads;
mod slots;

use super::config::{Forward, HandoffConfig, NodeHandoff, RESEND_MIN};
use super::edge::Edge;
use super::entrance::Entered;
use super::fabric::{Fabric, Reusable, To, Told, Way};
use super::lock::lock;
use super::mechanism::{Mechanism, MechanismSetting};
use super::peers::{Peers, UP_FOR_TESTS};
use crate::config::SwitchConfig;
use crate::decider::ForwardingPlane;
use crate::node::NodeCondition;
use crate::node_entry::NodeEntry;
use crate::shared::Shared;
use larder_core::dispatch::Admission;
use larder_core::handoff::Input;
use larder_core::{NodeId, NodeSpec, NodeState, PolicyKind, Refusal, Settings, Time};
use larder_handoff::channel::client::Event;
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{FromNode, Hello, Keys, Socket};
use larder_kernel::abi::{self, flow_flag, flow_state};
use larder_kernel::plane::{Account, Owner};
use larder_kernel::{CookieKey, FlowKey};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the machine was told to do.
#[derive(Debug, Default)]
struct Notes {
    flows: BTreeMap<FlowKey, To>,
    /// Connections that the plane holds, from number 1 on.
    holds: Vec<FlowKey>,
    forwarded: Vec<(NodeId, usize)>,
    accepted: Vec<usize>,
    targets: Vec<(u64, Reusable)>,
    removed: Vec<FlowKey>,
    idle: Vec<FlowKey>,
    reset: Vec<FlowKey>,
    /// With these numbers.
    reset_at: Vec<Option<u32>>,
    seen_ns: BTreeMap<FlowKey, u64>,
    opened_ns: BTreeMap<FlowKey, u64>,
    flags: BTreeMap<FlowKey, u8>,
    /// What the plane has yet to tell: openings by the fast path.
    untold: Vec<(FlowKey, Reusable)>,
    /// Connections that end right after the plane's table has been read.
    end_meanwhile: Vec<FlowKey>,
    now_ns: u64,
    /// Limit, and whether the fast path may go by it.
    gates: BTreeMap<Option<NodeId>, (u32, bool)>,
    /// Connections known, and those of the fast path among them.
    bases: BTreeMap<Option<NodeId>, (u32, u32)>,
    /// Those when the latest flow was entered.
    bases_then: BTreeMap<Option<NodeId>, (u32, u32)>,
    /// What there is to tell, in order; connections opened are counted as soon as they stand here.
    to_tell: VecDeque<Tale>,
    opened: u32,
    /// Nodes to which the way is closed.
    closed: Vec<NodeId>,
    owners: BTreeMap<NodeId, Owner>,
    taken_off: bool,
    /// Connections that their clients' hosts have denied.
    denied: Vec<FlowKey>,
    /// There is no room for a connection.
    full: bool,
    /// Finding the way to a node takes so long.
    link_takes: Duration,
    links_begun: usize,
    /// To stand there once the plane was asked for the first time.
    late: VecDeque<Tale>,
}

/// Something to tell later.
#[derive(Clone, Copy, Debug)]
enum Tale {
    Punt(FlowKey),
    /// The same, a minute ago.
    Stale(FlowKey),
    Opened(FlowKey, Reusable),
    /// By the client's reset.
    Ended(FlowKey),
}

#[derive(Clone, Debug, Default)]
struct Paper(Arc<Mutex<Notes>>);

impl Fabric for Paper {
    fn put_flow(&self, key: FlowKey, to: To) -> io::Result<()> {
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
        if self.flow(key).is_some() { Ok(()) } else { self.put_flow(key, To::Node(node)) }
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
            To::Node(node) => (flow_state::NODE, node.0),
            To::Here => (flow_state::LOCAL, abi::NO_NODE),
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
        *lock(&self.0).flags.entry(key).or_default() |= flow_flag::CLIENT_FIN | flow_flag::TOLD;
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

    fn put_target(&self, head: u64, reusable: &Reusable, _lasts: Duration) {
        lock(&self.0).targets.push((head, *reusable));
    }

    fn set_gate(&self, node: Option<NodeId>, limit: u32, usable: bool) {
        lock(&self.0).gates.insert(node, (limit, usable));
    }

    fn set_base(&self, node: Option<NodeId>, base: u32, seen: u32) {
        lock(&self.0).bases.insert(node, (base, seen));
    }

    fn set_link(&self, _node: NodeId, _way: &Way, _forward: Forward) -> io::Result<()> {
        let takes = {
            let mut notes = lock(&self.0);
            notes.links_begun += 1;
            notes.link_takes
        };
        larder_testkit::take_time(takes);
        Ok(())
    }

    fn owner(&self, node: NodeId) -> Option<Owner> {
        Some(lock(&self.0).owners.get(&node).copied().unwrap_or_default())
    }

    fn set_owner(&self, node: NodeId, key: [u8; 32], after_another: bool) {
        let since = after_another.then_some(Duration::ZERO);
        lock(&self.0).owners.insert(node, Owner { key, since });
    }

    fn close_link(&self, node: NodeId) -> io::Result<()> {
        lock(&self.0).closed.push(node);
        Ok(())
    }

    fn set_keys(&self, _keys: &[CookieKey; 2], _current: usize) {}

    fn set_former_keys(&self, _keys: &[CookieKey]) {}

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

    fn told(&self, visit: &mut dyn FnMut(Told<'_>)) -> usize {
        let untold = std::mem::take(&mut lock(&self.0).untold);
        untold.iter().for_each(|&(key, reused)| visit(Told::Opened { key, reused, age: Duration::ZERO }));
        let tales = std::mem::take(&mut lock(&self.0).to_tell);
        for tale in &tales {
            match *tale {
                Tale::Punt(key) | Tale::Stale(key) => {
                    let age = Duration::from_secs(if matches!(tale, Tale::Stale(_)) { 60 } else { 0 });
                    let packet = super::frame::tests::frame(1, GET, false);
                    visit(Told::Punt { key, first: true, head: None, packet: &packet, age });
                }
                Tale::Opened(key, reused) => visit(Told::Opened { key, reused, age: Duration::ZERO }),
                Tale::Ended(key) => visit(ended(key, flow_flag::CLIENT_RST)),
            }
        }
        let mut notes = lock(&self.0);
        let late = std::mem::take(&mut notes.late);
        notes.opened += late.iter().filter(|tale| matches!(tale, Tale::Opened(..))).count() as u32;
        notes.to_tell.extend(late);
        untold.len() + tales.len()
    }

    fn opened(&self, _node: Option<NodeId>) -> u32 {
        lock(&self.0).opened
    }

    fn begin(&self) -> io::Result<()> {
        Ok(())
    }

    fn settle(&self) {}

    fn close(&self) {}

    fn remove(&self) {
        lock(&self.0).taken_off = true;
    }
}

pub(super) struct Bench {
    pub(super) shared: Arc<Shared>,
    pub(super) edge: Arc<Edge>,
    paper: Paper,
    /// What nodes say, until somebody hears it.
    said: Option<tokio::sync::mpsc::Receiver<Event>>,
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
            // A header that is not complete is held throughout a test.
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
            keys: Keys::new([CookieKey([0; 2]); 2], 0),
            services: Vec::new(),
            tunnel: None,
        };
        let (peers, said) = Peers::new(8, handoff.identity.clone(), hello);
        for node in [NodeId(0), NodeId(1)] {
            peers.set_bits(node, UP_FOR_TESTS);
        }
        let paper = Paper::default();
        let owners = super::Owners {
            decider: shared.decider.clone(),
            observers: shared.observers.clone(),
            timeouts: shared.timeouts.clone(),
        };
        let edge = Arc::new(Edge::new(handoff, Box::new(paper.clone()), listen, peers, owners));
        let plane: Arc<dyn ForwardingPlane> = edge.clone();
        let _ = shared.decider.plane.set(Arc::downgrade(&plane));
        shared.handoff = Some(edge.clone());
        Self { shared: Arc::new(shared), edge, paper, said: Some(said) }
    }

    pub(super) fn punt(&self, key: FlowKey, first: bool, seq: u32, payload: &[u8]) {
        let packet = super::frame::tests::frame(seq, payload, false);
        self.take(Told::Punt { key, first, head: first.then_some(99), packet: &packet, age: Duration::ZERO });
    }

    pub(super) fn take(&self, told: Told<'_>) {
        if matches!(told, Told::Opened { .. }) {
            self.notes(|notes| notes.opened += 1);
        }
        self.edge.note(told);
        self.edge.work_off();
    }

    /// A node says that a connection has ended there.
    fn node_ended(&self, key: FlowKey, first_seq: u32, node: NodeId) {
        self.edge.act(Input::Closed { node, key, first_seq });
    }

    /// A node names all that it has, having been asked at `as_of`.
    fn reconcile(&self, node: NodeId, live: &HashSet<FlowKey>, as_of: Time) {
        self.edge.act_at(as_of, Input::Up { node });
        let connections = live.iter().map(|key| (*key, 0)).collect();
        self.edge.act(Input::Named { node, connections, last: true });
        while lock(&self.edge.machine).has_lists() {
            self.edge.act(Input::Judge);
        }
    }

    /// States on their way to nodes.
    fn moves(&self) -> usize {
        lock(&self.edge.machine).moves()
    }

    pub(super) fn load(&self) -> u32 {
        self.edge.decider.dispatcher.nodes().rows().iter().map(|row| row.load).sum()
    }

    fn notes<R>(&self, look: impl FnOnce(&mut Notes) -> R) -> R {
        look(&mut lock(&self.paper.0))
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

/// As the plane tells it of a client that has had 1,000 bytes.
fn ended(key: FlowKey, flags: u8) -> Told<'static> {
    Told::Ended { key, flags, account: Account { acknowledged: 1_001, requests: 1 }, age: Duration::ZERO }
}

/// The client may have resent its first packet to another switch, which has given the connection to a node. A switch that
/// shares its secret with no other switch serves it.
#[tokio::test]
async fn a_late_first_packet_opens_nothing_beside_other_switches() {
    let late = RESEND_MIN + Duration::from_millis(1);
    let punt = |bench: &Bench, first: bool, age: Duration| {
        let packet = super::frame::tests::frame(1, GET, false);
        bench.take(Told::Punt { key: key(1), first, head: None, packet: &packet, age });
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
        let To::Node(node) = notes.flows[&key(1)] else { panic!("{notes:?}") };
        assert_eq!(notes.forwarded, [(node, 54 + GET.len())]);
        let (head, reusable) = notes.targets[0];
        assert_eq!((head, reusable.node, reusable.service), (99, node, 0));
        node
    });
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    // A packet that was handed over before the decision took effect follows the others.
    bench.punt(key(1), false, 7 + GET.len() as u32, b"x");
    assert_eq!(bench.notes(|notes| notes.forwarded.len()), 2);
    bench.take(ended(key(1), flow_flag::CLIENT_FIN));
    assert_eq!(bench.load(), 1, "a half-closed client still waits for its reply");
    bench.node_ended(key(1), 0, NodeId(1 - node.0));
    assert_eq!(bench.load(), 1, "another node says nothing about it");
    bench.node_ended(key(1), 0, node);
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    assert_eq!(bench.delivered(), [("cookie", "cookie", 1)]);
    let target = bench.notes(|notes| notes.targets[0].1.target);
    assert_eq!(bench.edge.learned.reply_bytes(target), Some(1_000), "what the client has acknowledged");
}

#[tokio::test]
async fn a_node_that_ends_gets_nothing_new() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 7, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    let state = || bench.edge.decider.dispatcher.nodes().state(node);
    bench.edge.node_ends(node);
    assert_eq!((state(), bench.notes(|notes| notes.gates[&Some(node)].1)), (NodeState::Draining, false));
    bench.punt(key(2), true, 7, GET);
    assert_ne!(bench.notes(|notes| notes.forwarded[1].0), node);
    // Its kernel goes on with what clients have not acknowledged.
    bench.edge.node_down(node, "closed");
    bench.edge.bury(false);
    assert_eq!((state(), bench.notes(|notes| notes.reset.clone())), (NodeState::Draining, vec![]));
    // It is back, or nothing is.
    let member = bench.edge.decider.nodes.get(node).expect("a member").to_arc().expect("a member");
    bench.edge.decider.change_condition(&member, "a test", |condition| condition.healthy = false);
    assert_eq!(state(), NodeState::Down);
    bench.edge.decider.change_condition(&member, "a test", NodeCondition::mark_healthy);
    assert_eq!(state(), NodeState::Up);
}

#[tokio::test]
async fn a_request_in_pieces_is_put_together_in_order() {
    let bench = Bench::new(|_| {});
    for at in 1..GET.len() {
        let key = key(at as u16);
        bench.punt(key, true, 1, &GET[..at]);
        assert_eq!(bench.edge.sizes().0, 1, "held");
        bench.punt(key, false, 1 + at as u32, &GET[at..]);
        assert!(bench.notes(|notes| matches!(notes.flows[&key], To::Node(_))), "cut at {at}");
    }
    assert_eq!(bench.notes(|notes| notes.forwarded.len()), 2 * (GET.len() - 1));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_come_in_one_go_is_accepted_here() {
    let bench = Bench::new(|config| config.handoff.header_wait = Duration::from_millis(2));
    bench.punt(key(1), true, 1, &GET[..5]);
    let now = bench.edge.decider.clock.now();
    assert!(lock(&bench.edge.machine).due().is_some_and(|due| due <= now + Duration::from_millis(2)));
    bench.edge.tick(now + Duration::from_millis(2));
    assert_eq!(bench.notes(|notes| (notes.accepted.len(), notes.flows[&key(1)])), (1, To::Here));
    let placed = bench.edge.placed(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!(placed.delivery.reason.name(), "incomplete");
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_limit_wait_held_and_then_go_on() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (1, 1, 0)));
    bench.punt(key(2), false, 1 + GET.len() as u32, b"GET ");
    bench.take(ended(key(1), flow_flag::CLIENT_RST));
    larder_testkit::take_time_async(Duration::from_millis(1)).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    assert!(bench.notes(|notes| matches!(notes.flows[&key(2)], To::Node(_)) && notes.forwarded.len() == 3));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_it_waits_leaves_nothing() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    bench.take(ended(key(2), flow_flag::CLIENT_RST));
    bench.node_ended(key(1), 0, bench.notes(|notes| notes.forwarded[0].0));
    larder_testkit::take_time_async(Duration::from_millis(1)).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn connections_that_cannot_even_be_held_are_accepted_here() {
    let bench = Bench::new(|config| {
        config.settings.admission = Admission::Fixed(1);
        config.handoff.hold_max = 1;
    });
    for port in 1..=3 {
        bench.punt(key(port), true, 1, GET);
    }
    assert_eq!(bench.notes(|notes| notes.flows.get(&key(3)).copied()), Some(To::Here));
    let placed = bench.edge.placed(key(3).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!(placed.delivery.reason.name(), "hold_full");
}

/// All packets of all held connections together have a limit too.
#[tokio::test]
async fn what_is_held_has_a_limit_in_bytes() {
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
    assert!(accepted.0 == To::Here && accepted.1 > held);
    let placed = bench.edge.placed(key(2).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
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
    let Entered::Relay(_, delivery, outcome) = bench.edge.enter(accepted, from).await else {
        panic!("it is relayed");
    };
    assert_eq!(delivery.reason.name(), "refused");
    assert!(matches!(outcome, Some(Err(Refusal::Deadline))), "{outcome:?}");
    assert_eq!(bench.edge.decider.dispatcher.queued(), 0);
}

#[tokio::test]
async fn who_has_no_node_for_cookies_is_relayed_with_its_decision() {
    let bench = Bench::new(|_| {});
    for node in [NodeId(0), NodeId(1)] {
        bench.edge.peers.set_bits(node, 0);
    }
    bench.punt(key(1), true, 1, GET);
    let placed = bench.edge.placed(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!((placed.delivery.mechanism, placed.delivery.reason.name()), (Mechanism::Relay, "channel"));
    assert!(matches!(placed.outcome, Some(Ok(_))) && bench.load() == 1);
    drop(placed);
    assert_eq!(bench.load(), 0);
}

#[tokio::test]
async fn a_request_that_fields_decide_is_not_decided_again_in_the_plane() {
    let bench = Bench::new(|config| {
        config.key = "{host}{path}{header:accept-language}".parse().expect("a template");
    });
    bench.punt(key(1), true, 1, GET);
    assert!(bench.notes(|notes| notes.targets.is_empty() && notes.forwarded.len() == 1));
    let turns = Bench::new(|config| config.settings.policy = PolicyKind::Rr);
    turns.punt(key(1), true, 1, GET);
    assert!(turns.notes(|notes| notes.targets.is_empty() && notes.forwarded.len() == 1));
}
