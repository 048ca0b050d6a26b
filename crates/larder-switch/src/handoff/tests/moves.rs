//! Tests of moves to nodes, and of late replies.

use super::*;
use crate::handoff::mechanism::{Delivery, DeliveryReason};
use crate::handoff::outputs::MoveStart;
use crate::handoff::parts::{ConnectionLoad, ConnectionState};
use crate::handoff::socket_move::MoveOutcome;
use crate::lease::{Lease, StartedRequest};
use larder_core::handoff::{ConnectionEnd, SocketOutcome};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::NodeAddress;
use larder_handoff::channel::message::{Handoff, Message as _, Refusal, SettingsStatus, ToNode, Welcome};
use larder_handoff::channel::server::{Server, SwitchConnection};
use larder_testkit::{eventually_async, holds_for_async};
use tokio::sync::oneshot;

const HANGS: Duration = Duration::from_secs(30);

/// A complete first packet behind a cookie without timestamps. Its checksum is still to be computed.
pub(super) fn whole(seq: u32, payload: &[u8]) -> Vec<u8> {
    let mut packet = crate::handoff::frame::tests::frame(seq, payload, false);
    packet[42..46].copy_from_slice(&0x1234_56c8_u32.to_be_bytes());
    packet[48..50].copy_from_slice(&500_u16.to_be_bytes());
    let pseudo = 6 + (packet.len() - 34) as u16;
    packet[50..52].copy_from_slice(&pseudo.to_be_bytes());
    packet
}

/// The first node's side of a channel.
struct Node {
    peer: SwitchConnection,
}

impl Node {
    async fn join(bench: &mut Bench, cookie: bool) -> Self {
        let identity = Identity::generate().expect("randomness");
        let switch = bench.edge.config.identity.as_ref().expect("it has one").public();
        let key = identity.public();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), identity, vec![switch], Timing::default());
        let server = server.await.expect("a port");
        let address = server.address().expect("its address");
        let (sink, mut channels) = tokio::sync::mpsc::channel(1);
        tokio::spawn(server.run(sink));
        bench.edge.channels.set_bits(NodeId(0), 0);
        bench.edge.decider.dispatcher.fail(bench.edge.decider.clock.now(), NodeId(1), &mut Vec::new());
        bench.edge.channels.connect(NodeAddress { node: 0, name: "a".into(), address, key }, None);
        let said = bench.messages.take().expect("once");
        tokio::spawn(bench.edge.clone().handle_node_messages(said));
        let peer = channels.recv().await.expect("the switch");
        let mut node = Self { peer };
        let welcome = Welcome {
            name: "a".to_owned(),
            incarnation: 1,
            cookie,
            repair: true,
            lateral: false,
            mac: None,
            mtu: 1_500,
            settings: SettingsStatus {
                keys: true,
                tag: true,
                tunnel: true,
                services: vec![0],
                cookie_conflict: false,
            },
        };
        node.say(FromNode::Welcome(welcome)).await;
        bench.until(|| bench.edge.channels.capability(NodeId(0)).repair).await;
        node
    }

    async fn say(&mut self, message: FromNode) {
        self.peer.sender.send(&message.encode().expect("a message")).await.expect("it is heard");
    }

    /// The next state that comes.
    async fn state(&mut self) -> Handoff {
        loop {
            let bytes = self.peer.receiver.receive(HANGS).await.expect("a message");
            if let ToNode::Handoff(handoff) = ToNode::decode(&bytes).expect("a message") {
                return handoff;
            }
        }
    }

    async fn refuse(&mut self, id: u64) {
        self.say(FromNode::Refused { id, reason: Refusal::Full, detail: "no".to_owned() }).await;
    }
}

impl Bench {
    async fn until(&self, holds: impl Fn() -> bool) {
        eventually_async("the condition holds", || holds().then_some(())).await;
    }

    fn punt_whole(&self, key: FlowKey, seq: u32, payload: &[u8]) {
        let packet = whole(seq, payload);
        self.report(DatapathEvent::Punt {
            key,
            first: true,
            head: None,
            packet: &packet,
            age: Duration::ZERO,
        });
    }

