//! Tests of routes and groups: the policy that decides, the nodes it may use, and the state that routes share.

use super::*;
use crate::class::ServiceClass;
use crate::nodes::{Groups, LoadReport, NodeState};
use crate::policy::table::{Place, RouteTable};
use crate::policy::{PolicyKind, Reason};
use alloc::sync::Arc;
use core::time::Duration;

const STATIC: RouteId = RouteId(1);
const DYNAMIC: RouteId = RouteId(2);

fn group(number: u8) -> GroupId {
    GroupId::new(number).expect("at most 63")
}

fn node(name: &str, groups: &[u8]) -> NodeSpec {
    let groups = groups.iter().fold(Groups::NONE, |groups, number| groups.with(group(*number)));
    NodeSpec { groups, ..NodeSpec::named(name) }
}

/// Creates a dispatcher with nodes 0 and 1 for static files, nodes 1, 2 and 3 for the rest, and node 4 for neither.
fn dispatcher(policies: [PolicyKind; 3], admission: Admission) -> Dispatcher {
    let settings = |policy| Settings { policy, admission, queue_max: 10, ..Settings::default() };
    let specs = [node("a", &[1]), node("b", &[1, 2]), node("c", &[2]), node("d", &[2]), node("e", &[])];
    let [default, first, second] = policies.map(settings);
    let routes =
        vec![RouteSpec { group: group(1), settings: first }, RouteSpec { group: group(2), settings: second }];
    Dispatcher::with_routes(default, routes, &specs).expect("the settings are in range")
}

fn send(dispatcher: &Dispatcher, route: RouteId, target: u64) -> NodeId {
    let class = ServiceClass::ALL[target as usize % ServiceClass::COUNT];
    let request = Request::new(TargetId(crate::nodes::mix(target))).with_route(route).with_class(class);
    match dispatcher.arrive(Time::ZERO, request) {
        Arrival::Start(decision) => decision.node,
        other => panic!("expected a start, got {other:?}"),
    }
}

#[test]
fn route_policy_has_room_for_all_nodes_of_the_table() {
    let nodes: Vec<NodeSpec> = (0..6).map(|i| node(&format!("n{i}"), &[1])).collect();
    let load = |permille| LoadReport {
        cpu_permille: Some(permille),
        disk_permille: Some(permille),
        ..LoadReport::default()
    };
    for policy in [PolicyKind::Hacc, PolicyKind::LardUtil, PolicyKind::PeakEwma] {
        let base = Settings { admission: Admission::Unlimited, ..Settings::default() };
        let own = Settings { policy, nodes_max: 2, ..base.clone() };
        let routes = vec![RouteSpec { group: group(1), settings: own }];
        let dispatcher = Dispatcher::with_routes(base, routes, &nodes).expect("the settings are in range");
        assert_eq!(dispatcher.settings_of(STATIC).nodes_max, Settings::default().nodes_max);
        for at in 0..6 {
            assert!(dispatcher.report(Time::ZERO, NodeId(at), load(if at == 5 { 100 } else { 600 })));
            let elapsed = Duration::from_millis(if at == 5 { 1 } else { 90 });
            let served = ReplyFeedback { elapsed, first_byte: None, found: None };
            let request = Request::new(TargetId(1)).with_route(STATIC);
            dispatcher.observe_reply(Time::ZERO, &request, NodeId(at), &served);
        }
        let mut seen = [0; 6];
        (0..200).for_each(|target| {
            let at = send(&dispatcher, STATIC, target);
            dispatcher.finish_on(Time::ZERO, STATIC, at, &mut Vec::new());
            seen[at.index()] += 1;
        });
        // Of two nodes drawn at random, `peak-ewma` chooses this one in a third of all cases, and would never choose
        // another node more often.
        let least = if policy == PolicyKind::PeakEwma { 45 } else { 200 };
        assert!(seen[5] >= least, "{policy}: {seen:?}");
    }
}

