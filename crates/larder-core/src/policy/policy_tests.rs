//! The tests that every policy passes. They run over [`PolicyKind::ALL`], so a new policy cannot be left out.

mod backups;
mod churn;
mod shares;
mod snapshots;
pub(super) mod turns;

use super::table::{Place, RouteTable};
use super::{
    BoundedSettings, MaglevSettings, PolicyKind, PolicySettings, Reason, RendezvousSettings, StaticSettings,
};
use crate::class::ServiceClass;
use crate::dispatch::{
    Admission, Arrival, CacheEvent, CacheResult, DequeuedRequest, Dispatcher, ExcludedNodes, Refusal,
    ReplyFeedback, Request, RequestAffinity, Settings,
};
use crate::id::{NodeId, TargetId, Ticket};
use crate::nodes::{JoinError, LoadReport, NodeSpec, NodeState, mix};
use crate::time::Time;
use alloc::sync::Arc;
use proptest::prelude::*;

/// A table that contains targets 0 to 29: of each three one is in the core, one has an owner, one is unknown.
fn table() -> Arc<RouteTable> {
    let place = |i: u64| match i % 3 {
        0 => Some(Place::Core),
        1 => Some(Place::Node((i % 5) as u16)),
        _ => None,
    };
    let places = (0..30).filter_map(|i| place(i).map(|place| (TargetId(mix(i)), place)));
    Arc::new(RouteTable::new(5, places).expect("all nodes are below 5"))
}

/// The number of nodes in most tests.
const NODES: usize = 10;

fn dispatcher(policy: PolicyKind, n: usize) -> Dispatcher {
    let specs: Vec<NodeSpec> = (0..n).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    dispatcher_of(policy, &specs)
}

fn dispatcher_of(policy: PolicyKind, nodes: &[NodeSpec]) -> Dispatcher {
    let settings = Settings {
        policy,
        admission: Admission::Unlimited,
        shards: 4,
        table: Some(table()),
        ..Settings::default()
    };
    Dispatcher::new(settings, nodes).expect("the settings are in range")
}

/// Returns a request for target number `i`; the classes come in turn.
fn target(i: u64) -> Request {
    Request::new(TargetId(mix(i))).with_class(ServiceClass::ALL[i as usize % ServiceClass::COUNT])
}

/// Returns the node of a request that starts at once.
pub(super) fn started(arrival: Arrival) -> NodeId {
    match arrival {
        Arrival::Start(decision) => decision.node,
        other => panic!("expected a start, got {other:?}"),
    }
}

#[test]
fn names_parse_back() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "maglev9".parse::<PolicyKind>().expect_err("it is no policy").to_string();
    assert!(error.starts_with("unknown policy 'maglev9': use one of random, rr, wrr, "), "{error}");
}

#[test]
fn distinct_targets_spread_evenly_over_an_idle_cluster() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher(kind, 8);
        let mut counts = [0_u32; 8];
        for i in 0..16_000 {
            let node = started(dispatcher.arrive(Time::ZERO, target(i)));
            counts[node.index()] += 1;
            dispatcher.finish(Time::ZERO, node, &mut Vec::new());
        }
        // The mean is 2,000; five standard deviations of a binomial count are 210.
        assert!(counts.iter().all(|count| (1_790..=2_210).contains(count)), "{kind}: {counts:?}");
    }
}

#[test]
fn tried_nodes_are_not_chosen_while_others_are_left() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher(kind, 3);
        let mut failed = started(dispatcher.arrive(Time::ZERO, target(1)));
        let mut request = target(1);
        let mut tried = vec![failed];
        for _ in 0..2 {
            let decision = dispatcher.retry(Time::ZERO, failed, request).expect("a node is left");
            assert!(!tried.contains(&decision.node), "{kind}");
            assert_eq!(decision.reason, super::Reason::Retry, "{kind}");
            request.exclude = request.exclude.with(failed);
            failed = decision.node;
            tried.push(failed);
        }
        assert_eq!(dispatcher.retry(Time::ZERO, failed, request), Err(Refusal::NoNode), "{kind}");
        assert_eq!((dispatcher.nodes().in_flight(), dispatcher.outstanding()), (0, 1), "{kind}");
        dispatcher.abandon(Time::ZERO, &mut Vec::new());
        assert_eq!(dispatcher.outstanding(), 0, "{kind}");
    }
}

