//! The control channel over loopback: access control, and behaviour across restarts.

use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{
    ChannelError, ChannelEvent, ChannelState, EventKind, NodeAddress, NodeChannel, QUEUE_MAX, SendError,
};
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_handoff::channel::message::{
    Blob, Connection, CookieKeys, FromNode, Handoff, Hello, Message as _, SettingsStatus, ToNode, Welcome,
};
use larder_handoff::channel::server::{
    HANDSHAKES_MAX, HandshakeCounters, HandshakeOutcome, Server, SwitchConnection,
};
use larder_handoff::channel::transport::{self, TransportError, VERSION};
use larder_kernel::CookieKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of every wait; only reached if a test hangs.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the preamble and the handshake's first message with its length prefix. Bytes.
const FIRST_BYTES: usize = 8 + 2 + 96;

fn timing() -> Timing {
    let quick = Duration::from_millis(20);
    Timing { ping: quick, retry_min: quick, retry_max: quick, ..Timing::default() }
}

fn identity() -> Identity {
    Identity::generate().expect("a key")
}

fn keys(number: u64) -> CookieKeys {
    CookieKeys::new([CookieKey([number; 2]), CookieKey([0; 2])], 0)
}

fn hello() -> Hello {
    Hello { name: "front".to_owned(), tag: 3, keys: keys(1), services: Vec::new(), tunnel: None }
}

fn welcome() -> Welcome {
    Welcome {
        name: "a".to_owned(),
        incarnation: 7,
        cookie: true,
        repair: false,
        lateral: false,
        mac: None,
        mtu: 1_500,
        settings: SettingsStatus::default(),
    }
}

fn handoff(id: u64, bytes: usize) -> ToNode {
    ToNode::Handoff(Handoff {
        id,
        connection: Connection { client: ([192, 0, 2, 1], 40_000).into(), service: 1 },
        first_seq: 7,
        checkpoint: Blob(vec![u8::try_from(id % 251).expect("short"); bytes]),
        request: Blob(b"GET / HTTP/1.1\r\n".to_vec()),
    })
}

/// A node's server, and the switches that it accepts.
struct TestNode {
    address: SocketAddr,
    peers: mpsc::Receiver<SwitchConnection>,
    counters: Arc<HandshakeCounters>,
    task: JoinHandle<()>,
}

impl TestNode {
    async fn open(node: &Identity, allowed: &[PublicKey], timing: Timing) -> Self {
        Self::open_at("127.0.0.1:0".parse().expect("an address"), node, allowed, timing).await
    }