/// A group's view gives the same answers as a scan over all nodes, for all loads and states.
#[test]
fn group_view_matches_scan_of_members() {
    let specs: Vec<NodeSpec> =
        (0..90).map(|i| node(&format!("n{i}"), if i % 3 == 0 { &[1] } else { &[2] })).collect();
    let settings = |policy| Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
    let route = |number| RouteSpec { group: group(number), settings: settings(PolicyKind::Random) };
    let dispatcher = Dispatcher::with_routes(settings(PolicyKind::Random), vec![route(1), route(2)], &specs)
        .expect("in range");
    let mut held: Vec<(RouteId, NodeId)> = Vec::new();
    for step in 0..3_000_u64 {
        let lot = crate::nodes::mix(step);
        let route = [RouteId::DEFAULT, STATIC, DYNAMIC][lot as usize % 3];
        if lot >> 8 & 1 == 0 || held.is_empty() {
            held.push((route, send(&dispatcher, route, lot)));
        } else {
            let (route, at) = held.swap_remove((lot >> 9) as usize % held.len());
            dispatcher.finish_on(Time::ZERO, route, at, &mut Vec::new());
        }
        if lot >> 20 & 31 == 0 {
            let at = NodeId((lot >> 32) as u16 % 90);
            let up = if dispatcher.nodes().is_open(at) { NodeState::Down } else { NodeState::Up };
            dispatcher.set_state(Time::ZERO, at, up, &mut Vec::new());
        }
        let all = dispatcher.view(RouteId::DEFAULT, ReadSource::LIVE);
        assert_eq!(all.outstanding_count(), dispatcher.outstanding());
        for route in [STATIC, DYNAMIC] {
            let (view, start) = (dispatcher.view(route, ReadSource::LIVE), (lot >> 40) as usize % 100);
            let open: Vec<NodeId> = (0..90).map(NodeId).filter(|at| view.is_open(*at)).collect();
            let loads: u32 = open.iter().map(|at| dispatcher.nodes().load(*at)).sum();
            assert_eq!(view.outstanding_count(), loads);
            let from = if start < 90 { start } else { 0 };
            let rank = |at: &&NodeId| (view.key(**at), (at.index() + 90 - from) % 90);
            let least = open.iter().min_by_key(rank).copied();
            assert_eq!(view.least(start), least);
            let skipped = |at: NodeId| at.0.is_multiple_of(2);
            let other = open.iter().filter(|at| !skipped(**at)).min_by_key(rank).copied();
            assert_eq!(view.least_without(start, skipped), other);
            for bound in 0..4 {
                let bound = crate::nodes::load::Key::of(bound);
                assert_eq!(view.any_below(bound), open.iter().any(|at| view.key(*at) < bound));
            }
        }
    }
}

#[test]
fn every_policy_stays_in_its_group() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher([kind; 3], Admission::Unlimited);
        for (route, members) in
            [(STATIC, &[0, 1][..]), (DYNAMIC, &[1, 2, 3][..]), (RouteId::DEFAULT, &[0, 1, 2, 3, 4][..])]
        {
            let mut seen = [0_u32; 5];
            for target in 0..600 {
                let at = send(&dispatcher, route, target);
                seen[at.index()] += 1;
                dispatcher.finish_on(Time::ZERO, route, at, &mut Vec::new());
            }
            for (at, count) in seen.iter().enumerate() {
                let least = if members.contains(&at) { 600 / members.len() as u32 / 2 } else { 0 };
                assert!(*count >= least && (least > 0 || *count == 0), "{kind} {route}: {seen:?}");
            }
        }
        assert_eq!((dispatcher.outstanding(), dispatcher.nodes().in_flight()), (0, 0), "{kind}");
    }
}

#[test]
fn node_load_counts_requests_of_all_routes() {
    let dispatcher = dispatcher([PolicyKind::LeastConn; 3], Admission::Unlimited);
    let b = NodeId(1);
    assert_eq!([1, 2].map(|i| send(&dispatcher, STATIC, i)), [NodeId(0), b]);
    assert_eq!([3, 4].map(|i| send(&dispatcher, DYNAMIC, i)), [NodeId(2), NodeId(3)], "b is busy");
    assert_eq!(send(&dispatcher, RouteId::DEFAULT, 5), NodeId(4));
    assert_eq!(dispatcher.nodes().rows().iter().map(|row| row.load).collect::<Vec<_>>(), [1; 5]);
}

#[test]
fn each_group_admits_and_queues_separately() {
    let dispatcher = dispatcher([PolicyKind::LardR; 3], Admission::Derived);
    assert_eq!(dispatcher.admission_limit(), 4 * 65 + 24);
    assert_eq!([1, 2].map(|n| dispatcher.admission_limit_in(group(n))), [65 + 24, 2 * 65 + 24]);
    for target in 0..89 {
        send(&dispatcher, STATIC, target);
    }
    let one_more = Request::new(TargetId(1)).with_route(STATIC);
    let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, one_more) else { panic!("it has to wait") };
    assert_eq!((dispatcher.queued_in(group(1)), dispatcher.queued()), (1, 1));
    assert_eq!(dispatcher.next_deadline(), Some(Time::from_secs(10)));
    let other = send(&dispatcher, DYNAMIC, 7);
    let mut started = Vec::new();
    dispatcher.finish_on(Time::ZERO, DYNAMIC, other, &mut started);
    assert_eq!(started, [], "room elsewhere does not help");
    dispatcher.finish_on(Time::ZERO, STATIC, NodeId(0), &mut started);
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [ticket]);
    let Arrival::Wait(next) = dispatcher.arrive(Time::ZERO, one_more) else { panic!("it has to wait") };
    assert_ne!(ticket, next);
    assert_eq!(dispatcher.cancel(next), Cancel::Removed);
    assert_eq!(dispatcher.cancel(next), Cancel::NotWaiting);
}

