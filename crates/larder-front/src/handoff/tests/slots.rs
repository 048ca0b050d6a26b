//! Nodes that come, leave, and change their minds.

use super::*;
use larder_handoff::channel::message::Accepted;

/// A node may refuse what it was told and take the next.
#[tokio::test]
async fn what_a_node_has_refused_it_may_take_later() {
    let bench = Bench::new(|_| {});
    let takes = |keys| Accepted { keys, tag: true, tunnel: true, services: vec![0] };
    let can = || bench.edge.peers.capability(NodeId(0));
    bench.edge.accepted(NodeId(0), &takes(false));
    assert!(can().up && !can().cookie && !can().repair);
    bench.edge.accepted(NodeId(0), &takes(true));
    assert!(can().cookie && can().repair);
}

/// A node that leaves gets nothing new by the fast path, finishes what it has, and then there is no way to it any more.
#[tokio::test]
async fn a_node_that_leaves_finishes_and_is_closed() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    bench.edge.set_gates(&bench.shared);
    assert!(bench.notes(|notes| notes.gates[&Some(node)].1));
    let handle = crate::handle::SwitchHandle::new(bench.shared.clone());
    handle.leave(&format!("n{}", node.index())).expect("it is there");
    bench.edge.set_gates(&bench.shared);
    assert!(!bench.notes(|notes| notes.gates[&Some(node)].1));
    bench.edge.sweep(&bench.shared);
    assert!(bench.notes(|notes| notes.closed.is_empty()) && bench.load() == 0, "its row is gone");
    assert_eq!(bench.edge.sizes(), (0, 1, 0), "it goes on");
    bench.edge.node_ended(&bench.shared, key(1), 0, node);
    bench.notes(|notes| notes.flows.clear());
    bench.edge.sweep(&bench.shared);
    assert_eq!(bench.notes(|notes| (notes.closed.clone(), notes.reset.len())), (vec![node], 0));
    assert!(!bench.edge.peers.capability(node).up && bench.edge.peers.leaving().is_empty());
}

/// A node that has left and then falls silent takes nobody with it unheard.
#[tokio::test]
async fn clients_of_a_node_that_has_left_and_died_are_told() {
    let bench = Bench::new(|_| {});
    bench.punt(key(1), true, 1, GET);
    let node = bench.notes(|notes| notes.forwarded[0].0);
    bench.edge.node_leaves(node);
    bench.edge.peers.set_bits(node, 0);
    let after = |seconds| {
        let now = bench.shared.clock.now() + Duration::from_secs(seconds);
        bench.edge.sweep_left(&bench.shared, now);
        bench.notes(|notes| (notes.reset.len(), notes.closed.len()))
    };
    assert_eq!(after(0), (0, 0), "it may come back");
    bench.edge.peers.set_bits(node, UP_FOR_TESTS);
    assert_eq!(after(11), (0, 0), "it is back");
    bench.edge.peers.set_bits(node, 0);
    assert_eq!((after(20), after(29)), ((0, 0), (0, 0)));
    assert_eq!(after(31), (1, 1));
}
