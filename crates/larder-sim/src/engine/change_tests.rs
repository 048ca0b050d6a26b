//! Tests of node changes, routes, tables and feedback, by the nodes that serve the requests.

use core::time::Duration;

use larder_core::dispatch::{RouteSpec, Settings};
use larder_core::nodes::GroupId;
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, Groups, RouteId, TargetId};
use larder_trace::ward::WardCosts;

use super::*;
use crate::scenario::TableRefresh;
use crate::scenario::{NodeChange, ScheduledChange, SimNode};
use crate::source::Arrivals;
use crate::workload::Item;

/// A workload of `count` requests for 50 items of 4 KiB in turn.
fn workload(count: u32) -> Workload {
    let items = (0..50).map(|id| Item::file(TargetId(id), 4 << 10)).collect();
    Workload { items, requests: (0..count).map(|n| n % 50).collect(), times: Vec::new() }
}

fn scenario(policy: PolicyKind, nodes: usize, changes: &[(u64, u16, NodeChange)]) -> Scenario {
    let planned = |&(after, node, change)| ScheduledChange { after, node, change };
    Scenario {
        arrivals: Arrivals::Closed { clients: 1 },
        changes: changes.iter().map(planned).collect(),
        ..Scenario::lard98(nodes, Settings { policy, ..Settings::default() })
    }
}

fn nodes_of(workload: &Workload, scenario: &Scenario) -> (Vec<u16>, Vec<usize>) {
    let (_, history) = simulate_with_history(workload, scenario).expect("the scenario is valid");
    (history.requests.iter().map(|outcome| outcome.node).collect(), history.changed_at)
}

#[test]
fn nodes_join_leave_fail_and_return() {
    let changes = [
        (100, 1, NodeChange::Down),
        (200, 1, NodeChange::Up),
        (300, 2, NodeChange::Join),
        (400, 0, NodeChange::Leave),
    ];
    let (nodes, at) = nodes_of(&workload(500), &scenario(PolicyKind::Rr, 3, &changes));
    assert_eq!(at, [100, 200, 300, 400]);
    let uses = |from: usize, node: u16| nodes[from..from + 100].iter().filter(|at| **at == node).count();
    let used: Vec<[usize; 3]> = [0, 100, 200, 300, 400].map(|from| [0, 1, 2].map(|n| uses(from, n))).to_vec();
    assert_eq!(used[..3], [[50, 50, 0], [100, 0, 0], [50, 50, 0]]);
    assert!(used[3].iter().all(|uses| *uses >= 30), "round robin over three: {used:?}");
    assert_eq!(used[4], [0, 50, 50]);
}

#[test]
fn a_restart_clears_the_memory_and_a_flap_does_not() {
    let misses = |back: NodeChange| {
        let changes = [(200, 0, NodeChange::Down), (210, 0, back)];
        let (outcome, history) =
            simulate_with_history(&workload(400), &scenario(PolicyKind::Hash, 2, &changes)).expect("valid");
        let misses = |outcome: &&RequestOutcome| !outcome.hit && outcome.node == 0;
        assert_eq!(outcome.requests, 400);
        history.requests[210..].iter().filter(misses).count()
    };
    assert_eq!(misses(NodeChange::Up), 0);
    assert!(misses(NodeChange::Restart) > 10);
}

#[test]
fn impossible_changes_are_refused() {
    let refused = |nodes, changes: &[(u64, u16, NodeChange)]| {
        simulate(&workload(10), &scenario(PolicyKind::Rr, nodes, changes)).is_err()
    };
    assert!(refused(2, &[(5, 2, NodeChange::Down)]), "there is no such node");
    assert!(refused(2, &[(5, 0, NodeChange::Down), (4, 0, NodeChange::Up)]), "time goes backwards");
    assert!(refused(2, &[(5, 0, NodeChange::Join)]), "the last nodes join");
    assert!(refused(1, &[(5, 0, NodeChange::Join)]), "nobody would be there");
    assert!(!refused(2, &[(5, 1, NodeChange::Join)]));
}

#[test]
fn a_route_keeps_to_its_group_and_policy() {
    let mut workload = workload(200);
    for item in &mut workload.items[25..] {
        item.route = RouteId(1);
    }
    let group = GroupId::new(1).expect("in range");
    let mut scenario = scenario(PolicyKind::Hash, 4, &[]);
    scenario.nodes[3].groups = Groups::NONE.with(group);
    scenario.nodes[2].groups = Groups::NONE.with(group);
    assert!(simulate(&workload, &scenario).is_err(), "there is no such route yet");
    scenario.routes =
        vec![RouteSpec { group, settings: Settings { policy: PolicyKind::Rr, ..Settings::default() } }];
    let (_, history) = simulate_with_history(&workload, &scenario).expect("valid");
    let of_route: Vec<u16> =
        history.requests.iter().filter(|outcome| outcome.item >= 25).map(|outcome| outcome.node).collect();
    assert_eq!(of_route.iter().filter(|node| **node == 3).count(), 50);
    assert_eq!(of_route.iter().filter(|node| **node == 2).count(), 50);
}

