//! Tests of backups: no request goes to a backup while an ordinary node of the group is up, and none is refused
//! while a backup is up.

use super::{dispatcher_of, report, started, table, target};
use crate::dispatch::{
    Admission, Arrival, CacheEvent, Dispatcher, Refusal, Request, RequestAffinity, RouteSpec, Settings,
};
use crate::id::{NodeId, RouteId, TargetId};
use crate::nodes::{GroupId, Groups, NodeRow, NodeSpec, NodeState, Weight, mix};
use crate::policy::{MaglevSettings, PolicyKind, PolicySettings, RendezvousSettings};
use crate::time::Time;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use proptest::prelude::*;

fn specs(n: usize, is_backup: impl Fn(usize) -> bool) -> Vec<NodeSpec> {
    (0..n).map(|i| NodeSpec { backup: is_backup(i), ..NodeSpec::named(format!("n{i}")) }).collect()
}

fn set_all(dispatcher: &Dispatcher, state: NodeState, which: impl Fn(&NodeRow) -> bool) {
    for row in dispatcher.nodes().rows().iter().filter(|row| which(row)) {
        dispatcher.set_state(Time::ZERO, row.id, state, &mut Vec::new());
    }
}

/// Sends `count` requests for as many targets, which do not end. Returns the number of requests that each node got.
fn send(dispatcher: &Dispatcher, from: u64, count: u64) -> Vec<u32> {
    let mut counts = vec![0; dispatcher.nodes().slots()];
    for i in from..from + count {
        counts[started(dispatcher.arrive(Time::ZERO, target(i))).index()] += 1;
    }
    counts
}

#[test]
fn backups_serve_together_while_no_ordinary_node_is_up() {
    for kind in PolicyKind::ALL {
        for (n, backups_from) in [(5, 3), (100, 94)] {
            let dispatcher = dispatcher_of(kind, &specs(n, |i| i >= backups_from));
            let (ordinary, backups) = (|row: &NodeRow| !row.backup, n - backups_from);
            let nodes = dispatcher.nodes();
            let at = |counts: &[u32]| counts[backups_from..].to_vec();
            assert_eq!(at(&send(&dispatcher, 100, 600)), vec![0; backups], "{kind}: ordinary nodes are up");
            assert!(nodes.rows().iter().all(|row| row.standby == row.backup), "{kind}");
            assert_eq!(nodes.open_in(GroupId::ALL), backups_from, "{kind}");
            set_all(&dispatcher, NodeState::Down, |row| row.id == NodeId(0));
            set_all(&dispatcher, NodeState::Draining, |row| !row.backup && row.id != NodeId(0));
            assert!(nodes.on_backups(GroupId::ALL) && nodes.open_in(GroupId::ALL) == backups, "{kind}");
            let counts = send(&dispatcher, 10_000, 1_200);
            let fair = 1_200 / backups as u32;
            assert!(
                at(&counts).iter().all(|count| (fair / 2..fair * 2).contains(count)),
                "{kind}: {counts:?}"
            );
            // The load of the backups is still there when the ordinary nodes return.
            set_all(&dispatcher, NodeState::Up, |row| row.id == NodeId(1));
            assert_eq!(send(&dispatcher, 9_990, 300)[1], 300, "{kind}: one ordinary node takes all");
            set_all(&dispatcher, NodeState::Up, ordinary);
            assert_eq!(at(&send(&dispatcher, 10_000, 1_200)), vec![0; backups], "{kind}: they are back");
            assert!(nodes.rows().iter().filter(|row| row.backup).all(|row| row.load > 0), "{kind}");
        }
    }
}

#[test]
fn client_of_a_backup_stays_while_it_is_up() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher_of(kind, &specs(4, |i| i == 2));
        let wish = |i| target(i).with_affinity(RequestAffinity::Sticky(NodeId(2)));
        assert_eq!(started(dispatcher.arrive(Time::ZERO, wish(1))), NodeId(2), "{kind}");
        set_all(&dispatcher, NodeState::Down, |row| row.backup);
        assert_ne!(started(dispatcher.arrive(Time::ZERO, wish(1))), NodeId(2), "{kind}");
    }
}

#[test]
fn retry_uses_no_backup_while_an_ordinary_node_is_up() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher_of(kind, &specs(3, |i| i == 2));
        let first = started(dispatcher.arrive(Time::ZERO, target(100)));
        let second = dispatcher.retry(Time::ZERO, first, target(100)).expect("the other ordinary node").node;
        assert!(second != first && second != NodeId(2), "{kind}");
        let tried = Request { exclude: target(100).exclude.with(first), ..target(100) };
        assert_eq!(dispatcher.retry(Time::ZERO, second, tried), Err(Refusal::NoNode), "{kind}");
        dispatcher.abandon(Time::ZERO, &mut Vec::new());
        let first = started(dispatcher.arrive(Time::ZERO, target(100)));
        set_all(&dispatcher, NodeState::Down, |row| !row.backup);
        let last = dispatcher.retry(Time::ZERO, first, target(100)).expect("the backup");
        assert_eq!(last.node, NodeId(2), "{kind}");
    }
}