    async fn open_at(address: SocketAddr, node: &Identity, allowed: &[PublicKey], timing: Timing) -> Self {
        let server = Server::bind(address, node.clone(), allowed.to_vec(), timing).await.expect("a port");
        let (address, counters) = (server.address().expect("its address"), server.handshake_counters());
        let (peers_in, peers) = mpsc::channel(4);
        Self { address, peers, counters, task: tokio::spawn(server.run(peers_in)) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    async fn next_switch(&mut self) -> SwitchConnection {
        timeout(TIMEOUT, self.peers.recv()).await.expect("in time").expect("a switch")
    }

    /// Waits for attempts with this outcome. The counters cannot be awaited.
    async fn wait_for(&self, outcome: HandshakeOutcome, count: u64) {
        let counts = || HandshakeOutcome::ALL.map(|one| (one.name(), self.counters.count(one)));
        let event = std::fmt::from_fn(|f| write!(f, "{}, not {:?}", outcome.name(), counts()));
        larder_testkit::eventually_async(event, || (self.counters.count(outcome) >= count).then_some(()))
            .await;
        assert_eq!(self.counters.count(HandshakeOutcome::Accepted), 0);
    }

    /// Ends at once, as in a crash: the address is free again.
    async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn start(
    address: SocketAddr,
    key: PublicKey,
    identity: &Identity,
) -> (NodeChannel, mpsc::Receiver<ChannelEvent>) {
    let (sink, events) = mpsc::channel(64);
    let node = NodeAddress { node: 5, name: "a".into(), address, key };
    (NodeChannel::start(node, identity.clone(), hello(), timing(), sink), events)
}

async fn next(events: &mut mpsc::Receiver<ChannelEvent>) -> EventKind {
    let event = timeout(TIMEOUT, events.recv()).await.expect("in time").expect("an event");
    assert_eq!(event.node, 5);
    event.kind
}

/// Sends a welcome. Pings are never answered.
async fn send_welcome(peer: &mut SwitchConnection) {
    peer.sender.send(&FromNode::Welcome(welcome()).encode().expect("short")).await.expect("sent");
}

/// Returns the next message that is not a ping.
async fn next_message(peer: &mut SwitchConnection) -> ToNode {
    loop {
        let bytes = peer.receiver.receive(TIMEOUT).await.expect("a message");
        match ToNode::decode(&bytes).expect("a valid message") {
            ToNode::Ping(_) => {}
            message => return message,
        }
    }
}

#[tokio::test]
async fn messages_arrive_in_order_both_ways() {
    let (switch, node) = (identity(), identity());
    let mut server = TestNode::open(&node, &[identity().public(), switch.public()], timing()).await;
    let (channel, mut events) = start(server.address, node.public(), &switch);
    let mut peer = server.next_switch().await;
    assert_eq!((peer.key, &peer.hello), (switch.public(), &hello()));
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(received) if *received == welcome()));
    assert!(matches!(&*channel.state().borrow(), ChannelState::Up { incarnation: 7, .. }));

    let sent: Vec<ToNode> = (0..40).map(|id| handoff(id, 1 << (id % 21))).collect();
    for message in &sent {
        channel.send(message).expect("room");
    }
    for message in &sent {
        // An agent sends heartbeats, because long messages keep it from answering pings.
        peer.sender.send(&FromNode::Pong(0).encode().expect("short")).await.expect("sent");
        assert!(next_message(&mut peer).await == *message);
    }
    let replies = tokio::spawn(async move {
        for id in 0..500 {
            peer.sender
                .send(&FromNode::Restored { ids: vec![id] }.encode().expect("short"))
                .await
                .expect("sent");
        }
        peer
    });
    for id in 0..500 {
        assert!(
            matches!(next(&mut events).await, EventKind::Message(FromNode::Restored { ids }) if ids == [id])
        );
    }
    replies.await.expect("all sent");
}

#[tokio::test]
async fn a_wrong_key_on_either_side_is_rejected() {
    let (switch, node, stranger) = (identity(), identity(), identity());
    let server = TestNode::open(&node, &[switch.public()], timing()).await;

    let result = transport::initiate(server.connect().await, &stranger, node.public(), &timing()).await;
    assert!(matches!(result, Err(TransportError::Rejected)), "{result:?}");
    server.wait_for(HandshakeOutcome::UnknownKey, 1).await;

    // Another node answers at the address.
    let result = transport::initiate(server.connect().await, &switch, stranger.public(), &timing()).await;
    assert!(matches!(result, Err(TransportError::Rejected)), "{result:?}");
    server.wait_for(HandshakeOutcome::Forged, 1).await;

    let (channel, _events) = start(server.address, stranger.public(), &switch);
    let mut state = channel.state();
    let waiting = state.wait_for(|state| matches!(state, ChannelState::Waiting { .. }));
    let waiting = timeout(TIMEOUT, waiting).await.expect("in time").expect("a state").clone();
    assert!(
        matches!(waiting, ChannelState::Waiting { reason, .. } if reason.contains("rejected by the node"))
    );
    assert_eq!(channel.send(&ToNode::ListConnections), Err(SendError::Down));
}

/// Records all bytes that a switch sends up to and including its hello, as an attacker in between sees them.
async fn recorded_handshake(switch: &Identity, node: &Identity) -> Vec<u8> {
    let mut server = TestNode::open(node, &[switch.public()], timing()).await;
    let mut far = server.connect().await;
    let between = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = between.local_addr().expect("its address");
    let (_channel, _events) = start(address, node.public(), switch);
    let (mut near, _) = between.accept().await.expect("accepted");
    let mut seen = Vec::new();
    let relay = async {
        let (mut from_near, mut from_far) = ([0; 4_096], [0; 4_096]);
        loop {
            tokio::select! {
                count = near.read(&mut from_near) => {
                    let bytes = &from_near[..count.expect("read")];
                    seen.extend_from_slice(bytes);
                    far.write_all(bytes).await.expect("sent");
                }
                count = far.read(&mut from_far) => {
                    near.write_all(&from_far[..count.expect("read")]).await.expect("sent");
                }
            }
        }
    };
    tokio::select! {
        () = relay => {}
        _ = server.next_switch() => {}
    }
    seen
}

#[tokio::test]
async fn a_replayed_handshake_is_rejected() {
    let (switch, node) = (identity(), identity());
    let bytes = recorded_handshake(&switch, &node).await;
    assert!(bytes.len() > FIRST_BYTES + 2 + 16 + 4, "handshake and hello");
    let quick = Timing { handshake: Duration::from_millis(300), ..timing() };
    let server = TestNode::open(&node, &[switch.public()], quick).await;
    // The handshake's first message can be replayed, but nothing can follow it.
    let mut first = server.connect().await;
    first.write_all(&bytes[..FIRST_BYTES]).await.expect("sent");
    first.read_exact(&mut [0; 8]).await.expect("answered");
    server.wait_for(HandshakeOutcome::TimedOut, 1).await;
    let mut whole = server.connect().await;
    whole.write_all(&bytes).await.expect("sent");
    server.wait_for(HandshakeOutcome::Forged, 1).await;
}

#[tokio::test]
async fn truncated_and_corrupted_handshakes_have_their_own_outcome() {
    let (switch, node) = (identity(), identity());
    let bytes = recorded_handshake(&switch, &node).await;
    let server = TestNode::open(&node, &[switch.public()], timing()).await;
    let send = |bytes: Vec<u8>| {
        let server = &server;
        async move {
            let mut stream = server.connect().await;
            stream.write_all(&bytes).await.expect("sent");
            // The node may have closed already.
            let _ = stream.shutdown().await;
        }
    };
    let cuts = [0, 1, 7, 8, 9, 50, FIRST_BYTES - 1];
    for cut in cuts {
        send(bytes[..cut].to_vec()).await;
    }
    server.wait_for(HandshakeOutcome::Malformed, cuts.len() as u64).await;
    let corrupt = |at: usize, mask: u8| {
        let mut bytes = bytes[..FIRST_BYTES].to_vec();
        bytes[at] ^= mask;
        bytes
    };
    // A wrong length, version and protocol; then any byte of the keys.
    send(corrupt(8, 0x80)).await;
    server.wait_for(HandshakeOutcome::Malformed, cuts.len() as u64 + 1).await;
    send(corrupt(7, 2)).await;
    send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()).await;
    server.wait_for(HandshakeOutcome::WrongProtocol, 2).await;
    for (count, at) in (1..).zip(10..FIRST_BYTES) {
        send(corrupt(at, 1)).await;
        server.wait_for(HandshakeOutcome::Forged, count).await;
    }
}

