//! The control channel over loopback: who is let in, who is not, and what outlives a restart.

use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{
    ChannelError, ChannelState, Event, NodeChannel, Peer as Node, QUEUE_MAX, SendError, What,
};
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_handoff::channel::message::{
    Accepted, Blob, Connection, FromNode, Handoff, Hello, Keys, Message as _, ToNode, Welcome,
};
use larder_handoff::channel::server::{HANDSHAKES_MAX, Outcome, Outcomes, Peer, Server};
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

/// Nothing here takes so long unless it hangs.
const HANGS: Duration = Duration::from_secs(30);
/// Preamble and the handshake's first message with its length. Bytes.
const FIRST_BYTES: usize = 8 + 2 + 96;

fn timing() -> Timing {
    let quick = Duration::from_millis(20);
    Timing { ping: quick, retry_min: quick, retry_max: quick, ..Timing::default() }
}

fn identity() -> Identity {
    Identity::generate().expect("a key")
}

fn keys(number: u64) -> Keys {
    Keys::new([CookieKey([number; 2]), CookieKey([0; 2])], 0)
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
        accepted: Accepted::default(),
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

/// A node's server, and whom it lets in.
struct Door {
    address: SocketAddr,
    peers: mpsc::Receiver<Peer>,
    outcomes: Arc<Outcomes>,
    task: JoinHandle<()>,
}

impl Door {
    async fn open(node: &Identity, allowed: &[PublicKey], timing: Timing) -> Self {
        Self::open_at("127.0.0.1:0".parse().expect("an address"), node, allowed, timing).await
    }

    async fn open_at(address: SocketAddr, node: &Identity, allowed: &[PublicKey], timing: Timing) -> Self {
        let server = Server::bind(address, node.clone(), allowed.to_vec(), timing).await.expect("a port");
        let (address, outcomes) = (server.address().expect("its address"), server.outcomes());
        let (peers_in, peers) = mpsc::channel(4);
        Self { address, peers, outcomes, task: tokio::spawn(server.run(peers_in)) }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    async fn peer(&mut self) -> Peer {
        timeout(HANGS, self.peers.recv()).await.expect("in time").expect("a front-end")
    }

    /// Waits for attempts that end so; the counters have no other way to tell.
    async fn wait(&self, outcome: Outcome, count: u64) {
        let counts = || Outcome::ALL.map(|one| (one.name(), self.outcomes.count(one)));
        let event = std::fmt::from_fn(|f| write!(f, "{}, not {:?}", outcome.name(), counts()));
        larder_testkit::eventually_async(event, || (self.outcomes.count(outcome) >= count).then_some(()))
            .await;
        assert_eq!(self.outcomes.count(Outcome::Accepted), 0);
    }

    /// Ends at once, as by a crash: the address is free again.
    async fn shut(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

fn start(address: SocketAddr, key: PublicKey, identity: &Identity) -> (NodeChannel, mpsc::Receiver<Event>) {
    let (sink, events) = mpsc::channel(64);
    let node = Node { node: 5, address, key };
    (NodeChannel::start(node, identity.clone(), hello(), timing(), sink), events)
}

async fn next(events: &mut mpsc::Receiver<Event>) -> What {
    let event = timeout(HANGS, events.recv()).await.expect("in time").expect("an event");
    assert_eq!(event.node, 5);
    event.what
}

/// Lets the front-end in. Its pings are never answered.
async fn greet(peer: &mut Peer) {
    peer.sender.send(&FromNode::Welcome(welcome()).encode().expect("short")).await.expect("sent");
}

/// The next message that is no ping.
async fn heard(peer: &mut Peer) -> ToNode {
    loop {
        let bytes = peer.receiver.receive(HANGS).await.expect("a message");
        match ToNode::decode(&bytes).expect("of ours") {
            ToNode::Ping(_) => {}
            message => return message,
        }
    }
}

#[tokio::test]
async fn messages_arrive_in_order_both_ways() {
    let (switch, node) = (identity(), identity());
    let mut door = Door::open(&node, &[identity().public(), switch.public()], timing()).await;
    let (channel, mut events) = start(door.address, node.public(), &switch);
    let mut peer = door.peer().await;
    assert_eq!((peer.key, &peer.hello), (switch.public(), &hello()));
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(said) if *said == welcome()));
    assert!(matches!(&*channel.state().borrow(), ChannelState::Up { incarnation: 7, .. }));

    let sent: Vec<ToNode> = (0..40).map(|id| handoff(id, 1 << (id % 21))).collect();
    for message in &sent {
        channel.send(message).expect("room");
    }
    for message in &sent {
        // As an agent does, whom long messages keep from answering pings.
        peer.sender.send(&FromNode::Pong(0).encode().expect("short")).await.expect("sent");
        assert!(heard(&mut peer).await == *message);
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
        assert!(matches!(next(&mut events).await, What::Message(FromNode::Restored { ids }) if ids == [id]));
    }
    replies.await.expect("all sent");
}

#[tokio::test]
async fn a_wrong_key_on_either_side_is_turned_away() {
    let (switch, node, stranger) = (identity(), identity(), identity());
    let door = Door::open(&node, &[switch.public()], timing()).await;

    let result = transport::initiate(door.connect().await, &stranger, node.public(), &timing()).await;
    assert!(matches!(result, Err(TransportError::TurnedAway)), "{result:?}");
    door.wait(Outcome::Stranger, 1).await;

    // Another node answers at the address.
    let result = transport::initiate(door.connect().await, &switch, stranger.public(), &timing()).await;
    assert!(matches!(result, Err(TransportError::TurnedAway)), "{result:?}");
    door.wait(Outcome::Forged, 1).await;

    let (channel, _events) = start(door.address, stranger.public(), &switch);
    let mut state = channel.state();
    let waiting = state.wait_for(|state| matches!(state, ChannelState::Waiting { .. }));
    let waiting = timeout(HANGS, waiting).await.expect("in time").expect("a state").clone();
    assert!(matches!(waiting, ChannelState::Waiting { why, .. } if why.contains("turned away")));
    assert_eq!(channel.send(&ToNode::Live), Err(SendError::Down));
}

/// Everything that a front-end sends up to and including its hello, as somebody in between sees it.
async fn recorded(switch: &Identity, node: &Identity) -> Vec<u8> {
    let mut door = Door::open(node, &[switch.public()], timing()).await;
    let mut far = door.connect().await;
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
        _ = door.peer() => {}
    }
    seen
}

#[tokio::test]
async fn a_recorded_conversation_opens_nothing() {
    let (switch, node) = (identity(), identity());
    let bytes = recorded(&switch, &node).await;
    assert!(bytes.len() > FIRST_BYTES + 2 + 16 + 4, "handshake and hello");
    let quick = Timing { handshake: Duration::from_millis(300), ..timing() };
    let door = Door::open(&node, &[switch.public()], quick).await;
    // The handshake's first message is as good as new, but nothing can follow it.
    let mut first = door.connect().await;
    first.write_all(&bytes[..FIRST_BYTES]).await.expect("sent");
    first.read_exact(&mut [0; 8]).await.expect("answered");
    door.wait(Outcome::Slow, 1).await;
    let mut whole = door.connect().await;
    whole.write_all(&bytes).await.expect("sent");
    door.wait(Outcome::Forged, 1).await;
}

#[tokio::test]
async fn truncated_and_spoilt_handshakes_are_named() {
    let (switch, node) = (identity(), identity());
    let bytes = recorded(&switch, &node).await;
    let door = Door::open(&node, &[switch.public()], timing()).await;
    let send = |bytes: Vec<u8>| {
        let door = &door;
        async move {
            let mut stream = door.connect().await;
            stream.write_all(&bytes).await.expect("sent");
            // The node may have closed already.
            let _ = stream.shutdown().await;
        }
    };
    let cuts = [0, 1, 7, 8, 9, 50, FIRST_BYTES - 1];
    for cut in cuts {
        send(bytes[..cut].to_vec()).await;
    }
    door.wait(Outcome::Malformed, cuts.len() as u64).await;
    let spoil = |at: usize, with: u8| {
        let mut bytes = bytes[..FIRST_BYTES].to_vec();
        bytes[at] ^= with;
        bytes
    };
    // Another length; another version; another protocol; then any byte of the keys.
    send(spoil(8, 0x80)).await;
    door.wait(Outcome::Malformed, cuts.len() as u64 + 1).await;
    send(spoil(7, 2)).await;
    send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()).await;
    door.wait(Outcome::Foreign, 2).await;
    for (count, at) in (1..).zip(10..FIRST_BYTES) {
        send(spoil(at, 1)).await;
        door.wait(Outcome::Forged, count).await;
    }
}

