//! The agent with this machine's kernel, in network namespaces. A connection leaves its socket, its early packets are
//! held, and it continues in another socket; the handoff goes through the control channel.

#![expect(clippy::panic, reason = "a failing helper fails its test")]

use larder_handoff::agent::{Agent, AgentConfig, LinuxKernel, NodeKernel, RestoredConnection, RestoredSink};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{ChannelEvent, EventKind, NodeAddress, NodeChannel};
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{
    Blob, Connection, CookieKeys, FromNode, Handoff, Hello, Service, ToNode, Welcome,
};
use larder_kernel::CookieKey;
use larder_kernel::guard;
use larder_kernel::netns::{INTERFACE, Namespace, NetnsError, veth};
use larder_kernel::repair::{RaceFixes, checkpoint, close_silently};
use larder_testkit::or_skip;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);
const SERVER: &str = "10.77.0.2:80";

/// Creates two hosts with a link between them.
fn hosts() -> Result<(Namespace, Namespace), NetnsError> {
    let (client, node) = (Namespace::new("client")?, Namespace::new("node")?);
    veth((&client, INTERFACE), (&node, INTERFACE))?;
    client.ip(&format!("address add 10.77.0.1/24 dev {INTERFACE}\nlink set {INTERFACE} up"))?;
    node.ip(&format!("address add 10.77.0.2/24 dev {INTERFACE}\nlink set {INTERFACE} up"))?;
    Ok((client, node))
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

/// The programs of switch and node on one host, which suffices for everything but forwarding.
struct Node {
    agent: Agent,
    channel: NodeChannel,
    events: mpsc::Receiver<ChannelEvent>,
    sockets: mpsc::Receiver<RestoredConnection>,
}

impl Node {
    async fn start() -> Self {
        let identity = || Identity::generate().expect("a key");
        let (node, switch) = (identity(), identity());
        let address: SocketAddr = SERVER.parse().expect("an address");
        let name = format!("agent-{}", std::process::id());
        let host: Arc<dyn NodeKernel> =
            Arc::new(LinuxKernel::start(&name, INTERFACE, true).expect("programs"));
        let config = AgentConfig {
            name: "a".to_owned(),
            listen: "127.0.0.1:0".parse().expect("an address"),
            identity: node.clone(),
            switches: vec![switch.public()],
            interface: Some(INTERFACE.to_owned()),
            services: vec![address],
            lateral: false,
            timing: Timing::default(),
        };
        let (sockets_in, sockets) = mpsc::channel(4);
        let agent =
            Agent::start(config, Some(host), Some(RestoredSink::new(sockets_in))).await.expect("started");
        let keys = CookieKeys::new([CookieKey([1, 2]), CookieKey([3, 4])], 0);
        let services = vec![Service { id: 6, address, cookie: false, stash: true, grace: false }];
        let hello = Hello { name: "front".to_owned(), tag: 5, keys, services, tunnel: None };
        let (sink, events) = mpsc::channel(64);
        let peer = NodeAddress { node: 0, name: "a".into(), address: agent.address(), key: node.public() };
        let channel = NodeChannel::start(peer, switch, hello, Timing::default(), sink);
        Self { agent, channel, events, sockets }
    }

    async fn next(&mut self) -> EventKind {
        timeout(TIMEOUT, self.events.recv()).await.expect("in time").expect("an event").kind
    }

    async fn welcome(&mut self) -> Welcome {
        match self.next().await {
            EventKind::Up(welcome) => *welcome,
            other => panic!("expected Up first: {other:?}"),
        }
    }

    /// Returns the next message that is neither a load report nor a listing.
    async fn next_message(&mut self) -> FromNode {
        loop {
            match self.next().await {
                EventKind::Message(FromNode::Load(_) | FromNode::Connections(_)) => {}
                EventKind::Message(message) => return message,
                other => panic!("expected a message: {other:?}"),
            }
        }
    }
}

#[test]
fn a_handoff_through_the_agent_delivers_early_packets() {
    let Some((client, node)) = or_skip(hosts()) else { return };
    let listener = node.run(|| TcpListener::bind(SERVER)).expect("entered").expect("listens");
    let connect = || TcpStream::connect_timeout(&SERVER.parse().expect("an address"), TIMEOUT);
    let mut near = client.run(connect).expect("entered").expect("connected");
    near.set_read_timeout(Some(TIMEOUT)).expect("set");
    let (mut far, from) = listener.accept().expect("accepted");
    near.write_all(b"one ").expect("sent");
    let mut request = [0; 4];
    far.read_exact(&mut request).expect("read");
    let moving = || {
        block_on(async {
            let mut node = Node::start().await;
            let welcome = node.welcome().await;
            assert_eq!((welcome.cookie, welcome.repair), (guard::accepts_cookies(), true));
            assert!(welcome.mac.is_some() && welcome.mtu == 1_500, "{welcome:?}");
            assert_eq!((&welcome.settings.services[..], welcome.settings.tag), (&[6][..], true));

            let state =
                checkpoint(far.as_fd(), &RaceFixes::default()).expect("frozen").encode().expect("a frame");
            close_silently(OwnedFd::from(far)).expect("closed");
            // The connection has no socket now. Without the stash the client would get a reset.
            near.write_all(b"two ").expect("sent");
            let connection = Connection { client: from, service: 6 };
            let (checkpoint, request) = (Blob(state), Blob(request.to_vec()));
            node.channel
                .send(&ToNode::Handoff(Handoff { id: 9, connection, first_seq: 0, checkpoint, request }))
                .expect("room");
            assert_eq!(node.next_message().await, FromNode::Restored { ids: vec![9] });
            let restored = timeout(TIMEOUT, node.sockets.recv()).await.expect("in time").expect("a socket");
            assert_eq!((restored.client, &restored.received[..]), (from, &b"one "[..]));
            let mut again = TcpStream::from(restored.socket);
            again.set_nonblocking(false).expect("set");
            again.set_read_timeout(Some(TIMEOUT)).expect("set");
            let mut rest = [0; 4];
            again.read_exact(&mut rest).expect("the early packets");
            assert_eq!(&rest, b"two ");
            again.write_all(b"answer").expect("sent");
            let mut answer = [0; 6];
            near.read_exact(&mut answer).expect("the answer");
            assert_eq!(&answer, b"answer");

            drop((again, near));
            let FromNode::Closed(closed) = node.next_message().await else {
                panic!("expected a closed connection")
            };
            assert_eq!(closed.iter().map(|one| one.connection).collect::<Vec<_>>(), [connection]);
            node.agent.stop().await;
        });
    };
    node.run(moving).expect("entered");
}
