//! Tests of node changes, routes, tables and feedback, by the nodes that serve the requests.

use core::time::Duration;

use larder_core::dispatch::{RouteSpec, Settings};
use larder_core::nodes::GroupId;
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, Groups, RouteId, TargetId};
use larder_trace::ward::WardCosts;

use super::*;
use crate::scenario::Refresh;
use crate::scenario::{Happening, Planned, SimNode};
use crate::source::Arrivals;
use crate::workload::Item;

/// A workload of `count` requests for 50 items of 4 KiB in turn.
fn workload(count: u32) -> Workload {
    let items = (0..50).map(|id| Item::file(TargetId(id), 4 << 10)).collect();
    Workload { items, requests: (0..count).map(|n| n % 50).collect(), times: Vec::new() }
}

fn scenario(policy: PolicyKind, nodes: usize, changes: &[(u64, u16, Happening)]) -> Scenario {
    let planned = |&(after, node, what)| Planned { after, node, what };
    Scenario {
        arrivals: Arrivals::Closed { clients: 1 },
        changes: changes.iter().map(planned).collect(),
        ..Scenario::lard98(nodes, Settings { policy, ..Settings::default() })
    }
}

fn nodes_of(workload: &Workload, scenario: &Scenario) -> (Vec<u16>, Vec<usize>) {
    let (_, watched) = simulate_watched(workload, scenario).expect("the scenario is valid");
    (watched.seen.iter().map(|seen| seen.node).collect(), watched.changed_at)
}

#[test]
fn nodes_join_leave_and_are_gone_for_a_while() {
    let changes = [
        (100, 1, Happening::Down),
        (200, 1, Happening::Up),
        (300, 2, Happening::Join),
        (400, 0, Happening::Leave),
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
fn a_restart_loses_the_memory_and_a_flap_does_not() {
    let misses = |back: Happening| {
        let changes = [(200, 0, Happening::Down), (210, 0, back)];
        let (outcome, watched) =
            simulate_watched(&workload(400), &scenario(PolicyKind::Hash, 2, &changes)).expect("valid");
        let misses = |seen: &&Seen| !seen.hit && seen.node == 0;
        assert_eq!(outcome.requests, 400);
        watched.seen[210..].iter().filter(misses).count()
    };
    assert_eq!(misses(Happening::Up), 0);
    assert!(misses(Happening::Restart) > 10);
}

#[test]
fn changes_that_cannot_happen_are_refused() {
    let refused = |nodes, changes: &[(u64, u16, Happening)]| {
        simulate(&workload(10), &scenario(PolicyKind::Rr, nodes, changes)).is_err()
    };
    assert!(refused(2, &[(5, 2, Happening::Down)]), "there is no such node");
    assert!(refused(2, &[(5, 0, Happening::Down), (4, 0, Happening::Up)]), "time goes backwards");
    assert!(refused(2, &[(5, 0, Happening::Join)]), "the last nodes join");
    assert!(refused(1, &[(5, 0, Happening::Join)]), "nobody would be there");
    assert!(!refused(2, &[(5, 1, Happening::Join)]));
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
    let (_, watched) = simulate_watched(&workload, &scenario).expect("valid");
    let of_route: Vec<u16> =
        watched.seen.iter().filter(|seen| seen.item >= 25).map(|seen| seen.node).collect();
    assert_eq!(of_route.iter().filter(|node| **node == 3).count(), 50);
    assert_eq!(of_route.iter().filter(|node| **node == 2).count(), 50);
}

#[test]
fn a_table_is_made_while_the_run_goes_on() {
    let mut scenario = scenario(PolicyKind::Ward, 3, &[]);
    let owned = |scenario: &Scenario| {
        let outcome = simulate(&workload(2_000), scenario).expect("valid");
        outcome.reasons.iter().find(|(reason, _)| reason == "owner").map_or(0, |(_, count)| *count)
    };
    assert_eq!(owned(&scenario), 0, "without a table nobody owns anything");
    let costs = WardCosts { forward_us: 0.0, ..WardCosts::ward01() };
    scenario.refresh = Some(Refresh::new(Duration::from_millis(300), costs));
    assert!(owned(&scenario) > 1_000, "from the first refresh on");
}

#[test]
fn what_was_served_is_told() {
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
fn a_node_that_is_up_and_comes_up_changes_nothing() {
    for policy in PolicyKind::ALL {
        let (workload, mut scenario) = busy(policy);
        let (_, calm) = simulate_watched(&workload, &scenario).expect("valid");
        scenario.changes = vec![Planned { after: 3_000, node: 2, what: Happening::Up }];
        let (_, noted) = simulate_watched(&workload, &scenario).expect("valid");
        assert_eq!(noted.changed_at.len(), 1);
        let differs = calm.seen.iter().zip(&noted.seen).position(|(calm, noted)| calm != noted);
        assert_eq!(differs, None, "{policy}");
    }
}

#[test]
fn a_routes_policy_hears_of_caches_as_the_default_routes_does() {
    let (mut workload, mut scenario) = busy(PolicyKind::LbGc);
    let (_, default) = simulate_watched(&workload, &scenario).expect("valid");
    // The policy and nodes are the same, as a route beside one that needs no cache events and has no
    // requests.
    workload.items.iter_mut().for_each(|item| item.route = RouteId(1));
    scenario.routes = vec![RouteSpec { group: GroupId::ALL, settings: scenario.settings.clone() }];
    scenario.settings.policy = PolicyKind::Rr;
    let (_, route) = simulate_watched(&workload, &scenario).expect("valid");
    assert!(default.seen == route.seen, "it goes by the same events");
}

#[test]
fn a_routes_table_is_of_its_requests_and_its_nodes() {
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
    scenario.refresh = Some(Refresh::new(Duration::from_millis(300), costs));
    let (outcome, watched) = simulate_watched(&workload, &scenario).expect("valid");
    let owned = outcome.reasons.iter().find(|(reason, _)| reason == "owner").map_or(0, |(_, count)| *count);
    assert!(owned > 3_500, "{owned} of 4,000: all but those before the first refresh");
    let last = &watched.seen[3_000..];
    let uses = [0, 1, 2, 3].map(|node| last.iter().filter(|seen| seen.node == node).count());
    assert!(uses.iter().all(|uses| *uses > 0), "every node owns something: {uses:?}");
    assert!(
        last.iter().all(|seen| u32::from(seen.node / 2) == seen.item % 2),
        "each route keeps to its nodes"
    );
}