#[tokio::test]
async fn another_version_is_distinguished_from_a_wrong_key() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let responding = async {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        stream.write_all(b"larder\x00\x09").await.expect("sent");
        stream
    };
    let initiating = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        transport::initiate(stream, &identity(), identity().public(), &timing()).await
    };
    let (_held, result) = tokio::join!(responding, initiating);
    assert!(matches!(result, Err(TransportError::Version(9))), "{result:?}; ours is {VERSION}");
}

#[tokio::test]
async fn slow_handshakes_time_out_and_cannot_block_others() {
    let (switch, node) = (identity(), identity());
    let quick = Timing { handshake: Duration::from_millis(100), ..timing() };
    let server = TestNode::open(&node, &[switch.public()], quick).await;
    let mut silent = server.connect().await;
    assert_eq!(silent.read(&mut [0; 9]).await.expect("closed, not reset"), 0);
    server.wait_for(HandshakeOutcome::TimedOut, 1).await;

    let mut server = TestNode::open(&node, &[switch.public()], timing()).await;
    let mut held = Vec::new();
    for _ in 0..HANDSHAKES_MAX + 3 {
        held.push(server.connect().await);
    }
    server.wait_for(HandshakeOutcome::Displaced, 3).await;
    let (_channel, _events) = start(server.address, node.public(), &switch);
    assert_eq!(server.next_switch().await.key, switch.public());
}