#[test]
fn a_group_without_nodes_refuses_while_others_serve() {
    let dispatcher = dispatcher([PolicyKind::LardR; 3], Admission::Derived);
    for _ in 0..89 {
        send(&dispatcher, STATIC, 1);
    }
    let request = Request::new(TargetId(1)).with_route(STATIC);
    assert!(matches!(dispatcher.arrive(Time::ZERO, request), Arrival::Wait(_)));
    let mut started = Vec::new();
    for node in [0, 1] {
        dispatcher.fail(Time::ZERO, NodeId(node), &mut started);
    }
    assert_eq!(started.iter().map(|s| s.outcome).collect::<Vec<_>>(), [Err(Refusal::NoNode)]);
    assert_eq!(dispatcher.arrive(Time::ZERO, request), Arrival::Refused(Refusal::NoNode));
    assert_ne!(send(&dispatcher, DYNAMIC, 1), NodeId(1));
}

#[test]
fn each_route_has_its_own_learned_state() {
    let dispatcher =
        dispatcher([PolicyKind::Lard, PolicyKind::LardR, PolicyKind::Hash], Admission::Unlimited);
    send(&dispatcher, RouteId::DEFAULT, 1);
    send(&dispatcher, STATIC, 1);
    send(&dispatcher, STATIC, 2);
    send(&dispatcher, DYNAMIC, 1);
    let known = [RouteId::DEFAULT, STATIC, DYNAMIC].map(|route| dispatcher.targets_of(route));
    assert_eq!((known, dispatcher.targets_known()), ([1, 2, 0], 3));
    let explained = dispatcher.explain_request(Time::ZERO, &Request::new(TargetId(5)).with_route(DYNAMIC));
    assert_eq!(
        (explained.policy, explained.decision.map(|d| d.reason)),
        (PolicyKind::Hash, Some(Reason::Hash))
    );
    assert_eq!(dispatcher.settings_of(STATIC).policy, PolicyKind::LardR);
    assert_eq!(
        dispatcher.settings_of(RouteId(9)).policy,
        PolicyKind::Lard,
        "an unknown route is the default"
    );
}

#[test]
fn joining_node_has_its_groups() {
    let dispatcher = dispatcher([PolicyKind::Rr; 3], Admission::Unlimited);
    let join = |name, groups: &[u8]| {
        dispatcher.join(Time::ZERO, node(name, groups), &mut Vec::new()).expect("there is room")
    };
    let f = join("f", &[1]);
    let sent: Vec<NodeId> = (0..30).map(|i| send(&dispatcher, STATIC, i)).collect();
    assert_eq!([NodeId(0), NodeId(1), f].map(|n| sent.iter().filter(|at| **at == n).count()), [10; 3]);
    for _ in 0..10 {
        dispatcher.finish_on(Time::ZERO, STATIC, f, &mut Vec::new());
    }
    dispatcher.leave(Time::ZERO, f, &mut Vec::new());
    let g = join("g", &[2]);
    assert_eq!(g, f, "it takes the slot");
    let sent: Vec<NodeId> = (0..30).map(|i| send(&dispatcher, STATIC, i)).collect();
    assert!(!sent.contains(&g), "and not the groups");
}

#[test]
fn a_table_goes_to_its_route_only() {
    let dispatcher = dispatcher([PolicyKind::Ward, PolicyKind::Ward, PolicyKind::Lard], Admission::Unlimited);
    let table = |owner| RouteTable::new(5, [(TargetId(crate::nodes::mix(1)), Place::Node(owner))]);
    for (route, kept) in [(RouteId::DEFAULT, true), (STATIC, true), (DYNAMIC, false), (RouteId(9), false)] {
        let table = Arc::new(table(0).expect("in range"));
        assert_eq!(dispatcher.set_table(Time::ZERO, route, &table), kept, "{route}");
    }
    let second = Arc::new(table(1).expect("in range"));
    assert!(dispatcher.set_table(Time::ZERO, STATIC, &second));
    for _ in 0..4 {
        assert_eq!(send(&dispatcher, RouteId::DEFAULT, 1), NodeId(0));
        assert_eq!(send(&dispatcher, STATIC, 1), NodeId(1));
    }
    let foreign = Arc::new(table(3).expect("in range"));
    assert!(dispatcher.set_table(Time::ZERO, STATIC, &foreign));
    assert!(send(&dispatcher, STATIC, 1).0 <= 1, "an owner of another group is passed over");
}

#[test]
fn routes_have_a_limit() {
    let spec = RouteSpec { group: GroupId::ALL, settings: Settings::default() };
    let error = Dispatcher::with_routes(Settings::default(), vec![spec; 4_096], &[]).expect_err("too many");
    assert_eq!(
        error.to_string(),
        "routes = 4096 is out of range: it must be at most 4095 beside the default"
    );
    let bad = RouteSpec {
        group: GroupId::ALL,
        settings: Settings { t_gat: Duration::ZERO, ..Settings::default() },
    };
    let error = Dispatcher::with_routes(Settings::default(), vec![bad], &[]).expect_err("a bad route");
    assert!(error.to_string().starts_with("t_gat = 0"), "{error}");
}
