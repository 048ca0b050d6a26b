//! Tests of counting and ending connections.

use super::*;
use larder_core::handoff::ConnectionEnd;

#[tokio::test]
async fn connections_of_the_plane_count_idle_wake_and_end() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let reused = bench.notes(|notes| notes.targets[0].1);
    bench.report(DatapathEvent::Opened { key: key(2), reused, age: Duration::ZERO });
    bench.notes(|notes| {
        notes.flows.insert(key(2), Destination::Node(reused.node));
    });
    assert_eq!((bench.load(), bench.edge.channels.opened_seen(reused.node)), (2, 1));
    bench.notes(|notes| notes.now_ns = 2_000_000_000);
    bench.edge.review();
    bench.edge.sweep();
    assert_eq!((bench.load(), bench.notes(|notes| notes.idle.len())), (0, 2), "nothing moves on either");
    bench.edge.review();
    bench.edge.sweep();
    assert_eq!(bench.notes(|notes| notes.idle.len()), 2, "told once");
    bench.report(DatapathEvent::Woke { key: key(2), node: reused.node });
    bench.report(DatapathEvent::Woke { key: key(2), node: reused.node });
    assert_eq!(bench.load(), 1);
    bench.notes(|notes| notes.flows.clear());
    bench.edge.review();
    bench.edge.sweep();
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)), "the plane has forgotten them");
}

/// The client half-closes during a reply: its FIN does not end the node's side.
#[tokio::test]
async fn a_half_closed_connection_counts_while_its_reply_goes_on() {
    let bench = Bench::new(|config| config.handoff.idle_after = Duration::from_secs(5));
    let fin = flow_flag::CLIENT_FIN | flow_flag::ACKED;
    for port in [1, 2] {
        bench.punt(key(port), true, 1, GET);
        bench.notes(|notes| notes.flags.insert(key(port), fin));
        bench.report(ended(key(port), fin));
    }
    bench.edge.review();
    assert_eq!((bench.load(), bench.edge.sizes().1), (0, 2), "most have had all that they asked for");
    let nodes = bench.notes(|notes| [notes.forwarded[0].0, notes.forwarded[1].0]);
    for (port, node) in [1, 2].into_iter().zip(nodes) {
        bench.report(DatapathEvent::Woke { key: key(port), node });
    }
    assert_eq!(bench.load(), 2, "these acknowledge more");
    let node = nodes[0];
    bench.node_ended(key(1), 0, node);
    assert_eq!(bench.load(), 1);
    bench.notes(|notes| notes.now_ns = 900_000_000);
    bench.edge.review();
    assert_eq!(bench.load(), 1);
    bench.notes(|notes| notes.now_ns = 1_100_000_000);
    bench.edge.review();
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)), "it acknowledges no more");
}

/// A node may finish a connection before the edge has read the event of its opening.
#[tokio::test]
async fn an_end_that_precedes_the_opening_ends_the_connection() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let reused = bench.notes(|notes| notes.targets[0].1);
    bench.notes(|notes| {
        notes.flows.insert(key(2), Destination::Node(reused.node));
        notes.unreported.push((key(2), reused));
    });
    let socket = |key: FlowKey| ConnectionId { connection: key.into(), first_seq: 0 };
    bench.edge.handle_node_message(reused.node, FromNode::Closed(vec![socket(key(1)), socket(key(2))]));
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    // Nor are they taken for connections from before a restart.
    bench.notes(|notes| notes.now_ns = 9_000_000_000);
    bench.notes(|notes| notes.seen_ns.extend([(key(1), 9_000_000_000), (key(2), 9_000_000_000)]));
    bench.edge.sweep();
    assert_eq!(bench.load(), 0);
    bench.notes(|notes| {
        notes.flows.insert(key(3), Destination::Node(reused.node));
        notes.seen_ns.insert(key(3), 9_000_000_000);
        notes.end_meanwhile.push(key(3));
    });
    bench.edge.sweep();
    assert_eq!(bench.load(), 0);
    assert!(bench.delivered().iter().all(|(_, reason, _)| *reason != "adopted"), "{:?}", bench.delivered());
}

#[tokio::test]
async fn a_new_connection_of_old_addresses_ends_the_old_one() {
    let bench = Bench::new(|_| {});
    for _ in 0..3 {
        bench.punt(key(1), true, 1, GET);
        assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)));
    }
}

#[tokio::test]
async fn connections_of_a_dead_node_are_reset() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    bench.edge.decider.dispatcher.fail(bench.edge.decider.clock.now(), node, &mut Vec::new());
    bench.edge.review();
    bench.edge.sweep();
    assert!(bench.notes(|notes| notes.reset.is_empty()), "its channel is up: it is only slow");
    bench.edge.channels.set_bits(node, 0);
    bench.edge.review();
    assert_eq!((bench.notes(|notes| notes.reset.clone()), bench.load()), (vec![key(1)], 0));
    assert_eq!(bench.notes(|notes| notes.reset_at.clone()), [None], "the plane has seen its numbers");
}

#[tokio::test]
async fn connections_from_before_a_restart_are_counted() {
    let bench = Bench::new(|_| {});
    bench.notes(|notes| {
        // The plane has had it for long, and something came just now.
        notes.now_ns = 9_000_000_000;
        notes.flows.insert(key(1), Destination::Node(NodeId(1)));
        notes.seen_ns.insert(key(1), 9_000_000_000);
    });
    bench.edge.review();
    bench.edge.sweep();
    assert_eq!((bench.load(), bench.delivered()), (1, vec![("cookie", "adopted", 1)]));
    let live = [key(5)].into_iter().collect();
    bench.reconcile(NodeId(1), &live, Time::ZERO);
    let entered = bench.notes(|notes| notes.flows.get(&key(5)).copied());
    assert_eq!(entered, Some(Destination::Node(NodeId(1))), "what the node has, the plane forwards");
}

