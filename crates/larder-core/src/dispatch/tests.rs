//! Tests of the dispatcher against the papers: thresholds, replication, admission, membership.

use super::*;
use crate::nodes::{JoinError, Weight};
use crate::policy::{PolicyKind, PolicySettings};
use core::time::Duration;

fn cluster(policy: PolicyKind, n: usize, admission: Admission) -> Dispatcher {
    let settings = Settings { policy, admission, ..Settings::default() };
    let specs: Vec<NodeSpec> = (0..n).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

fn send(dispatcher: &Dispatcher, now: Time, target: u64) -> Decision {
    match dispatcher.arrive(now, Request::new(TargetId(target))) {
        Arrival::Start(decision) => decision,
        other => panic!("expected a start, got {other:?}"),
    }
}

/// Sends `times` requests for one target and returns the last decision.
fn flood(dispatcher: &Dispatcher, now: Time, target: u64, times: u32) -> Decision {
    (0..times).map(|_| send(dispatcher, now, target)).last().expect("at least once")
}

/// Returns a target whose first server in an idle cluster is `node`.
fn target_of(dispatcher: &Dispatcher, node: u16) -> u64 {
    let slots = dispatcher.nodes();
    (0..64)
        .map(|i| i << 58)
        .find(|hash| slots.position(*hash, GroupId::ALL) == node as usize)
        .expect("64 steps cover all slots")
}

#[test]
fn admission_limit_matches_the_paper() {
    // facts: S = 65 n - 41 for T_low = 25, T_high = 65.
    for (n, limit) in [(1, 24), (2, 89), (3, 154), (4, 219), (6, 349), (8, 479), (10, 609), (16, 999)] {
        assert_eq!(cluster(PolicyKind::Lard, n, Admission::Derived).admission_limit(), limit, "n = {n}");
    }
}

#[test]
fn reused_decision_counts_above_the_limit() {
    let dispatcher = cluster(PolicyKind::LardR, 2, Admission::Fixed(2));
    let request = Request::new(TargetId(7));
    for load in 1..=3 {
        assert!(dispatcher.reuse(Time::ZERO, request, NodeId(1)));
        assert_eq!((dispatcher.nodes().load(NodeId(1)), dispatcher.outstanding()), (load, load));
    }
    assert!(!dispatcher.reuse(Time::ZERO, request, NodeId(2)), "there is no such node");
    let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("the limit is passed") };
    let mut started = Vec::new();
    dispatcher.finish(Time::ZERO, NodeId(1), &mut started);
    assert!(started.is_empty(), "two are as many as may be");
    dispatcher.finish(Time::ZERO, NodeId(1), &mut started);
    assert_eq!(started.iter().map(|started| started.ticket).collect::<Vec<_>>(), [ticket]);
}

#[test]
fn the_admission_limit_follows_membership_and_weight() {
    let dispatcher = cluster(PolicyKind::Lard, 4, Admission::Derived);
    let mut started = Vec::new();
    dispatcher.fail(Time::ZERO, NodeId(1), &mut started);
    assert_eq!(dispatcher.admission_limit(), 154);
    dispatcher.recover(Time::ZERO, NodeId(1), &mut started);
    dispatcher.join(Time::ZERO, NodeSpec::named("new"), &mut started).expect("there is room");
    assert_eq!(dispatcher.admission_limit(), 4 * 65 + 25 - 1);
    dispatcher.reweigh(Time::ZERO, NodeId(0), Weight::from_milli(2000).expect("in range"), &mut started);
    assert_eq!(dispatcher.admission_limit(), 4 * 65 + 2 * 25 - 1);
}

#[test]
fn while_no_node_is_below_t_low_at_most_n_minus_2_are_above_t_high() {
    let limit = cluster(PolicyKind::Lard, 8, Admission::Derived).admission_limit();
    let with_above = |above: u32| above * 66 + (8 - above) * 25;
    assert!(with_above(6) <= limit && with_above(7) > limit, "S = {limit}");
}

#[test]
fn a_target_stays_at_its_node_up_to_t_high() {
    for kind in [PolicyKind::Lard, PolicyKind::LardR] {
        let dispatcher = cluster(kind, 4, Admission::Unlimited);
        let first = send(&dispatcher, Time::ZERO, 7);
        assert_eq!(first.reason, Reason::First);
        let last = flood(&dispatcher, Time::ZERO, 7, 65);
        assert_eq!((last.node, last.reason), (first.node, Reason::Local), "{kind}: 66 in flight, 65 before");
        let moved = send(&dispatcher, Time::ZERO, 7);
        assert_ne!(moved.node, first.node, "{kind}: 66 is above T_high and others idle");
    }
}

