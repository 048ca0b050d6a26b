//! The agent with real switches over loopback, and a fake kernel.

use super::{
    Agent, AgentConfig, AgentError, KernelEvent, NodeKernel, RestoreRequest, RestoredConnection,
    RestoredSink, ServiceRules,
};
use crate::channel::Timing;
use crate::channel::client::{ChannelEvent, EventKind, NodeAddress, NodeChannel, SendError};
use crate::channel::holders::{HolderReply, RequestSummary};
use crate::channel::identity::Identity;
use crate::channel::message::{
    Blob, CLOSED_MAX, Connection, CookieKeys, FromNode, Handoff, Hello, Refusal, Service, SettingsStatus,
    ToNode, Welcome,
};
use larder_kernel::guard::{InboundTunnel, InboundTunnelKind};
use larder_kernel::{CookieKey, FlowKey};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::{io, time::Duration};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

mod revocation;
mod shutdown;
mod slow_link;

const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
enum PlayedEvent {
    Early(FlowKey, Vec<u8>),
    Closed(FlowKey),
}

#[derive(Debug, Default)]
struct State {
    services: BTreeMap<SocketAddr, (u16, ServiceRules)>,
    keys: Option<[CookieKey; 2]>,
    tag: u8,
    tunnels: Vec<InboundTunnel>,
    events: VecDeque<PlayedEvent>,
    live: Vec<FlowKey>,
    sockets: Vec<(SocketAddr, SocketAddr)>,
    silent: Vec<FlowKey>,
    injected: Vec<Vec<u8>>,
    failing: bool,
    /// The kernel does not know the first sequence numbers of closed connections.
    without_first_seq: bool,
    /// Listing the stack's sockets blocks until this is false.
    listing_blocks: bool,
}

/// A fake kernel that records its settings and emits the events that a test chooses.
struct FakeKernel {
    state: Mutex<State>,
    event_fd: OwnedFd,
}

impl FakeKernel {
    fn new() -> Arc<Self> {
        let event_fd = eventfd(0, EventfdFlags::NONBLOCK).expect("an event");
        Arc::new(Self { state: Mutex::default(), event_fd })
    }

    fn emit(&self, events: impl IntoIterator<Item = PlayedEvent>) {
        self.state.lock().expect("whole").events.extend(events);
        rustix::io::write(&self.event_fd, &1_u64.to_ne_bytes()).expect("rung");
    }

    fn with_state<T>(&self, access: impl FnOnce(&mut State) -> T) -> T {
        access(&mut self.state.lock().expect("whole"))
    }

    /// Waits until an action of the agent that is not reported shows in the state.
    async fn wait_until(&self, until: impl Fn(&State) -> bool) {
        larder_testkit::eventually_async("the agent acts", || {
            self.with_state(|state| until(state)).then_some(())
        })
        .await;
    }
}

impl NodeKernel for FakeKernel {
    fn accepts_cookies(&self) -> bool {
        true
    }

    fn set_service(&self, id: u16, address: SocketAddr, rules: ServiceRules) -> io::Result<()> {
        self.with_state(|state| state.services.insert(address, (id, rules)));
        Ok(())
    }

    fn remove_service(&self, address: SocketAddr) -> io::Result<()> {
        self.with_state(|state| state.services.remove(&address))
            .map(drop)
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()> {
        self.with_state(|state| state.keys = Some(*keys));
        Ok(())
    }

    fn set_tag(&self, tag: u8) -> io::Result<()> {
        self.with_state(|state| state.tag = tag);
        Ok(())
    }

    fn add_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.with_state(|state| state.tunnels.push(*tunnel));
        Ok(())
    }

