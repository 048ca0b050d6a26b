//! The agent with real front-ends over loopback, and a kernel that is played.

use super::{Agent, AgentConfig, AgentError, Forwarding, Moved, Restored, Rules, Seen, Sockets};
use crate::channel::Timing;
use crate::channel::client::{Event, NodeChannel, Peer, SendError, What};
use crate::channel::identity::Identity;
use crate::channel::message::{
    Accepted, Blob, CLOSED_MAX, Connection, FromNode, Handoff, Hello, Keys, Refusal, Service, ToNode, Welcome,
};
use crate::channel::whereabouts::{Asked, Has};
use larder_kernel::guard::{Tunnel, TunnelKind};
use larder_kernel::{CookieKey, FlowKey};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

mod ends;
mod revoked;
mod slow;

const HANGS: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
enum Told {
    Early(FlowKey, Vec<u8>),
    Closed(FlowKey),
}

#[derive(Debug, Default)]
struct State {
    services: BTreeMap<SocketAddr, (u16, Rules)>,
    keys: Option<[CookieKey; 2]>,
    tag: u8,
    tunnels: Vec<Tunnel>,
    told: VecDeque<Told>,
    live: Vec<FlowKey>,
    sockets: Vec<(SocketAddr, SocketAddr)>,
    silent: Vec<FlowKey>,
    injected: Vec<Vec<u8>>,
    refuse: bool,
    /// The kernel does not know the numbers of connections that end.
    unnumbered: bool,
    /// The stack's list takes until this is false.
    list_is_long: bool,
}

/// Plays the kernel: remembers what it is told, and tells what the test lets happen.
struct Played {
    state: Mutex<State>,
    bell: OwnedFd,
}

impl Played {
    fn new() -> Arc<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("an event");
        Arc::new(Self { state: Mutex::default(), bell })
    }

    fn happens(&self, told: impl IntoIterator<Item = Told>) {
        self.state.lock().expect("whole").told.extend(told);
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("rung");
    }

    fn see<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().expect("whole"))
    }

    /// Waits for what the agent does without saying so.
    async fn wait(&self, until: impl Fn(&State) -> bool) {
        larder_testkit::eventually_async("the agent acts", || self.see(|state| until(state)).then_some(()))
            .await;
    }
}

impl Forwarding for Played {
    fn accepts_cookies(&self) -> bool {
        true
    }

    fn set_service(&self, id: u16, address: SocketAddr, rules: Rules) -> io::Result<()> {
        self.see(|state| state.services.insert(address, (id, rules)));
        Ok(())
    }