    /// A socket that moves, as far as the plane forwards its connection.
    fn moving(&self, key: FlowKey) -> MoveInProgress {
        let (waiter, answer) = oneshot::channel();
        let delivery = Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair };
        let (decision, load) = ConnectionLoad::new(self.started(), delivery, None);
        let Some(MoveStart::Freeze(id)) = self.edge.handle_input(Input::Move { key, decision, load, waiter })
        else {
            panic!("the plane has room");
        };
        MoveInProgress { id, node: decision.node, answer }
    }

    /// A socket that moves, whose state was sent. `first_ack`: the number of the reply's first byte.
    fn sent(&self, key: FlowKey, first_ack: u32) -> MoveInProgress {
        let moving = self.moving(key);
        let state = ConnectionState { checkpoint: vec![1], unread: Vec::new() };
        self.edge.handle_input(Input::Frozen { key, id: moving.id, first_seq: 7, first_ack, state });
        moving
    }

    fn started(&self) -> StartedRequest {
        let request = larder_core::Request::new(larder_core::TargetId(1));
        let mut lease = Lease::new(self.edge.decider.clone());
        let decision = lease.arrive(self.edge.decider.clock.now(), request).expect("room").expect("room");
        StartedRequest { lease, request, decision }
    }

    /// A node says what became of a move, or says nothing for too long.
    fn node_replies(&self, moving: &MoveInProgress, said: NodeReply) {
        let (node, id) = (moving.node, moving.id);
        match said {
            NodeReply::Restored => drop(self.edge.handle_input(Input::Restored { node, id })),
            NodeReply::Refused => {
                drop(self.edge.handle_input(Input::Refused { node, id, why: "full".to_owned() }));
            }
            NodeReply::Nothing => self.edge.tick(self.edge.decider.clock.now() + Duration::from_secs(31)),
        }
    }
}

struct MoveInProgress {
    id: u64,
    node: NodeId,
    answer: oneshot::Receiver<SocketOutcome<ConnectionLoad>>,
}

