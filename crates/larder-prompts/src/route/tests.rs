use super::*;
use crate::{HeldBody, PromptLease};
use larder_core::cache::Block;
use larder_core::chain::NodeWork;
use larder_core::policy::{ExcludedNodes, RequestAffinity};
use larder_core::{Decision, Dispatcher, NodeId, NodeSpec, NodeState, Reason, Settings, TargetId, Time};

fn dispatcher(nodes: usize) -> Dispatcher {
    let specs: Vec<NodeSpec> = (0..nodes).map(|n| NodeSpec::named(format!("n{n}"))).collect();
    Dispatcher::new(Settings::default(), &specs).expect("valid settings")
}

fn route() -> Arc<PromptRoute> {
    Arc::new(PromptRoute::new(&PromptConfig::default(), GroupId::ALL).expect("valid settings"))
}

fn blocks(seed: u64) -> Vec<Block> {
    (0..8).map(|at| Block { id: TargetId(seed << 8 | at), tokens: 512 }).collect()
}

fn place(route: &Arc<PromptRoute>, dispatcher: &Dispatcher, seed: u64) -> PromptLease {
    let body = HeldBody::new(route.budget().clone());
    PromptLease::place(route.clone(), dispatcher.nodes(), blocks(seed), body, None)
}

fn node_of(lease: &PromptLease) -> Option<NodeId> {
    match lease.affinity() {
        RequestAffinity::Placed(node) => Some(node),
        _ => None,
    }
}

/// Serves a prompt, and returns its node.
fn serve(route: &Arc<PromptRoute>, dispatcher: &Dispatcher, seed: u64) -> NodeId {
    let mut lease = place(route, dispatcher, seed);
    let node = node_of(&lease).expect("a node is open");
    lease.adopt(dispatcher.nodes(), Decision { node, reason: Reason::Placed });
    lease.note_reply(200);
    lease.note_piece();
    node
}

fn work(route: &PromptRoute, node: NodeId) -> NodeWork {
    route.chains.work()[node.index()]
}

#[test]
fn equal_prompts_have_one_node_and_new_nodes_get_new_ones() {
    let (route, mut dispatcher) = (route(), dispatcher(2));
    let homes = [serve(&route, &dispatcher, 1), serve(&route, &dispatcher, 2)];
    assert_ne!(homes[0], homes[1]);
    assert_eq!([serve(&route, &dispatcher, 1), serve(&route, &dispatcher, 2)], homes);
    dispatcher.join(Time::ZERO, NodeSpec::named("n2"), &mut Vec::new()).expect("there is room");
    let _busy = [place(&route, &dispatcher, 1), place(&route, &dispatcher, 2)];
    assert_eq!(serve(&route, &dispatcher, 3), NodeId(2));
    let status = route.status();
    assert_eq!((status.prompts, status.tokens), (5, 5 * 4_096), "those that were sent to a node");
    assert_eq!(status.credited, 2 * 4_095, "an engine computes the last token again");
    dispatcher = self::dispatcher(1);
    assert_eq!(serve(&route, &dispatcher, 1), NodeId(0), "nodes beyond the table are closed");
}

#[test]
fn a_lease_returns_its_work_however_the_request_ends() {
    let (route, dispatcher) = (route(), dispatcher(2));
    let mut lease = place(&route, &dispatcher, 1);
    let first = node_of(&lease).expect("a node is open");
    assert_eq!(work(&route, first), NodeWork { requests: 1, waiting: 1, prefill: 4_096 });
    lease.retry(dispatcher.nodes(), ExcludedNodes::NONE.with(first));
    let second = node_of(&lease).expect("another node is open");
    assert_ne!(first, second);
    assert_eq!((work(&route, first).requests, work(&route, second).requests), (0, 1));
    // The switch's dispatcher decides otherwise.
    let decision = Decision { node: first, reason: Reason::LeastLoaded };
    assert_eq!(lease.adopt(dispatcher.nodes(), decision), decision);
    assert_eq!((work(&route, first).requests, work(&route, second).requests), (1, 0));
    let decision = Decision { node: first, reason: Reason::Placed };
    assert_ne!(lease.adopt(dispatcher.nodes(), decision).reason, Reason::Placed, "the policy's reason");
    lease.note_reply(200);
    lease.note_piece();
    assert_eq!(work(&route, first), NodeWork { requests: 1, waiting: 0, prefill: 0 });
    drop(lease);
    assert_eq!(work(&route, first), NodeWork::default());
}