#[test]
fn without_a_node_below_t_low_reassignment_needs_twice_t_high() {
    let dispatcher = cluster(PolicyKind::Lard, 2, Admission::Unlimited);
    let (a, b) = (target_of(&dispatcher, 0), target_of(&dispatcher, 1));
    assert_eq!(flood(&dispatcher, Time::ZERO, b, 25).node, NodeId(1));
    assert_eq!(flood(&dispatcher, Time::ZERO, a, 130).node, NodeId(0));
    let moved = send(&dispatcher, Time::ZERO, a);
    assert_eq!((moved.node, moved.reason), (NodeId(1), Reason::Migrate), "130 reaches twice 65");
}

#[test]
fn a_reassignment_gains_at_least_the_difference_of_the_thresholds() {
    let dispatcher = cluster(PolicyKind::LardR, 6, Admission::Derived);
    let mut held: Vec<NodeId> = Vec::new();
    for i in 0..20_000_u64 {
        let hash = crate::nodes::mix(crate::nodes::mix(i) % 13);
        let before: Vec<u32> = dispatcher.nodes().rows().iter().map(|row| row.load).collect();
        let told = dispatcher.explain(Time::from_millis(i), TargetId(hash));
        match dispatcher.arrive(Time::from_millis(i), Request::new(TargetId(hash))) {
            Arrival::Start(decision) => {
                if matches!(decision.reason, Reason::Migrate | Reason::Replicate) {
                    let servers = told.known.expect("it was assigned").servers;
                    let old = servers.iter().map(|node| before[node.index()]).min().expect("it had a server");
                    assert!(old - before[decision.node.index()] > 65 - 25, "{old} -> {decision:?}");
                }
                held.push(decision.node);
            }
            Arrival::Wait(ticket) => assert_eq!(dispatcher.cancel(ticket), Cancel::Removed),
            Arrival::Refused(refusal) => panic!("{refusal}"),
        }
        if i % 8 != 0 && !held.is_empty() {
            let node = held.swap_remove(i as usize * 7 % held.len());
            dispatcher.finish(Time::from_millis(i), node, &mut Vec::new());
        }
    }
}

#[test]
fn an_overload_soon_after_a_change_replicates_and_a_later_one_migrates() {
    let decay = Settings::default().replication_decay;
    for (wait, reason, servers) in
        [(decay, Reason::Replicate, 2), (decay + Duration::from_nanos(1), Reason::Migrate, 1)]
    {
        let dispatcher = cluster(PolicyKind::LardR, 4, Admission::Unlimited);
        flood(&dispatcher, Time::ZERO, 7, 66);
        let now = Time::ZERO + wait;
        let decision = send(&dispatcher, now, 7);
        assert_eq!(decision.reason, reason);
        let known = dispatcher.explain(now, TargetId(7)).known.expect("it is assigned");
        assert_eq!(known.servers.len(), servers);
        assert!(known.servers.contains(&decision.node), "the node that serves is in the set");
        assert_eq!(known.changed, Some(now));
    }
}

#[test]
fn a_set_left_alone_shrinks_by_its_most_loaded_member_once_per_k() {
    let dispatcher = cluster(PolicyKind::LardR, 4, Admission::Unlimited);
    let first = flood(&dispatcher, Time::ZERO, 7, 66).node;
    let second = flood(&dispatcher, Time::ZERO, 7, 66).node;
    let third = send(&dispatcher, Time::ZERO, 7).node;
    let now = Time::from_secs(21);
    let shrunk = send(&dispatcher, now, 7);
    assert_eq!((shrunk.node, shrunk.reason), (third, Reason::Shrink));
    let known = dispatcher.explain(now, TargetId(7)).known.expect("it is assigned");
    assert_eq!(known.servers, [second, third], "of two equally loaded, the one added first leaves: {first}");
    assert_eq!(send(&dispatcher, now, 7).reason, Reason::Local, "not again within K");
    assert_eq!(send(&dispatcher, Time::from_secs(42), 7).reason, Reason::Shrink);
}