impl MoveInProgress {
    /// The outcome for its socket; `None` if there is none yet.
    fn told(&mut self) -> Option<&'static str> {
        self.answer.try_recv().ok().map(|answer| match answer {
            SocketOutcome::Close => "close",
            SocketOutcome::Thaw(..) => "thaw",
            SocketOutcome::Abort => "abort",
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum NodeReply {
    Restored,
    Refused,
    Nothing,
}

/// A client resets a moved connection and opens another one from the same port. The event of the reset, which is not
/// read yet, must not end the new connection.
#[tokio::test]
async fn the_reset_of_a_moved_socket_does_not_end_the_next_connection() {
    if !larder_testkit::needs_root("CAP_NET_ADMIN") {
        return;
    }
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    let _before = bench.moving(key(1));
    bench.notes(|notes| notes.to_report.push_back(PreparedEvent::Ended(key(1))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let _client = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let (tcp, _) = listener.accept().await.expect("the connection");
    let (edge, started) = (bench.edge.clone(), bench.started());
    let moving = tokio::spawn(async move { edge.move_socket(key(1), tcp, started, None).await });
    let id = node.state().await.id;
    // The switch reads all events then.
    node.say(FromNode::Closed(Vec::new())).await;
    node.say(FromNode::Restored { ids: vec![id] }).await;
    assert!(matches!(moving.await.expect("it ends"), MoveOutcome::HandedOff));
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    let ends: Vec<ConnectionEnd> =
        bench.edge.counts.ends().filter(|(_, count)| *count > 0).map(|(end, _)| end).collect();
    assert_eq!(ends, [ConnectionEnd::ClientReset]);
}

/// A node replies, or does not, after another connection has taken the addresses. The new connection is not changed,
/// whether the machine or only the plane knows it.
#[tokio::test]
async fn a_late_reply_does_not_affect_the_next_connection() {
    for said in [NodeReply::Refused, NodeReply::Nothing, NodeReply::Restored] {
        for told in [true, false] {
            let bench = Bench::new(|_| {});
            let mut moving = bench.moving(key(1));
            bench.notes(|notes| {
                notes.now_ns = 9;
                notes.opened_ns.insert(key(1), 9);
                notes.flags.insert(key(1), flow_flag::ACKED);
            });
            if told {
                bench.punt(key(1), true, 7, GET);
            }
            let before = bench.notes(|notes| notes.flows.clone());
            bench.node_replies(&moving, said);
            assert_eq!(moving.told(), Some("close"), "{said:?}, {told}");
            bench.notes(|notes| {
                assert_eq!(notes.flows, before, "{said:?}, {told}");
                assert_eq!((notes.reset.len(), notes.accepted.len()), (0, 0), "{said:?}, {told}");
            });
            assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)), "{said:?}, {told}");
        }
    }
}

/// A switch that moves sockets, with a node.
async fn with_node() -> (Bench, Node) {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let node = Node::join(&mut bench, false).await;
    (bench, node)
}

/// A client has acknowledged as far as this.
const ACKNOWLEDGED: u32 = 1_002;

/// The same replies while the connection is unchanged.
#[tokio::test]
async fn a_reply_decides_the_move_of_its_connection() {
    let (silent, _node) = with_node().await;
    let mut moving = silent.sent(key(1), ACKNOWLEDGED);
    silent.node_replies(&moving, NodeReply::Nothing);
    assert_eq!(moving.told(), Some("abort"));
    assert_eq!((silent.notes(|notes| notes.reset.clone()), silent.load()), (vec![key(1)], 0));
    let (refused, _node) = with_node().await;
    let mut moving = refused.sent(key(1), ACKNOWLEDGED);
    refused.node_replies(&moving, NodeReply::Refused);
    assert_eq!((refused.notes(|notes| notes.flows[&key(1)]), refused.edge.sizes().1), (Destination::Here, 0));
    assert_eq!((refused.load(), moving.told(), refused.load()), (1, Some("thaw"), 0), "with its load");
    // The node had replied, and the client has received a part.
    let (over, _node) = with_node().await;
    let mut moving = over.sent(key(1), 1);
    over.node_replies(&moving, NodeReply::Refused);
    assert_eq!(moving.told(), Some("close"));
    assert_eq!((over.notes(|notes| notes.reset.clone()), over.load()), (vec![key(1)], 0));
}

/// A move ends once the client's host has reset the connection or opened another one with the same addresses.
#[tokio::test]
async fn a_move_ends_when_the_client_is_gone() {
    let denied: fn(&Bench) = |bench| bench.notes(|notes| notes.denied.push(key(1)));
    let replaced: fn(&Bench) = |bench| bench.punt(key(1), true, 7, GET);
    for (over, told, resets, load) in [(denied, "abort", 1, 0), (replaced, "close", 0, 1)] {
        let (bench, _node) = with_node().await;
        let mut moving = bench.sent(key(1), ACKNOWLEDGED);
        bench.edge.tick(bench.edge.decider.clock.now());
        assert_eq!((moving.told(), bench.moves()), (None, 1), "nothing says so");
        over(&bench);
        bench.edge.tick(bench.edge.decider.clock.now() + Duration::from_millis(250));
        assert_eq!((moving.told(), bench.moves()), (Some(told), 0));
        assert_eq!((bench.notes(|notes| notes.reset.len()), bench.load()), (resets, load));
    }
}

/// A refused connection continues here, but a newer connection with the same addresses is not affected.
#[tokio::test]
async fn a_refused_state_restores_only_its_own_connection() {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    bench.punt_whole(key(1), 7, GET);
    let first = node.state().await;
    assert_eq!(bench.notes(|notes| notes.flows[&key(1)]), Destination::Node(NodeId(0)));
    bench.punt_whole(key(1), 9_007, GET);
    let second = node.state().await;
    assert_ne!(first.id, second.id);
    node.refuse(first.id).await;
    bench.until(|| bench.moves() == 1).await;
    let untouched = || {
        let seen = bench.notes(|notes| (notes.flows[&key(1)], notes.accepted.len(), notes.reset.len()));
        (seen, bench.edge.sizes()) == ((Destination::Node(NodeId(0)), 0, 0), (0, 1, 0))
    };
    holds_for_async(Duration::from_millis(10), "the newer connection is untouched", untouched).await;
    node.refuse(second.id).await;
    bench.until(|| bench.edge.sizes().2 == 1).await;
    assert_eq!(bench.notes(|notes| (notes.flows[&key(1)], notes.accepted.len())), (Destination::Here, 1));
    let placed =
        bench.edge.take_pending_accept(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!((placed.delivery.mechanism, placed.delivery.reason.name()), (Mechanism::Relay, "failed"));
    assert!(matches!(placed.outcome, Some(Ok(_))) && bench.load() == 1, "with its decision");
}

/// The plane has opened another connection with the addresses, and has not reported it.
#[tokio::test]
async fn a_refused_state_does_not_affect_an_unreported_connection() {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    bench.punt_whole(key(1), 7, GET);
    let first = node.state().await;
    bench.notes(|notes| notes.opened_ns.insert(key(1), 9));
    node.refuse(first.id).await;
    bench.until(|| bench.moves() == 0).await;
    let untouched = || {
        let seen = bench.notes(|notes| (notes.flows[&key(1)], notes.accepted.len(), notes.reset.len()));
        (seen, bench.edge.sizes()) == ((Destination::Node(NodeId(0)), 0, 0), (0, 1, 0))
    };
    holds_for_async(Duration::from_millis(10), "the newer connection is untouched", untouched).await;
    bench.report(ended(key(1), 0));
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)), "it ends as what it was");
}