/// Sends a load report and a cache event of a node.
fn signal(dispatcher: &Dispatcher, now: Time, i: u64) {
    let node = NodeId((mix(i) % 5) as u16);
    assert!(dispatcher.report(now, node, report(mix(i))));
    let event = [CacheEvent::Stored, CacheEvent::Evicted, CacheEvent::Gone][[0, 1, 0, 2][i as usize % 4]];
    dispatcher.cache_event(now, node, TargetId(mix(i % 40)), event);
}

/// Returns an arbitrary report.
fn report(lot: u64) -> LoadReport {
    LoadReport {
        cpu_permille: Some((lot % 1_001) as u16),
        disk_permille: (!lot.is_multiple_of(11)).then_some((lot / 7 % 1_200) as u16),
        processes: Some((lot % 90) as u32),
        service_us: (!lot.is_multiple_of(13)).then_some((lot % 5_000) as u32),
        disk_bytes_per_s: Some(lot % 9_000_000),
        paging_per_s: Some((lot % 400) as u32),
        queue: Some((lot % 60) as u32),
        ..LoadReport::default()
    }
}

#[test]
fn explain_predicts_the_next_decision_and_changes_nothing() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher(kind, 5);
        for i in 0..400 {
            let request = target(i % 40);
            let now = Time::from_millis(i * 100);
            let request =
                if i.is_multiple_of(3) { request } else { request.with_origin(NodeId((i % 5) as u16)) };
            if i.is_multiple_of(7) {
                signal(&dispatcher, now, i);
            }
            let told = dispatcher.explain_request(now, &request);
            assert_eq!(told, dispatcher.explain_request(now, &request), "{kind}");
            match dispatcher.arrive(now, request) {
                Arrival::Start(decision) => assert_eq!(told.decision, Some(decision), "{kind} at {i}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
    }
}

#[test]
fn concurrent_threads_keep_load_exact() {
    for kind in PolicyKind::ALL {
        let dispatcher = dispatcher(kind, 6);
        std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let dispatcher = &dispatcher;
                scope.spawn(move || {
                    let mut held = alloc::collections::VecDeque::new();
                    for i in 0..5_000_u64 {
                        held.push_back(started(dispatcher.arrive(Time::ZERO, target(i * 31 + thread))));
                        if held.len() > 20 {
                            let node = held.pop_front().expect("it holds 21");
                            dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                        }
                    }
                    held.into_iter().for_each(|node| dispatcher.finish(Time::ZERO, node, &mut Vec::new()));
                });
            }
        });
        assert_eq!((dispatcher.outstanding(), dispatcher.nodes().in_flight()), (0, 0), "{kind}");
        assert!(dispatcher.nodes().rows().iter().all(|row| row.load == 0), "{kind}");
    }
}

/// One step of a run: the event, the target, the node.
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u16)>> {
    prop::collection::vec((0_u8..15, 0_u64..30, 0_u16..5), 1..400)
}

/// The outputs of one step.
#[derive(Debug, Default, PartialEq, Eq)]
struct StepOutputs {
    arrival: Option<Arrival>,
    changed: Option<bool>,
    joined: Option<Result<NodeId, JoinError>>,
    expired: Vec<Ticket>,
    started: Vec<DequeuedRequest>,
}

