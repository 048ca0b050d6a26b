//! Tests of the gates of the fast path.

use super::*;
use larder_core::dispatch::ReplyFeedback;
use larder_core::policy::thresholds::HighRule;

#[tokio::test(start_paused = true)]
async fn gates_follow_loads_and_close_for_unusable_nodes() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(2));
    bench.punt(key(1), true, 1, GET);
    let reused = bench.notes(|notes| notes.targets[0].1);
    bench.report(DatapathEvent::Opened { key: key(2), reused, age: Duration::ZERO });
    let (node, other) = (reused.node, NodeId(1 - reused.node.0));
    let gates = || {
        bench.edge.set_gates();
        bench.notes(|notes| (notes.gates.clone(), notes.bases.clone()))
    };
    let (open, bases) = gates();
    let t_high = bench.edge.decider.dispatcher.settings().t_high;
    assert_eq!((open[&Some(node)], open[&Some(other)]), ((t_high, true), (t_high, true)));
    assert_eq!((open[&None], bases[&Some(node)], bases[&None]), ((2, true), (2, 1), (2, 1)));
    // A failure that traffic has seen, a channel that is down, a node that takes nothing.
    let failures = &bench.edge.decider.nodes.get(node).expect("the node").to_arc().expect("the node");
    failures.failures.store(1, std::sync::atomic::Ordering::Relaxed);
    bench.edge.channels.set_bits(other, 0);
    let (shut, _) = gates();
    assert!(!shut[&Some(node)].1 && !shut[&Some(other)].1);
    failures.failures.store(0, std::sync::atomic::Ordering::Relaxed);
    bench.edge.decider.dispatcher.drain(bench.edge.decider.clock.now(), node, &mut Vec::new());
    assert!(!gates().0[&Some(node)].1);
    // Whoever waits comes first.
    bench.punt(key(3), true, 1, GET);
    assert!(!gates().0[&None].1, "one waits for its admission");
}

/// With room for two, one is there, and the plane has opened a second one by itself: before the first packet of a third
/// came, after it, or while it was being looked at. The third one waits.
#[tokio::test(start_paused = true)]
async fn unreported_connections_of_the_plane_are_counted() {
    for order in ["before", "behind", "late"] {
        let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(2));
        bench.punt(key(1), true, 1, GET);
        let reused = bench.notes(|notes| notes.targets[0].1);
        let (punt, opened) = (PreparedEvent::Punt(key(2)), PreparedEvent::Opened(key(3), reused));
        bench.notes(|notes| {
            match order {
                "before" => notes.to_report.extend([opened, punt]),
                "behind" => notes.to_report.extend([punt, opened]),
                _ => {
                    notes.to_report.push_back(punt);
                    notes.late.push_back(opened);
                }
            }
            notes.opened = u32::from(order != "late");
        });
        bench.edge.drain();
        assert_eq!((bench.load(), bench.edge.sizes()), (2, (1, 2, 0)), "{order}");
        let (gate, base) = bench.notes(|notes| (notes.gates[&None], notes.bases[&None]));
        assert_eq!((gate, base), ((2, false), (2, 1)), "{order}: somebody waits");
    }
}

/// The same for a relayed request. A connection whose first packet was reported with it is decided too.
#[tokio::test]
async fn unreported_connections_are_counted_before_a_relayed_request() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(2));
    bench.punt(key(1), true, 1, GET);
    let reused = bench.notes(|notes| notes.targets[0].1);
    bench.notes(|notes| {
        notes.to_report.extend([PreparedEvent::Opened(key(3), reused), PreparedEvent::Punt(key(2))]);
        notes.opened = 1;
    });
    let mut lease = crate::lease::Lease::new(bench.edge.decider.clone());
    let request = larder_core::Request::new(larder_core::TargetId(7));
    assert!(matches!(lease.arrive(bench.edge.decider.clock.now(), request), Ok(None)), "it waits");
    assert_eq!(bench.load(), 2);
    bench.edge.caught_up.notified().await;
    assert_eq!(bench.edge.decider.dispatcher.queued(), 1);
    bench.edge.process_events();
    assert_eq!(bench.edge.decider.dispatcher.queued(), 2);
}