#[test]
fn the_node_about_to_serve_is_never_removed_from_a_tied_set() {
    let dispatcher = cluster(PolicyKind::LardR, 2, Admission::Unlimited);
    let mut held: Vec<NodeId> = (0..67).map(|_| send(&dispatcher, Time::ZERO, 7).node).collect();
    held.drain(..).for_each(|node| dispatcher.finish(Time::ZERO, node, &mut Vec::new()));
    let now = Time::from_secs(30);
    let decision = send(&dispatcher, now, 7);
    assert_eq!(decision.reason, Reason::Shrink);
    let known = dispatcher.explain(now, TargetId(7)).known.expect("it is assigned");
    assert_eq!(known.servers, [decision.node]);
}

#[test]
fn a_failed_nodes_targets_count_as_never_assigned() {
    for kind in [PolicyKind::Lard, PolicyKind::LardR] {
        let dispatcher = cluster(kind, 3, Admission::Unlimited);
        let node = send(&dispatcher, Time::ZERO, 7).node;
        let (failed, back) = (Time::from_secs(1), Time::from_secs(2));
        assert!(dispatcher.fail(failed, node, &mut Vec::new()));
        assert!(dispatcher.recover(back, node, &mut Vec::new()));
        let known = dispatcher.explain(back, TargetId(7)).known.expect("the entry stands");
        assert!(known.servers.is_empty(), "{kind}: it came back without its memory");
        assert_eq!(send(&dispatcher, back, 7).reason, Reason::Lost, "{kind}");
        assert_eq!(send(&dispatcher, back, 7).reason, Reason::Local, "{kind}");
    }
}

#[test]
fn a_replica_survives_the_failure_of_another() {
    let dispatcher = cluster(PolicyKind::LardR, 3, Admission::Unlimited);
    let first = flood(&dispatcher, Time::ZERO, 7, 66).node;
    let second = send(&dispatcher, Time::ZERO, 7).node;
    dispatcher.fail(Time::ZERO, first, &mut Vec::new());
    let next = send(&dispatcher, Time::ZERO, 7);
    assert_eq!((next.node, next.reason), (second, Reason::Local));
    dispatcher.recover(Time::ZERO, first, &mut Vec::new());
    let known = dispatcher.explain(Time::ZERO, TargetId(7)).known.expect("it is assigned");
    assert_eq!(known.servers, [second]);
}

#[test]
fn excess_requests_wait_in_order_and_start_when_others_end() {
    let dispatcher = cluster(PolicyKind::LeastConn, 2, Admission::Fixed(2));
    let a = send(&dispatcher, Time::ZERO, 1).node;
    send(&dispatcher, Time::ZERO, 2);
    let wait = |target| match dispatcher.arrive(Time::ZERO, Request::new(TargetId(target))) {
        Arrival::Wait(ticket) => ticket,
        other => panic!("{other:?}"),
    };
    let (third, fourth) = (wait(3), wait(4));
    let mut started = Vec::new();
    dispatcher.finish(Time::from_secs(1), a, &mut started);
    assert_eq!(started.iter().map(|s| s.ticket).collect::<Vec<_>>(), [third]);
    assert_eq!(started[0].outcome.map(|decision| decision.node), Ok(a));
    assert_eq!(dispatcher.cancel(fourth), Cancel::Removed);
    assert_eq!(dispatcher.cancel(third), Cancel::NotWaiting);
    assert_eq!((dispatcher.queued(), dispatcher.outstanding()), (0, 2));
}

#[test]
fn waiting_ends_at_the_deadline_and_the_queue_has_a_limit() {
    let settings = Settings {
        admission: Admission::Fixed(1),
        queue_max: 1,
        queue_timeout: Duration::from_secs(2),
        ..Settings::default()
    };
    let dispatcher = Dispatcher::new(settings, &[NodeSpec::named("a")]).expect("in range");
    let request = Request::new(TargetId(1));
    let node = send(&dispatcher, Time::ZERO, 1).node;
    let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("it waits") };
    assert_eq!(dispatcher.arrive(Time::ZERO, request), Arrival::Refused(Refusal::QueueFull));
    assert_eq!(dispatcher.next_deadline(), Some(Time::from_secs(2)));
    let mut expired = Vec::new();
    dispatcher.expire(Time::from_millis(1_999), &mut expired);
    assert!(expired.is_empty());
    dispatcher.expire(Time::from_secs(2), &mut expired);
    assert_eq!((expired, dispatcher.next_deadline()), (vec![ticket], None));

    let Arrival::Wait(late) = dispatcher.arrive(Time::from_secs(3), request) else { panic!("it waits") };
    let mut started = Vec::new();
    dispatcher.finish(Time::from_secs(9), node, &mut started);
    assert_eq!(started, [DequeuedRequest { ticket: late, outcome: Err(Refusal::Deadline) }]);
    assert_eq!(dispatcher.outstanding(), 0);
}

