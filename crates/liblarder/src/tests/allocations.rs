//! No memory is allocated while requests for known targets are decided and end.

use super::*;
use larder_core::PolicyKind;

const NODES: u64 = 8;
const TARGETS: u64 = 500;
const ROUNDS: u64 = 40;
/// The time between two requests in nanoseconds. The rounds take 20 s, longer than the periods of all policies.
const STEP_NS: u64 = 1_000_000;

/// Runs a round of requests, each with a few in flight, and returns the number of refused requests.
fn round(host: &Host, round: u64, refused: &mut u64) {
    let mut flying = [None; 4];
    for turn in 0..TARGETS {
        let now = (round * TARGETS + turn) * STEP_NS;
        let (id, slot) = ((turn + 1) << 32, (turn % 4) as usize);
        if let Some(decision) = flying[slot].take() {
            let found = 1 + u8::from(turn % 8 == 0);
            let feedback = Feedback {
                elapsed_ns: 4 * STEP_NS + turn,
                first_byte_ns: STEP_NS,
                bytes: 1_000,
                status: 200,
                cache: found,
                failed: u8::from(turn % 50 == 0),
            };
            assert_eq!(host.done(now, &decision, Some(&feedback)), LARDER_OK);
        }
        let request = Request { service_class: (turn % 4) as u8, ..target(id) };
        match host.decide(now, &request) {
            Ok(decision) => flying[slot] = Some(decision),
            Err(_) => *refused += 1,
        }
    }
    for decision in flying.into_iter().flatten() {
        assert_eq!(host.done((round + 1) * TARGETS * STEP_NS, &decision, None), LARDER_OK);
    }
}

fn signals(host: &Host, nodes: &[NodeHandle], round: u64) {
    let now = round * TARGETS * STEP_NS;
    for (index, node) in nodes.iter().enumerate() {
        let value = |signal| SignalValue { signal, value: 100 + (round * 37 + index as u64 * 91) % 800 };
        let values: Vec<SignalValue> = (LARDER_SIGNAL_CPU..=LARDER_SIGNAL_QUEUE).map(value).collect();
        assert_eq!(host.report(now, *node, &values), LARDER_OK);
        // SAFETY: the dispatcher is valid.
        let code = unsafe { larder_cache_event(host.0, now, *node, (round + 1) << 32, LARDER_EVENT_STORED) };
        assert!(code >= LARDER_OK);
    }
}

#[test]
fn decide_and_done_allocate_nothing_with_every_policy() {
    let names: Vec<String> = (0..NODES).map(|node| format!("\"n{node}\"")).collect();
    let mut problems = Vec::new();
    for policy in PolicyKind::ALL {
        let nodes = names.join(", ");
        // Reports are collected often enough for the policies that do so to be in their steady state.
        let config = format!("policy = \"{policy}\"\nnodes = [{nodes}]\n[policies.wrr]\ngather = \"2s\"\n");
        let host = host(&config);
        let nodes: Vec<NodeHandle> =
            (0..NODES).map(|node| host.find(&format!("n{node}")).expect("it is there")).collect();
        let rows: Vec<TableRow> = (1..TARGETS)
            .map(|id| TableRow { target: id << 32, node: nodes[(id % NODES) as usize] })
            .collect();
        // SAFETY: the rows are valid for their number.
        assert!(unsafe { larder_set_table(host.0, 0, rows.as_ptr(), rows.len()) } >= LARDER_OK);
        let (mut refused, mut allocations) = (0, 0);
        for number in 0..ROUNDS {
            signals(&host, &nodes, number);
            let counted = allocation_counter::measure(|| round(&host, number, &mut refused));
            // In the first half, targets are placed, and policies learn.
            if number >= ROUNDS / 2 {
                allocations += counted.count_total;
            }
        }
        assert_eq!(refused, 0, "{policy}");
        if allocations > 0 {
            problems.push(format!("{policy}: {allocations} allocations"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn refusals_allocate_nothing() {
    let host = host("nodes = [\"a\", \"b\"]\n[admission]\nlimit = 1\n");
    let started = host.decide(0, &target(1)).expect("it starts");
    let tried = [started.node; 64];
    let request = Request { exclude: tried.as_ptr(), exclude_len: tried.len(), ..target(2) };
    let counted = allocation_counter::measure(|| {
        for now in 0..1_000 {
            assert_eq!(host.decide(now, &request), Err(LARDER_REFUSED_LIMIT));
        }
    });
    assert_eq!(counted.count_total, 0);
    assert_eq!(host.done(1, &started, None), LARDER_OK);
}
