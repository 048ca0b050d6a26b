//! No memory is allocated while requests are refused or nodes join. `liblarder` measures known targets with every policy.

use super::*;
use larder_core::NodeSpec;

#[test]
fn refusals_allocate_nothing() {
    let dispatcher = embedded("nodes = [\"a\", \"b\"]\n[admission]\nlimit = 1\n");
    let started = start(&dispatcher, 0, &target(1));
    let counted = allocation_counter::measure(|| {
        for now in 0..1_000 {
            assert_eq!(dispatcher.decide(at(now), &target(2)), Ok(Outcome::Refused(Refusal::Limit)));
        }
    });
    assert_eq!(counted.count_total, 0);
    assert_eq!(dispatcher.done(at(1), &started, None), Ok(()));
}

/// New targets are placed while a node joins: placing looks for nodes that may take them.
#[test]
fn joining_nodes_cost_no_allocations() {
    let dispatcher = embedded("policy = \"lard\"\nnodes = [\"a\", \"b\"]\n[process]\nshards = 1\n");
    let place = |from: u64, count: u64| {
        for id in from..from + count {
            let decision = start(&dispatcher, id, &target(id << 32));
            assert_eq!(dispatcher.done(at(id), &decision, None), Ok(()));
        }
    };
    // The table of targets has room for 3,584 then.
    place(1, 2_000);
    dispatcher.add(at(0), NodeSpec::named("c")).expect("it joins");
    place(3_001, 200);
    assert_eq!(allocation_counter::measure(|| place(4_001, 200)).count_total, 0);
}
