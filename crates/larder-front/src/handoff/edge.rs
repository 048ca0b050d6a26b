//! The edge: turns what the forwarding plane tells into questions to the dispatcher, and its answers into flows.
//!
//! A connection's way: its first packet is *held* and handed over ([`Told::Punt`]); the request is read from it, the
//! dispatcher decides, the rule of [`super::mechanism`] says how it is delivered; then either the node gets the held
//! packets and all further ones, or this host's own stack does and the accept loop finds the decision ready
//! ([`Edge::placed`]). A target's next connections may be opened by the plane itself ([`Told::Opened`]), which the
//! dispatcher is told ([`larder_core::Dispatcher::reuse`]).
//!
//! Packets are sent on before the flow is entered in the plane: what comes in between is handed over too, and sent on
//! behind the others.

use super::config::{HandoffConfig, RESEND_MIN};
use super::counts::Counts;
use super::fabric::{Fabric, Reusable, To, Told};
use super::first::{self, Asked, First};
use super::held::{Held, Holding, Wait};
use super::learned::Learned;
use super::lent::Lent;
use super::lock::lock;
use super::mechanism::{Delivery, Mechanism, Speaks, Why};
use super::passing::AllPassing;
use super::peers::Peers;
use super::resumed::Resumed;
use super::table::{End, Handed, Table};
use super::text::Text;
use crate::decider::Decider;
use crate::lease::{Lease, Placement, Started};
use crate::limits::Timeouts;
use crate::observers::Observers;
use crate::target::target_key;
use larder_core::rules::{Head, Headers};
use larder_core::{Decision, NodeId, Reason, Refusal, Request, RouteId, ServiceClass, Time};
use larder_handoff::FlowKey;
use larder_handoff::abi::flow_state;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long a connection that this host's own stack is to accept may take until it is accepted.
const PLACED_FOR: Duration = Duration::from_secs(5);

/// Decisions that may wait for the accept loop.
const PLACED_MAX: usize = 65_536;

/// Batches of events taken before other work gets its turn.
const DRAINS_MAX: usize = 8;

/// A decision that waits for the accept loop to find its connection.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) delivery: Delivery,
    /// What the dispatcher said, if it was asked.
    pub(crate) outcome: Option<Placement>,
    since: Time,
}

/// What is known of a connection whose decision is being made.
#[derive(Debug)]
struct Pending {
    key: FlowKey,
    /// Of what is held.
    generation: u64,
    request: Request,
    speaks: Speaks,
    text: Option<Arc<Text>>,
    /// The fast path's hash, where the decision may be used again.
    head: Option<u64>,
}

/// The owners whose work the edge shares.
#[derive(Debug)]
pub(crate) struct Owners {
    pub(crate) decider: Arc<Decider>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) timeouts: Timeouts,
}

/// The edge.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) config: HandoffConfig,
    pub(super) decider: Arc<Decider>,
    pub(super) observers: Arc<Observers>,
    pub(super) timeouts: Timeouts,
    pub(super) fabric: Lent,
    /// Listen addresses by their numbers.
    pub(super) services: Vec<SocketAddr>,
    pub(crate) peers: Peers,
    pub(super) table: Mutex<Table>,
    /// Connections that go on although nobody counts them.
    pub(super) resumed: Mutex<Resumed>,
    pub(super) holding: Mutex<Holding>,
    placed: Mutex<HashMap<FlowKey, Placed>>,
    /// Connections on their way from one node to another.
    pub(super) passing: Mutex<AllPassing>,
    /// Held connections that are to be decided, each once.
    due: Mutex<VecDeque<FlowKey>>,
    /// Held while a decision takes effect: until then a node's word that the connection has ended would find nobody.
    pub(super) deciding: Mutex<()>,
    /// Requests that are about to be admitted.
    pub(super) reserved: AtomicU32,
    /// Somebody else has taken what the plane has told, and something is due.
    pub(super) caught_up: tokio::sync::Notify,
    /// What is counted is read and written to the gates by one thread at a time.
    pub(super) writing_gates: Mutex<()>,
    pub(super) learned: Learned,
    pub(crate) counts: Counts,
    /// Another process has the plane, or is about to.
    pub(super) gone: tokio::sync::watch::Sender<bool>,
}

/// Fields of a request, and whether anybody has looked at one.
struct Watched<'a> {
    asked: &'a Asked<'a>,
    looked: Cell<bool>,
}

impl Headers for Watched<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.looked.set(true);
        self.asked.get(name)
    }
}