#[test]
fn an_error_is_no_first_token() {
    let (route, dispatcher) = (route(), dispatcher(1));
    let mut lease = place(&route, &dispatcher, 1);
    lease.note_reply(500);
    lease.note_piece();
    assert_eq!(work(&route, NodeId(0)).waiting, 1);
    drop(lease);
    assert_eq!(work(&route, NodeId(0)), NodeWork::default());
}

#[test]
fn a_prompt_that_no_engine_has_computed_leaves_no_credits() {
    let (route, dispatcher) = (route(), dispatcher(2));
    // Never sent: admission has refused it.
    drop(place(&route, &dispatcher, 1));
    assert_eq!(route.status().credits, 0);
    // Sent elsewhere: only the other node has it.
    let mut lease = place(&route, &dispatcher, 1);
    let other = NodeId(1 - node_of(&lease).expect("a node is open").0);
    lease.adopt(dispatcher.nodes(), Decision { node: other, reason: Reason::LeastLoaded });
    assert_eq!((route.status().credits, node_of(&lease)), (8, Some(other)));
    // Refused by the engine, as a prompt longer than its context.
    lease.note_reply(400);
    drop(lease);
    assert_eq!(route.status().credits, 0);
    // What was computed before stays.
    let home = serve(&route, &dispatcher, 1);
    let mut lease = place(&route, &dispatcher, 1);
    assert_eq!(node_of(&lease), Some(home));
    lease.adopt(dispatcher.nodes(), Decision { node: home, reason: Reason::Placed });
    lease.note_reply(429);
    drop(lease);
    assert_eq!(route.status().credits, 8);
}

#[test]
fn only_a_refusal_shows_that_nothing_was_computed() {
    for (status, credits) in [(400, 0), (413, 0), (429, 0), (503, 0), (408, 8), (499, 8), (500, 8), (504, 8)]
    {
        let (route, dispatcher) = (route(), dispatcher(1));
        let mut lease = place(&route, &dispatcher, 1);
        lease.adopt(dispatcher.nodes(), Decision { node: NodeId(0), reason: Reason::Placed });
        lease.note_reply(status);
        drop(lease);
        assert_eq!(route.status().credits, credits, "{status}");
    }
    let (route, dispatcher) = (route(), dispatcher(1));
    let mut lease = place(&route, &dispatcher, 1);
    lease.adopt(dispatcher.nodes(), Decision { node: NodeId(0), reason: Reason::Placed });
    lease.note_unsent();
    drop(lease);
    assert_eq!(route.status().credits, 0, "the node could not be reached");
}

#[test]
fn a_node_that_was_down_has_no_credits() {
    let (route, dispatcher) = (route(), dispatcher(2));
    let home = serve(&route, &dispatcher, 1);
    let other = NodeId(1 - home.0);
    for state in [NodeState::Down, NodeState::Up] {
        dispatcher.set_state(Time::ZERO, home, state, &mut Vec::new());
        assert_eq!(serve(&route, &dispatcher, 2), other);
    }
    assert_eq!(route.status().credits, 8, "only those of the other node");
    let nobody = self::dispatcher(1);
    nobody.set_state(Time::ZERO, NodeId(0), NodeState::Down, &mut Vec::new());
    let lease = place(&route, &nobody, 1);
    assert_eq!(node_of(&lease), None);
}

#[test]
fn a_lost_cache_has_no_credits() {
    let (route, dispatcher) = (route(), dispatcher(1));
    serve(&route, &dispatcher, 1);
    assert_eq!(route.status().credits, 8);
    route.chains.forget_node(NodeId(0));
    assert_eq!(route.status().credits, 0);
}

#[test]
fn a_prompt_longer_than_a_cache_has_no_credit() {
    let config = PromptConfig { node_tokens: 4_096, ..PromptConfig::default() };
    let route = Arc::new(PromptRoute::new(&config, GroupId::ALL).expect("valid settings"));
    let dispatcher = dispatcher(2);
    let home = serve(&route, &dispatcher, 1);
    let mut long = blocks(2);
    long.push(Block { id: TargetId(99), tokens: 1 });
    let body = HeldBody::new(route.budget().clone());
    let mut lease = PromptLease::place(route.clone(), dispatcher.nodes(), long, body, None);
    assert_eq!(node_of(&lease), None);
    lease.adopt(dispatcher.nodes(), Decision { node: home, reason: Reason::First });
    drop(lease);
    assert_eq!((route.status().credits, route.status().prompts), (8, 2));
}
