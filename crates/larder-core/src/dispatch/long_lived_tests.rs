//! Tests of long-lived requests: their limit, the policies that count them, and the admission limit of a live
//! switch.

use super::*;
use crate::nodes::JoinError;
use crate::policy::PolicyKind;
use crate::record::{ChangeRecord, DecisionRecord, RecordSink};
use crate::sync::Mutex;
use alloc::sync::Arc;

fn settings(policy: PolicyKind) -> Settings {
    Settings { policy, admission: Admission::Auto, ..Settings::default() }
}

fn cluster(settings: Settings, n: usize) -> Dispatcher {
    let specs: Vec<NodeSpec> = (0..n).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

fn start(dispatcher: &Dispatcher, request: Request) -> NodeId {
    match dispatcher.arrive(Time::ZERO, request) {
        Arrival::Start(decision) => decision.node,
        other => panic!("expected a start, got {other:?}"),
    }
}

/// Starts a long-lived request that asks for an upgrade.
fn upgrade(dispatcher: &Dispatcher, target: u64) -> NodeId {
    let node = start(dispatcher, Request::new(TargetId(target)).with_lasting(true));
    assert!(dispatcher.become_long_lived(Time::ZERO, RouteId::DEFAULT, node, &mut Vec::new()));
    node
}

fn loads(dispatcher: &Dispatcher) -> Vec<(u32, u32)> {
    dispatcher.nodes().rows().iter().map(|row| (row.load, row.long_lived)).collect()
}

#[test]
fn auto_admission_uses_thresholds_only_with_a_threshold_policy() {
    let limit = |policy, n| cluster(settings(policy), n).admission_limit();
    assert_eq!(limit(PolicyKind::LardR, 3), 2 * 65 + 25 - 1);
    assert_eq!(limit(PolicyKind::Lard, 1), 1_000, "there is nothing to choose");
    assert_eq!(limit(PolicyKind::P2c, 3), 3_000);
    let high = Settings { t_high: 5_000, ..settings(PolicyKind::LardR) };
    assert_eq!(cluster(high, 1).admission_limit(), 5_000);
    let dispatcher = cluster(settings(PolicyKind::LardR), 2);
    dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
    assert_eq!(dispatcher.admission_limit(), 65, "one of two is left: T_high");
}

#[test]
fn group_limit_follows_the_routes_that_use_it() {
    let group = GroupId::new(1).expect("a group");
    let spread = RouteSpec { group, settings: settings(PolicyKind::Rr) };
    let placed = RouteSpec { group, settings: Settings { t_high: 100, ..settings(PolicyKind::Lard) } };
    let member =
        |name: &str| NodeSpec { groups: crate::nodes::Groups::NONE.with(group), ..NodeSpec::named(name) };
    let nodes = [member("a"), member("b"), NodeSpec::named("c")];
    let limits = |routes: Vec<RouteSpec>| {
        let dispatcher = Dispatcher::with_routes(settings(PolicyKind::LardR), routes, &nodes).expect("valid");
        (dispatcher.admission_limit(), dispatcher.admission_limit_in(group))
    };
    assert_eq!(limits(vec![spread.clone()]), (154, 2_000));
    assert_eq!(limits(vec![spread, placed]), (154, 124));
}

#[test]
fn becoming_long_lived_admits_a_queued_request() {
    let dispatcher = cluster(Settings { admission: Admission::Fixed(1), ..settings(PolicyKind::LardR) }, 1);
    let request = Request::new(TargetId(1));
    let node = start(&dispatcher, request);
    let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("the limit is one") };
    let mut started = Vec::new();
    assert!(dispatcher.become_long_lived(Time::ZERO, RouteId::DEFAULT, node, &mut started));
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [ticket]);
    assert_eq!((loads(&dispatcher), dispatcher.outstanding()), (vec![(2, 1)], 1));

    // Before another attempt the request counts as admitted again, although there is no room.
    assert!(dispatcher.become_short_lived(Time::ZERO, RouteId::DEFAULT, node));
    assert_eq!((loads(&dispatcher), dispatcher.outstanding()), (vec![(2, 0)], 2));
    assert!(!dispatcher.become_short_lived(Time::ZERO, RouteId::DEFAULT, node), "there is no other");

    assert!(dispatcher.become_long_lived(Time::ZERO, RouteId::DEFAULT, node, &mut started));
    dispatcher.end_long_lived(Time::ZERO, node);
    dispatcher.finish(Time::ZERO, node, &mut started);
    assert_eq!((loads(&dispatcher), dispatcher.outstanding()), (vec![(0, 0)], 0));
    assert_eq!(dispatcher.nodes().long_lived_total(), 0);
}

#[test]
fn request_above_long_lived_limit_stays_admitted() {
    let dispatcher = cluster(Settings { long_lived_max: 1, ..settings(PolicyKind::LardR) }, 1);
    let nodes = [1, 2].map(|target| start(&dispatcher, Request::new(TargetId(target))));
    let became =
        nodes.map(|node| dispatcher.become_long_lived(Time::ZERO, RouteId::DEFAULT, node, &mut Vec::new()));
    assert_eq!(became, [true, false]);
    assert_eq!((loads(&dispatcher), dispatcher.outstanding()), (vec![(2, 1)], 1));
}