/// If cookies are allowed, a route with `repair` moves states only to nodes without cookies: a cookie node could
/// accept a copy of the first packet before the state arrives.
#[tokio::test]
async fn a_route_with_repair_uses_cookies_at_cookie_nodes() {
    let moves = b"GET /moves HTTP/1.1\r\nHost: h\r\n\r\n";
    for (cookie, expected) in [(true, "cookie"), (false, "repair")] {
        let mut bench = Bench::new(|config| {
            let matcher = larder_core::rules::Matcher::new().path("/moves").expect("a path");
            let route = crate::routes::Route::new("moves", matcher);
            config.routes = vec![crate::routes::Route { mechanism: Some(MechanismSetting::Repair), ..route }];
        });
        let mut node = Node::join(&mut bench, cookie).await;
        for (port, request) in [(1, GET), (2, &moves[..])] {
            bench.punt_whole(key(port), 7, request);
            if !cookie {
                let id = node.state().await.id;
                node.say(FromNode::Restored { ids: vec![id] }).await;
            }
        }
        bench.until(|| bench.delivered().iter().map(|(_, _, count)| count).sum::<u64>() == 2).await;
        let delivered = bench.delivered();
        assert!(delivered.iter().all(|(name, ..)| *name == expected), "{cookie}: {delivered:?}");
        assert_eq!(bench.notes(|notes| notes.flows[&key(2)]), Destination::Node(NodeId(0)));
    }
}

/// A moved connection may end at once. Its node's report is matched by the sequence number; reports of an earlier
/// connection, or without a number, are ignored.
#[tokio::test]
async fn a_short_moved_connection_stops_counting_at_its_end() {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    bench.punt_whole(key(1), 7, GET);
    let handoff = node.state().await;
    assert_eq!(handoff.first_seq, 7);
    for (first_seq, left) in [(0, 1), (6, 1), (7, 0)] {
        bench.node_ended(key(1), first_seq, NodeId(0));
        assert_eq!(bench.load(), left, "{first_seq}");
    }
}

/// If the channel is down longer than most reconnects take, the clients are reset then and not after the longest
/// timeout.
#[tokio::test]
async fn an_unacknowledged_state_waits_for_its_node() {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    bench.punt_whole(key(1), 7, GET);
    node.state().await;
    let later = |millis| {
        let now = bench.edge.decider.clock.now() + Duration::from_millis(millis);
        bench.edge.tick(now);
        bench.moves()
    };
    assert_eq!(later(25_000), 1, "the channel is up");
    drop(node);
    bench.until(|| !bench.edge.channels.capability(NodeId(0)).up).await;
    assert_eq!((later(1_000), later(2_001)), (1, 0));
    bench.until(|| bench.notes(|notes| notes.reset == [key(1)])).await;
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

/// Another process takes the plane before a node has replied: the node tells it about its connections, and none
/// counts here.
#[tokio::test]
async fn moves_in_progress_at_a_reload_are_left_to_the_next_process() {
    let mut bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    let mut node = Node::join(&mut bench, false).await;
    bench.punt_whole(key(1), 7, GET);
    node.state().await;
    let edge = bench.edge.clone();
    tokio::task::spawn_blocking(move || edge.release_plane()).await.expect("it ends");
    assert_eq!(bench.moves(), 0);
    bench.until(|| bench.edge.sizes() == (0, 0, 0)).await;
    assert_eq!(bench.load(), 0);
}

/// A node gets its restored tag.
#[tokio::test]
async fn a_restored_tag_is_sent_to_its_node() {
    let mut bench = Bench::new(|_| {});
    let mut node = Node::join(&mut bench, true).await;
    assert_eq!(node.peer.hello.tag, 0, "nobody has given it one");
    bench.edge.sweep();
    loop {
        let bytes = node.peer.receiver.receive(HANGS).await.expect("a message");
        if ToNode::decode(&bytes).expect("a message") == ToNode::Tag(1) {
            break;
        }
    }
}

/// A checksum is not verified again once its bytes are in a state.
#[tokio::test]
async fn a_damaged_request_is_not_moved() {
    let bench = Bench::new(|config| config.handoff.setting = MechanismSetting::Repair);
    bench.punt(key(1), true, 1, GET);
    assert_eq!(bench.notes(|notes| (notes.flows[&key(1)], notes.accepted.len())), (Destination::Here, 1));
    let placed =
        bench.edge.take_pending_accept(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!((placed.delivery.mechanism, placed.delivery.reason.name()), (Mechanism::Relay, "failed"));
    assert!(matches!(placed.outcome, Some(Ok(_))), "with its decision");
}