/// The gates know of a connection before the plane can forward anything of it, or use its decision again.
#[tokio::test]
async fn gates_are_set_before_a_decision_takes_effect() {
    let bench = Bench::new(|config| config.settings.admission = Admission::Fixed(2));
    bench.punt(key(1), true, 1, GET);
    let (node, then) = bench.notes(|notes| (notes.forwarded[0].0, notes.bases_then.clone()));
    assert_eq!((then[&None], then[&Some(node)]), ((1, 0), (1, 0)));
    // A relayed request takes a place too, and one that is found in the plane.
    let mut lease = crate::lease::Lease::new(bench.edge.decider.clone());
    let request = larder_core::Request::new(larder_core::TargetId(7));
    assert!(matches!(lease.arrive(bench.edge.decider.clock.now(), request), Ok(Some(_))));
    assert_eq!(bench.notes(|notes| notes.bases[&None]), (2, 0));
    bench.notes(|notes| {
        notes.now_ns = 9_000_000_000;
        notes.flows.insert(key(5), Destination::Node(NodeId(1)));
        notes.seen_ns.insert(key(5), 9_000_000_000);
    });
    bench.edge.sweep();
    assert_eq!(bench.notes(|notes| notes.bases[&None]), (3, 0));
}

/// The least T_high of the routes whose decisions may be used again, as it is in force: one route has learned its own from
/// how long requests take.
#[tokio::test]
async fn gates_use_the_thresholds_in_effect() {
    let bench = Bench::new(|config| {
        let by_delay = HighRule::ByDelay { delay: Duration::from_millis(300), service: None };
        let matcher = larder_core::rules::Matcher::new();
        let learns = crate::routes::Route::new("learns", matcher.clone().path("/learns").expect("a path"));
        let mut settings = config.settings.clone();
        settings.thresholds.high = by_delay;
        let turns = crate::routes::Route::new("turns", matcher.path("/turns").expect("a path"));
        let few = Settings { policy: PolicyKind::Rr, t_high: 26, ..config.settings.clone() };
        config.routes = vec![
            crate::routes::Route { settings, ..learns },
            crate::routes::Route { settings: few, ..turns },
        ];
    });
    let limit = || {
        bench.edge.set_gates();
        bench.notes(|notes| notes.gates[&Some(NodeId(0))].0)
    };
    assert_eq!(limit(), 65, "as given; the route that gives each request its turn has no say");
    let request = larder_core::Request::new(larder_core::TargetId(1)).with_route(larder_core::RouteId(1));
    for _ in 0..200 {
        let served = ReplyFeedback { elapsed: Duration::from_millis(10), first_byte: None, found: None };
        let mut lease = crate::lease::Lease::new(bench.edge.decider.clone());
        let decision = lease.arrive(bench.edge.decider.clock.now(), request).expect("room").expect("room");
        bench.edge.decider.dispatcher.observe_reply(
            bench.edge.decider.clock.now(),
            &request,
            decision.node,
            &served,
        );
    }
    let (_, learned) = bench.edge.decider.dispatcher.thresholds_of(larder_core::RouteId(1));
    assert!(learned < 65 && limit() == learned, "{learned}");
}

#[tokio::test]
async fn decisions_by_fields_are_not_reused_by_the_plane() {
    let bench = Bench::new(|config| {
        config.key = "{host}{path}{header:accept-language}".parse().expect("a template");
    });
    bench.punt(key(1), true, 1, GET);
    assert!(bench.notes(|notes| notes.targets.is_empty() && notes.forwarded.len() == 1));
    let turns = Bench::new(|config| config.settings.policy = PolicyKind::Rr);
    turns.punt(key(1), true, 1, GET);
    assert!(turns.notes(|notes| notes.targets.is_empty() && notes.forwarded.len() == 1));
}
