//! Requests, nodes, explanations and snapshots.

use super::*;
use crate::fault::guard;
use std::ffi::CStr;

const FOUR: &str = "nodes = [\"a\", \"b\", \"c\", \"d\"]\n";

#[test]
fn target_stays_at_its_node_until_the_node_is_down() {
    let host = host(FOUR);
    let first = host.decide(1, &target(7)).expect("it starts");
    assert_eq!(host.done(2, &first, None), LARDER_OK);
    let again = host.decide(3, &target(7)).expect("it starts");
    assert_eq!(again.node, first.node);
    // SAFETY: the library returns a constant string.
    let reason = unsafe { CStr::from_ptr(larder_reason_name(again.reason)) };
    assert_eq!(reason.to_str(), Ok("local"));
    let explained = host.explain(&target(7));
    assert_eq!((&explained["known"], &explained["reason"]), (&true.into(), &"local".into()), "{explained}");
    assert_eq!(host.set_state(first.node, LARDER_NODE_DOWN), LARDER_OK);
    assert_eq!(host.set_state(first.node, LARDER_NODE_DOWN), LARDER_IGNORED);
    assert_ne!(host.decide(4, &target(7)).expect("another node").node, first.node);
    assert_eq!(host.done(5, &again, None), LARDER_OK, "a request ends at a node that is down");
    assert_eq!(host.done(6, &again, None), LARDER_ERROR_REQUEST, "and does so once");
    let expected = format!(
        "no such request is in flight at the node with the id {:#x}: larder_done is called once",
        again.node
    );
    assert_eq!(message(), expected);
}

#[test]
fn keys_are_hashed_as_in_all_of_larder() {
    let host = host(FOUR);
    let key = b"example.org/a?b";
    let request = Request { key: key.as_ptr().cast(), key_len: key.len(), ..target(0) };
    let decision = host.decide(0, &request).expect("it starts");
    let mut id = 0;
    // SAFETY: all pointers are valid.
    let code = unsafe { larder_target(key.as_ptr().cast(), key.len(), &raw mut id) };
    assert_eq!((code, id), (LARDER_OK, larder_core::TargetId::of(key).0));
    assert_eq!(decision.target, id);
}