    fn remove_tunnel(&self, tunnel: &InboundTunnel) -> io::Result<()> {
        self.with_state(|state| state.tunnels.retain(|one| one != tunnel));
        Ok(())
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    fn read_events(&self, seen: &mut dyn FnMut(KernelEvent<'_>)) -> usize {
        // An empty eventfd is not an error.
        let _ = rustix::io::read(&self.event_fd, &mut [0; 8]);
        let events = self.with_state(|state| std::mem::take(&mut state.events));
        for event in &events {
            match event {
                PlayedEvent::Early(key, packet) => {
                    seen(KernelEvent::EarlyPacket { key: *key, at_ns: 0, packet });
                }
                PlayedEvent::Closed(key) => {
                    let at_ns = larder_kernel::plane::now_ns();
                    let first_seq = if self.with_state(|state| state.without_first_seq) { 0 } else { 9 };
                    seen(KernelEvent::Closed { key: *key, first_seq, at_ns });
                }
            }
        }
        events.len()
    }

    fn each_connection(&self, see: &mut dyn FnMut(FlowKey, u32)) {
        let live = self.with_state(|state| state.live.clone());
        live.into_iter().for_each(|key| see(key, 5));
    }

    fn each_socket(&self, see: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
        larder_testkit::eventually("the list is complete", || {
            (!self.with_state(|state| state.listing_blocks)).then_some(())
        });
        let sockets = self.with_state(|state| state.sockets.clone());
        sockets.into_iter().for_each(|(local, client)| see(local, client));
        if self.with_state(|state| state.failing) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn each_silent(&self, _span: Duration, see: &mut dyn FnMut(FlowKey, u32)) {
        let silent = self.with_state(|state| state.silent.clone());
        silent.into_iter().for_each(|key| see(key, 5));
    }

    fn restore(&self, request: RestoreRequest<'_>) -> Result<RestoredConnection, (Refusal, String)> {
        if self.with_state(|state| state.failing) {
            return Err((Refusal::Kernel, "busy".to_owned()));
        }
        let (client, server) = (request.client, request.server);
        let socket = eventfd(0, EventfdFlags::NONBLOCK).expect("some descriptor");
        let (received, fin_packet) = (request.received.to_vec(), Some(b"end".to_vec()));
        Ok(RestoredConnection {
            client,
            server,
            socket,
            received,
            unsent: Vec::new(),
            fin_packet,
            slot: None,
        })
    }

    fn add_connection(&self, key: FlowKey) {
        self.with_state(|state| state.live.push(key));
    }

    fn remove_connection(&self, key: FlowKey) {
        self.with_state(|state| state.live.retain(|other| *other != key));
    }

    fn freeze(&self, _key: FlowKey) -> io::Result<()> {
        Ok(())
    }

    fn thaw(&self, _key: FlowKey) -> io::Result<()> {
        Ok(())
    }

    fn reinject(&self, packet: &[u8]) -> io::Result<()> {
        self.inject(packet)
    }

    fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.with_state(|state| state.injected.push(packet.to_vec()));
        Ok(())
    }
}

fn timing() -> Timing {
    let quick = Duration::from_millis(20);
    Timing { retry_min: quick, retry_max: quick, ..Timing::default() }
}

fn address(port: u16) -> SocketAddr {
    ([10, 9, 0, 100], port).into()
}

fn flow(port: u16, service: u16) -> FlowKey {
    FlowKey::new(([192, 0, 2, 1], port).into(), service)
}

fn service(id: u16, port: u16) -> Service {
    Service { id, address: address(port), cookie: true, stash: true, grace: false }
}

fn hello(current: u64, services: &[Service]) -> Hello {
    let keys = CookieKeys::new([CookieKey([current; 2]), CookieKey([0; 2])], 0);
    Hello { name: "switch".to_owned(), tag: 3, keys, services: services.to_vec(), tunnel: None }
}

/// A node with two listen addresses, and the keys of two switches.
struct Fixture {
    kernel: Arc<FakeKernel>,
    agent: Agent,
    node: Identity,
    switches: [Identity; 2],
    sockets: mpsc::Receiver<RestoredConnection>,
    slots: Arc<Semaphore>,
}

impl Fixture {
    async fn new() -> Self {
        let identity = || Identity::generate().expect("a key");
        let (kernel, node, switches) = (FakeKernel::new(), identity(), [identity(), identity()]);
        let config = AgentConfig {
            name: "a".to_owned(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            identity: node.clone(),
            switches: switches.iter().map(Identity::public).collect(),
            interface: Some("lo".to_owned()),
            services: vec![address(80), address(81)],
            lateral: true,
            timing: timing(),
        };
        let (sink, sockets) = mpsc::channel(1);
        let slots = Arc::new(Semaphore::new(4));
        let sink = RestoredSink::new(sink).with_connection_slots(Arc::clone(&slots));
        let node_kernel: Arc<dyn NodeKernel> = kernel.clone();
        let agent = Agent::start(config, Some(node_kernel), Some(sink)).await.expect("started");
        Self { kernel, agent, node, switches, sockets, slots }
    }

    fn connect(&self, which: usize, hello: Hello) -> TestSwitch {
        let (sink, events) = mpsc::channel(4_096);
        let address = self.agent.address();
        let peer = NodeAddress { node: 0, name: "a".into(), address, key: self.node.public() };
        let channel = NodeChannel::start(peer, self.switches[which].clone(), hello, timing(), sink);
        TestSwitch { channel, events }
    }
}

struct TestSwitch {
    channel: NodeChannel,
    events: mpsc::Receiver<ChannelEvent>,
}

impl TestSwitch {
    async fn welcome(&mut self) -> Welcome {
        let event = timeout(TIMEOUT, self.events.recv()).await.expect("in time").expect("an event");
        match event.kind {
            EventKind::Up(welcome) => *welcome,
            other => panic!("expected Up first: {other:?}"),
        }
    }

    /// Returns the next message that is not a load report.
    async fn next_message(&mut self) -> FromNode {
        loop {
            let event = timeout(TIMEOUT, self.events.recv()).await.expect("in time").expect("an event");
            match event.kind {
                EventKind::Message(FromNode::Load(_)) => {}
                EventKind::Message(message) => return message,
                other => panic!("expected a message: {other:?}"),
            }
        }
    }

    async fn listing(&mut self) -> Vec<Connection> {
        match self.next_message().await {
            FromNode::Connections(live) if live.last => {
                live.connections.iter().map(|one| one.connection).collect()
            }
            other => panic!("expected the last page: {other:?}"),
        }
    }

    fn hand_off(&self, id: u64, service: u16, port: u16) {
        let connection = Connection { client: ([192, 0, 2, 1], port).into(), service };
        let request = Blob(b"GET /".to_vec());
        let handoff = Handoff { id, connection, first_seq: 7, checkpoint: Blob::default(), request };
        self.channel.send(&ToNode::Handoff(handoff)).expect("room");
    }
}

/// The runtime has one thread: other work continues while the stack's sockets are listed.
#[tokio::test]
async fn a_slow_listing_delays_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.kernel.with_state(|state| state.listing_blocks = true);
    let mut switch = fixture.connect(0, hello(7, &[service(0, 80)]));
    switch.welcome().await;
    switch.hand_off(1, 0, 5);
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![1] }, "before the listing");
    fixture.sockets.recv().await.expect("a socket");
    fixture.kernel.with_state(|state| state.listing_blocks = false);
    switch.listing().await;
}