/// State that another switch or an earlier process learned while it used its backups does no harm, in every group.
#[test]
fn sets_with_a_backup_send_no_request_there() {
    for (kind, route) in
        PolicyKind::ALL.into_iter().flat_map(|kind| [0, 1].map(|route| (kind, RouteId(route))))
    {
        let of = || dispatcher(kind, 0b1_1000, 0b1_1111);
        let (there, here, later) = (of(), of(), of());
        there.keep_journals();
        set_all(&there, NodeState::Down, |row| !row.backup);
        let request = |i| target(i).with_route(route);
        for i in 100..140 {
            let node = started(there.arrive(Time::ZERO, request(i)));
            there.finish_on(Time::ZERO, route, node, &mut Vec::new());
        }
        let sets = there.changed_sets(route, 1_000).sets;
        assert!(sets.len() > 30 || !there.has_sets(route), "{kind}: {}", sets.len());
        here.adopt_sets(Time::from_secs(1), route, &Arc::new(sets));
        later.restore(route, &there.learned_state(route));
        for dispatcher in [here, later] {
            for i in 100..140 {
                let now = Time::from_secs(2);
                let told = dispatcher.explain_request(now, &request(i)).decision.expect("a node").node;
                let node = started(dispatcher.arrive(now, request(i)));
                assert!(node < NodeId(3) && told == node, "{kind}, {route:?}: target {i} goes to {node}");
            }
        }
    }
}

#[test]
fn limits_follow_the_usable_nodes() {
    let limits = |nodes: &[NodeSpec], admission| {
        let settings = Settings { policy: PolicyKind::Lard, admission, ..Settings::default() };
        let dispatcher = Dispatcher::new(settings, nodes).expect("valid");
        let before = dispatcher.admission_limit();
        set_all(&dispatcher, NodeState::Down, |row| !row.backup);
        (before, dispatcher.admission_limit())
    };
    let heavy = Weight::from_milli(3_000).expect("in range");
    let heavy_backups = |n, from| {
        let weight =
            |spec: NodeSpec| NodeSpec { weight: if spec.backup { heavy } else { spec.weight }, ..spec };
        specs(n, |i| i >= from).into_iter().map(weight).collect::<Vec<_>>()
    };
    for admission in [Admission::Derived, Admission::Auto] {
        let (before, after) = limits(&heavy_backups(5, 3), admission);
        assert_eq!(before, limits(&specs(3, |_| false), admission).0, "{admission:?}: three ordinary nodes");
        assert_eq!(after, limits(&heavy_backups(2, 0), admission).0, "{admission:?}: two heavy ones");
    }
    assert_eq!(
        limits(&specs(2, |i| i == 1), Admission::Auto).0,
        limits(&specs(1, |_| false), Admission::Auto).0,
        "a backup beside a single node leaves its limit"
    );
}

#[test]
fn queued_request_is_served_by_a_backup() {
    let settings = Settings { policy: PolicyKind::Rr, admission: Admission::Fixed(1), ..Settings::default() };
    let dispatcher = Dispatcher::new(settings, &specs(2, |i| i == 1)).expect("valid");
    let first = started(dispatcher.arrive(Time::ZERO, target(1)));
    assert!(matches!(dispatcher.arrive(Time::ZERO, target(2)), Arrival::Wait(_)));
    let mut served = Vec::new();
    assert!(dispatcher.fail(Time::ZERO, first, &mut served));
    assert_eq!((served.len(), dispatcher.queued()), (0, 1), "it is not refused");
    dispatcher.finish(Time::ZERO, first, &mut served);
    assert_eq!(served[0].outcome.map(|decision| decision.node), Ok(NodeId(1)));
}

#[test]
fn no_request_is_refused_during_a_failover() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher_of(kind, &specs(3, |i| i > 0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asks = || {
                let mut i = 0;
                while !done.load(Ordering::Relaxed) {
                    let arrival = dispatcher.arrive(Time::ZERO, target(i % 500));
                    assert!(matches!(arrival, Arrival::Start(_)), "{kind}: {arrival:?}");
                    let node = started(arrival);
                    dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                    i += 1;
                }
            };
            let askers = [scope.spawn(asks), scope.spawn(asks)];
            for _ in 0..300 {
                for state in [NodeState::Down, NodeState::Up] {
                    set_all(&dispatcher, state, |row| !row.backup);
                }
            }
            done.store(true, Ordering::Relaxed);
            askers.into_iter().for_each(|asker| asker.join().expect("all were served"));
        });
        assert_eq!((dispatcher.outstanding(), dispatcher.nodes().in_flight()), (0, 0), "{kind}");
    }
}

