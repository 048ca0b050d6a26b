//! Tests of joining, leaving and changing nodes.

use super::*;
use crate::handoff::config::Handshake;
use crate::handoff::keyring::Keyring;
use crate::handoff::run::EdgeInputs;
use larder_handoff::channel::client::EventKind;
use larder_handoff::channel::message::{ConnectionPage, SettingsStatus, Welcome};
use larder_testkit::eventually_async;

/// A node may refuse settings and accept the next ones.
#[tokio::test]
async fn a_node_may_accept_settings_after_a_refusal() {
    let bench = Bench::new(|_| {});
    let takes =
        |keys| SettingsStatus { keys, tag: true, tunnel: true, services: vec![0], cookie_conflict: false };
    let mixed = SettingsStatus { cookie_conflict: true, ..takes(true) };
    let can = || bench.edge.channels.capability(NodeId(0));
    bench.edge.update_capability(NodeId(0), &takes(false));
    assert!(can().up && !can().cookie && !can().repair);
    bench.edge.update_capability(NodeId(0), &takes(true));
    assert!(can().cookie && can().repair);
    bench.edge.update_capability(NodeId(0), &mixed);
    assert!(can().up && !can().repair, "it takes another switch's cookies too");
    let stack = Bench::new(|config| config.handoff.handshake = Handshake::Stack);
    stack.edge.update_capability(NodeId(0), &mixed);
    assert!(stack.edge.channels.capability(NodeId(0)).repair, "which are not this one's");
}

/// A departing node gets no new connections, finishes its own, and is then closed.
#[tokio::test]
async fn a_departing_node_finishes_and_is_closed() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    bench.edge.set_gates();
    assert!(bench.notes(|notes| notes.gates[&Some(node)].1));
    let handle = crate::handle::SwitchHandle::new(bench.shared.clone());
    handle.leave(&format!("n{}", node.index())).expect("it is there");
    bench.edge.set_gates();
    assert!(!bench.notes(|notes| notes.gates[&Some(node)].1));
    bench.edge.sweep();
    assert!(bench.notes(|notes| notes.closed.is_empty()) && bench.load() == 0, "its row is gone");
    assert_eq!(bench.edge.sizes(), (0, 1, 0), "it goes on");
    bench.node_ended(key(1), 0, node);
    bench.notes(|notes| notes.flows.clear());
    bench.edge.sweep();
    assert_eq!(bench.notes(|notes| (notes.closed.clone(), notes.reset.len())), (vec![node], 0));
    assert!(!bench.edge.channels.capability(node).up && bench.edge.channels.departing().is_empty());
}

/// A departed node that becomes silent has its clients reset.
#[tokio::test]
async fn clients_of_a_departed_dead_node_are_reset() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    bench.edge.node_left(node);
    bench.edge.channels.set_bits(node, 0);
    let after = |seconds| {
        let now = bench.edge.decider.clock.now() + Duration::from_secs(seconds);
        bench.edge.sweep_departed(now);
        bench.notes(|notes| (notes.reset.len(), notes.closed.len()))
    };
    assert_eq!(after(0), (0, 0), "it may come back");
    bench.edge.channels.set_bits(node, UP_FOR_TESTS);
    assert_eq!(after(11), (0, 0), "it is back");
    bench.edge.channels.set_bits(node, 0);
    assert_eq!((after(20), after(29)), ((0, 0), (0, 0)));
    assert_eq!(after(31), (1, 1));
}

/// Slots 0, 1 and 2 belonged to a, b and c. Now slot 0 belongs to b and slot 1 to a new node. a is gone; c has no
/// slot, and its connections continue.
#[tokio::test]
async fn connections_follow_their_nodes_to_other_slots() {
    let bench = Bench::new(|_| {});
    let [a, b, c, x] = [1, 2, 3, 4].map(|byte| [byte; 32]);
    bench.notes(|notes| {
        for (index, owner) in (0..).zip([a, b, c]) {
            notes.owners.insert(NodeId(index), SlotOwner { key: owner, since: None });
            notes.flows.insert(key(index), Destination::Node(NodeId(index)));
        }
    });
    bench.edge.reconcile_slots(&[(NodeId(0), b), (NodeId(1), x)].into());
    bench.notes(|notes| {
        assert_eq!(notes.reset, [key(0)], "a's place is another's");
        assert_eq!(notes.flows[&key(1)], Destination::Node(NodeId(0)), "b has moved");
        assert_eq!(notes.flows[&key(2)], Destination::Node(NodeId(2)), "c has its place to the end");
        let closed: std::collections::BTreeSet<NodeId> = notes.closed.drain(..).collect();
        assert_eq!(closed, [NodeId(0), NodeId(1)].into(), "closed until the channels are up");
        let moved = |key| SlotOwner { key, since: Some(Duration::ZERO) };
        assert_eq!((notes.owners[&NodeId(0)], notes.owners[&NodeId(1)]), (moved(b), moved(x)));
    });
    bench.edge.reconcile_slots(&[(NodeId(0), b), (NodeId(1), x)].into());
    assert!(bench.notes(|notes| notes.closed.is_empty() && notes.reset.len() == 1), "all is as it was");
}