#[tokio::test]
async fn a_switch_gets_the_configured_services_and_a_listing() {
    let fixture = Fixture::new().await;
    fixture.kernel.with_state(|state| state.live = vec![flow(1, 0), flow(2, 1), flow(3, 1)]);
    // The stack's sockets: one in the table, one not in the table, and one on an address that the node does not serve.
    let client = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
    let sockets = vec![(address(81), flow(2, 1).client), (address(81), client(9)), (address(22), client(8))];
    fixture.kernel.with_state(|state| state.sockets = sockets);
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81), service(5, 99)]));
    let welcome = switch.welcome().await;
    assert_eq!((welcome.name.as_str(), welcome.cookie, welcome.repair, welcome.mac), ("a", true, true, None));
    assert!(welcome.mtu > 0);
    assert_eq!(
        welcome.settings,
        SettingsStatus { services: vec![4], keys: true, tag: true, tunnel: true, cookie_conflict: false }
    );
    let ports: Vec<u16> = switch.listing().await.iter().map(|one| one.client.port()).collect();
    assert_eq!(ports, [2, 3, 9]);
    fixture.kernel.with_state(|state| {
        let rules = ServiceRules { cookie: true, stash: true, grace: false };
        assert_eq!(state.services, [(address(81), (1, rules))].into());
        assert_eq!((state.keys.map(|keys| keys[0]), state.tag), (Some(CookieKey([7; 2])), 3));
    });
    switch.channel.set_services(vec![service(0, 80)]);
    let accepted =
        SettingsStatus { services: vec![0], keys: true, tag: true, tunnel: true, cookie_conflict: false };
    assert_eq!(switch.next_message().await, FromNode::Settings(accepted));
    assert_eq!(
        fixture.kernel.with_state(|state| state.services.keys().copied().collect::<Vec<_>>()),
        [address(80)]
    );
    // Only the current session, which is the first, accepts messages.
    for other in [0, 2] {
        assert!(matches!(
            switch.channel.send_in_session(other, &ToNode::ListConnections),
            Err(SendError::Down)
        ));
    }
    switch.channel.send_in_session(1, &ToNode::ListConnections).expect("room");
    assert_eq!(switch.listing().await.len(), 1);
    switch.channel.set_tag(9);
    assert!(matches!(switch.next_message().await, FromNode::Settings(accepted) if accepted.tag));
    assert_eq!(fixture.kernel.with_state(|state| state.tag), 9);
}

