//! Wrong arguments: each call returns a code and a message, and changes nothing.

use super::*;
use std::ptr::null;

/// Calls with one wrong argument each, and the code of each.
struct Wrong<'a>(&'a Host, Vec<(i32, &'static str)>);

impl Wrong<'_> {
    fn expect(&mut self, name: &'static str, expected: i32, call: impl FnOnce(*mut Handle) -> i32) {
        let code = call(self.0.0);
        assert_eq!(code, expected, "{name}: {}", message());
        assert!(!message().is_empty(), "{name} has no message");
        self.1.push((code, name));
    }
}

fn hosted(test: impl FnOnce(&mut Wrong<'_>)) {
    let host = host("nodes = [\"a\", \"b\"]\n");
    let before = host.status();
    let mut wrong = Wrong(&host, Vec::new());
    test(&mut wrong);
    assert!(wrong.1.len() > 3);
    assert_eq!(host.status(), before, "nothing has changed");
}

const POINTER: i32 = LARDER_ERROR_POINTER;
const RANGE: i32 = LARDER_ERROR_RANGE;

/// A misaligned pointer.
fn odd<T>() -> *const T {
    ptr::without_provenance(align_of::<T>() + 1)
}

#[test]
fn create_and_last_error() {
    let mut dispatcher = ptr::null_mut();
    let mut create = |config: *const c_char, len, place: bool| {
        let place = if place { &raw mut dispatcher } else { ptr::null_mut() };
        // SAFETY: the pointers are valid or null.
        let code = unsafe { larder_create(config, len, place) };
        assert!(dispatcher.is_null(), "no dispatcher after an error");
        code
    };
    assert_eq!(create(null(), 3, true), POINTER);
    assert_eq!(create(c"".as_ptr(), 0, false), POINTER);
    assert_eq!(create(c"rr".as_ptr(), usize::MAX, true), RANGE);
    assert_eq!(create(b"\xff\xfe".as_ptr().cast(), 2, true), LARDER_ERROR_TEXT);
    for config in ["policy = \"best\"", "{\"policy\":", "listen = \"a\"", "[limits]\nnodes_max = 0", "\0"] {
        assert_eq!(create(config.as_ptr().cast(), config.len(), true), LARDER_ERROR_CONFIG, "{config}");
        assert!(message().contains("cannot use the config"), "{}", message());
    }
    // SAFETY: null is allowed.
    unsafe { larder_destroy(ptr::null_mut()) };
    // SAFETY: the pointers are valid or null.
    let last = |buffer: *mut c_char, size| unsafe { larder_last_error(buffer, size, ptr::null_mut()) };
    let before = message();
    let mut small = [0x55_u8; 2];
    assert_eq!(last(small.as_mut_ptr().cast(), small.len()), LARDER_ERROR_BUFFER);
    assert_eq!(last(ptr::null_mut(), 2), POINTER);
    assert_eq!((small, message()), ([0x55; 2], before), "the message is still there");
}

#[test]
fn decide() {
    hosted(|wrong| {
        let mut out = Decision::default();
        // SAFETY: the pointers are valid, null or misaligned.
        let call =
            |d, request: *const Request, out: *mut Decision| unsafe { larder_decide(d, 1, request, out) };
        let good = target(1);
        wrong.expect("dispatcher", POINTER, |_| call(ptr::null_mut(), &raw const good, &raw mut out));
        wrong.expect("misaligned dispatcher", POINTER, |_| {
            call(odd::<Handle>().cast_mut(), &raw const good, &raw mut out)
        });
        wrong.expect("request", POINTER, |d| call(d, null(), &raw mut out));
        wrong.expect("misaligned request", POINTER, |d| call(d, odd(), &raw mut out));
        wrong.expect("decision", POINTER, |d| call(d, &raw const good, ptr::null_mut()));
        let nodes = [0x0001_0000; 65];
        for (name, expected, request) in [
            ("class", RANGE, Request { service_class: 4, ..good }),
            ("lasting", RANGE, Request { lasting: 2, ..good }),
            ("key length", RANGE, Request { key: nodes.as_ptr().cast(), key_len: usize::MAX, ..good }),
            ("exclude", POINTER, Request { exclude_len: 1, ..good }),
            ("exclude length", RANGE, Request { exclude: nodes.as_ptr(), exclude_len: 65, ..good }),
            (
                "exclude overflow",
                RANGE,
                Request { exclude: nodes.as_ptr(), exclude_len: usize::MAX / 2, ..good },
            ),
            ("excluded node", LARDER_ERROR_NODE, Request { exclude: [7].as_ptr(), exclude_len: 1, ..good }),
            ("sticky", LARDER_ERROR_NODE, Request { sticky: u32::MAX, ..good }),
            ("origin", LARDER_ERROR_NODE, Request { origin: 0x0001_00FF, ..good }),
            ("both", RANGE, Request { origin: 0x0001_0000, sticky: 0x0001_0000, ..good }),
        ] {
            wrong.expect(name, expected, |d| call(d, &raw const request, &raw mut out));
        }
    });
}

#[test]
fn retry_done_and_long_lived() {
    hosted(|wrong| {
        let mut out = Decision::default();
        let node = wrong.0.find("a").expect("it is there");
        let (request, idle) = (target(1), Decision { node, ..Decision::default() });
        // SAFETY: the pointers are valid or null.
        let retry = |d, request: *const Request, failed: *const Decision, out: *mut Decision| unsafe {
            larder_retry(d, 1, request, failed, u64::MAX, out)
        };
        wrong.expect("dispatcher", POINTER, |_| {
            retry(ptr::null_mut(), &raw const request, &raw const idle, &raw mut out)
        });
        wrong.expect("request", POINTER, |d| retry(d, null(), &raw const idle, &raw mut out));
        wrong.expect("failed", POINTER, |d| retry(d, &raw const request, null(), &raw mut out));
        wrong.expect("out", POINTER, |d| retry(d, &raw const request, &raw const idle, ptr::null_mut()));
        wrong.expect("idle", LARDER_ERROR_REQUEST, |d| {
            retry(d, &raw const request, &raw const idle, &raw mut out)
        });
        // SAFETY: the pointers are valid or null.
        let done = |d, decision: *const Decision, feedback: *const Feedback| unsafe {
            larder_done(d, 1, decision, feedback)
        };
        wrong.expect("dispatcher", POINTER, |_| done(ptr::null_mut(), &raw const idle, null()));
        wrong.expect("decision", POINTER, |d| done(d, null(), null()));
        wrong.expect("feedback", POINTER, |d| done(d, &raw const idle, odd()));
        for (name, expected, decision) in [
            ("no node", LARDER_ERROR_NODE, Decision::default()),
            ("unknown node", LARDER_ERROR_NODE, Decision { node: u32::MAX, ..idle }),
            ("idle node", LARDER_ERROR_REQUEST, idle),
            ("long_lived", RANGE, Decision { long_lived: 2, ..idle }),
            ("idle long-lived", LARDER_ERROR_REQUEST, Decision { long_lived: 1, ..idle }),
            ("class", RANGE, Decision { service_class: 9, ..idle }),
        ] {
            wrong.expect(name, expected, |d| done(d, &raw const decision, null()));
        }
        // SAFETY: the pointers are valid or null.
        let long = |d, decision: *mut Decision| unsafe { larder_long_lived(d, 1, decision) };
        let mut idle = idle;
        wrong.expect("dispatcher", POINTER, |_| long(ptr::null_mut(), &raw mut idle));
        wrong.expect("decision", POINTER, |d| long(d, ptr::null_mut()));
        wrong.expect("idle", LARDER_ERROR_REQUEST, |d| long(d, &raw mut idle));
    });
}

#[test]
fn feedback() {
    let host = host("nodes = [\"a\"]\n");
    let decision = host.decide(0, &target(1)).expect("it starts");
    let good = Feedback::default();
    for bad in
        [Feedback { cache: 3, ..good }, Feedback { failed: 2, ..good }, Feedback { status: 1_000, ..good }]
    {
        assert_eq!(host.done(1, &decision, Some(&bad)), RANGE);
    }
    let huge = Feedback { elapsed_ns: u64::MAX, first_byte_ns: u64::MAX, bytes: u64::MAX, ..good };
    assert_eq!(host.done(u64::MAX, &decision, Some(&huge)), LARDER_OK, "the request is still there");
    let late = host.decide(0, &target(1)).expect("a clock that goes back is no error");
    assert_eq!(host.done(0, &late, Some(&huge)), LARDER_OK);
}

#[test]
fn members() {
    hosted(|wrong| {
        let mut node = LARDER_NO_NODE;
        let good = NodeSpec { name: c"n".as_ptr(), name_len: 1, cache_bytes: 0, weight_milli: 0, backup: 0 };
        // SAFETY: the pointers are valid or null.
        let add = |d, spec: *const NodeSpec, node: *mut u32| unsafe { larder_node_add(d, 1, spec, node) };
        wrong.expect("dispatcher", POINTER, |_| add(ptr::null_mut(), &raw const good, &raw mut node));
        wrong.expect("spec", POINTER, |d| add(d, null(), &raw mut node));
        wrong.expect("node", POINTER, |d| add(d, &raw const good, ptr::null_mut()));
        let long = [b'n'; 1_025];
        for (name, expected, spec) in [
            ("null name", POINTER, NodeSpec { name: null(), ..good }),
            ("no UTF-8", LARDER_ERROR_TEXT, NodeSpec { name: b"\xc3".as_ptr().cast(), ..good }),
            ("empty name", LARDER_ERROR_JOIN, NodeSpec { name_len: 0, ..good }),
            ("taken name", LARDER_ERROR_JOIN, NodeSpec { name: c"a".as_ptr(), ..good }),
            ("long name", RANGE, NodeSpec { name: long.as_ptr().cast(), name_len: long.len(), ..good }),
            ("weight", RANGE, NodeSpec { weight_milli: 100_001, ..good }),
            ("backup", RANGE, NodeSpec { backup: 2, ..good }),
        ] {
            wrong.expect(name, expected, |d| add(d, &raw const spec, &raw mut node));
        }
        // SAFETY: the pointers are valid or null.
        let find = |d, name, len, node: *mut u32| unsafe { larder_node_find(d, name, len, node) };
        wrong.expect("dispatcher", POINTER, |_| find(ptr::null_mut(), c"a".as_ptr(), 1, &raw mut node));
        wrong.expect("name", POINTER, |d| find(d, null(), 1, &raw mut node));
        wrong.expect("text", LARDER_ERROR_TEXT, |d| find(d, b"\x80".as_ptr().cast(), 1, &raw mut node));
        wrong.expect("out", POINTER, |d| find(d, c"a".as_ptr(), 1, ptr::null_mut()));
        wrong.expect("unknown", LARDER_ERROR_NODE, |d| find(d, c"z".as_ptr(), 1, &raw mut node));
        assert_eq!(node, LARDER_NO_NODE);
        let a = wrong.0.find("a").expect("it is there");
        for unknown in [0, 1, a + 7, a + (1 << 16), u32::MAX] {
            // SAFETY: the dispatcher is valid.
            wrong.expect("state", LARDER_ERROR_NODE, |d| unsafe { larder_node_set_state(d, 1, unknown, 0) });
            // SAFETY: as above.
            wrong
                .expect("weight", LARDER_ERROR_NODE, |d| unsafe { larder_node_set_weight(d, 1, unknown, 1) });
            // SAFETY: as above.
            wrong
                .expect("backup", LARDER_ERROR_NODE, |d| unsafe { larder_node_set_backup(d, 1, unknown, 1) });
        }
        // SAFETY: the dispatcher is null or valid.
        wrong.expect("null", POINTER, |_| unsafe { larder_node_set_state(null(), 1, a, 0) });
        // SAFETY: as above.
        wrong.expect("null", POINTER, |_| unsafe { larder_node_set_weight(null(), 1, a, 1) });
        // SAFETY: as above.
        wrong.expect("null", POINTER, |_| unsafe { larder_node_set_backup(null(), 1, a, 1) });
        // SAFETY: as above.
        wrong.expect("state 4", RANGE, |d| unsafe { larder_node_set_state(d, 1, a, 4) });
        // SAFETY: as above.
        wrong.expect("weight 0", RANGE, |d| unsafe { larder_node_set_weight(d, 1, a, 0) });
        // SAFETY: as above.
        wrong.expect("backup 2", RANGE, |d| unsafe { larder_node_set_backup(d, 1, a, 2) });
    });
}

#[test]
fn signals() {
    hosted(|wrong| {
        let a = wrong.0.find("a").expect("it is there");
        let good = SignalValue { signal: LARDER_SIGNAL_CPU, value: 5 };
        // SAFETY: the pointers are valid or null.
        let report =
            |d, node, values: *const SignalValue, count| unsafe { larder_report(d, 1, node, values, count) };
        wrong.expect("dispatcher", POINTER, |_| report(ptr::null_mut(), a, &raw const good, 1));
        wrong.expect("node", LARDER_ERROR_NODE, |d| report(d, 9, &raw const good, 1));
        wrong.expect("values", POINTER, |d| report(d, a, null(), 1));
        wrong.expect("length", RANGE, |d| report(d, a, &raw const good, usize::MAX));
        for bad in [
            SignalValue { signal: 12, value: 1 },
            SignalValue { signal: u32::MAX, value: 1 },
            SignalValue { signal: LARDER_SIGNAL_QUEUE, value: 1 << 32 },
        ] {
            wrong.expect("signal", RANGE, |d| report(d, a, &raw const bad, 1));
        }
        // SAFETY: the dispatcher is valid or null.
        let event = |d, node, event| unsafe { larder_cache_event(d, 1, node, 7, event) };
        wrong.expect("dispatcher", POINTER, |_| event(ptr::null_mut(), a, 0));
        wrong.expect("node", LARDER_ERROR_NODE, |d| event(d, 0, 0));
        wrong.expect("event", RANGE, |d| event(d, a, 3));
        // SAFETY: the pointers are valid or null.
        let table = |d, rows: *const TableRow, count| unsafe { larder_set_table(d, 1, rows, count) };
        let row = TableRow { target: 1, node: 99 };
        wrong.expect("dispatcher", POINTER, |_| table(ptr::null_mut(), &raw const row, 1));
        wrong.expect("rows", POINTER, |d| table(d, null(), 1));
        wrong.expect("owner", LARDER_ERROR_NODE, |d| table(d, &raw const row, 1));
        let mut id = 0;
        // SAFETY: the pointers are valid or null.
        let hash = |key, len, id: *mut u64| unsafe { larder_target(key, len, id) };
        wrong.expect("key", POINTER, |_| hash(null(), 1, &raw mut id));
        wrong.expect("target", POINTER, |_| hash(null(), 0, ptr::null_mut()));
    });
}

#[test]
fn buffers_and_snapshots() {
    hosted(|wrong| {
        let (request, mut small, mut needed) = (target(1), [0x55_u8; 4], 0_usize);
        let buffer: *mut c_char = small.as_mut_ptr().cast();
        // SAFETY: the pointers are valid or null.
        let explain = |d, request: *const Request, size, needed: *mut usize| unsafe {
            larder_explain(d, 1, request, if size > 4 { ptr::null_mut() } else { buffer }, size, needed)
        };
        wrong.expect("dispatcher", POINTER, |_| {
            explain(ptr::null_mut(), &raw const request, 4, &raw mut needed)
        });
        wrong.expect("request", POINTER, |d| explain(d, null(), 4, &raw mut needed));
        wrong.expect("buffer", POINTER, |d| explain(d, &raw const request, 5, &raw mut needed));
        wrong.expect("misaligned", POINTER, |d| explain(d, &raw const request, 4, odd::<usize>().cast_mut()));
        wrong.expect("small", LARDER_ERROR_BUFFER, |d| explain(d, &raw const request, 4, &raw mut needed));
        assert!(needed > 4);
        // SAFETY: the pointers are valid or null.
        let status = |d, size| unsafe { larder_status(d, 1, buffer, size, ptr::null_mut()) };
        wrong.expect("dispatcher", POINTER, |_| status(ptr::null_mut(), 4));
        wrong.expect("small", LARDER_ERROR_BUFFER, |d| status(d, 4));
        // SAFETY: the pointers are valid or null.
        let save = |d, size| unsafe { larder_snapshot_save(d, buffer.cast(), size, ptr::null_mut()) };
        wrong.expect("dispatcher", POINTER, |_| save(ptr::null_mut(), 4));
        wrong.expect("small", LARDER_ERROR_BUFFER, |d| save(d, 4));
        // SAFETY: the pointers are valid or null.
        let load = |d, bytes, size| unsafe { larder_snapshot_load(d, bytes, size, ptr::null_mut()) };
        wrong.expect("dispatcher", POINTER, |_| load(ptr::null_mut(), buffer.cast(), 4));
        wrong.expect("bytes", POINTER, |d| load(d, null(), 4));
        wrong.expect("no snapshot", LARDER_ERROR_SNAPSHOT, |d| load(d, buffer.cast(), 4));
        wrong.expect("empty", LARDER_ERROR_SNAPSHOT, |d| load(d, null(), 0));
        assert_eq!(small, [0x55; 4], "nothing was written");
    });
}
