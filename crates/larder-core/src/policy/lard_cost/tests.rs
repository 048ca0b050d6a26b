//! Tests of `lard-cost` against the paper's formulas, computed literally over all nodes.

use super::*;
use crate::dispatch::{Admission, Arrival, Dispatcher, Settings};
use crate::nodes::{NodeSpec, Weight, mix};
use crate::policy::{PolicyKind, PolicySettings};
use proptest::prelude::*;

fn dispatcher(cost: CostSettings, specs: &[NodeSpec]) -> Dispatcher {
    let settings = Settings {
        policy: PolicyKind::LardCost,
        admission: Admission::Unlimited,
        policies: PolicySettings { cost, ..PolicySettings::default() },
        ..Settings::default()
    };
    Dispatcher::new(settings, specs).expect("the settings are in range")
}

fn specs(names: &[&str]) -> Vec<NodeSpec> {
    names.iter().map(|name| NodeSpec::named(*name)).collect()
}

fn send(dispatcher: &Dispatcher, now: Time, target: u64) -> (u16, Reason) {
    match dispatcher.arrive(now, Request::new(TargetId(target))) {
        Arrival::Start(choice) => (choice.node.0, choice.reason),
        other => panic!("expected a start, got {other:?}"),
    }
}

#[test]
fn target_stays_until_waiting_costs_more_than_a_miss() {
    let dispatcher = dispatcher(CostSettings::default(), &specs(&["a", "b"]));
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (0, Reason::First));
    // At load x its cost is 1 + x - 30; at another node it is 50. They are equal at 79, and above it the other node
    // is cheaper.
    for load in 1..80 {
        assert_eq!(send(&dispatcher, Time::ZERO, 1), (0, Reason::Local), "at {load}");
    }
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Replicate), "51 against 50");
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Local), "the less loaded of the two");
    assert_eq!(send(&dispatcher, Time::from_secs(21), 1).1, Reason::Shrink, "not changed for longer than K");
}

#[test]
fn after_k_an_expensive_server_is_removed() {
    let dispatcher = dispatcher(CostSettings::default(), &specs(&["a", "b"]));
    (0..80).for_each(|_| assert_eq!(send(&dispatcher, Time::ZERO, 1).0, 0));
    assert_eq!(send(&dispatcher, Time::from_secs(21), 1), (1, Reason::Migrate));
    let known = dispatcher.explain(Time::from_secs(21), TargetId(1)).known.expect("it is known");
    assert_eq!(known.servers, [NodeId(1)]);
}

#[test]
fn node_above_overload_is_never_chosen() {
    let cost = CostSettings { miss: MissCost::Fixed(1_000), ..CostSettings::default() };
    let dispatcher = dispatcher(cost, &specs(&["a", "b"]));
    for load in 0..131 {
        assert_eq!(
            send(&dispatcher, Time::ZERO, 1).0,
            0,
            "at {load} waiting costs 101 at most, a miss 1,000"
        );
    }
    assert_eq!(send(&dispatcher, Time::ZERO, 1), (1, Reason::Replicate), "131 are above 130");
}

#[test]
fn measured_miss_cost_replaces_the_default() {
    // The default settings.
    let dispatcher = dispatcher(CostSettings::default(), &specs(&["a", "b"]));
    let request = Request::new(TargetId(1));
    let serve = |found, ms| {
        assert_eq!(send(&dispatcher, Time::ZERO, 1).0, 0);
        let served = ReplyFeedback { elapsed: Duration::from_millis(ms), first_byte: None, found };
        dispatcher.observe_reply(Time::ZERO, &request, NodeId(0), &served);
        dispatcher.finish(Time::ZERO, NodeId(0), &mut Vec::new());
    };
    (0..200).for_each(|_| serve(None, 1));
    let stays = |dispatcher: &Dispatcher| {
        let count = (0..200).take_while(|_| send(dispatcher, Time::ZERO, 1).0 == 0).count();
        (0..count).for_each(|_| dispatcher.finish(Time::ZERO, NodeId(0), &mut Vec::new()));
        dispatcher.finish(Time::ZERO, NodeId(1), &mut Vec::new());
        count
    };
    (0..100).for_each(|_| {
        serve(Some(CacheResult::Hit), 1);
        serve(Some(CacheResult::Miss), 10);
    });
    // M is 10, give or take a class: the target stays up to about 30 + 10 in flight instead of 80.
    let count = stays(&dispatcher);
    assert!((38..=42).contains(&count), "{count}");
}