#[tokio::test]
async fn holder_queries_go_to_a_switch_with_the_listen_address() {
    let fixture = Fixture::new().await;
    let resolver = fixture.agent.resolver();
    let request = RequestSummary { method: "GET".to_owned(), host: "h".to_owned(), target: "/a".to_owned() };
    assert_eq!(resolver.resolve(address(81), request.clone(), TIMEOUT).await, None, "no switch is connected");
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    assert!(switch.welcome().await.lateral);
    switch.listing().await;
    assert_eq!(
        resolver.resolve(address(80), request.clone(), TIMEOUT).await,
        None,
        "no switch has the address"
    );
    let answering = async {
        let FromNode::FindHolders(query) = switch.next_message().await else {
            panic!("expected a holder query")
        };
        let reply =
            HolderReply { id: query.id, target: Some(7), is_holder: true, load: 2, holders: Vec::new() };
        switch.channel.send(&ToNode::Holders(reply.clone())).expect("room");
        (query.request, reply)
    };
    let (answer, (received, reply)) =
        tokio::join!(resolver.resolve(address(81), request.clone(), TIMEOUT), answering);
    assert_eq!((answer, received), (Some(reply), request.clone()));
    let waiting = async { resolver.resolve(address(81), request.clone(), TIMEOUT * 2).await };
    let leaving = async {
        switch.next_message().await;
        drop(switch);
    };
    assert_eq!(
        timeout(TIMEOUT, async { tokio::join!(waiting, leaving).0 }).await,
        Ok(None),
        "the switch disconnected"
    );
}

#[tokio::test]
async fn tunnels_follow_the_settings_of_their_switch() {
    let fixture = Fixture::new().await;
    let tunnel = |port| InboundTunnel {
        kind: InboundTunnelKind::Gue { port },
        local: [10, 9, 1, 11].into(),
        remote: Some([10, 9, 0, 1].into()),
    };
    let with = |tunnel| Hello { tunnel, ..hello(7, &[service(4, 81)]) };
    let mut switch = fixture.connect(0, with(Some(tunnel(6080))));
    assert!(switch.welcome().await.settings.tunnel);
    assert_eq!(fixture.kernel.with_state(|state| state.tunnels.clone()), [tunnel(6080)]);
    drop(switch);
    let mut switch = fixture.connect(0, with(Some(tunnel(6081))));
    switch.welcome().await;
    assert_eq!(fixture.kernel.with_state(|state| state.tunnels.clone()), [tunnel(6081)]);
    drop(switch);
    let mut switch = fixture.connect(0, with(None));
    switch.welcome().await;
    assert_eq!(fixture.kernel.with_state(|state| state.tunnels.clone()), []);
}