#[test]
fn tables_are_computed_during_the_run() {
    let mut scenario = scenario(PolicyKind::Ward, 3, &[]);
    let owned = |scenario: &Scenario| {
        let outcome = simulate(&workload(2_000), scenario).expect("valid");
        outcome.reasons.iter().find(|(reason, _)| reason == "owner").map_or(0, |(_, count)| *count)
    };
    assert_eq!(owned(&scenario), 0, "without a table nobody owns anything");
    let costs = WardCosts { forward_us: 0.0, ..WardCosts::ward01() };
    scenario.refresh = Some(TableRefresh::new(Duration::from_millis(300), costs));
    assert!(owned(&scenario) > 1_000, "from the first refresh on");
}

#[test]
fn service_times_are_reported_to_the_policy() {
    // The first node is ten times slower. Only the service times of requests show this.
    let mut scenario = scenario(PolicyKind::PeakEwma, 2, &[]);
    scenario.nodes[0].cpu_speed = 0.1;
    scenario.nodes.iter_mut().for_each(|node: &mut SimNode| node.cache = Bytes::mib(1));
    let (nodes, _) = nodes_of(&workload(1_000), &scenario);
    let slow = nodes[200..].iter().filter(|node| **node == 0).count();
    assert!(slow < 200, "{slow} of 800 went to the slow node");
}

/// Sixty clients that request 400 items in random order, and four nodes with memory for 40 items each.
fn busy(policy: PolicyKind) -> (Workload, Scenario) {
    let mut workload = workload(0);
    let named = |n: u64| TargetId::of(&n.to_le_bytes());
    workload.items = (0..400).map(|n| Item::file(named(n), 4 << 10)).collect();
    let drawn = |n: u64| named(1_000 + n).0;
    workload.requests = (0..6_000).map(|n| (drawn(n) % 400).min(drawn(n + 6_000) % 400) as u32).collect();
    let mut scenario = scenario(policy, 4, &[]);
    scenario.arrivals = Arrivals::Closed { clients: 60 };
    scenario.nodes.iter_mut().for_each(|node| node.cache = Bytes(160 << 10));
    (workload, scenario)
}

#[test]
fn recovery_of_a_running_node_changes_nothing() {
    for policy in PolicyKind::ALL {
        let (workload, mut scenario) = busy(policy);
        let (_, calm) = simulate_with_history(&workload, &scenario).expect("valid");
        scenario.changes = vec![ScheduledChange { after: 3_000, node: 2, change: NodeChange::Up }];
        let (_, noted) = simulate_with_history(&workload, &scenario).expect("valid");
        assert_eq!(noted.changed_at.len(), 1);
        let differs = calm.requests.iter().zip(&noted.requests).position(|(calm, noted)| calm != noted);
        assert_eq!(differs, None, "{policy}");
    }
}

#[test]
fn every_route_receives_the_cache_events() {
    let (mut workload, mut scenario) = busy(PolicyKind::LbGc);
    let (_, default) = simulate_with_history(&workload, &scenario).expect("valid");
    // The policy and nodes are the same, as a route beside one that needs no cache events and has no
    // requests.
    workload.items.iter_mut().for_each(|item| item.route = RouteId(1));
    scenario.routes = vec![RouteSpec { group: GroupId::ALL, settings: scenario.settings.clone() }];
    scenario.settings.policy = PolicyKind::Rr;
    let (_, route) = simulate_with_history(&workload, &scenario).expect("valid");
    assert!(default.requests == route.requests, "it goes by the same events");
}

#[test]
fn a_route_table_uses_its_own_requests_and_nodes() {
    // Two routes have two nodes each. Every table must name owners inside the route's group.
    let mut workload = workload(4_000);
    let groups = [1, 2].map(|number| GroupId::new(number).expect("in range"));
    for (item, number) in workload.items.iter_mut().zip(0..) {
        item.route = RouteId(1 + number % 2);
    }
    let mut scenario = scenario(PolicyKind::Rr, 4, &[]);
    for (node, at) in scenario.nodes.iter_mut().zip(0..) {
        node.groups = Groups::NONE.with(groups[at / 2]);
    }
    let ward = Settings { policy: PolicyKind::Ward, ..Settings::default() };
    scenario.routes = groups.map(|group| RouteSpec { group, settings: ward.clone() }).to_vec();
    let costs = WardCosts { forward_us: 0.0, ..WardCosts::ward01() };
    scenario.refresh = Some(TableRefresh::new(Duration::from_millis(300), costs));
    let (outcome, history) = simulate_with_history(&workload, &scenario).expect("valid");
    let owned = outcome.reasons.iter().find(|(reason, _)| reason == "owner").map_or(0, |(_, count)| *count);
    assert!(owned > 3_500, "{owned} of 4,000: all but those before the first refresh");
    let last = &history.requests[3_000..];
    let uses = [0, 1, 2, 3].map(|node| last.iter().filter(|outcome| outcome.node == node).count());
    assert!(uses.iter().all(|uses| *uses > 0), "every node owns something: {uses:?}");
    assert!(
        last.iter().all(|outcome| u32::from(outcome.node / 2) == outcome.item % 2),
        "each route keeps to its nodes"
    );
}