#[tokio::test]
async fn another_version_is_told_from_a_wrong_key() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let answering = async {
        let (mut stream, _) = listener.accept().await.expect("accepted");
        stream.write_all(b"larder\x00\x09").await.expect("sent");
        stream
    };
    let asking = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        transport::initiate(stream, &identity(), identity().public(), &timing()).await
    };
    let (_held, result) = tokio::join!(answering, asking);
    assert!(matches!(result, Err(TransportError::Version(9))), "{result:?}; ours is {VERSION}");
}

#[tokio::test]
async fn slow_handshakes_end_and_many_of_them_keep_nobody_out() {
    let (switch, node) = (identity(), identity());
    let quick = Timing { handshake: Duration::from_millis(100), ..timing() };
    let door = Door::open(&node, &[switch.public()], quick).await;
    let mut silent = door.connect().await;
    assert_eq!(silent.read(&mut [0; 9]).await.expect("closed, not reset"), 0);
    door.wait(Outcome::Slow, 1).await;

    let mut door = Door::open(&node, &[switch.public()], timing()).await;
    let mut held = Vec::new();
    for _ in 0..HANDSHAKES_MAX + 3 {
        held.push(door.connect().await);
    }
    door.wait(Outcome::Displaced, 3).await;
    let (_channel, _events) = start(door.address, node.public(), &switch);
    assert_eq!(door.peer().await.key, switch.public());
}