/// A reused slot is cleared, and has no tag at first.
#[tokio::test]
async fn a_slot_is_reused() {
    let bench = Bench::new(|_| {});
    let node = bench.edge.decider.nodes.get(NodeId(0)).and_then(|node| node.to_arc()).expect("it is there");
    bench.notes(|notes| {
        notes.owners.insert(NodeId(5), SlotOwner { key: [9; 32], since: None });
        notes.flows.insert(key(1), Destination::Node(NodeId(5)));
    });
    for (place, tag) in [(NodeId(5), 0), (NodeId(6), 7)] {
        bench.edge.assign_slot(place, &node);
        assert_eq!(bench.edge.channels.tag_of(place), tag, "{place}");
        assert_eq!(bench.notes(|notes| notes.owners[&place].key), crate::handoff::node_key(&node));
    }
    assert_eq!(bench.notes(|notes| notes.reset.clone()), [key(1)]);
    // An hour later nothing of the other node's can be left.
    bench.notes(|notes| {
        let owner = notes.owners.get_mut(&NodeId(5)).expect("it has one");
        owner.since = Some(Duration::from_secs(3_600));
    });
    bench.edge.assign_slot(NodeId(5), &node);
    assert_eq!(bench.edge.channels.tag_of(NodeId(5)), 6);
    // The same without a restart.
    let minutes = |count: u64| {
        bench.notes(|notes| {
            let owner = SlotOwner { key: [9; 32], since: Some(Duration::from_secs(60 * count)) };
            notes.owners.insert(NodeId(0), owner);
        });
        bench.edge.sweep();
        bench.edge.channels.tag_of(NodeId(0))
    };
    assert_eq!((minutes(59), minutes(60)), (0, 1));
}

/// While the link to a node is resolved, connections are decided, even on a runtime with one thread.
#[tokio::test]
async fn node_messages_do_not_block_decisions() {
    let bench = Bench::new(|_| {});
    bench.edge.channels.set_bits(NodeId(0), 0);
    bench.notes(|notes| notes.link_takes = Duration::from_secs(2));
    let (said, nodes) = tokio::sync::mpsc::channel(1);
    // Never readable: events are taken with every tick.
    let (plane, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let keyring = Keyring::new([0; 32], Duration::from_secs(300));
    let inputs = EdgeInputs { nodes, plane: Some(plane.into()), keyring, unread: Vec::new() };
    let work = tokio::spawn(bench.edge.clone().run(inputs));
    let welcome = Welcome {
        name: "a".to_owned(),
        incarnation: 1,
        cookie: true,
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
    said.send(ChannelEvent { node: 0, session: 1, kind: EventKind::Up(Box::new(welcome)) })
        .await
        .expect("it is heard");
    eventually_async("the link is being made", || bench.notes(|notes| notes.links_begun > 0).then_some(()))
        .await;
    bench.notes(|notes| notes.to_report.push_back(PreparedEvent::Punt(key(1))));
    eventually_async("the connection is placed", || (bench.load() > 0).then_some(())).await;
    let up = || bench.edge.channels.capability(NodeId(0));
    assert!(!up().up, "it was decided before the way was found");
    eventually_async("the node is up", || up().up.then_some(())).await;
    assert!(up().cookie && up().linked);
    work.abort();
}

/// Other tasks get their turn while a long list is handled.
#[tokio::test]
async fn a_long_list_is_handled_in_pieces() {
    let bench = Bench::new(|_| {});
    let socket = |port| ConnectionId { connection: key(port).into(), first_seq: 0 };
    let live = ConnectionPage { connections: (1..=10_000).map(socket).collect(), last: true };
    let turns = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = turns.clone();
    let others = tokio::spawn(async move {
        loop {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    bench.edge.handle_connection_list(NodeId(1), live).await;
    others.abort();
    assert_eq!(bench.notes(|notes| notes.flows.len()), 10_000);
    assert!(turns.load(std::sync::atomic::Ordering::Relaxed) > 20, "{turns:?}");
}

/// A connection that is newer than the request for a list may be missing from it, however long the list takes.
#[tokio::test]
async fn a_late_list_ends_no_newer_connection() {
    let bench = Bench::new(|_| {});
    let asked = bench.edge.decider.clock.now();
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    let none = HashSet::new();
    bench.reconcile(node, &none, asked);
    assert_eq!((bench.edge.sizes().1, bench.notes(|notes| notes.reset.len())), (1, 0));
    bench.reconcile(node, &none, asked + Duration::from_secs(9));
    assert_eq!((bench.edge.sizes().1, bench.notes(|notes| notes.reset.len())), (0, 1));
}

#[tokio::test]
async fn a_connection_without_a_cookie_node_is_relayed_with_its_decision() {
    let bench = Bench::new(|_| {});
    for node in [NodeId(0), NodeId(1)] {
        bench.edge.channels.set_bits(node, 0);
    }
    bench.punt(key(1), true, 1, GET);
    let placed =
        bench.edge.take_pending_accept(key(1).client, ([127, 0, 0, 1], 80).into()).expect("it is expected");
    assert_eq!((placed.delivery.mechanism, placed.delivery.reason.name()), (Mechanism::Relay, "channel"));
    assert!(matches!(placed.outcome, Some(Ok(_))) && bench.load() == 1);
    drop(placed);
    assert_eq!(bench.load(), 0);
}
