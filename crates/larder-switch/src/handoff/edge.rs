//! The edge: passes events of the forwarding plane to the state machine, and makes the decisions that it asks for.
//!
//! The plane *holds* a new connection and hands its first packet over ([`DatapathEvent::Punt`]). The edge reads the
//! request from it, the dispatcher decides, and the rule of [`super::mechanism`] chooses the delivery. Then either
//! the node gets the held packets and all further ones, or this host's own stack accepts the connection and the
//! accept loop finds the decision ([`Edge::take_pending_accept`]). The plane may open the next connections of a
//! target by itself ([`DatapathEvent::Opened`]); the dispatcher counts them ([`larder_core::Dispatcher::reuse`]).
//!
//! [`larder_core::handoff::EdgeMachine`] holds the state of connections. Events of the plane wait in one queue, which
//! is read under the machine's lock, so that any thread may read the plane and all events are handled in order. The
//! machine's outputs are executed under the same lock ([`super::outputs`]). No step that asks the dispatcher to admit
//! a request holds the lock, except for a connection that a node gives up.

use super::channels::NodeChannels;
use super::config::{HandoffConfig, RESEND_MIN};
use super::counts::HandoffCounts;
use super::datapath::{Datapath, DatapathEvent, ReusableDecision};
use super::detachable::DetachableDatapath;
use super::frame::{self, Frame};
use super::history::TrafficHistory;
use super::log_text::LogText;
use super::mechanism::{Delivery, DeliveryReason, FirstBytes, Mechanism};
use super::opening::{self, Opening, RequestHeader};
use super::parts::{self, ConnectionLoad, EdgeState};
use crate::decider::Decider;
use crate::lease::{Lease, Placement, StartedRequest};
use crate::limits::Timeouts;
use crate::lock::lock;
use crate::observers::Observers;
use crate::target;
use larder_core::handoff::{ClientEnd, Input};
use larder_core::rules::Headers;
use larder_core::{Decision, NodeId, Reason, Refusal, Request, RouteId, ServiceClass, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::flow_flag;
use larder_kernel::frame::TcpFrame;
use larder_kernel::plane::FlowTotals;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Time for this host's own stack to accept a connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of decisions that wait for the accept loop.
const PENDING_ACCEPTS_MAX: usize = 65_536;

/// Maximum number of queued events of the plane.
const EVENTS_MAX: usize = 65_536;

/// Batches of events handled before other work gets its turn.
const DRAINS_MAX: usize = 8;

/// A queued event of the plane.
pub(super) enum EdgeEvent {
    Input(Input<parts::LiveParts>),
    /// A copy of a later packet of a handed-off connection.
    Later(FlowKey, Box<[u8]>),
}

impl fmt::Debug for EdgeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// A decision that waits until the accept loop accepts its connection.
#[derive(Debug)]
pub(crate) struct PendingAccept {
    pub(crate) delivery: Delivery,
    /// Decision or refusal, if the dispatcher was asked.
    pub(crate) outcome: Option<Placement>,
    since: Time,
}

/// A connection whose decision is being made.
#[derive(Debug)]
struct PendingDecision {
    key: FlowKey,
    /// Generation of the held packets.
    generation: u64,
    request: Request,
    first_bytes: FirstBytes,
    text: Option<Arc<LogText>>,
    /// Hash of the fast path, if the decision may be reused.
    head: Option<u64>,
}

/// Parts of the switch that the edge shares.
#[derive(Debug)]
pub(crate) struct SwitchParts {
    pub(crate) decider: Arc<Decider>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) timeouts: Timeouts,
}