/// At shutdown, a connection from before the start that is idle and does not count keeps being forwarded. A
/// connection whose client is gone does not keep the programs in the kernel.
#[tokio::test(start_paused = true)]
async fn a_switch_that_stops_leaves_what_the_plane_forwards() {
    let hour = 3_600_000_000_000;
    for (silent_ns, stays) in [(hour / 12, true), (hour + 1, false)] {
        let bench = Bench::new(|_| {});
        bench.notes(|notes| {
            notes.now_ns = 9 * hour;
            notes.flows.insert(key(1), Destination::Node(NodeId(1)));
            notes.seen_ns.insert(key(1), 9 * hour - silent_ns);
        });
        bench.edge.review();
        bench.edge.sweep();
        assert_eq!(bench.edge.sizes(), (0, 0, 0), "it counts for nobody");
        bench.edge.clone().wait_for_connections(Duration::from_millis(200)).await;
        assert_eq!(bench.notes(|notes| notes.taken_off), !stays);
    }
}

/// The node has a connection's packets, but the flow table is full: further packets would not reach it.
#[tokio::test]
async fn a_client_is_reset_if_the_flow_table_is_full() {
    let bench = Bench::new(|_| {});
    bench.notes(|notes| notes.full = true);
    bench.report(DatapathEvent::Punt {
        key: key(1),
        first: true,
        head: None,
        packet: &super::moves::whole(7, GET),
        age: Duration::ZERO,
    });
    bench.notes(|notes| {
        assert_eq!((notes.forwarded.len(), notes.reset.clone()), (1, vec![key(1)]));
        assert_eq!(notes.reset_at, [Some(0x1234_56c8)], "with the number that only its packet has");
    });
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    assert!(bench.edge.counts.ends().any(|(end, count)| end == ConnectionEnd::NodeLost && count == 1));
}

/// A node's connection is added only if no other connection has its addresses: neither a held one, nor one in the
/// flow table, nor one at another node.
#[tokio::test]
async fn a_nodes_list_does_not_replace_newer_connections() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(1));
    bench.punt(key(1), true, 1, GET);
    bench.punt(key(2), true, 1, GET);
    let (node, other) = bench.notes(|notes| {
        let node = notes.forwarded[0].0;
        notes.flows.insert(key(3), Destination::Here);
        notes.flows.remove(&key(1));
        (node, NodeId(1 - node.0))
    });
    assert_eq!(bench.edge.sizes(), (1, 1, 0), "one is held");
    let live = [key(1), key(2), key(3), key(4)].into_iter().collect();
    bench.reconcile(other, &live, Time::ZERO);
    let flows = bench.notes(|notes| notes.flows.clone());
    assert_eq!(flows, [(key(3), Destination::Here), (key(4), Destination::Node(other))].into());
    bench.reconcile(node, &live, Time::ZERO);
    assert_eq!(
        bench.notes(|notes| notes.flows.get(&key(1)).copied()),
        Some(Destination::Node(node)),
        "forgotten"
    );
}

/// A forged RST has ended the count of a connection that its node still has.
#[tokio::test]
async fn a_connection_that_goes_on_after_its_end_counts_again() {
    let bench = Bench::new(|_| {});
    for port in [1, 2] {
        bench.punt(key(port), true, 1, GET);
        bench.notes(|notes| notes.flags.insert(key(port), flow_flag::CLIENT_RST | flow_flag::END_REPORTED));
        bench.report(ended(key(port), flow_flag::CLIENT_RST));
    }
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    let nodes = bench.notes(|notes| [notes.forwarded[0].0, notes.forwarded[1].0]);
    let listed = |port: u16| [key(port)].into_iter().collect();
    let before = bench.edge.decider.clock.now();
    for (port, node) in [1, 2].into_iter().zip(nodes) {
        bench.report(DatapathEvent::Woke { key: key(port), node });
    }
    assert_eq!(bench.load(), 0, "late packets follow a real end too");
    bench.reconcile(nodes[0], &listed(1), before);
    assert_eq!(bench.load(), 0, "the list is older");
    let later = bench.edge.decider.clock.now();
    bench.reconcile(nodes[0], &listed(1), later);
    bench.reconcile(nodes[1], &listed(1), later);
    assert_eq!((bench.load(), bench.edge.sizes()), (1, (0, 1, 0)), "its node has the first, none the second");
    assert!(bench.delivered().contains(&("cookie", "resumed", 1)), "{:?}", bench.delivered());
    assert!(bench.notes(|notes| !notes.flags.contains_key(&key(1)) && notes.flags.contains_key(&key(2))));
    // It ends like any other connection.
    bench.node_ended(key(1), 0, nodes[0]);
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
}

/// The edge has taken silence after the client's FIN for the end of the connection.
#[tokio::test]
async fn an_apparent_end_is_watched() {
    let bench = Bench::new(|_| {});
    let fin = flow_flag::CLIENT_FIN | flow_flag::ACKED;
    bench.punt(key(1), true, 1, GET);
    bench.report(ended(key(1), flow_flag::CLIENT_FIN));
    bench.notes(|notes| {
        notes.flags.insert(key(1), fin);
        notes.now_ns = 9_000_000_000;
    });
    bench.edge.review();
    assert_eq!((bench.load(), bench.edge.sizes()), (0, (0, 0, 0)));
    assert_eq!(bench.notes(|notes| notes.idle.clone()), [key(1)], "what goes on is told");
}
