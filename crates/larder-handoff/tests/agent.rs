//! The agent with this machine's kernel, in network namespaces: a connection leaves its socket, waits with its early
//! packets, and lives on in another, told and handed over through the control channel.

#![expect(clippy::panic, reason = "a failing helper fails its test")]

use larder_handoff::agent::{Agent, AgentConfig, Forwarding, Host, Restored, Sockets};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{Event, NodeChannel, Peer, What};
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{
    Blob, Connection, FromNode, Handoff, Hello, Keys, Service, ToNode, Welcome,
};
use larder_kernel::CookieKey;
use larder_kernel::guard;
use larder_kernel::netns::{INTERFACE, Namespace, NetnsError, or_skip, veth};
use larder_kernel::repair::{Mends, checkpoint, close_silently};
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const HANGS: Duration = Duration::from_secs(20);
const SERVER: &str = "10.77.0.2:80";

/// Two hosts and a wire.
fn hosts() -> Result<(Namespace, Namespace), NetnsError> {
    let (client, node) = (Namespace::new("client")?, Namespace::new("node")?);
    veth((&client, INTERFACE), (&node, INTERFACE))?;
    client.ip(&format!("address add 10.77.0.1/24 dev {INTERFACE}\nlink set {INTERFACE} up"))?;
    node.ip(&format!("address add 10.77.0.2/24 dev {INTERFACE}\nlink set {INTERFACE} up"))?;
    Ok((client, node))
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work)
}

/// The front-end's and the node's programs on one host: enough for all but forwarding.
struct Node {
    agent: Agent,
    channel: NodeChannel,
    events: mpsc::Receiver<Event>,
    sockets: mpsc::Receiver<Restored>,
}

impl Node {
    async fn start() -> Self {
        let identity = || Identity::generate().expect("a key");
        let (node, switch) = (identity(), identity());
        let address: SocketAddr = SERVER.parse().expect("an address");
        let name = format!("agent-{}", std::process::id());
        let host: Arc<dyn Forwarding> = Arc::new(Host::start(&name, INTERFACE, true).expect("programs"));
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
        let agent = Agent::start(config, Some(host), Some(Sockets::new(sockets_in))).await.expect("started");
        let keys = Keys::new([CookieKey([1, 2]), CookieKey([3, 4])], 0);
        let services = vec![Service { id: 6, address, cookie: false, stash: true, grace: false }];
        let hello = Hello { name: "front".to_owned(), tag: 5, keys, services, tunnel: None };
        let (sink, events) = mpsc::channel(64);
        let peer = Peer { node: 0, address: agent.address(), key: node.public() };
        let channel = NodeChannel::start(peer, switch, hello, Timing::default(), sink);
        Self { agent, channel, events, sockets }
    }

    async fn next(&mut self) -> What {
        timeout(HANGS, self.events.recv()).await.expect("in time").expect("an event").what
    }

    async fn welcome(&mut self) -> Welcome {
        match self.next().await {
            What::Up(welcome) => *welcome,
            other => panic!("must be up first: {other:?}"),
        }
    }

    /// The next message that neither reports load nor lists connections.
    async fn heard(&mut self) -> FromNode {
        loop {
            match self.next().await {
                What::Message(FromNode::Load(_) | FromNode::Live(_)) => {}
                What::Message(message) => return message,
                other => panic!("must be a message: {other:?}"),
            }
        }
    }
}

#[test]
fn a_connection_moves_through_the_agent_with_what_came_early() {
    let Some((client, node)) = or_skip(hosts()) else { return };
    let listener = node.run(|| TcpListener::bind(SERVER)).expect("entered").expect("listens");
    let connect = || TcpStream::connect_timeout(&SERVER.parse().expect("an address"), HANGS);
    let mut near = client.run(connect).expect("entered").expect("connected");
    near.set_read_timeout(Some(HANGS)).expect("set");
    let (mut far, from) = listener.accept().expect("accepted");
    near.write_all(b"one ").expect("sent");
    let mut request = [0; 4];
    far.read_exact(&mut request).expect("read");
    let moving = || {
        on_a_runtime(async {
            let mut node = Node::start().await;
            let welcome = node.welcome().await;
            assert_eq!((welcome.cookie, welcome.repair), (guard::accepts_cookies(), true));
            assert!(welcome.mac.is_some() && welcome.mtu == 1_500, "{welcome:?}");
            assert_eq!((&welcome.accepted.services[..], welcome.accepted.tag), (&[6][..], true));

            let state =
                checkpoint(far.as_fd(), &Mends::default()).expect("frozen").encode().expect("a frame");
            close_silently(OwnedFd::from(far)).expect("closed");
            // Nobody's for now: without a stash the client would get a reset.
            near.write_all(b"two ").expect("sent");
            let connection = Connection { client: from, service: 6 };
            let (checkpoint, request) = (Blob(state), Blob(request.to_vec()));
            node.channel
                .send(&ToNode::Handoff(Handoff { id: 9, connection, first_seq: 0, checkpoint, request }))
                .expect("room");
            assert_eq!(node.heard().await, FromNode::Restored { ids: vec![9] });
            let restored = timeout(HANGS, node.sockets.recv()).await.expect("in time").expect("a socket");
            assert_eq!((restored.client, &restored.first[..]), (from, &b"one "[..]));
            let mut again = TcpStream::from(restored.socket);
            again.set_nonblocking(false).expect("set");
            again.set_read_timeout(Some(HANGS)).expect("set");
            let mut rest = [0; 4];
            again.read_exact(&mut rest).expect("what came early");
            assert_eq!(&rest, b"two ");
            again.write_all(b"answer").expect("sent");
            let mut answer = [0; 6];
            near.read_exact(&mut answer).expect("the answer");
            assert_eq!(&answer, b"answer");

            drop((again, near));
            let FromNode::Closed(closed) = node.heard().await else { panic!("must be an ended connection") };
            assert_eq!(closed.iter().map(|one| one.connection).collect::<Vec<_>>(), [connection]);
            node.agent.stop().await;
        });
    };
    node.run(moving).expect("entered");
}