#[test]
fn failure_of_the_last_node_refuses_all_queued_requests() {
    let dispatcher = cluster(PolicyKind::LardR, 1, Admission::Fixed(1));
    let node = send(&dispatcher, Time::ZERO, 1).node;
    let request = Request::new(TargetId(2));
    let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("it waits") };
    let mut started = Vec::new();
    dispatcher.fail(Time::ZERO, node, &mut started);
    assert_eq!(started, [DequeuedRequest { ticket, outcome: Err(Refusal::NoNode) }]);
    assert_eq!(dispatcher.arrive(Time::ZERO, request), Arrival::Refused(Refusal::NoNode));
    dispatcher.finish(Time::ZERO, node, &mut started);
    assert_eq!((dispatcher.outstanding(), dispatcher.queued()), (0, 0));
}

#[test]
fn a_joining_node_gets_new_targets_at_its_pace_and_nothing_is_reassigned() {
    let settings = Settings {
        join_targets_per_s: 10,
        join_warm_targets: 15,
        admission: Admission::Unlimited,
        ..Settings::default()
    };
    let specs: Vec<NodeSpec> = (0..3).map(|i| NodeSpec::named(format!("n{i}"))).collect();
    let dispatcher = Dispatcher::new(settings, &specs).expect("in range");
    let old: Vec<(u64, NodeId)> = (0..90)
        .map(|i| (crate::nodes::mix(i), send(&dispatcher, Time::ZERO, crate::nodes::mix(i)).node))
        .collect();
    let joiner = dispatcher.join(Time::ZERO, NodeSpec::named("new"), &mut Vec::new()).expect("there is room");
    assert!(old.iter().all(|(target, node)| send(&dispatcher, Time::ZERO, *target).node == *node));

    let placed = |from: u64, second: u64| {
        let send =
            |i| send(&dispatcher, Time::from_millis(second * 1000 + (i - from) * 10), crate::nodes::mix(i));
        (from..from + 100).filter(|i| send(*i).node == joiner).count()
    };
    assert_eq!(placed(1_000, 1), 10, "it is the least loaded, yet gets ten in a second");
    assert!(dispatcher.nodes().rows()[3].joining);
    assert!(placed(2_000, 2) > 30, "after five more it is warm");
    assert!(!dispatcher.nodes().rows()[3].joining);
}

#[test]
fn a_name_keeps_its_slot_until_it_is_removed() {
    let dispatcher = cluster(PolicyKind::LardR, 2, Admission::Unlimited);
    let node = send(&dispatcher, Time::ZERO, 7).node;
    let name = dispatcher.nodes().name(node).to_string();
    let join = |name: &str| dispatcher.join(Time::ZERO, NodeSpec::named(name), &mut Vec::new());
    assert_eq!(join(&name), Err(JoinError::NameTaken(name.clone())));
    dispatcher.leave(Time::ZERO, node, &mut Vec::new());
    assert_eq!(dispatcher.nodes().id_of(&name), None);
    assert_eq!(join("other"), Ok(NodeId(2)), "the slot still has a request in flight");
    dispatcher.finish(Time::ZERO, node, &mut Vec::new());
    assert_eq!(join("third"), Ok(node), "now it is free");
    let known = dispatcher.explain(Time::ZERO, TargetId(7)).known.expect("the entry stands");
    assert!(known.servers.is_empty(), "the newcomer has not inherited the slot's targets");
}