#[test]
fn error_names_the_cost_out_of_range() {
    for (cost, message) in [
        (CostSettings { idle: 0, ..CostSettings::default() }, "cost.idle = 0"),
        (CostSettings { overload: 30, ..CostSettings::default() }, "cost.overload = 30"),
        (CostSettings { miss: MissCost::Fixed(0), ..CostSettings::default() }, "cost.miss = 0"),
        (
            CostSettings { miss: MissCost::Measured { default: 1_001 }, ..CostSettings::default() },
            "cost.miss = 1001",
        ),
    ] {
        let error = cost.validate().expect_err(message).to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

/// Returns the cost of one node by the literal formulas, in requests.
fn literal(cost: &CostSettings, miss: f64, load: f64, mapped: bool) -> f64 {
    let (idle, overload) = (f64::from(cost.idle), f64::from(cost.overload));
    let balancing = if load < idle {
        0.0
    } else if load > overload {
        f64::INFINITY
    } else {
        load - idle
    };
    let locality = if mapped { 1.0 } else { miss };
    let replacement = if load < idle || mapped { 0.0 } else { miss };
    balancing + locality + replacement
}

proptest! {
    /// For all loads, weights and settings, the chosen node's cost is the lowest over all nodes.
    #[test]
    fn choice_is_the_argmin_over_all_nodes(
        seed in any::<u64>(),
        nodes in 2_u16..80,
        idle in 1_u32..12,
        above in 1_u32..12,
        miss in 1_u32..9,
        steps in 1_u64..600,
    ) {
        let cost = CostSettings { idle, overload: idle + above, miss: MissCost::Fixed(miss) };
        let specs: Vec<NodeSpec> = (0..nodes)
            .map(|i| {
                // Weights whose reciprocals keys represent exactly.
                let weight = Weight::from_milli([1_000, 2_000, 500][i as usize % 3]).expect("in range");
                NodeSpec { weight, ..NodeSpec::named(format!("n{i}")) }
            })
            .collect();
        let dispatcher = dispatcher(cost, &specs);
        let mut held: Vec<NodeId> = Vec::new();
        for step in 0..steps {
            let lot = mix(seed ^ step);
            if lot.is_multiple_of(5) && !held.is_empty() {
                let node = held.swap_remove(lot as usize / 8 % held.len());
                dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                continue;
            }
            // A few hot targets among others, so that sets of several nodes are created.
            let target = TargetId(mix(if lot.is_multiple_of(3) { lot % 50 } else { lot % 2 }));
            let known = dispatcher.explain(Time::ZERO, target).known;
            let servers = known.map_or(Vec::new(), |known| known.servers);
            let rows = dispatcher.nodes().rows();
            let of = |node: NodeId| {
                let row = &rows[node.index()];
                let load = f64::from(row.load) * 1_000.0 / f64::from(row.weight.milli());
                literal(&cost, f64::from(miss), load, servers.contains(&node))
            };
            let least = rows.iter().map(|row| of(row.id)).fold(f64::INFINITY, f64::min);
            let Arrival::Start(choice) = dispatcher.arrive(Time::ZERO, Request::new(target)) else {
                return Err(TestCaseError::fail("nothing is admitted"));
            };
            prop_assert_eq!(of(choice.node), least, "step {}: {:?}", step, choice);
            held.push(choice.node);
        }
    }
}