    fn remove_service(&self, address: SocketAddr) -> io::Result<()> {
        self.see(|state| state.services.remove(&address)).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn set_keys(&self, keys: &[CookieKey; 2]) -> io::Result<()> {
        self.see(|state| state.keys = Some(*keys));
        Ok(())
    }

    fn set_tag(&self, tag: u8) -> io::Result<()> {
        self.see(|state| state.tag = tag);
        Ok(())
    }

    fn add_tunnel(&self, tunnel: &Tunnel) -> io::Result<()> {
        self.see(|state| state.tunnels.push(*tunnel));
        Ok(())
    }

    fn remove_tunnel(&self, tunnel: &Tunnel) -> io::Result<()> {
        self.see(|state| state.tunnels.retain(|one| one != tunnel));
        Ok(())
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn read_events(&self, seen: &mut dyn FnMut(Seen<'_>)) -> usize {
        // Nothing there is not an error.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let told = self.see(|state| std::mem::take(&mut state.told));
        for one in &told {
            match one {
                Told::Early(key, packet) => seen(Seen::Early { key: *key, at_ns: 0, packet }),
                Told::Closed(key) => {
                    let at_ns = larder_kernel::plane::now_ns();
                    let first_seq = if self.see(|state| state.unnumbered) { 0 } else { 9 };
                    seen(Seen::Closed { key: *key, first_seq, at_ns });
                }
            }
        }
        told.len()
    }

    fn each_connection(&self, see: &mut dyn FnMut(FlowKey, u32)) {
        let live = self.see(|state| state.live.clone());
        live.into_iter().for_each(|key| see(key, 5));
    }

    fn each_socket(&self, see: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
        larder_testkit::eventually("the list is complete", || {
            (!self.see(|state| state.list_is_long)).then_some(())
        });
        let sockets = self.see(|state| state.sockets.clone());
        sockets.into_iter().for_each(|(local, client)| see(local, client));
        if self.see(|state| state.refuse) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn each_silent(&self, _span: Duration, see: &mut dyn FnMut(FlowKey, u32)) {
        let silent = self.see(|state| state.silent.clone());
        silent.into_iter().for_each(|key| see(key, 5));
    }

    fn restore(&self, moved: Moved<'_>) -> Result<Restored, (Refusal, String)> {
        if self.see(|state| state.refuse) {
            return Err((Refusal::Kernel, "busy".to_owned()));
        }
        let (client, server) = (moved.client, moved.server);
        let socket = eventfd(0, EventfdFlags::NONBLOCK).expect("some descriptor");
        let (first, inject) = (moved.request.to_vec(), Some(b"end".to_vec()));
        Ok(Restored { client, server, socket, first, unsent: Vec::new(), inject, place: None })
    }

    fn begun(&self, key: FlowKey) {
        self.see(|state| state.live.push(key));
    }

    fn forget(&self, key: FlowKey) {
        self.see(|state| state.live.retain(|other| *other != key));
    }

    fn freeze(&self, _key: FlowKey) -> io::Result<()> {
        Ok(())
    }

    fn thaw(&self, _key: FlowKey) -> io::Result<()> {
        Ok(())
    }

    fn give_back(&self, packet: &[u8]) -> io::Result<()> {
        self.inject(packet)
    }

    fn inject(&self, packet: &[u8]) -> io::Result<()> {
        self.see(|state| state.injected.push(packet.to_vec()));
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
    let keys = Keys::new([CookieKey([current; 2]), CookieKey([0; 2])], 0);
    Hello { name: "front".to_owned(), tag: 3, keys, services: services.to_vec(), tunnel: None }
}

/// A node with two listen addresses, and the keys of two front-ends.
struct Stage {
    kernel: Arc<Played>,
    agent: Agent,
    node: Identity,
    switches: [Identity; 2],
    sockets: mpsc::Receiver<Restored>,
    places: Arc<Semaphore>,
}

impl Stage {
    async fn new() -> Self {
        let identity = || Identity::generate().expect("a key");
        let (kernel, node, switches) = (Played::new(), identity(), [identity(), identity()]);
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
        let places = Arc::new(Semaphore::new(4));
        let sink = Sockets::new(sink).with_places(Arc::clone(&places));
        let forwarding: Arc<dyn Forwarding> = kernel.clone();
        let agent = Agent::start(config, Some(forwarding), Some(sink)).await.expect("started");
        Self { kernel, agent, node, switches, sockets, places }
    }

    fn join(&self, which: usize, hello: Hello) -> Front {
        let (sink, events) = mpsc::channel(4_096);
        let peer = Peer { node: 0, address: self.agent.address(), key: self.node.public() };
        let channel = NodeChannel::start(peer, self.switches[which].clone(), hello, timing(), sink);
        Front { channel, events }
    }
}

struct Front {
    channel: NodeChannel,
    events: mpsc::Receiver<Event>,
}

impl Front {
    async fn welcome(&mut self) -> Welcome {
        let event = timeout(HANGS, self.events.recv()).await.expect("in time").expect("an event");
        match event.what {
            What::Up(welcome) => *welcome,
            other => panic!("must be up first: {other:?}"),
        }
    }

    /// The next message that is no report of load.
    async fn heard(&mut self) -> FromNode {
        loop {
            let event = timeout(HANGS, self.events.recv()).await.expect("in time").expect("an event");
            match event.what {
                What::Message(FromNode::Load(_)) => {}
                What::Message(message) => return message,
                other => panic!("must be a message: {other:?}"),
            }
        }
    }

    async fn live(&mut self) -> Vec<Connection> {
        match self.heard().await {
            FromNode::Live(live) if live.last => live.connections.iter().map(|one| one.connection).collect(),
            other => panic!("must be all connections: {other:?}"),
        }
    }

    fn hand(&self, id: u64, service: u16, port: u16) {
        let connection = Connection { client: ([192, 0, 2, 1], port).into(), service };
        let request = Blob(b"GET /".to_vec());
        let handoff = Handoff { id, connection, first_seq: 7, checkpoint: Blob::default(), request };
        self.channel.send(&ToNode::Handoff(handoff)).expect("room");
    }
}

/// On a runtime of one thread: while the stack's list is being read, everything else goes on.
#[tokio::test]
async fn a_long_list_holds_nothing_up() {
    let mut stage = Stage::new().await;
    stage.kernel.see(|state| state.list_is_long = true);
    let mut front = stage.join(0, hello(7, &[service(0, 80)]));
    front.welcome().await;
    front.hand(1, 0, 5);
    assert_eq!(front.heard().await, FromNode::Restored { ids: vec![1] }, "before the list");
    stage.sockets.recv().await.expect("a socket");
    stage.kernel.see(|state| state.list_is_long = false);
    front.live().await;
}

#[tokio::test]
async fn a_front_end_gets_what_the_config_allows_and_learns_what_is_there() {
    let stage = Stage::new().await;
    stage.kernel.see(|state| state.live = vec![flow(1, 0), flow(2, 1), flow(3, 1)]);
    // The stack's sockets: one that is known already, one that is not, one of another address.
    let client = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
    let sockets = vec![(address(81), flow(2, 1).client), (address(81), client(9)), (address(22), client(8))];
    stage.kernel.see(|state| state.sockets = sockets);
    let mut front = stage.join(0, hello(7, &[service(4, 81), service(5, 99)]));
    let welcome = front.welcome().await;
    assert_eq!((welcome.name.as_str(), welcome.cookie, welcome.repair, welcome.mac), ("a", true, true, None));
    assert!(welcome.mtu > 0);
    assert_eq!(
        welcome.accepted,
        Accepted { services: vec![4], keys: true, tag: true, tunnel: true, mixed: false }
    );
    let ports: Vec<u16> = front.live().await.iter().map(|one| one.client.port()).collect();
    assert_eq!(ports, [2, 3, 9]);
    stage.kernel.see(|state| {
        let rules = Rules { cookie: true, stash: true, grace: false };
        assert_eq!(state.services, [(address(81), (1, rules))].into());
        assert_eq!((state.keys.map(|keys| keys[0]), state.tag), (Some(CookieKey([7; 2])), 3));
    });
    front.channel.set_services(vec![service(0, 80)]);
    let accepted = Accepted { services: vec![0], keys: true, tag: true, tunnel: true, mixed: false };
    assert_eq!(front.heard().await, FromNode::Accepted(accepted));
    assert_eq!(stage.kernel.see(|state| state.services.keys().copied().collect::<Vec<_>>()), [address(80)]);
    // By the connection that is up, which is the first; not by one before or after it.
    for other in [0, 2] {
        assert!(matches!(front.channel.send_in(other, &ToNode::Live), Err(SendError::Down)));
    }
    front.channel.send_in(1, &ToNode::Live).expect("room");
    assert_eq!(front.live().await.len(), 1);
    front.channel.set_tag(9);
    assert!(matches!(front.heard().await, FromNode::Accepted(accepted) if accepted.tag));
    assert_eq!(stage.kernel.see(|state| state.tag), 9);
}

#[tokio::test]
async fn questions_find_the_front_end_of_their_address() {
    let stage = Stage::new().await;
    let asker = stage.agent.asker();
    let asked = Asked { method: "GET".to_owned(), host: "h".to_owned(), target: "/a".to_owned() };
    assert_eq!(asker.ask(address(81), asked.clone(), HANGS).await, None, "nobody is there");
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    assert!(front.welcome().await.lateral);
    front.live().await;
    assert_eq!(asker.ask(address(80), asked.clone(), HANGS).await, None, "not one of its addresses");
    let answering = async {
        let FromNode::Where(question) = front.heard().await else { panic!("must be a question") };
        let has = Has { id: question.id, target: Some(7), here: true, load: 2, holders: Vec::new() };
        front.channel.send(&ToNode::Has(has.clone())).expect("room");
        (question.asked, has)
    };
    let (answer, (heard, has)) = tokio::join!(asker.ask(address(81), asked.clone(), HANGS), answering);
    assert_eq!((answer, heard), (Some(has), asked.clone()));
    let waiting = async { asker.ask(address(81), asked.clone(), HANGS * 2).await };
    let leaving = async {
        front.heard().await;
        drop(front);
    };
    assert_eq!(timeout(HANGS, async { tokio::join!(waiting, leaving).0 }).await, Ok(None), "it has gone");
}

#[tokio::test]
async fn tunnels_come_and_go_with_the_front_ends_that_want_them() {
    let stage = Stage::new().await;
    let tunnel = |port| Tunnel {
        kind: TunnelKind::Gue { port },
        local: [10, 9, 1, 11].into(),
        remote: Some([10, 9, 0, 1].into()),
    };
    let with = |tunnel| Hello { tunnel, ..hello(7, &[service(4, 81)]) };
    let mut front = stage.join(0, with(Some(tunnel(6080))));
    assert!(front.welcome().await.accepted.tunnel);
    assert_eq!(stage.kernel.see(|state| state.tunnels.clone()), [tunnel(6080)]);
    drop(front);
    let mut front = stage.join(0, with(Some(tunnel(6081))));
    front.welcome().await;
    assert_eq!(stage.kernel.see(|state| state.tunnels.clone()), [tunnel(6081)]);
    drop(front);
    let mut front = stage.join(0, with(None));
    front.welcome().await;
    assert_eq!(stage.kernel.see(|state| state.tunnels.clone()), []);
}

#[tokio::test]
async fn ended_connections_are_told_to_all_whose_they_are_together_and_in_order() {
    let stage = Stage::new().await;
    let mut both = stage.join(0, hello(7, &[service(4, 80), service(5, 81)]));
    let mut one = stage.join(1, hello(7, &[service(9, 81)]));
    for front in [&mut both, &mut one] {
        front.welcome().await;
        front.live().await;
    }
    let ports = 0..u16::try_from(CLOSED_MAX * 2 + 3).expect("few");
    stage.kernel.happens(ports.clone().map(|port| Told::Closed(flow(port, port % 2))));
    let mut seen = Vec::new();
    while seen.len() < ports.len() {
        let FromNode::Closed(list) = both.heard().await else { panic!("must be ended connections") };
        assert!(list.len() > 1 && list.iter().all(|socket| socket.first_seq == 9));
        seen.extend(list.iter().map(|socket| (socket.connection.client.port(), socket.connection.service)));
    }
    assert_eq!(seen, ports.clone().map(|port| (port, 4 + port % 2)).collect::<Vec<_>>());
    let FromNode::Closed(list) = one.heard().await else { panic!("must be ended connections") };
    assert!(
        list.iter().all(|socket| socket.connection.service == 9 && socket.connection.client.port() % 2 == 1)
    );
}

#[tokio::test]
async fn a_connection_meets_its_early_packets() {
    let mut stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    front.welcome().await;
    front.live().await;
    let early = |port, byte| Told::Early(flow(port, 1), vec![byte]);
    stage.kernel.happens([early(1, 10), early(2, 20), early(1, 11)]);
    front.hand(70, 4, 1);
    assert_eq!(front.heard().await, FromNode::Restored { ids: vec![70] });
    let restored = timeout(HANGS, stage.sockets.recv()).await.expect("in time").expect("a socket");
    assert_eq!(
        (restored.server, restored.client.port(), restored.first),
        (address(81), 1, b"GET /".to_vec())
    );
    assert_eq!(stage.kernel.see(|state| state.injected.clone()), [b"end".to_vec(), vec![10], vec![11]]);
    // Seen by the kernel before its socket was there, told after.
    stage.kernel.happens([early(1, 12)]);
    stage.kernel.wait(|state| state.injected.last() == Some(&vec![12])).await;
    // The other connection is called off.
    let connection = Connection { client: ([192, 0, 2, 1], 2).into(), service: 4 };
    front.channel.send(&ToNode::Forget(connection)).expect("room");
    front.hand(71, 4, 2);
    assert_eq!(front.heard().await, FromNode::Restored { ids: vec![71] });
    stage.kernel.see(|state| {
        assert_eq!(state.injected.last(), Some(&b"end".to_vec()));
        assert!(!state.injected.contains(&vec![20]), "given up before it came");
    });
}

#[tokio::test]
async fn each_refusal_has_its_name() {
    let mut stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    front.welcome().await;
    front.live().await;
    front.hand(1, 9, 1);
    assert!(matches!(front.heard().await, FromNode::Refused { id: 1, why: Refusal::Service, .. }));
    front.hand(2, 4, 1);
    assert_eq!(front.heard().await, FromNode::Restored { ids: vec![2] });
    front.hand(3, 4, 2);
    assert!(matches!(front.heard().await, FromNode::Refused { id: 3, why: Refusal::Full, .. }));
    assert_eq!(stage.places.available_permits(), 3, "what was refused keeps no place");
    let served = stage.sockets.recv().await.expect("a socket");
    let others = stage.places.acquire_many(3).await.expect("places");
    front.hand(6, 4, 2);
    assert!(matches!(front.heard().await, FromNode::Refused { id: 6, why: Refusal::Full, .. }), "no place");
    drop((served, others));
    assert_eq!(stage.places.available_permits(), 4);
    stage.kernel.see(|state| state.refuse = true);
    front.hand(4, 4, 2);
    let FromNode::Refused { id: 4, why: Refusal::Kernel, detail } = front.heard().await else {
        panic!("must be refused by the kernel")
    };
    assert_eq!(detail, "busy");
    stage.sockets.close();
    stage.kernel.see(|state| state.refuse = false);
    front.hand(5, 4, 2);
    assert!(matches!(front.heard().await, FromNode::Refused { id: 5, why: Refusal::Unsupported, .. }));
}

#[tokio::test]
async fn a_front_end_that_goes_takes_nothing_with_it() {
    let stage = Stage::new().await;
    let mut front = stage.join(0, hello(7, &[service(4, 81)]));
    let incarnation = front.welcome().await.incarnation;
    front.live().await;
    drop(front);
    stage.kernel.happens([Told::Closed(flow(1, 1))]);
    stage.kernel.wait(|state| state.told.is_empty()).await;
    assert_eq!(
        stage.kernel.see(|state| (state.services.len(), state.keys.is_some(), state.tag)),
        (1, true, 3)
    );
    // It comes back with new keys, and the node is the same.
    let mut front = stage.join(0, hello(8, &[service(4, 81)]));
    assert_eq!(front.welcome().await.incarnation, incarnation);
    assert_eq!(stage.kernel.see(|state| state.keys.map(|keys| keys[0])), Some(CookieKey([8; 2])));
    stage.agent.stop().await;
    assert_eq!(Arc::strong_count(&stage.kernel), 1, "nothing is held after the end");
}

#[tokio::test]
async fn a_host_without_rights_says_so_and_reports_its_load() {
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
    let missing = Agent::start(missing, None, None).await.map(drop);
    assert!(matches!(missing, Err(AgentError::Interface { .. })));

    let agent = Agent::start(config(vec![switch.public()]), None, None).await.expect("started");
    let (sink, events) = mpsc::channel(64);
    let peer = Peer { node: 0, address: agent.address(), key: node.public() };
    let channel = NodeChannel::start(peer, switch, hello(1, &[service(0, 80)]), timing(), sink);
    let mut front = Front { channel, events };
    let welcome = front.welcome().await;
    assert_eq!((welcome.cookie, welcome.repair), (false, false));
    assert_eq!(
        welcome.accepted,
        Accepted { services: Vec::new(), keys: false, tag: false, tunnel: true, mixed: false }
    );
    assert_eq!(front.live().await, []);
    front.hand(1, 0, 1);
    assert!(matches!(front.heard().await, FromNode::Refused { why: Refusal::Unsupported, .. }));
    let load = async {
        loop {
            if let What::Message(FromNode::Load(load)) = front.events.recv().await.expect("an event").what
                && load.cpu_permille.is_some()
            {
                return load;
            }
        }
    };
    assert_eq!(timeout(HANGS, load).await.expect("in time").connections, 0);
}