#[tokio::test]
async fn closed_connections_are_reported_in_batches_and_in_order_to_every_switch_with_the_address() {
    let fixture = Fixture::new().await;
    let mut both = fixture.connect(0, hello(7, &[service(4, 80), service(5, 81)]));
    let mut one = fixture.connect(1, hello(7, &[service(9, 81)]));
    for switch in [&mut both, &mut one] {
        switch.welcome().await;
        switch.listing().await;
    }
    let ports = 0..u16::try_from(CLOSED_MAX * 2 + 3).expect("few");
    fixture.kernel.emit(ports.clone().map(|port| PlayedEvent::Closed(flow(port, port % 2))));
    let mut seen = Vec::new();
    while seen.len() < ports.len() {
        let FromNode::Closed(list) = both.next_message().await else { panic!("expected closed connections") };
        assert!(list.len() > 1 && list.iter().all(|socket| socket.first_seq == 9));
        seen.extend(list.iter().map(|socket| (socket.connection.client.port(), socket.connection.service)));
    }
    assert_eq!(seen, ports.clone().map(|port| (port, 4 + port % 2)).collect::<Vec<_>>());
    let FromNode::Closed(list) = one.next_message().await else { panic!("expected closed connections") };
    assert!(
        list.iter().all(|socket| socket.connection.service == 9 && socket.connection.client.port() % 2 == 1)
    );
}

#[tokio::test]
async fn early_packets_are_injected_after_the_restore() {
    let mut fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    switch.welcome().await;
    switch.listing().await;
    let early = |port, byte| PlayedEvent::Early(flow(port, 1), vec![byte]);
    fixture.kernel.emit([early(1, 10), early(2, 20), early(1, 11)]);
    switch.hand_off(70, 4, 1);
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![70] });
    let restored = timeout(TIMEOUT, fixture.sockets.recv()).await.expect("in time").expect("a socket");
    assert_eq!(
        (restored.server, restored.client.port(), restored.received),
        (address(81), 1, b"GET /".to_vec())
    );
    assert_eq!(
        fixture.kernel.with_state(|state| state.injected.clone()),
        [b"end".to_vec(), vec![10], vec![11]]
    );
    // Received before the restore, reported after it.
    fixture.kernel.emit([early(1, 12)]);
    fixture.kernel.wait_until(|state| state.injected.last() == Some(&vec![12])).await;
    // The other handoff is cancelled.
    let connection = Connection { client: ([192, 0, 2, 1], 2).into(), service: 4 };
    switch.channel.send(&ToNode::CancelHandoff(connection)).expect("room");
    switch.hand_off(71, 4, 2);
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![71] });
    fixture.kernel.with_state(|state| {
        assert_eq!(state.injected.last(), Some(&b"end".to_vec()));
        assert!(!state.injected.contains(&vec![20]), "dropped by the cancellation");
    });
}

#[tokio::test]
async fn refusals_state_their_reason() {
    let mut fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    switch.welcome().await;
    switch.listing().await;
    switch.hand_off(1, 9, 1);
    assert!(matches!(
        switch.next_message().await,
        FromNode::Refused { id: 1, reason: Refusal::UnknownService, .. }
    ));
    switch.hand_off(2, 4, 1);
    assert_eq!(switch.next_message().await, FromNode::Restored { ids: vec![2] });
    switch.hand_off(3, 4, 2);
    assert!(matches!(switch.next_message().await, FromNode::Refused { id: 3, reason: Refusal::Full, .. }));
    assert_eq!(fixture.slots.available_permits(), 3, "a refused handoff keeps no slot");
    let served = fixture.sockets.recv().await.expect("a socket");
    let others = fixture.slots.acquire_many(3).await.expect("slots");
    switch.hand_off(6, 4, 2);
    assert!(
        matches!(switch.next_message().await, FromNode::Refused { id: 6, reason: Refusal::Full, .. }),
        "no free slot"
    );
    drop((served, others));
    assert_eq!(fixture.slots.available_permits(), 4);
    fixture.kernel.with_state(|state| state.failing = true);
    switch.hand_off(4, 4, 2);
    let FromNode::Refused { id: 4, reason: Refusal::Kernel, detail } = switch.next_message().await else {
        panic!("expected a refusal of the kernel")
    };
    assert_eq!(detail, "busy");
    fixture.sockets.close();
    fixture.kernel.with_state(|state| state.failing = false);
    switch.hand_off(5, 4, 2);
    assert!(matches!(
        switch.next_message().await,
        FromNode::Refused { id: 5, reason: Refusal::Unsupported, .. }
    ));
}