impl Edge {
    pub(crate) fn new(
        config: HandoffConfig,
        fabric: Box<dyn Fabric>,
        services: Vec<SocketAddr>,
        peers: Peers,
        owners: Owners,
    ) -> Self {
        let Owners { decider, observers, timeouts } = owners;
        let learned = Learned::new(config.targets_max as usize);
        Self {
            config,
            decider,
            observers,
            timeouts,
            fabric: Lent::new(fabric),
            services,
            peers,
            table: Mutex::default(),
            resumed: Mutex::default(),
            holding: Mutex::default(),
            placed: Mutex::default(),
            passing: Mutex::default(),
            due: Mutex::default(),
            deciding: Mutex::default(),
            reserved: AtomicU32::new(0),
            caught_up: tokio::sync::Notify::new(),
            writing_gates: Mutex::default(),
            learned,
            counts: Counts::default(),
            gone: tokio::sync::watch::Sender::new(false),
        }
    }

    /// The time that long before now.
    fn ago(&self, age: Duration) -> Time {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.decider.clock.now().as_nanos().saturating_sub(age))
    }

    /// Takes what the plane has told. What a flood leaves for later is taken with the next tick.
    pub(super) fn drain(self: &Arc<Self>) {
        for _ in 0..DRAINS_MAX {
            let count = self.fabric.told(&mut |told| self.note(told));
            self.decide_due();
            if count == 0 {
                break;
            }
        }
    }

    /// Takes one event. Decisions are left to [`Edge::decide_due`]: connections that the plane has opened by itself may stand
    /// behind it, and count before.
    pub(super) fn note(self: &Arc<Self>, told: Told<'_>) {
        match told {
            Told::Punt { key, first, head, packet, age } => {
                let is_late = self.config.shares_connections() && age > RESEND_MIN;
                self.punt(key, first.then_some(head), packet, is_late);
            }
            Told::Opened { key, reused, age } => self.opened(key, reused, self.ago(age)),
            Told::Later { key, packet } => self.later(key, packet),
            Told::Woke { key, node } => self.woke(key, node),
            Told::Ended { key, flags, account, age } => {
                self.client_ended(key, flags, account, self.ago(age));
            }
        }
    }

    /// Decides what is due.
    pub(super) fn decide_due(self: &Arc<Self>) {
        loop {
            let Some(key) = lock(&self.due).pop_front() else { return };
            let _alone = lock(&self.deciding);
            self.consider(key);
        }
    }

    /// A packet of a held connection; `opens` if it is the first one. A late first packet opens nothing: the client may have
    /// resent it, and another switch may have given the connection to a node. If it is resent to this switch, it opens the
    /// connection then.
    fn punt(self: &Arc<Self>, key: FlowKey, opens: Option<Option<u64>>, packet: &[u8], is_late: bool) {
        let Some(head) = opens else { return self.more(key, packet, is_late) };
        self.end(key, End::Replaced);
        let mut holding = lock(&self.holding);
        if is_late {
            holding.take(key, None);
            return self.counts.late();
        }
        let full = holding.len() >= self.config.hold_max;
        let held = holding.begin(key);
        held.head = head;
        self.keep(holding, (key, packet), full);
    }

    /// Keeps a packet of a connection that is held, for a decision; one too many goes to this host's own stack, with all
    /// that is held of its connection.
    fn keep(&self, mut holding: MutexGuard<'_, Holding>, (key, packet): (FlowKey, &[u8]), full: bool) {
        let Some((held, room)) = holding.push(key, packet) else { return };
        if room && !full {
            return self.make_due(key, held);
        }
        let generation = held.generation;
        drop(holding);
        self.here(key, generation, Delivery::relay(Why::HoldFull), None);
    }

    /// What was already due stays where it is in the order.
    fn make_due(&self, key: FlowKey, held: &mut Held) {
        if !std::mem::replace(&mut held.due, true) {
            lock(&self.due).push_back(key);
        }
    }

    /// A further packet of a held connection.
    fn more(self: &Arc<Self>, key: FlowKey, packet: &[u8], is_late: bool) {
        let mut holding = lock(&self.holding);
        if holding.get_mut(key).is_some() {
            return self.keep(holding, (key, packet), false);
        }
        // It was handed over before the decision took effect in the plane; the lock is kept by whoever makes it do so.
        let flow = self.fabric.flow(key);
        let sent = match flow.map(|flow| (flow.state, flow.node)) {
            Some((flow_state::NODE, node)) => self.fabric.forward(NodeId(node), packet),
            Some((flow_state::LOCAL, _)) => self.fabric.accept_here(packet),
            // Held by a predecessor that is no more, or opened by a late packet. The first packet, which the client sends again,
            // opens it anew.
            Some((flow_state::HOLD, _)) if super::held::begins(packet, flow.map(|flow| flow.first_seq)) => {
                drop(holding);
                return self.punt(key, Some(None), packet, is_late);
            }
            // Held by nobody: the client will send its first packet again, which opens the connection anew.
            _ => {
                self.fabric.remove_flow(key);
                Ok(())
            }
        };
        drop(holding);
        self.counts.sent(&sent);
    }

    /// Reads what a held connection asks for, and asks the dispatcher.
    fn consider(self: &Arc<Self>, key: FlowKey) {
        let mut holding = lock(&self.holding);
        // What has been asked for waits for its answer.
        let Some(held) = holding.undecided(key) else { return };
        let (bytes, head, generation) = (held.bytes(), held.head, held.generation);
        drop(holding);
        let speaks = match first::read(&bytes) {
            First::Http(asked) => return self.asked((key, generation), &asked, head),
            First::Tls(name) => return self.hello((key, generation), &name),
            First::No(speaks) => speaks,
        };
        if speaks == Speaks::Partial && self.await_rest(key) {
            return;
        }
        let delivery = self.facts(speaks, false).before_node().unwrap_or(Delivery::relay(Why::Unreadable));
        self.here(key, generation, delivery, None);
    }

    /// Whether the rest of a header may still come; sees to it that it is not awaited for ever.
    fn await_rest(self: &Arc<Self>, key: FlowKey) -> bool {
        let mut holding = lock(&self.holding);
        let Some(held) = holding.get_mut(key) else { return true };
        if held.wait == Wait::Nothing {
            held.wait = Wait::Header;
            let (edge, generation) = (self.clone(), held.generation);
            tokio::spawn(async move {
                tokio::time::sleep(edge.config.header_wait).await;
                let waits = |held: &&mut Held| held.generation == generation && held.wait == Wait::Header;
                let still = lock(&edge.holding).get_mut(key).filter(waits).is_some();
                if still {
                    edge.here(key, generation, Delivery::relay(Why::Incomplete), None);
                }
            });
        }
        true
    }

    /// A whole request header.
    fn asked(self: &Arc<Self>, (key, generation): (FlowKey, u64), asked: &Asked<'_>, head: Option<u64>) {
        let target = target_key(asked.host, asked.target.as_bytes());
        let watched = Watched { asked, looked: Cell::new(false) };
        let request = self.decider.routing.request(
            &Head::new(asked.method.as_bytes(), target.host, target.path, &watched),
            Some(key.client.ip()),
        );
        // A decision by fields, by turns or by lot is this request's alone.
        let again = !watched.looked.get() && self.may_reuse(request.route);
        let text = self.observers.access.is_some().then(|| {
            let text = self.learned.texts.of(asked)?;
            Some(self.learned.text(request.target, text))
        });
        let head = head.filter(|_| again);
        self.decide(Pending { key, generation, request, speaks: Speaks::Http1, text: text.flatten(), head });
    }

    /// A ClientHello that is passed through: its server name stands for all it will ask for.
    fn hello(self: &Arc<Self>, (key, generation): (FlowKey, u64), name: &[u8]) {
        let request =
            self.decider.routing.request(&Head::new(b"CONNECT", name, b"", &()), Some(key.client.ip()));
        let speaks = if self.config.tls { Speaks::Tls } else { Speaks::TlsHere };
        self.decide(Pending { key, generation, request, speaks, text: None, head: None });
    }

    fn decide(self: &Arc<Self>, pending: Pending) {
        let key = pending.key;
        let facts = self.facts_of(pending.request.route, pending.speaks, false);
        if let Some(delivery) = facts.before_node() {
            return self.here(key, pending.generation, delivery, None);
        }
        let mut lease = Lease::new(self.decider.clone());
        match lease.arrive(self.decider.clock.now(), pending.request) {
            Ok(Some(decision)) => self.settle(pending, lease, Ok(decision)),
            Ok(None) => {
                if let Some(held) = lock(&self.holding).get_mut(key) {
                    held.wait = Wait::Admission;
                }
                let edge = self.clone();
                tokio::spawn(async move {
                    let outcome = lease.wait().await;
                    let _alone = lock(&edge.deciding);
                    edge.settle(pending, lease, outcome);
                });
            }
            Err(refusal) => self.settle(pending, lease, Err(refusal)),
        }
    }

    /// The dispatcher has answered.
    fn settle(self: &Arc<Self>, pending: Pending, lease: Lease, outcome: Result<Decision, Refusal>) {
        let Pending { key, generation, request, speaks, ref text, head } = pending;
        let decision = match outcome {
            Ok(decision) => decision,
            // The relay answers with the refusal.
            Err(refusal) => {
                let delivery = Delivery::relay(Why::Refused);
                return self.here(key, generation, delivery, Some(Err(refusal)));
            }
        };
        // Before anything can be used again.
        self.set_bases(decision.node);
        let mut delivery = self.delivery(request, decision.node, speaks, false);
        // A node that takes cookies for this address too could accept a copy of the first packet before the state comes.
        if delivery.mechanism == Mechanism::Repair && self.takes_cookies(decision.node) {
            delivery = Delivery { mechanism: Mechanism::Cookie, why: Why::Cookie };
        }
        if delivery.mechanism == Mechanism::Repair {
            let text = text.clone();
            return self.give_state((key, generation), Started { lease, request, decision }, text);
        }
        if delivery.mechanism != Mechanism::Cookie {
            let started = Started { lease, request, decision };
            return self.here(key, generation, delivery, Some(Ok(started)));
        }
        let mut holding = lock(&self.holding);
        let Some(held) = holding.take(key, Some(generation)) else { return };
        for packet in held.packets() {
            self.counts.sent(&self.fabric.forward(decision.node, packet));
        }
        let entered = self.fabric.put_flow(key, To::Node(decision.node));
        drop(holding);
        if let Err(error) = entered {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane: its client is told");
            let now = self.decider.clock.now();
            self.hand(key, Started { lease, request, decision }, delivery, pending.text, now);
            // The node may have it, so that nobody else can answer; and what the client sends would not get there.
            let first_ack = held.packets().first().and_then(|packet| super::held::acknowledges(packet));
            return self.lose_at(key, first_ack);
        }
        if let Some(head) = head {
            let class = u8::try_from(request.class.index()).unwrap_or(0);
            let (target, node) = (request.target, decision.node);
            let reusable = Reusable { target, node, route: request.route.0, service: key.service, class };
            self.fabric.put_target(head, &reusable, self.config.fast_age);
        }
        self.hand(
            key,
            Started { lease, request, decision },
            delivery,
            pending.text,
            self.decider.clock.now(),
        );
    }

    /// Whether a node was told to accept connections by cookie, and can.
    fn takes_cookies(&self, node: NodeId) -> bool {
        self.config.setting.allows_cookie() && self.peers.capability(node).cookie
    }

    /// Notes a connection that a node answers from now on.
    pub(super) fn hand(
        &self,
        key: FlowKey,
        started: Started,
        delivery: Delivery,
        text: Option<Arc<Text>>,
        opened: Time,
    ) {
        self.counts.delivered(delivery);
        self.decider.metrics.handed(started.decision, started.request);
        let handed = Handed::new(started, delivery, opened, text);
        let before = lock(&self.table).put(key, handed);
        if let Some(before) = before {
            self.finish(key, before, End::Replaced, None);
        }
    }

    /// This host's own stack takes a held connection; the accept loop finds what was decided.
    pub(super) fn here(&self, key: FlowKey, generation: u64, delivery: Delivery, outcome: Option<Placement>) {
        let mut holding = lock(&self.holding);
        let Some(held) = holding.take(key, Some(generation)) else { return };
        self.accept_held(key, &held, delivery, outcome);
    }

    /// The same for what has been taken out of those that are held.
    pub(super) fn accept_held(
        &self,
        key: FlowKey,
        held: &Held,
        delivery: Delivery,
        outcome: Option<Placement>,
    ) {
        let now = self.decider.clock.now();
        let mut placed = lock(&self.placed);
        // Beyond that the accept loop decides anew.
        if placed.len() < PLACED_MAX || placed.contains_key(&key) {
            placed.insert(key, Placed { delivery, outcome, since: now });
        }
        drop(placed);
        if let Err(error) = self.fabric.put_flow(key, To::Here) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
        }
        for packet in held.packets() {
            self.counts.sent(&self.fabric.accept_here(packet));
        }
    }

    /// This host's own stack takes all that is held: whoever takes the plane over knows nothing of it.
    pub(super) fn accept_all_held(&self) {
        let _alone = lock(&self.deciding);
        let mut holding = lock(&self.holding);
        for (key, held) in holding.take_all() {
            self.accept_held(key, &held, Delivery::relay(Why::Reload), None);
        }
    }

    /// What was decided of a connection that the accept loop has got.
    pub(crate) fn placed(&self, client: SocketAddr, local: SocketAddr) -> Option<Placed> {
        let service = self.service(local)?;
        lock(&self.placed).remove(&FlowKey::new(client, service))
    }

    /// The number of a listen address.
    pub(crate) fn service(&self, local: SocketAddr) -> Option<u16> {
        let same = |listen: &SocketAddr| {
            let any = listen.ip().is_unspecified() || listen.ip().to_canonical() == local.ip().to_canonical();
            any && listen.port() == local.port()
        };
        u16::try_from(self.services.iter().position(same)?).ok()
    }

    /// The fast path has opened a connection.
    fn opened(&self, key: FlowKey, reused: Reusable, at: Time) {
        let class = ServiceClass::ALL.get(usize::from(reused.class)).copied().unwrap_or(ServiceClass::N);
        let request = Request::new(reused.target).with_route(RouteId(reused.route)).with_class(class);
        let mut lease = Lease::new(self.decider.clone());
        let counted = lease.reuse(self.decider.clock.now(), request, reused.node);
        // Afterwards, so that a gate that is set in between counts it twice and not never.
        self.peers.count_opened(reused.node);
        if !counted {
            return;
        }
        let decision = Decision { node: reused.node, reason: Reason::Reuse };
        let delivery = Delivery { mechanism: Mechanism::Cookie, why: Why::Fast };
        let text = self.learned.text_of(reused.target);
        self.hand(key, Started { lease, request, decision }, delivery, text, at);
    }

    /// A connection that counted as idle has a request again, or one that counted as ended goes on.
    fn woke(&self, key: FlowKey, node: NodeId) {
        let mut table = lock(&self.table);
        let Some(handed) = table.get_mut(key) else {
            drop(table);
            return self.resumes(key, node);
        };
        if handed.idle && handed.decision.node == node {
            handed.idle = !handed.lease.reuse(self.decider.clock.now(), handed.request, node);
            handed.closing = None;
            self.set_bases(node);
        }
    }

    /// A later request of a handed-off connection: would it have gone to the same node?
    fn later(&self, key: FlowKey, packet: &[u8]) {
        let Some(segment) = super::held::segment(packet) else { return };
        // Something that does not begin a request says nothing.
        let First::Http(asked) = first::read(segment.payload) else { return };
        let Some(node) = lock(&self.table).get_mut(key).map(|handed| handed.decision.node) else { return };
        let target = target_key(asked.host, asked.target.as_bytes());
        let head = Head::new(asked.method.as_bytes(), target.host, target.path, &*asked);
        let request = self.decider.routing.request(&head, Some(key.client.ip()));
        if !self.decider.dispatcher.settings_of(request.route).policy.is_by_target() {
            return;
        }
        let explained = self.decider.dispatcher.explain_request(self.decider.clock.now(), &request);
        // A target that nobody has yet is at home wherever it is asked for first.
        let Some(known) = explained.known.filter(|known| !known.servers.is_empty()) else { return };
        let elsewhere = !known.servers.contains(&node);
        self.learned.note_later(request.route, elsewhere);
        self.counts.later(elsewhere);
    }

    /// Forgets decisions whose connections were never accepted. Gives how many.
    pub(super) fn expire_placed(&self, now: Time) -> usize {
        let mut placed = lock(&self.placed);
        let before = placed.len();
        placed.retain(|_, placed| now.since(placed.since) < PLACED_FOR);
        before - placed.len()
    }

    /// Counters of the forwarding plane, by name.
    pub(crate) fn plane_counters(&self) -> Vec<(&'static str, u64)> {
        self.fabric.counters()
    }

    /// Lets the plane forget a connection that it holds and nobody here does: the client's next packet opens it anew.
    pub(super) fn forget_held(&self, key: FlowKey) {
        // The lock is kept while decisions take effect, so that a flow that is still held is nobody's.
        let mut holding = lock(&self.holding);
        let still = self.fabric.flow(key).is_some_and(|flow| flow.state == flow_state::HOLD);
        if still && holding.get_mut(key).is_none() {
            self.fabric.remove_flow(key);
        }
    }

    /// Connections held, handed off, and waiting to be accepted here.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (lock(&self.holding).len(), lock(&self.table).len(), lock(&self.placed).len())
    }
}