#[test]
fn limit_refuses_and_nothing_waits() {
    let host = host("nodes = [\"a\", \"b\"]\n[admission]\nlimit = 3\n");
    let started: Vec<Decision> = (0..3).map(|id| host.decide(0, &target(id)).expect("it starts")).collect();
    assert_eq!(host.decide(0, &target(9)), Err(LARDER_REFUSED_LIMIT));
    assert_eq!(host.done(1, &started[0], None), LARDER_OK);
    let last = host.decide(2, &target(9)).expect("there is room");
    let mut long = started[1];
    // SAFETY: all pointers are valid.
    let become_long = |decision: &mut Decision| unsafe { larder_long_lived(host.0, 3, decision) };
    assert_eq!(become_long(&mut long), LARDER_OK);
    assert_eq!(long, Decision { long_lived: 1, ..started[1] });
    assert_eq!(become_long(&mut long), LARDER_IGNORED);
    let mut moved = Decision::default();
    // SAFETY: all pointers are valid.
    let retried = unsafe { larder_retry(host.0, 3, &target(1), &raw const long, 0, &raw mut moved) };
    assert_eq!((retried, &*message()), (LARDER_ERROR_REQUEST, "a long-lived request cannot be retried"));
    let fourth = host.decide(4, &target(10)).expect("a long-lived request leaves the limit");
    for decision in [long, started[2], last, fourth] {
        assert_eq!(host.done(5, &decision, None), LARDER_OK);
    }
    let status = host.status();
    assert_eq!((&status["outstanding"], &status["admission_limit"]), (&0.into(), &3.into()), "{status}");
    assert!(status["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["load"] == 0)));
}

#[test]
fn failed_request_goes_to_another_node() {
    let host = host("nodes = [\"a\", \"b\"]\n");
    let failed = host.decide(0, &target(1)).expect("it starts");
    let mut moved = Decision::default();
    let retry = |request: &Request, failed: &Decision, moved: &mut Decision| {
        // SAFETY: all pointers are valid.
        unsafe { larder_retry(host.0, 1, request, failed, 500, moved) }
    };
    assert_eq!(retry(&target(1), &failed, &mut moved), LARDER_OK);
    assert_ne!(moved.node, failed.node);
    let tried = [failed.node];
    let second = Request { exclude: tried.as_ptr(), exclude_len: 1, ..target(1) };
    let mut none = moved;
    assert_eq!(retry(&second, &moved, &mut none), LARDER_REFUSED_NO_NODE);
    assert_eq!(none, Decision::default());
    assert_eq!(retry(&second, &moved, &mut none), LARDER_ERROR_REQUEST, "the request has ended");
    assert_eq!(host.status()["outstanding"], 0);
}

#[test]
fn stale_ids_have_their_codes() {
    let host = host("");
    assert_eq!(host.decide(0, &target(1)), Err(LARDER_REFUSED_NO_NODE));
    let old = host.add("a").expect("it joins");
    assert_eq!(host.find("a"), Ok(old));
    let flying = host.decide(0, &target(1)).expect("it starts");
    assert_eq!(host.set_state(old, LARDER_NODE_REMOVED), LARDER_OK);
    assert_eq!(host.set_state(old, LARDER_NODE_UP), LARDER_ERROR_NODE);
    assert_eq!(message(), format!("the node with the id {old:#x} was removed"));
    assert_eq!(host.find("a"), Err(LARDER_ERROR_NODE));
    assert_eq!(message(), "no node has the name 'a'");
    assert_eq!(host.done(1, &flying, None), LARDER_OK);
    let new = host.add("b").expect("it takes the slot");
    assert_eq!((new & 0xFFFF, new == old), (old & 0xFFFF, false));
    assert_eq!(host.done(3, &flying, None), LARDER_ERROR_NODE, "the former node is another one");
    // A hint may be stale, because nodes leave at any time.
    let tried = [old];
    let hints = Request { sticky: old, exclude: tried.as_ptr(), exclude_len: 1, ..target(1) };
    assert_eq!(host.decide(4, &hints).map(|decision| decision.node), Ok(new));
    for id in [0, 0x7FFF_0000] {
        let never = [id];
        let request = Request { exclude: never.as_ptr(), exclude_len: 1, ..target(1) };
        assert_eq!(host.decide(5, &request), Err(LARDER_ERROR_NODE));
        assert_eq!(message(), format!("no node has had the id {id:#x}"));
    }
}

#[test]
fn feedback_is_counted_and_learned() {
    let host = host(&format!("policy = \"peak-ewma\"\n{FOUR}"));
    let good = Feedback {
        elapsed_ns: 5_000_000,
        first_byte_ns: 1_000_000,
        bytes: 700,
        status: 200,
        cache: 1,
        failed: 0,
    };
    let bad = Feedback { failed: 1, ..good };
    for (id, feedback) in
        [(1, good), (2, Feedback { cache: 2, ..good }), (3, bad), (4, Feedback { status: 500, ..good })]
    {
        let decision = host.decide(id, &target(id)).expect("it starts");
        assert_eq!(host.done(id + 5_000_000, &decision, Some(&feedback)), LARDER_OK);
    }
    let status = host.status();
    let nodes = status["nodes"].as_array().expect("a list");
    let sum = |field: &str| nodes.iter().filter_map(|node| node[field].as_u64()).sum::<u64>();
    let sums = ["replies", "failures", "bytes", "hits", "misses"].map(sum);
    assert_eq!(sums, [3, 1, 2_100, 1, 1], "{status}");
}

#[test]
fn snapshot_moves_targets_to_another_dispatcher() {
    let before = host(FOUR);
    let decision = before.decide(0, &target(1 << 32)).expect("it starts");
    assert_eq!(before.done(0, &decision, None), LARDER_OK);
    let node = before.explain(&target(1 << 32))["node"].to_string();
    let bytes = before.save();
    let after = host("nodes = [\"d\", \"c\", \"b\", \"a\"]\n");
    assert_eq!(after.load(&bytes), Ok(1));
    assert_eq!(after.explain(&target(1 << 32))["node"].to_string(), node);
    assert_eq!(after.load(&bytes[..4]), Err(LARDER_ERROR_SNAPSHOT));
    assert!(message().starts_with("cannot load the snapshot: "), "{}", message());
}

#[test]
fn signals_reach_policies_that_use_them() {
    let host = host(&format!("policy = \"lb-gc\"\n{FOUR}"));
    let (a, b) = (host.find("a").expect("it is there"), host.find("b").expect("it is there"));
    // SAFETY: the dispatcher is valid.
    let event = |node, event| unsafe { larder_cache_event(host.0, 0, node, 7, event) };
    assert_eq!((event(b, LARDER_EVENT_STORED), event(a, LARDER_EVENT_GONE)), (LARDER_OK, LARDER_OK));
    assert_eq!(host.decide(1, &target(7)).expect("it starts").node, b);
    let load = [SignalValue { signal: LARDER_SIGNAL_CPU, value: 2_000 }];
    assert_eq!(host.report(1, a, &load), LARDER_OK);
    host.set_state(a, LARDER_NODE_DRAINING);
    assert_eq!(host.report(2, a, &load), LARDER_IGNORED);
    let rows = [TableRow { target: 7, node: b }, TableRow { target: 8, node: LARDER_NO_NODE }];
    // SAFETY: the rows are valid for their number.
    let set_table =
        |host: &Host, rows: &[TableRow]| unsafe { larder_set_table(host.0, 3, rows.as_ptr(), rows.len()) };
    assert_eq!(set_table(&host, &rows), LARDER_IGNORED);
    let ward = super::host(&format!("policy = \"ward\"\n{FOUR}"));
    assert_eq!(set_table(&ward, &rows), LARDER_OK);
    assert_eq!(ward.decide(4, &target(7)).expect("it starts").node, b);
}

#[test]
fn panic_becomes_a_code_with_a_message() {
    let code = guard(|| panic!("broken"));
    assert_eq!((code, message()), (LARDER_ERROR_PANIC, "bug in liblarder: broken".to_owned()));
    assert_eq!(larder_abi_version(), LARDER_ABI_VERSION);
    assert!(larder_reason_name(255).is_null());
}