/// Creates a dispatcher with a route for a group beside the default one. Bits select the backups and the nodes of
/// the group.
fn dispatcher(kind: PolicyKind, backups: u8, group: u8) -> Dispatcher {
    let settings = Settings {
        policy: kind,
        admission: Admission::Unlimited,
        t_low: 2,
        t_high: 4,
        shards: 2,
        targets_max: 64,
        join_warm_targets: 3,
        policies: PolicySettings {
            maglev: MaglevSettings { size: 251 },
            rendezvous: RendezvousSettings { places: 256 },
            ..PolicySettings::default()
        },
        table: Some(table()),
        ..Settings::default()
    };
    let one = GroupId::new(1).expect("a group");
    let groups = |i: usize| if group >> i & 1 == 1 { Groups::NONE.with(one) } else { Groups::NONE };
    let mut nodes = specs(5, |i| backups >> i & 1 == 1);
    nodes.iter_mut().enumerate().for_each(|(i, spec)| spec.groups = groups(i));
    let route = RouteSpec { group: one, settings: settings.clone() };
    Dispatcher::with_routes(settings, vec![route], &nodes).expect("in range")
}

/// Returns the nodes that may serve a route's requests: the ordinary nodes of its group that are up, else the
/// backups.
fn may_serve(dispatcher: &Dispatcher, route: RouteId) -> Vec<NodeId> {
    let group = dispatcher.group_of(route);
    let mut up = dispatcher.nodes().rows();
    up.retain(|row| row.state == NodeState::Up && (group == GroupId::ALL || row.groups.contains(group)));
    let serving = up.iter().all(|row| row.backup);
    up.retain(|row| row.backup == serving);
    up.iter().map(|row| row.id).collect()
}

/// Executes the steps.
fn run_steps(kind: PolicyKind, (backups, group): (u8, u8), steps: &[(u8, u64, u16)]) {
    let dispatcher = dispatcher(kind, backups, group);
    let (mut held, mut started, mut now) = (Vec::new(), Vec::new(), Time::ZERO);
    for (what, which, node) in steps {
        now += Duration::from_millis(300 * which);
        let (at, route) = (NodeId(*node), RouteId((which % 2) as u16));
        let request = target(*which).with_route(route);
        match what {
            0..=3 => {
                let request = if *what == 3 { request.with_origin(at) } else { request };
                let may = may_serve(&dispatcher, route);
                match dispatcher.arrive(now, request) {
                    Arrival::Start(decision) => {
                        assert!(may.contains(&decision.node), "{kind}: {} of {may:?}", decision.node);
                        held.push((decision.node, request));
                    }
                    Arrival::Refused(Refusal::NoNode) => assert_eq!(may, [], "{kind}: one is refused"),
                    other => panic!("{kind}: {other:?}"),
                }
            }
            4 if !held.is_empty() => {
                let (failed, request) = held.remove(*which as usize % held.len());
                let mut may = may_serve(&dispatcher, request.route);
                may.retain(|node| *node != failed && !request.exclude.contains(*node));
                if let Ok(decision) = dispatcher.retry(now, failed, request) {
                    assert!(may.contains(&decision.node), "{kind}: retried at {} of {may:?}", decision.node);
                    held.push((decision.node, Request { exclude: request.exclude.with(failed), ..request }));
                } else {
                    assert_eq!(may, [], "{kind}: a retry is refused");
                    dispatcher.abandon_on(now, request.route, &mut started);
                }
            }
            5 | 6 if !held.is_empty() => {
                let (node, request) = held.remove(*which as usize % held.len());
                dispatcher.finish_on(now, request.route, node, &mut started);
            }
            7 | 8 => {
                let state = [NodeState::Down, NodeState::Up, NodeState::Draining][*which as usize % 3];
                dispatcher.set_state(now, at, state, &mut started);
            }
            9 => drop(dispatcher.set_backup(now, at, which % 3 == 0, &mut started)),
            10 => drop(dispatcher.report(now, at, report(mix(*which)))),
            11 => drop(dispatcher.cache_event(now, at, TargetId(mix(*which)), CacheEvent::Stored)),
            12 if *which == 0 => {
                let groups = Groups::from_bits(u64::from(*node) & 2);
                let spec = NodeSpec { groups, backup: node % 2 == 0, ..NodeSpec::named(format!("j{now:?}")) };
                let _ = dispatcher.join(now, spec, &mut started);
            }
            _ => {}
        }
    }
    assert_eq!(dispatcher.nodes().in_flight() as usize, held.len(), "{kind}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn backups_serve_only_without_an_ordinary_node(
        backups in 0_u8..32,
        group in 0_u8..32,
        steps in prop::collection::vec((0_u8..13, 0_u64..30, 0_u16..5), 1..300),
    ) {
        for kind in PolicyKind::ALL {
            run_steps(kind, (backups, group), &steps);
        }
    }
}