#[tokio::test]
async fn a_channel_reconnects_when_the_node_restarts() {
    let (switch, node) = (identity(), identity());
    let mut server = TestNode::open(&node, &[switch.public()], timing()).await;
    let address = server.address;
    let (channel, mut events) = start(address, node.public(), &switch);
    let mut peer = server.next_switch().await;
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    channel.set_keys(keys(2));
    assert_eq!(next_message(&mut peer).await, ToNode::Keys(keys(2)));

    drop(peer);
    server.crash().await;
    assert!(matches!(next(&mut events).await, EventKind::Down(_)));
    assert_eq!(
        channel.send(&ToNode::ListConnections),
        Err(SendError::Down),
        "messages are not kept for later"
    );
    channel.set_keys(keys(3));

    let mut server = TestNode::open_at(address, &node, &[switch.public()], timing()).await;
    let mut peer = server.next_switch().await;
    assert_eq!(peer.hello.keys, keys(3), "the newest");
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    channel.send(&ToNode::ListConnections).expect("up");
    assert_eq!(next_message(&mut peer).await, ToNode::ListConnections);
}

#[tokio::test]
async fn a_silent_or_faulty_node_is_disconnected() {
    let (switch, node) = (identity(), identity());
    let mut server = TestNode::open(&node, &[switch.public()], timing()).await;
    let (sink, mut events) = mpsc::channel(64);
    let place = NodeAddress { node: 5, name: "a".into(), address: server.address, key: node.public() };
    let impatient = Timing { silence: Duration::from_millis(200), ..timing() };
    let _channel = NodeChannel::start(place, switch.clone(), hello(), impatient, sink);
    let mut peer = server.next_switch().await;
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    let down = next(&mut events).await;
    assert!(
        matches!(
            down,
            EventKind::Down(ChannelError::Transport(TransportError::TimedOut("no bytes received")))
        ),
        "{down:?}"
    );

    let mut peer = server.next_switch().await;
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    peer.sender.send(&[0xff; 40]).await.expect("sent");
    let down = next(&mut events).await;
    assert!(matches!(down, EventKind::Down(ChannelError::Message(_))), "{down:?}");

    let mut peer = server.next_switch().await;
    send_welcome(&mut peer).await;
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    let down = next(&mut events).await;
    assert!(matches!(down, EventKind::Down(ChannelError::UnexpectedMessage)), "{down:?}");
}

#[tokio::test]
async fn the_queue_to_a_slow_node_is_bounded() {
    let (switch, node) = (identity(), identity());
    // Pings are not answered here, and making the messages takes time.
    let patient = Timing { silence: TIMEOUT, ..timing() };
    let mut server = TestNode::open(&node, &[switch.public()], patient).await;
    let (sink, mut events) = mpsc::channel(64);
    let peer = NodeAddress { node: 5, name: "a".into(), address: server.address, key: node.public() };
    let channel = NodeChannel::start(peer, switch.clone(), hello(), patient, sink);
    let mut peer = server.next_switch().await;
    send_welcome(&mut peer).await;
    assert!(matches!(next(&mut events).await, EventKind::Up(_)));
    // Without an await in between the channel's task does not run, so all messages stay queued.
    let few = (0..=QUEUE_MAX).take_while(|_| channel.send(&ToNode::ListConnections).is_ok()).count();
    assert_eq!(few, QUEUE_MAX);
    assert_eq!(channel.send(&ToNode::ListConnections), Err(SendError::Full));
    for _ in 0..few {
        assert_eq!(next_message(&mut peer).await, ToNode::ListConnections);
    }
    let big = handoff(1, 4 << 20);
    let taken = (0..99).take_while(|_| channel.send(&big).is_ok()).count();
    assert_eq!(taken, 7, "of 4 MiB and a little each, below 32 MiB");
    assert_eq!(channel.send(&big), Err(SendError::Full));
    assert!(next_message(&mut peer).await == big);
}