#[test]
fn idle_connections_do_not_move_a_target() {
    for policy in [PolicyKind::Lard, PolicyKind::LardR] {
        let dispatcher = cluster(settings(policy), 2);
        let home: Vec<NodeId> = (0..50).map(|t| start(&dispatcher, Request::new(TargetId(t)))).collect();
        home.iter().for_each(|node| dispatcher.finish(Time::ZERO, *node, &mut Vec::new()));
        for client in 0..1_000 {
            upgrade(&dispatcher, crate::nodes::mix(client));
        }
        for (target, home) in (0..).zip(&home) {
            let node = start(&dispatcher, Request::new(TargetId(target)));
            assert_eq!(node, *home, "{policy}: target {target}");
            dispatcher.finish(Time::ZERO, node, &mut Vec::new());
        }
    }
}

#[test]
fn connections_to_one_target_spread_over_the_nodes() {
    for policy in [PolicyKind::LardR, PolicyKind::LeastConn] {
        let dispatcher = cluster(settings(policy), 4);
        for _ in 0..1_000 {
            upgrade(&dispatcher, 7);
        }
        let counts: Vec<u32> = loads(&dispatcher).into_iter().map(|(_, long_lived)| long_lived).collect();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 2 * 65), "{policy}: {counts:?}");
    }
}

#[test]
fn a_policy_that_spreads_load_counts_long_lived_requests() {
    let dispatcher = cluster(settings(PolicyKind::LeastConn), 2);
    let long = upgrade(&dispatcher, 1);
    let other = NodeId(1 - long.0);
    // A search by load word alone would choose the nodes in turn.
    for _ in 0..2 {
        let node = start(&dispatcher, Request::new(TargetId(2)));
        assert_eq!(node, other);
        dispatcher.finish(Time::ZERO, node, &mut Vec::new());
    }
    dispatcher.end_long_lived(Time::ZERO, long);
}

#[test]
fn slot_with_long_lived_requests_is_not_reused() {
    let dispatcher = cluster(Settings { nodes_max: 1, ..settings(PolicyKind::LardR) }, 1);
    let node = upgrade(&dispatcher, 1);
    let mut started = Vec::new();
    assert!(dispatcher.leave(Time::ZERO, node, &mut started));
    let join =
        |started: &mut Vec<DequeuedRequest>| dispatcher.join(Time::ZERO, NodeSpec::named("new"), started);
    assert_eq!(join(&mut started), Err(JoinError::Full(1)));
    dispatcher.end_long_lived(Time::ZERO, node);
    assert_eq!(join(&mut started), Ok(node));
}

/// A sink that stores everything it receives.
#[derive(Debug, Default)]
struct EventCollector(Mutex<Vec<RecordedEvent>>);

#[derive(Debug)]
enum RecordedEvent {
    DecisionRecord(DecisionRecord),
    ChangeRecord(ChangeRecord),
}

impl RecordSink for EventCollector {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        self.0.lock().push(RecordedEvent::DecisionRecord(decided));
        true
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        self.0.lock().push(RecordedEvent::ChangeRecord(changed));
        true
    }
}

#[test]
fn run_with_long_lived_requests_can_be_replayed() {
    for policy in [PolicyKind::LardR, PolicyKind::LeastConn, PolicyKind::P2c, PolicyKind::Wrr] {
        let nodes: Vec<NodeSpec> = (0..3).map(|i| NodeSpec::named(format!("n{i}"))).collect();
        let keeper = Arc::new(EventCollector::default());
        let live =
            Dispatcher::with_record_sink(settings(policy), Vec::new(), &nodes, Box::new(keeper.clone()))
                .expect("valid");
        let mut under_way: Vec<(NodeId, bool)> = Vec::new();
        for step in 0..3_000_u64 {
            let lot = crate::nodes::mix(step);
            let request = Request::new(TargetId(lot % 20)).with_lasting(lot.is_multiple_of(3));
            if under_way.len() < 200 && lot & 8 == 0 {
                if let Arrival::Start(decision) = live.arrive(Time::from_millis(step), request) {
                    let long = request.lasting
                        && live.become_long_lived(
                            Time::from_millis(step),
                            RouteId::DEFAULT,
                            decision.node,
                            &mut Vec::new(),
                        );
                    under_way.push((decision.node, long));
                }
            } else if !under_way.is_empty() {
                let (node, long) = under_way.swap_remove(lot as usize % under_way.len());
                match long {
                    true => live.end_long_lived(Time::from_millis(step), node),
                    false => live.finish(Time::from_millis(step), node, &mut Vec::new()),
                }
            }
        }
        let player = cluster(settings(policy), 3);
        let mut long_lived = 0;
        for event in core::mem::take(&mut *keeper.0.lock()) {
            match event {
                RecordedEvent::ChangeRecord(changed) => {
                    long_lived += 1;
                    player.replay_change(changed.at, &changed.change, changed.read_log).expect("a change");
                }
                RecordedEvent::DecisionRecord(DecisionRecord {
                    at,
                    cause,
                    request,
                    read_log,
                    outcome,
                    ..
                }) => {
                    let made = player.replay_decision(at, cause, &request, read_log).expect("a decision");
                    assert_eq!(made.0, outcome, "{policy}: {request:?}");
                }
            }
        }
        assert!(long_lived > 500, "{policy}: {long_lived} changes");
    }
}
