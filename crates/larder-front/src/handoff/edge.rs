//! The edge: gives what the forwarding plane tells to the machine, and makes the decisions that it asks for.
//!
//! A connection's way: its first packet is *held* and handed over ([`Told::Punt`]); the request is read from it, the
//! dispatcher decides, the rule of [`super::mechanism`] says how it is delivered; then either the node gets the held
//! packets and all further ones, or this host's own stack does and the accept loop finds the decision ready
//! ([`Edge::placed`]). A target's next connections may be opened by the plane itself ([`Told::Opened`]), which the
//! dispatcher is told ([`larder_core::Dispatcher::reuse`]).
//!
//! The state of connections is [`larder_core::handoff::EdgeMachine`]'s. What the plane tells waits in one queue, from which it is
//! taken under the machine's lock, so that any thread may read the plane and all is handled in order. What the machine answers
//! is carried out under the same lock ([`super::outputs`]). Nothing that asks the dispatcher to admit a request holds it, except for
//! a connection that a node gives up.

use super::config::{HandoffConfig, RESEND_MIN};
use super::counts::Counts;
use super::fabric::{Fabric, Reusable, Told};
use super::first::{self, Asked, First};
use super::frame::{self, Frame};
use super::learned::Learned;
use super::lent::Lent;
use super::lock::lock;
use super::mechanism::{Delivery, DeliveryReason, FirstBytes, Mechanism};
use super::parts::{self, EdgeState, Load};
use super::peers::Peers;
use super::text::Text;
use crate::decider::Decider;
use crate::lease::{Lease, Placement, StartedRequest};
use crate::limits::Timeouts;
use crate::observers::Observers;
use crate::target;
use larder_core::handoff::{ClientEnd, Input};
use larder_core::rules::Headers;
use larder_core::{Decision, NodeId, Reason, Refusal, Request, RouteId, ServiceClass, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::flow_flag;
use larder_kernel::plane::Account;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How long a connection that this host's own stack is to accept may take until it is accepted.
const PLACED_FOR: Duration = Duration::from_secs(5);

/// Decisions that may wait for the accept loop.
const PLACED_MAX: usize = 65_536;

/// Events of the plane that wait to be handled.
const EVENTS_MAX: usize = 65_536;

/// Batches of events taken before other work gets its turn.
const DRAINS_MAX: usize = 8;

/// Something that the plane has told, until it is handled.
pub(super) enum Event {
    Input(Input<parts::Live>),
    /// A copy of a later packet of a handed-off connection.
    Later(FlowKey, Box<[u8]>),
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

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
    first_bytes: FirstBytes,
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
    /// The state of connections.
    pub(super) machine: Mutex<EdgeState>,
    /// There are fewer moves under way than before.
    pub(super) moves_ended: Condvar,
    /// Events that the plane has reported and that are not handled yet, in order. While there are [`EVENTS_MAX`], the plane's ring is
    /// not read: it keeps what it has room for, and counts what it loses.
    pub(super) events: Mutex<VecDeque<Event>>,
    placed: Mutex<HashMap<FlowKey, Placed>>,
    /// Requests that are about to be admitted.
    pub(super) reserved: AtomicU32,
    /// Somebody else has read what the plane has told, or the time of a header is over soon.
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
        let machine = EdgeState::new(&config);
        Self {
            config,
            decider,
            observers,
            timeouts,
            fabric: Lent::new(fabric),
            services,
            peers,
            machine: Mutex::new(machine),
            moves_ended: Condvar::new(),
            events: Mutex::default(),
            placed: Mutex::default(),
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

    /// Takes what the plane has told, and decides what is due. What a flood leaves for later is taken with the next tick.
    pub(super) fn drain(self: &Arc<Self>) {
        for _ in 0..DRAINS_MAX {
            let count = self.listen();
            self.work_off();
            if count == 0 {
                break;
            }
        }
    }

    /// Reads what the plane has told. Connections that it has opened by itself count from here on; all else waits to be handled.
    pub(super) fn listen(&self) -> usize {
        if lock(&self.events).len() >= EVENTS_MAX {
            return 0;
        }
        self.fabric.told(&mut |told| self.note(told))
    }

    /// Something that the plane has told.
    pub(super) fn note(&self, told: Told<'_>) {
        let event = match told {
            Told::Punt { key, first, head, packet, age } => {
                let late = self.config.shares_connections() && age > RESEND_MIN;
                let packet = Frame::new(packet, head.filter(|_| first));
                Event::Input(Input::Packet { key, first, packet, late })
            }
            Told::Opened { key, reused, age } => {
                let Some((decision, load)) = self.opened(reused) else { return };
                Event::Input(Input::Opened { key, decision, load, at: self.ago(age) })
            }
            Told::Later { key, packet } => Event::Later(key, packet.into()),
            Told::Woke { key, node } => Event::Input(Input::Woke { key, node }),
            Told::Ended { key, flags, account, age } => {
                if !self.config.mends.entry_outlives && flags & flow_flag::CLIENT_FIN != 0 {
                    self.fabric.remove_flow(key);
                }
                Event::Input(ended(key, flags, account, self.ago(age)))
            }
        };
        lock(&self.events).push_back(event);
    }

    /// Handles what the plane has told, and then decides what is due: connections that the plane has opened by itself may stand behind
    /// the packet of one that is to be decided, and count before.
    pub(super) fn work_off(self: &Arc<Self>) {
        loop {
            // Taken under the machine's lock, so that the order is kept whoever takes it.
            let mut machine = lock(&self.machine);
            let event = lock(&self.events).pop_front();
            match event {
                Some(Event::Input(input)) => drop(self.drive(&mut machine, self.decider.clock.now(), input)),
                Some(Event::Later(key, packet)) => {
                    let node = machine.connection(key).map(|one| one.decision.node);
                    drop(machine);
                    self.later(key, node, &packet);
                }
                None => {
                    let Some((key, generation)) = machine.next_undecided() else { return };
                    let frames = machine.packets(key, generation).unwrap_or_default();
                    let head = frames.first().and_then(|frame| frame.head);
                    let bytes = frame::payload(frames);
                    drop(machine);
                    self.consider((key, generation), &bytes, head);
                }
            }
        }
    }

    /// Reads what a held connection asks for, and asks the dispatcher.
    fn consider(self: &Arc<Self>, held: (FlowKey, u64), bytes: &[u8], head: Option<u64>) {
        let first_bytes = match first::read(bytes) {
            First::Http(asked) => return self.asked(held, &asked, head),
            First::Tls(name) => return self.hello(held, &name),
            First::No(first_bytes) => first_bytes,
        };
        let (key, generation) = held;
        if first_bytes == FirstBytes::Partial {
            self.act(Input::Incomplete { key, generation });
            return self.caught_up.notify_one();
        }
        let delivery = self
            .facts(first_bytes, false)
            .before_node()
            .unwrap_or(Delivery::relay(DeliveryReason::Unreadable));
        self.here(key, generation, delivery, None);
    }

    /// A whole request header.
    fn asked(self: &Arc<Self>, (key, generation): (FlowKey, u64), asked: &Asked<'_>, head: Option<u64>) {
        let watched = Watched { asked, looked: Cell::new(false) };
        let request = self.request(asked, &watched, Some(key.client.ip()));
        // A decision by fields, by turns or by lot is this request's alone.
        let again = !watched.looked.get() && self.may_reuse(request.route);
        let text = self.observers.access.is_some().then(|| {
            let text = self.learned.texts.of(asked)?;
            Some(self.learned.text(request.target, text))
        });
        let head = head.filter(|_| again);
        self.decide(Pending {
            key,
            generation,
            request,
            first_bytes: FirstBytes::Http1,
            text: text.flatten(),
            head,
        });
    }

    /// A ClientHello that is passed through: its server name stands for all it will ask for.
    fn hello(self: &Arc<Self>, (key, generation): (FlowKey, u64), name: &[u8]) {
        let request = self.request_by_name(name, Some(key.client.ip()));
        let first_bytes = if self.config.tls { FirstBytes::Tls } else { FirstBytes::TlsHere };
        self.decide(Pending { key, generation, request, first_bytes, text: None, head: None });
    }

    /// The dispatcher's request of a header. `headers`: its fields, perhaps watched.
    pub(super) fn request(
        &self,
        asked: &Asked<'_>,
        headers: &dyn Headers,
        client: Option<IpAddr>,
    ) -> Request {
        let head = target::rule_head(asked.method.as_bytes(), asked.host, asked.target.as_bytes(), headers);
        self.decider.routing.request(&head, client)
    }

    /// The dispatcher's request of a server name.
    pub(super) fn request_by_name(&self, name: &[u8], client: Option<IpAddr>) -> Request {
        self.decider.routing.request(&target::rule_head(b"CONNECT", name, b"", &()), client)
    }

    fn decide(self: &Arc<Self>, pending: Pending) {
        let key = pending.key;
        let facts = self.facts_of(pending.request.route, pending.first_bytes, false);
        if let Some(delivery) = facts.before_node() {
            return self.here(key, pending.generation, delivery, None);
        }
        let mut lease = Lease::new(self.decider.clone());
        match lease.arrive(self.decider.clock.now(), pending.request) {
            Ok(Some(decision)) => self.settle(pending, lease, Ok(decision)),
            Ok(None) => {
                self.act(Input::Waits { key, generation: pending.generation });
                let edge = self.clone();
                tokio::spawn(async move {
                    let outcome = lease.wait().await;
                    edge.settle(pending, lease, outcome);
                });
            }
            Err(refusal) => self.settle(pending, lease, Err(refusal)),
        }
    }

    /// The dispatcher has answered.
    fn settle(self: &Arc<Self>, pending: Pending, lease: Lease, outcome: Result<Decision, Refusal>) {
        let Pending { key, generation, request, first_bytes, text, head } = pending;
        let decision = match outcome {
            Ok(decision) => decision,
            // The relay answers with the refusal.
            Err(refusal) => {
                let delivery = Delivery::relay(DeliveryReason::Refused);
                return self.here(key, generation, delivery, Some(Err(refusal)));
            }
        };
        // Before anything can be used again.
        self.set_bases(decision.node);
        let mut delivery = self.delivery(request, decision.node, first_bytes, false);
        // A node that takes cookies for this address too could accept a copy of the first packet before the state comes.
        if delivery.mechanism == Mechanism::Repair && self.takes_cookies(decision.node) {
            delivery = Delivery { mechanism: Mechanism::Cookie, reason: DeliveryReason::Cookie };
        }
        let started = StartedRequest { lease, request, decision };
        match delivery.mechanism {
            Mechanism::Repair => self.give_state((key, generation), started, text),
            Mechanism::Cookie => {
                let (decision, load) = Load::of(started, delivery, text);
                let mut machine = lock(&self.machine);
                let now = self.decider.clock.now();
                self.drive(&mut machine, now, Input::At { key, generation, decision, load });
                if let Some(head) = head
                    && machine.connection(key).is_some_and(|one| one.decision.node == decision.node)
                {
                    let class = u8::try_from(request.class.index()).unwrap_or(0);
                    let (target, node, service) = (request.target, decision.node, key.service);
                    let reusable = Reusable { target, node, route: request.route.0, service, class };
                    self.fabric.put_target(head, &reusable, self.config.fast_age);
                }
            }
            Mechanism::Relay | Mechanism::Splice => self.here(key, generation, delivery, Some(Ok(started))),
        }
    }

    /// Whether a node was told to accept connections by cookie, and can.
    fn takes_cookies(&self, node: NodeId) -> bool {
        self.config.setting.allows_cookie() && self.peers.capability(node).cookie
    }

    /// This host's own stack takes a held connection; the accept loop finds what was decided.
    fn here(&self, key: FlowKey, generation: u64, delivery: Delivery, outcome: Option<Placement>) {
        self.act(Input::Here { key, generation, verdict: (delivery, outcome) });
    }

    /// The accept loop is told what was decided.
    pub(super) fn place(&self, key: FlowKey, delivery: Delivery, outcome: Option<Placement>) {
        let since = self.decider.clock.now();
        let mut placed = lock(&self.placed);
        // Beyond that the accept loop decides anew.
        if placed.len() < PLACED_MAX || placed.contains_key(&key) {
            placed.insert(key, Placed { delivery, outcome, since });
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

    /// The fast path has opened a connection: the dispatcher counts it. `None` if it does not know the node.
    fn opened(&self, reused: Reusable) -> Option<(Decision, Load)> {
        let class = ServiceClass::ALL.get(usize::from(reused.class)).copied().unwrap_or(ServiceClass::N);
        let request = Request::new(reused.target).with_route(RouteId(reused.route)).with_class(class);
        let counted = self.reuse(
            request,
            reused.node,
            Delivery { mechanism: Mechanism::Cookie, reason: DeliveryReason::Fast },
        );
        // Afterwards, so that a gate that is set in between counts it twice and not never.
        self.peers.count_opened(reused.node);
        let (decision, load) = counted?;
        Some((decision, Load { text: self.learned.text_of(reused.target), ..load }))
    }

    /// The dispatcher counts a connection that is at a node already. `None` if it does not know the node.
    pub(super) fn reuse(
        &self,
        request: Request,
        node: NodeId,
        delivery: Delivery,
    ) -> Option<(Decision, Load)> {
        let mut lease = Lease::new(self.decider.clone());
        let counted = lease.reuse(self.decider.clock.now(), request, node);
        let decision = Decision { node, reason: Reason::Reuse };
        counted.then_some((decision, Load { lease, request, delivery, text: None }))
    }

    /// A later request of a connection that is handed off to `node`: would it have gone to the same node?
    fn later(&self, key: FlowKey, node: Option<NodeId>, packet: &[u8]) {
        let Some(segment) = frame::segment(packet) else { return };
        // Something that does not begin a request says nothing.
        let First::Http(asked) = first::read(segment.payload) else { return };
        let Some(node) = node else { return };
        let request = self.request(&asked, &*asked, Some(key.client.ip()));
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

    /// Connections held, handed off, and waiting to be accepted here.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let machine = lock(&self.machine);
        let (held, handed) = (machine.held(), machine.len());
        drop(machine);
        (held, handed, lock(&self.placed).len())
    }
}

fn ended(key: FlowKey, flags: u8, account: Account, at: Time) -> Input<parts::Live> {
    let end = if flags & flow_flag::CLIENT_RST != 0 {
        ClientEnd::Reset
    } else if flags & flow_flag::CLIENT_FIN == 0 {
        ClientEnd::Replaced
    } else {
        ClientEnd::Fin { answered: flags & flow_flag::ACKED != 0 }
    };
    let Account { acknowledged, requests } = account;
    Input::ClientEnded { key, end, account: larder_core::handoff::Account { acknowledged, requests }, at }
}