#[test]
fn error_names_the_setting_out_of_range() {
    let bad = |settings: Settings| Dispatcher::new(settings, &[]).expect_err("out of range").to_string();
    let base = Settings::default;
    assert_eq!(
        bad(Settings { t_high: 25, ..base() }),
        "t_high = 25 is out of range: it must be above t_low, at most 100000"
    );
    assert!(bad(Settings { shards: 3, ..base() }).starts_with("shards = 3"));
    assert!(bad(Settings { targets_max: 0, ..base() }).starts_with("targets_max = 0"));
    let idle = Settings { t_gat: Duration::ZERO, ..base() };
    assert_eq!(bad(idle), "t_gat = 0 is out of range: it must be 1 ms to 1 h");
    let old = Duration::from_secs(3_601);
    assert!(bad(Settings { report_age_max: old, ..base() }).starts_with("report_age_max = 3601000"));
    let own = |change: fn(&mut PolicySettings)| {
        let mut settings = base();
        change(&mut settings.policies);
        bad(settings)
    };
    assert!(own(|own| own.lard_util.low_permille = 700).starts_with("util_high_permille = 700"));
    assert!(own(|own| own.lard_util.low_permille = 0).starts_with("util_low_permille = 0"));
    assert!(own(|own| own.static_partition.shares[1] = 1_000_001).starts_with("static_shares"));
    assert!(own(|own| own.maglev.size = 100).starts_with("maglev_size = 100"));
    assert!(own(|own| own.rendezvous.places = 300).starts_with("rendezvous_places = 300"));
    assert!(own(|own| own.peak_ewma.decay = Duration::ZERO).starts_with("ewma_decay = 0"));
    assert!(
        own(|own| own.prequal.rif_quantile_permille = 1_001).starts_with("prequal.rif_quantile_permille")
    );
    let twice = [NodeSpec::named("a"), NodeSpec::named("a")];
    assert!(matches!(Dispatcher::new(base(), &twice), Err(SettingsError::Node(JoinError::NameTaken(_)))));
}

#[test]
fn new_targets_follow_cache_sizes_under_load() {
    let settings = Settings { admission: Admission::Unlimited, ..Settings::default() };
    let spec =
        |name: &str, gib: u64| NodeSpec { cache: crate::Bytes::mib(gib << 10), ..NodeSpec::named(name) };
    let dispatcher =
        Dispatcher::new(settings, &[spec("a", 8), spec("b", 8), spec("c", 32)]).expect("in range");
    let mut held = alloc::collections::VecDeque::new();
    let mut placed = [0_u32; 3];
    for i in 0..12_000 {
        let decision = send(&dispatcher, Time::ZERO, crate::nodes::mix(i));
        placed[decision.node.index()] += 1;
        held.push_back(decision.node);
        if held.len() > 40 {
            dispatcher.finish(Time::ZERO, held.pop_front().expect("it holds 41"), &mut Vec::new());
        }
    }
    // 8, 8 and 32 of 48; T_low allows the loads to differ that much.
    let share = f64::from(placed[2]) / 12_000.0;
    assert!((0.6..=0.7).contains(&share), "{placed:?}");
}

#[test]
fn retry_prefers_another_replica() {
    let dispatcher = cluster(PolicyKind::LardR, 8, Admission::Unlimited);
    let first = flood(&dispatcher, Time::ZERO, 7, 66).node;
    let second = flood(&dispatcher, Time::ZERO, 7, 10).node;
    assert_ne!(first, second);
    let decision = dispatcher.retry(Time::ZERO, second, Request::new(TargetId(7)));
    assert_eq!(decision, Ok(Decision { node: first, reason: Reason::Retry }));
}

#[test]
fn equally_overloaded_set_stays_unchanged() {
    let dispatcher = cluster(PolicyKind::LardR, 3, Admission::Unlimited);
    for i in 0..3_000_u64 {
        send(&dispatcher, Time::from_millis(i), 7);
        let known = dispatcher.explain(Time::from_millis(i), TargetId(7)).known.expect("it is assigned");
        let mut distinct = known.servers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), known.servers.len(), "{:?}", known.servers);
    }
}

#[test]
fn a_second_end_of_a_request_changes_nothing() {
    let dispatcher = cluster(PolicyKind::LardR, 2, Admission::Fixed(1));
    let node = send(&dispatcher, Time::ZERO, 1).node;
    let end = |node| dispatcher.try_finish_on(Time::ZERO, RouteId::DEFAULT, node, &mut Vec::new());
    assert!(!end(NodeId(7)), "there is no such node");
    assert_eq!((end(node), end(node), dispatcher.outstanding()), (true, false, 0));
    assert_eq!(dispatcher.admission_limit(), 1);
    send(&dispatcher, Time::ZERO, 2);
    let refused = dispatcher.arrive(Time::ZERO, Request::new(TargetId(3)));
    assert!(matches!(refused, Arrival::Wait(_)), "the limit is exact: {refused:?}");
}