#[tokio::test]
async fn settings_stay_when_a_switch_disconnects() {
    let fixture = Fixture::new().await;
    let mut switch = fixture.connect(0, hello(7, &[service(4, 81)]));
    let incarnation = switch.welcome().await.incarnation;
    switch.listing().await;
    drop(switch);
    fixture.kernel.emit([PlayedEvent::Closed(flow(1, 1))]);
    fixture.kernel.wait_until(|state| state.events.is_empty()).await;
    assert_eq!(
        fixture.kernel.with_state(|state| (state.services.len(), state.keys.is_some(), state.tag)),
        (1, true, 3)
    );
    // The switch reconnects with new keys, and the node is the same.
    let mut switch = fixture.connect(0, hello(8, &[service(4, 81)]));
    assert_eq!(switch.welcome().await.incarnation, incarnation);
    assert_eq!(fixture.kernel.with_state(|state| state.keys.map(|keys| keys[0])), Some(CookieKey([8; 2])));
    fixture.agent.stop().await;
    assert_eq!(Arc::strong_count(&fixture.kernel), 1, "the agent dropped the kernel");
}

#[tokio::test]
async fn an_agent_without_a_kernel_refuses_handoffs_and_reports_its_load() {
    let (node, switch) = (Identity::generate().expect("a key"), Identity::generate().expect("a key"));
    let config = |switches| AgentConfig {
        name: "a".to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        identity: node.clone(),
        switches,
        interface: None,
        services: vec![address(80)],
        lateral: false,
        timing: timing(),
    };
    let nobody = Agent::start(config(Vec::new()), None, None).await.map(drop);
    assert!(matches!(nobody, Err(AgentError::Config { field: "switches", .. })));
    let missing = AgentConfig { interface: Some("none-0".to_owned()), ..config(vec![switch.public()]) };
    assert!(matches!(Agent::start(missing, None, None).await, Err(AgentError::Interface { .. })));

    let agent = Agent::start(config(vec![switch.public()]), None, None).await.expect("started");
    let (sink, events) = mpsc::channel(64);
    let peer = NodeAddress { node: 0, name: "a".into(), address: agent.address(), key: node.public() };
    let channel = NodeChannel::start(peer, switch, hello(1, &[service(0, 80)]), timing(), sink);
    let mut switch = TestSwitch { channel, events };
    let welcome = switch.welcome().await;
    assert_eq!((welcome.cookie, welcome.repair), (false, false));
    assert_eq!(
        welcome.settings,
        SettingsStatus {
            services: Vec::new(),
            keys: false,
            tag: false,
            tunnel: true,
            cookie_conflict: false
        }
    );
    assert_eq!(switch.listing().await, []);
    switch.hand_off(1, 0, 1);
    assert!(matches!(switch.next_message().await, FromNode::Refused { reason: Refusal::Unsupported, .. }));
    let load = async {
        loop {
            if let EventKind::Message(FromNode::Load(load)) =
                switch.events.recv().await.expect("an event").kind
                && load.cpu_permille.is_some()
            {
                return load;
            }
        }
    };
    assert_eq!(timeout(TIMEOUT, load).await.expect("in time").connections, 0);
}