/// The handoff edge of a switch.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) config: HandoffConfig,
    pub(super) decider: Arc<Decider>,
    pub(super) observers: Arc<Observers>,
    pub(super) timeouts: Timeouts,
    pub(super) datapath: DetachableDatapath,
    /// Listen addresses by service number.
    pub(super) services: Vec<SocketAddr>,
    pub(crate) channels: NodeChannels,
    /// State of connections.
    pub(super) machine: Mutex<EdgeState>,
    /// Notified when a move has ended.
    pub(super) moves_ended: Condvar,
    /// Events that were read from the plane and not handled yet, in order. While there are [`EVENTS_MAX`], the
    /// plane's ring buffer is not read; it then counts the events that it loses.
    pub(super) events: Mutex<VecDeque<EdgeEvent>>,
    pending_accepts: Mutex<HashMap<FlowKey, PendingAccept>>,
    /// Number of reservations at the gate.
    pub(super) reserved: AtomicU32,
    /// Notified when another thread has read events, or the deadline of a header is near.
    pub(super) caught_up: tokio::sync::Notify,
    /// Lock that makes reading counts and writing gates atomic.
    pub(super) writing_gates: Mutex<()>,
    pub(super) history: TrafficHistory,
    pub(crate) counts: HandoffCounts,
    /// Becomes true when another process takes the plane.
    pub(super) gone: tokio::sync::watch::Sender<bool>,
}

/// Header fields that record whether a rule has read one.
struct TrackedHeaders<'a> {
    header: &'a RequestHeader<'a>,
    was_read: Cell<bool>,
}

impl Headers for TrackedHeaders<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.was_read.set(true);
        self.header.get(name)
    }
}

impl Edge {
    pub(crate) fn new(
        config: HandoffConfig,
        datapath: Box<dyn Datapath>,
        services: Vec<SocketAddr>,
        channels: NodeChannels,
        parts: SwitchParts,
    ) -> Self {
        let SwitchParts { decider, observers, timeouts } = parts;
        let history = TrafficHistory::new(config.targets_max as usize);
        let machine = EdgeState::new(&config);
        Self {
            config,
            decider,
            observers,
            timeouts,
            datapath: DetachableDatapath::new(datapath),
            services,
            channels,
            machine: Mutex::new(machine),
            moves_ended: Condvar::new(),
            events: Mutex::default(),
            pending_accepts: Mutex::default(),
            reserved: AtomicU32::new(0),
            caught_up: tokio::sync::Notify::new(),
            writing_gates: Mutex::default(),
            history,
            counts: HandoffCounts::default(),
            gone: tokio::sync::watch::Sender::new(false),
        }
    }