/// Executes step number `number`; requests that end are removed from `held`.
fn step(
    dispatcher: &Dispatcher,
    now: Time,
    (what, which, node): (u8, u64, u16),
    number: usize,
    held: &mut Vec<NodeId>,
) -> StepOutputs {
    let (mut out, node) = (StepOutputs::default(), NodeId(node));
    let started = &mut out.started;
    match what {
        0..=2 => out.arrival = Some(dispatcher.arrive(now, target(which))),
        3 => out.arrival = Some(dispatcher.arrive(now, target(which).with_origin(node))),
        4 => {
            out.arrival =
                Some(dispatcher.arrive(now, target(which).with_affinity(RequestAffinity::Sticky(node))));
        }
        5 | 6 if !held.is_empty() => {
            dispatcher.finish(now, held.remove(which as usize % held.len()), started);
        }
        7 => {
            let state = [NodeState::Down, NodeState::Draining][which as usize % 2];
            out.changed = Some(dispatcher.set_state(now, node, state, started));
        }
        8 => out.changed = Some(dispatcher.recover(now, node, started)),
        9 if which == 0 => {
            out.joined = Some(dispatcher.join(now, NodeSpec::named(format!("j{number}")), started));
        }
        10 | 11 => {
            let report = report(which.wrapping_mul(0x9E37_79B9));
            out.changed = Some(dispatcher.report(now, node, report));
        }
        12 | 13 => {
            let event = [CacheEvent::Stored, CacheEvent::Evicted][usize::from(what) - 12];
            out.changed = Some(dispatcher.cache_event(now, node, TargetId(mix(which)), event));
        }
        _ => dispatcher.expire(now, &mut out.expired),
    }
    if what == 14 {
        let elapsed = core::time::Duration::from_micros(1 + mix(which) % 90_000);
        let found = [CacheResult::Hit, CacheResult::Miss][which as usize % 2];
        let served = ReplyFeedback { elapsed, first_byte: None, found: Some(found) };
        dispatcher.observe_reply(now, &target(which), NodeId(node.0 % 4), &served);
    }
    out
}

/// Executes the steps and returns the decision log.
fn run_steps(kind: PolicyKind, steps: &[(u8, u64, u16)]) -> Vec<StepOutputs> {
    let settings = Settings {
        policy: kind,
        t_low: 2,
        t_high: 4,
        queue_max: 8,
        targets_max: 16,
        shards: 2,
        join_warm_targets: 3,
        t_gat: core::time::Duration::from_secs(5),
        report_age_max: core::time::Duration::from_secs(30),
        policies: PolicySettings {
            static_partition: StaticSettings { shares: [3, 2, 1, 0] },
            maglev: MaglevSettings { size: 251 },
            rendezvous: RendezvousSettings { places: 256 },
            bounded: BoundedSettings { points: 20, ..BoundedSettings::default() },
            ..PolicySettings::default()
        },
        table: Some(table()),
        ..Settings::default()
    };
    let specs: Vec<NodeSpec> = (0..4).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    let dispatcher = Dispatcher::new(settings, &specs).expect("the settings are in range");
    let (mut log, mut held): (Vec<StepOutputs>, Vec<NodeId>) = (Vec::new(), Vec::new());
    let mut now = Time::ZERO;
    for (what, which, node) in steps {
        now += core::time::Duration::from_millis(700 * which);
        let out = step(&dispatcher, now, (*what, *which, *node), log.len(), &mut held);
        let arrived = out.arrival.and_then(|arrival| match arrival {
            Arrival::Start(decision) => Some(decision),
            _ => None,
        });
        for decision in arrived.into_iter().chain(out.started.iter().filter_map(|one| one.outcome.ok())) {
            let state = dispatcher.nodes().state(decision.node);
            // A draining node keeps its requests.
            let kept = decision.reason == Reason::Sticky && state == NodeState::Draining;
            assert!(kept || state == NodeState::Up, "{kind} chose a closed node: {state}");
            held.push(decision.node);
        }
        log.push(out);
        assert_eq!(dispatcher.outstanding() as usize, held.len(), "{kind}");
        assert_eq!(dispatcher.nodes().in_flight() as usize, held.len(), "{kind}");
        assert!(dispatcher.targets_known() <= 16, "{kind}");
        let room = dispatcher.outstanding() < dispatcher.admission_limit();
        assert!(!(room && dispatcher.queued() > 0), "{kind}: somebody waits though there is room");
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For every sequence of events: no closed node is chosen, counts agree, bounds hold, and the same inputs give
    /// the same decisions.
    #[test]
    fn invariants_hold_for_every_history(steps in steps()) {
        for kind in PolicyKind::ALL {
            prop_assert_eq!(run_steps(kind, &steps), run_steps(kind, &steps), "{} decided differently", kind);
        }
    }

    #[test]
    fn excluded_nodes_keep_the_latest(nodes in prop::collection::vec(0_u16..50, 0..12)) {
        let exclude = nodes.iter().fold(ExcludedNodes::NONE, |exclude, node| exclude.with(NodeId(*node)));
        prop_assert_eq!(exclude.is_empty(), nodes.is_empty());
        if let Some(last) = nodes.last() {
            prop_assert!(exclude.contains(NodeId(*last)));
        }
    }
}