#[tokio::test]
async fn a_channel_comes_back_when_the_node_does() {
    let (switch, node) = (identity(), identity());
    let mut door = Door::open(&node, &[switch.public()], timing()).await;
    let address = door.address;
    let (channel, mut events) = start(address, node.public(), &switch);
    let mut peer = door.peer().await;
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    channel.set_keys(keys(2));
    assert_eq!(heard(&mut peer).await, ToNode::Keys(keys(2)));

    drop(peer);
    door.shut().await;
    assert!(matches!(next(&mut events).await, What::Down(_)));
    assert_eq!(channel.send(&ToNode::Live), Err(SendError::Down), "nothing is kept for later");
    channel.set_keys(keys(3));

    let mut door = Door::open_at(address, &node, &[switch.public()], timing()).await;
    let mut peer = door.peer().await;
    assert_eq!(peer.hello.keys, keys(3), "the newest");
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    channel.send(&ToNode::Live).expect("up");
    assert_eq!(heard(&mut peer).await, ToNode::Live);
}

#[tokio::test]
async fn a_node_that_says_nothing_or_nonsense_is_given_up() {
    let (switch, node) = (identity(), identity());
    let mut door = Door::open(&node, &[switch.public()], timing()).await;
    let (sink, mut events) = mpsc::channel(64);
    let place = Node { node: 5, address: door.address, key: node.public() };
    let impatient = Timing { silence: Duration::from_millis(200), ..timing() };
    let _channel = NodeChannel::start(place, switch.clone(), hello(), impatient, sink);
    let mut peer = door.peer().await;
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    let down = next(&mut events).await;
    assert!(matches!(down, What::Down(ChannelError::Transport(TransportError::Slow("silence")))), "{down:?}");

    let mut peer = door.peer().await;
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    peer.sender.send(&[0xff; 40]).await.expect("sent");
    let down = next(&mut events).await;
    assert!(matches!(down, What::Down(ChannelError::Message(_))), "{down:?}");

    let mut peer = door.peer().await;
    greet(&mut peer).await;
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    let down = next(&mut events).await;
    assert!(matches!(down, What::Down(ChannelError::Order)), "{down:?}");
}

#[tokio::test]
async fn what_a_slow_node_does_not_take_is_refused_and_not_kept() {
    let (switch, node) = (identity(), identity());
    // Nobody answers pings here, and making the messages takes its time.
    let patient = Timing { silence: HANGS, ..timing() };
    let mut door = Door::open(&node, &[switch.public()], patient).await;
    let (sink, mut events) = mpsc::channel(64);
    let peer = Node { node: 5, address: door.address, key: node.public() };
    let channel = NodeChannel::start(peer, switch.clone(), hello(), patient, sink);
    let mut peer = door.peer().await;
    greet(&mut peer).await;
    assert!(matches!(next(&mut events).await, What::Up(_)));
    // Without a pause in between the channel has no turn: all of it waits.
    let few = (0..=QUEUE_MAX).take_while(|_| channel.send(&ToNode::Live).is_ok()).count();
    assert_eq!(few, QUEUE_MAX);
    assert_eq!(channel.send(&ToNode::Live), Err(SendError::Full));
    for _ in 0..few {
        assert_eq!(heard(&mut peer).await, ToNode::Live);
    }
    let big = handoff(1, 4 << 20);
    let taken = (0..99).take_while(|_| channel.send(&big).is_ok()).count();
    assert_eq!(taken, 7, "of 4 MiB and a little each, below 32 MiB");
    assert_eq!(channel.send(&big), Err(SendError::Full));
    assert!(heard(&mut peer).await == big);
}