    /// Returns the time `age` before now.
    fn time_before(&self, age: Duration) -> Time {
        let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.decider.clock.now().as_nanos().saturating_sub(age))
    }

    /// Reads the plane's events and decides what is due. After a flood, the rest is read at the next tick.
    pub(super) fn drain(self: &Arc<Self>) {
        for _ in 0..DRAINS_MAX {
            let count = self.read_events();
            self.process_events();
            if count == 0 {
                break;
            }
        }
    }

    /// Reads the plane's events. Connections that the plane has opened are counted at once; all other events are
    /// queued. Returns the number of events.
    pub(super) fn read_events(&self) -> usize {
        if lock(&self.events).len() >= EVENTS_MAX {
            return 0;
        }
        self.datapath.read_events(&mut |event| self.enqueue(event))
    }

    /// Queues an event of the plane.
    pub(super) fn enqueue(&self, event: DatapathEvent<'_>) {
        let event = match event {
            DatapathEvent::Punt { key, first, head, packet, age } => {
                let late = self.config.shares_connections() && age > RESEND_MIN;
                let packet = Frame::new(packet, head.filter(|_| first));
                EdgeEvent::Input(Input::Packet { key, first, packet, late })
            }
            DatapathEvent::Opened { key, reused, age } => {
                let Some((decision, load)) = self.count_opened(reused) else { return };
                EdgeEvent::Input(Input::Opened { key, decision, load, at: self.time_before(age) })
            }
            DatapathEvent::Later { key, packet } => EdgeEvent::Later(key, packet.into()),
            DatapathEvent::Woke { key, node } => EdgeEvent::Input(Input::Active { key, node }),
            DatapathEvent::Ended { key, flags, account, age } => {
                if !self.config.fixes.keep_entry && flags & flow_flag::CLIENT_FIN != 0 {
                    self.datapath.remove_flow(key);
                }
                EdgeEvent::Input(client_ended(key, flags, account, self.time_before(age)))
            }
        };
        lock(&self.events).push_back(event);
    }

    /// Handles queued events, then decides held connections. Connections that the plane has opened are counted first,
    /// because their events may follow the packet that is to be decided.
    pub(super) fn process_events(self: &Arc<Self>) {
        loop {
            // The event is taken under the machine's lock, so that the order is kept whichever thread takes it.
            let mut machine = lock(&self.machine);
            let event = lock(&self.events).pop_front();
            match event {
                Some(EdgeEvent::Input(input)) => {
                    drop(self.drive(&mut machine, self.decider.clock.now(), input));
                }
                Some(EdgeEvent::Later(key, packet)) => {
                    let node = machine.connection(key).map(|connection| connection.decision.node);
                    drop(machine);
                    self.check_locality(key, node, &packet);
                }
                None => {
                    let Some((key, generation)) = machine.next_undecided() else { return };
                    let frames = machine.packets(key, generation).unwrap_or_default();
                    let head = frames.first().and_then(|frame| frame.head);
                    let bytes = frame::payload(frames);
                    drop(machine);
                    self.decide_held((key, generation), &bytes, head);
                }
            }
        }
    }

    /// Reads the request of a held connection and asks the dispatcher.
    fn decide_held(self: &Arc<Self>, held: (FlowKey, u64), bytes: &[u8], head: Option<u64>) {
        let first_bytes = match opening::parse(bytes) {
            Opening::Http(header) => return self.decide_request(held, &header, head),
            Opening::Tls(name) => return self.decide_tls(held, &name),
            Opening::Unusable(first_bytes) => first_bytes,
        };
        let (key, generation) = held;
        if first_bytes == FirstBytes::Partial {
            self.handle_input(Input::Incomplete { key, generation });
            return self.caught_up.notify_one();
        }
        let delivery = self
            .facts(first_bytes, false)
            .before_node()
            .unwrap_or(Delivery::relay(DeliveryReason::Unreadable));
        self.accept_here(key, generation, delivery, None);
    }

    /// Decides a connection with a complete request header.
    fn decide_request(
        self: &Arc<Self>,
        (key, generation): (FlowKey, u64),
        header: &RequestHeader<'_>,
        head: Option<u64>,
    ) {
        let tracked = TrackedHeaders { header, was_read: Cell::new(false) };
        let request = self.request(header, &tracked, Some(key.client.ip()));
        // A decision that depends on header fields, turns or a random draw applies to this request only.
        let again = !tracked.was_read.get() && self.may_reuse(request.route);
        let text = self.observers.access.is_some().then(|| {
            let text = self.history.texts.create(header)?;
            Some(self.history.store_text(request.target, text))
        });
        let head = head.filter(|_| again);
        self.decide(PendingDecision {
            key,
            generation,
            request,
            first_bytes: FirstBytes::Http1,
            text: text.flatten(),
            head,
        });
    }

    /// Decides a TLS connection that is passed through, by its server name.
    fn decide_tls(self: &Arc<Self>, (key, generation): (FlowKey, u64), name: &[u8]) {
        let request = self.request_by_name(name, Some(key.client.ip()));
        let first_bytes = if self.config.tls { FirstBytes::Tls } else { FirstBytes::TlsHere };
        self.decide(PendingDecision { key, generation, request, first_bytes, text: None, head: None });
    }

    /// Returns the dispatcher's request for a header. `headers` are its fields, possibly tracked.
    pub(super) fn request(
        &self,
        header: &RequestHeader<'_>,
        headers: &dyn Headers,
        client: Option<IpAddr>,
    ) -> Request {
        let head =
            target::rule_head(header.method.as_bytes(), header.host, header.target.as_bytes(), headers);
        self.decider.routing.request(&head, client)
    }

    /// Returns the dispatcher's request for a server name.
    pub(super) fn request_by_name(&self, name: &[u8], client: Option<IpAddr>) -> Request {
        self.decider.routing.request(&target::rule_head(b"CONNECT", name, b"", &()), client)
    }

    fn decide(self: &Arc<Self>, pending: PendingDecision) {
        let key = pending.key;
        let facts = self.route_facts(pending.request.route, pending.first_bytes, false);
        if let Some(delivery) = facts.before_node() {
            return self.accept_here(key, pending.generation, delivery, None);
        }
        let mut lease = Lease::new(self.decider.clone());
        match lease.arrive(self.decider.clock.now(), pending.request) {
            Ok(Some(decision)) => self.finish_decision(pending, lease, Ok(decision)),
            Ok(None) => {
                self.handle_input(Input::AwaitAdmission { key, generation: pending.generation });
                let edge = self.clone();
                tokio::spawn(async move {
                    let outcome = lease.wait().await;
                    edge.finish_decision(pending, lease, outcome);
                });
            }
            Err(refusal) => self.finish_decision(pending, lease, Err(refusal)),
        }
    }

    /// Delivers a connection after the dispatcher's decision.
    fn finish_decision(
        self: &Arc<Self>,
        pending: PendingDecision,
        lease: Lease,
        outcome: Result<Decision, Refusal>,
    ) {
        let PendingDecision { key, generation, request, first_bytes, text, head } = pending;
        let decision = match outcome {
            Ok(decision) => decision,
            // The relay replies with the refusal.
            Err(refusal) => {
                let delivery = Delivery::relay(DeliveryReason::Refused);
                return self.accept_here(key, generation, delivery, Some(Err(refusal)));
            }
        };
        // The gates are set before the decision can be reused.
        self.set_bases(decision.node);
        let mut delivery = self.choose_delivery(request, decision.node, first_bytes, false);
        // A node that accepts cookies for this address could accept a copy of the first packet before the state
        // arrives.
        if delivery.mechanism == Mechanism::Repair && self.accepts_cookies(decision.node) {
            delivery = Delivery { mechanism: Mechanism::Cookie, reason: DeliveryReason::Cookie };
        }
        let started = StartedRequest { lease, request, decision };
        match delivery.mechanism {
            Mechanism::Repair => self.send_first_state((key, generation), started, text),
            Mechanism::Cookie => {
                let (decision, load) = ConnectionLoad::new(started, delivery, text);
                let mut machine = lock(&self.machine);
                let now = self.decider.clock.now();
                self.drive(&mut machine, now, Input::HandOff { key, generation, decision, load });
                if let Some(head) = head
                    && machine.connection(key).is_some_and(|one| one.decision.node == decision.node)
                {
                    let class = u8::try_from(request.class.index()).unwrap_or(0);
                    let (target, node, service) = (request.target, decision.node, key.service);
                    let reusable = ReusableDecision { target, node, route: request.route.0, service, class };
                    self.datapath.put_target(head, &reusable, self.config.fast_age);
                }
            }
            Mechanism::Relay | Mechanism::Splice => {
                self.accept_here(key, generation, delivery, Some(Ok(started)));
            }
        }
    }

    /// Whether a node accepts connections by cookie.
    fn accepts_cookies(&self, node: NodeId) -> bool {
        self.config.setting.allows_cookie() && self.channels.capability(node).cookie
    }

    /// Lets this host's own stack accept a held connection. The accept loop finds the decision.
    fn accept_here(&self, key: FlowKey, generation: u64, delivery: Delivery, outcome: Option<Placement>) {
        self.handle_input(Input::AcceptHere { key, generation, verdict: (delivery, outcome) });
    }

    /// Stores a decision for the accept loop.
    pub(super) fn add_pending_accept(&self, key: FlowKey, delivery: Delivery, outcome: Option<Placement>) {
        let since = self.decider.clock.now();
        let mut pending = lock(&self.pending_accepts);
        // Without a stored decision, the accept loop decides anew.
        if pending.len() < PENDING_ACCEPTS_MAX || pending.contains_key(&key) {
            pending.insert(key, PendingAccept { delivery, outcome, since });
        }
    }

    /// Takes the decision of a connection that was accepted.
    pub(crate) fn take_pending_accept(&self, client: SocketAddr, local: SocketAddr) -> Option<PendingAccept> {
        let service = self.service(local)?;
        lock(&self.pending_accepts).remove(&FlowKey::new(client, service))
    }

    /// Returns the service number of a listen address.
    pub(crate) fn service(&self, local: SocketAddr) -> Option<u16> {
        let same = |listen: &SocketAddr| {
            let any = listen.ip().is_unspecified() || listen.ip().to_canonical() == local.ip().to_canonical();
            any && listen.port() == local.port()
        };
        u16::try_from(self.services.iter().position(same)?).ok()
    }

    /// Counts a connection that the fast path has opened. Returns `None` if the node is unknown.
    fn count_opened(&self, reused: ReusableDecision) -> Option<(Decision, ConnectionLoad)> {
        let class = ServiceClass::ALL.get(usize::from(reused.class)).copied().unwrap_or(ServiceClass::N);
        let request = Request::new(reused.target).with_route(RouteId(reused.route)).with_class(class);
        let counted = self.reuse(
            request,
            reused.node,
            Delivery { mechanism: Mechanism::Cookie, reason: DeliveryReason::Fast },
        );
        // Counted afterwards, so that a gate that is set in between counts it twice and not never.
        self.channels.count_opened(reused.node);
        let (decision, load) = counted?;
        Some((decision, ConnectionLoad { text: self.history.text(reused.target), ..load }))
    }

    /// Counts a connection that is at a node already. Returns `None` if the node is unknown.
    pub(super) fn reuse(
        &self,
        request: Request,
        node: NodeId,
        delivery: Delivery,
    ) -> Option<(Decision, ConnectionLoad)> {
        let mut lease = Lease::new(self.decider.clone());
        let counted = lease.reuse(self.decider.clock.now(), request, node);
        let decision = Decision { node, reason: Reason::Reuse };
        counted.then_some((decision, ConnectionLoad { lease, request, delivery, text: None }))
    }

    /// Checks whether a later request of a connection at `node` would have gone to the same node.
    fn check_locality(&self, key: FlowKey, node: Option<NodeId>, packet: &[u8]) {
        let Some(segment) = TcpFrame::parse(packet) else { return };
        // A packet that does not begin a request says nothing.
        let Opening::Http(header) = opening::parse(segment.payload) else { return };
        let Some(node) = node else { return };
        let request = self.request(&header, &*header, Some(key.client.ip()));
        if !self.decider.dispatcher.settings_of(request.route).policy.is_by_target() {
            return;
        }
        let explained = self.decider.dispatcher.explain_request(self.decider.clock.now(), &request);
        // A target without servers belongs to the node that is asked first.
        let Some(known) = explained.known.filter(|known| !known.servers.is_empty()) else { return };
        let misplaced = !known.servers.contains(&node);
        self.history.note_later_request(request.route, misplaced);
        self.counts.later_request(misplaced);
    }

    /// Removes decisions whose connections were never accepted. Returns their number.
    pub(super) fn expire_pending_accepts(&self, now: Time) -> usize {
        let mut pending = lock(&self.pending_accepts);
        let before = pending.len();
        pending.retain(|_, accept| now.since(accept.since) < ACCEPT_TIMEOUT);
        before - pending.len()
    }

    /// Returns the counters of the forwarding plane by name.
    pub(crate) fn plane_counters(&self) -> Vec<(&'static str, u64)> {
        self.datapath.counters()
    }

    /// Returns the numbers of held, handed-off and not yet accepted connections.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let machine = lock(&self.machine);
        let (held, handed) = (machine.held(), machine.len());
        drop(machine);
        (held, handed, lock(&self.pending_accepts).len())
    }
}

fn client_ended(key: FlowKey, flags: u8, account: FlowTotals, at: Time) -> Input<parts::LiveParts> {
    let end = if flags & flow_flag::CLIENT_RST != 0 {
        ClientEnd::Reset
    } else if flags & flow_flag::CLIENT_FIN == 0 {
        ClientEnd::Replaced
    } else {
        ClientEnd::Fin { answered: flags & flow_flag::ACKED != 0 }
    };
    let FlowTotals { acknowledged, requests } = account;
    Input::ClientEnded { key, end, account: larder_core::handoff::FlowAccount { acknowledged, requests }, at }
}
