use super::*;
use crate::peers::CacheChange;
use crate::peers::sharing::SharingSettings;
use core::time::Duration;

const ME: NodeId = NodeId(0);
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const X: TargetId = TargetId(7);

fn always() -> PressSettings {
    let sharing = SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 1_000 };
    PressSettings { overload: 10, sharing, ..PressSettings::default() }
}

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Returns a node with two peers that have sent their loads.
fn node(loads: [u32; 2]) -> Press {
    let mut node = Press::new(ME, 1, always());
    for (peer, load) in [A, B].into_iter().zip(loads) {
        node.add_peer(Time::ZERO, peer, &mut Vec::new());
        receive_load(&mut node, Time::ZERO, peer, load, 0);
    }
    node
}

fn receive_load(node: &mut Press, now: Time, from: NodeId, load: u32, changes: u64) -> Vec<PressOutput> {
    let mut out = Vec::new();
    node.receive(now, from, PressMessage::Load { epoch: 1, load, sharing: true, changes }, &mut out);
    out
}

fn receive_change(node: &mut Press, from: NodeId, first: u64, target: TargetId, cached: bool) {
    let message = PressMessage::Changes { epoch: 1, first, items: vec![CacheChange { target, cached }] };
    node.receive(Time::ZERO, from, message, &mut Vec::new());
}

fn begin(node: &mut Press, count: u32) {
    (0..count).for_each(|_| node.begin_connection(Time::ZERO, &mut Vec::new()));
}

fn decide_x(node: &mut Press) -> (NodeId, PressReason) {
    let decision = node.decide(Time::ZERO, X, Some(Bytes(1_000)));
    (decision.node, decision.reason)
}

#[test]
fn the_first_request_for_a_target_is_served_where_it_arrives() {
    assert_eq!(decide_x(&mut node([0, 0])), (ME, PressReason::First));
}

#[test]
fn a_target_is_served_where_it_is_cached() {
    let mut node = node([3, 5]);
    receive_change(&mut node, B, 1, X, true);
    assert_eq!(decide_x(&mut node), (B, PressReason::Peer));
    receive_change(&mut node, A, 1, X, true);
    assert_eq!(decide_x(&mut node), (A, PressReason::Peer));
    node.set_cached(Time::ZERO, X, true, &mut Vec::new());
    assert_eq!(decide_x(&mut node), (ME, PressReason::Here));
    node.set_cached(Time::ZERO, X, false, &mut Vec::new());
    receive_change(&mut node, A, 2, X, false);
    receive_change(&mut node, B, 2, X, false);
    assert_eq!(decide_x(&mut node), (ME, PressReason::First));
}

#[test]
fn overload_adds_servers() {
    let mut node = node([9, 11]);
    receive_change(&mut node, B, 1, X, true);
    assert_eq!(decide_x(&mut node), (ME, PressReason::Relief), "this node has room");
    begin(&mut node, 10);
    assert_eq!(decide_x(&mut node), (A, PressReason::Spread), "another node has room");
    assert_eq!(node.servers(X), [A, B]);
    assert_eq!(decide_x(&mut node), (A, PressReason::Peer), "which is a server now");
    assert_eq!(decide_x(&mut node).1, PressReason::Crowded, "what was sent to it counts");
}

#[test]
fn equally_loaded_servers_take_turns() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    receive_change(&mut node, B, 1, X, true);
    let mut counts = [0; 3];
    (0..8).for_each(|_| counts[decide_x(&mut node).0.index()] += 1);
    assert_eq!(counts, [0, 4, 4]);
}

#[test]
fn a_node_that_does_not_share_may_keep_large_targets() {
    let sharing = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
    let settings = PressSettings { memory: Bytes::mib(1), sharing, keep_large_alone: true, ..always() };
    let (mut node, mut out, size) = (Press::new(ME, 1, settings), Vec::new(), Bytes::kib(128));
    let decision = node.decide(Time::ZERO, X, Some(size));
    assert_eq!((decision.reason, decision.keep), (PressReason::Alone, true));
    (0..100).for_each(|at| node.record_served(ms(1), TargetId(at), size, true, &mut out));
    assert!(node.is_sharing(), "its misses count");
    let decision = node.decide(ms(2), X, Some(size));
    assert_eq!((decision.reason, decision.keep), (PressReason::Large, false));
}

#[test]
fn forwarded_requests_do_not_count_if_only_reports_do() {
    let mut node = node([3, 4]);
    node.settings.count_forwarded = false;
    receive_change(&mut node, A, 1, X, true);
    receive_change(&mut node, B, 1, X, true);
    for _ in 0..20 {
        assert_eq!(decide_x(&mut node), (A, PressReason::Peer), "its report says 3");
    }
    receive_load(&mut node, Time::ZERO, A, 5, 1);
    assert_eq!(decide_x(&mut node), (B, PressReason::Peer));
}

#[test]
fn returned_requests_do_not_count_as_load() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    for _ in 0..100 {
        assert_eq!(decide_x(&mut node), (A, PressReason::Peer));
        node.record_return(A);
    }
}

#[test]
fn large_targets_are_served_where_they_are_requested() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    let decision = node.decide(Time::ZERO, X, Some(Bytes::kib(128)));
    assert_eq!(decision, PressDecision { node: ME, reason: PressReason::Large, keep: false });
    assert_eq!(node.decide(Time::ZERO, X, None).node, A);
    node.record_served(Time::ZERO, X, Bytes::kib(128), true, &mut Vec::new());
    assert_eq!(node.decide(Time::ZERO, X, None), decision, "as large as it was");
    node.record_served(Time::ZERO, X, Bytes(1), true, &mut Vec::new());
    assert_eq!(node.decide(Time::ZERO, X, None).node, A);
}

#[test]
fn a_load_is_sent_by_steps_and_as_a_heartbeat() {
    let mut node = node([0, 0]);
    let mut out = Vec::new();
    node.tick(Time::ZERO, &mut out);
    out.clear();
    let sent = |out: &[PressOutput]| out.iter().map(|sent| sent.message.clone()).collect::<Vec<_>>();
    let load = |load| PressMessage::Load { epoch: 1, load, sharing: true, changes: 0 };
    (0..9).for_each(|_| node.begin_connection(ms(1), &mut out));
    assert_eq!(sent(&out), [load(4), load(8)]);
    out.clear();
    (0..5).for_each(|_| node.end_connection(ms(2), &mut out));
    assert_eq!(sent(&out), [load(4)]);
    out.clear();
    assert_eq!(node.due(), ms(1_002));
    node.tick(ms(1_002), &mut out);
    assert_eq!(sent(&out), [load(4)]);
    assert!(out.iter().all(|sent| sent.to == Recipient::All));
}

#[test]
fn changes_are_gathered() {
    let mut node = node([0, 0]);
    let mut out = Vec::new();
    for target in 0..3 {
        node.set_cached(ms(5), TargetId(target), true, &mut out);
    }
    assert!(out.is_empty());
    assert!(node.due() <= ms(25));
    node.tick(ms(25), &mut out);
    let changes = |out: &[PressOutput]| {
        let items = |sent: &PressOutput| match &sent.message {
            PressMessage::Changes { first, items, .. } => Some((*first, items.len())),
            _ => None,
        };
        out.iter().filter_map(items).collect::<Vec<_>>()
    };
    assert_eq!(changes(&out), [(1, 3)]);
    out.clear();
    (10..10 + UNSENT_MAX).for_each(|target| node.set_cached(ms(30), TargetId(target), true, &mut out));
    assert_eq!(changes(&out), [(4, 64)], "before their time");
}

#[test]
fn a_silent_server_is_no_worse_than_an_overloaded_one() {
    let mut node = node([9, 0]);
    receive_change(&mut node, A, 1, X, true);
    receive_change(&mut node, B, 1, X, true);
    receive_load(&mut node, ms(3_500), A, 9, 1);
    let at = |node: &mut Press| node.decide(ms(3_600), X, None).node;
    assert_eq!(at(&mut node), A, "B's load is unknown");
    receive_load(&mut node, ms(3_500), A, 11, 1);
    assert_eq!(at(&mut node), B);
}

#[test]
fn a_node_with_unknown_load_never_becomes_a_server() {
    let mut node = node([11, 0]);
    receive_change(&mut node, A, 1, X, true);
    begin(&mut node, 10);
    receive_load(&mut node, ms(3_500), A, 11, 1);
    assert_eq!(node.decide(ms(3_500), X, None).reason, PressReason::Crowded);
    receive_load(&mut node, ms(3_500), B, 0, 0);
    assert_eq!(node.decide(ms(3_500), X, None).node, B);
}

#[test]
fn a_peer_that_does_not_answer_is_avoided_until_it_answers() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    assert_eq!(decide_x(&mut node), (A, PressReason::Peer));
    let unanswered = PressDecision { node: ME, reason: PressReason::Unanswered, keep: true };
    assert_eq!(node.record_failure(Time::ZERO, A, X, false), unanswered);
    assert_eq!(decide_x(&mut node), (A, PressReason::Peer), "it was not to blame");
    assert_eq!(node.record_failure(Time::ZERO, A, X, true), unanswered);
    assert_eq!(decide_x(&mut node), (ME, PressReason::First));
    receive_load(&mut node, Time::ZERO, A, 0, 1);
    assert_eq!(decide_x(&mut node), (ME, PressReason::First), "it speaks, and may not answer all the same");
    assert_eq!(node.decide(ms(1_000), X, None).node, A, "one trial");
    assert_eq!(node.decide(ms(1_000), X, None).node, ME);
    node.record_reply(A);
    assert_eq!(node.decide(ms(1_000), X, None).node, A);
}

#[test]
fn a_forwarded_request_is_served_here() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    assert_eq!(
        node.decide_forwarded(X, None),
        PressDecision { node: ME, reason: PressReason::Forwarded, keep: true }
    );
    let large = Some(always().large_min);
    assert_eq!(
        node.decide_forwarded(X, large),
        PressDecision { node: ME, reason: PressReason::Forwarded, keep: false }
    );
}

#[test]
fn targets_of_a_removed_peer_are_dropped() {
    let mut node = node([0, 0]);
    receive_change(&mut node, A, 1, X, true);
    node.remove_peer(A);
    assert_eq!(decide_x(&mut node), (ME, PressReason::First));
    node.add_peer(Time::ZERO, A, &mut Vec::new());
    receive_load(&mut node, Time::ZERO, A, 0, 0);
    assert_eq!(decide_x(&mut node), (ME, PressReason::First));
}

#[test]
fn an_assumed_server_expires_without_its_report() {
    let mut node = node([0, 11]);
    receive_change(&mut node, B, 1, X, true);
    begin(&mut node, 10);
    assert_eq!(decide_x(&mut node), (A, PressReason::Spread));
    node.tick(ms(4_999), &mut Vec::new());
    assert_eq!(node.servers(X), [A, B]);
    node.tick(ms(5_000), &mut Vec::new());
    assert_eq!(node.servers(X), [B]);
    assert_eq!(decide_x(&mut node), (A, PressReason::Spread));
}

#[test]
fn a_node_sends_nothing_until_it_shares() {
    let sharing = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
    let mut node = Press::new(ME, 1, PressSettings { memory: Bytes(100), sharing, ..always() });
    let mut out = Vec::new();
    node.add_peer(Time::ZERO, A, &mut out);
    node.begin_connection(Time::ZERO, &mut out);
    (0..50).for_each(|at| node.set_cached(Time::ZERO, TargetId(at), true, &mut out));
    node.tick(ms(10_000), &mut out);
    assert!(out.is_empty() && node.due() == Time::MAX);
    assert_eq!(decide_x(&mut node), (ME, PressReason::Alone));
    (0..100).for_each(|at| node.record_served(ms(1), TargetId(at), Bytes(10), true, &mut out));
    let load = PressMessage::Load { epoch: 1, load: 1, sharing: true, changes: 50 };
    assert_eq!(out, [PressOutput { to: Recipient::All, message: load }]);
    assert!(node.is_sharing());
}

/// Two nodes that exchange messages: each learns the other's memory, from the log or from the list.
#[test]
fn missed_changes_are_requested() {
    for missed in [10, PressSettings::default().log_max as u64 + 5_000] {
        let (mut a, mut b) = (Press::new(A, 3, always()), Press::new(B, 4, always()));
        (0..missed).for_each(|at| a.set_cached(Time::ZERO, TargetId(at), true, &mut Vec::new()));
        a.tick(ms(100), &mut Vec::new());
        let mut now = ms(100);
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        a.add_peer(now, B, &mut to_b);
        b.add_peer(now, A, &mut to_a);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            let (received_by_a, received_by_b) = (core::mem::take(&mut to_a), core::mem::take(&mut to_b));
            received_by_a
                .into_iter()
                .for_each(|sent: PressOutput| a.receive(now, B, sent.message, &mut to_b));
            received_by_b
                .into_iter()
                .for_each(|sent: PressOutput| b.receive(now, A, sent.message, &mut to_a));
            a.tick(now, &mut to_b);
            b.tick(now, &mut to_a);
        }
        assert!(b.is_current(A), "{missed}");
        assert_eq!(b.table_sizes().0 as u64, missed);
        assert_eq!(b.servers(TargetId(missed - 1)), [A]);
    }
}

#[test]
fn a_tick_is_due_for_a_request_until_the_answer_arrives() {
    let mut node = node([0, 0]);
    node.tick(Time::ZERO, &mut Vec::new());
    let heartbeat = node.due();
    let later = |first| PressMessage::Changes {
        epoch: 1,
        first,
        items: vec![CacheChange { target: X, cached: true }],
    };
    node.receive(ms(10), A, later(2), &mut Vec::new());
    assert!(node.due() <= ms(60) && node.due() < heartbeat);
    let mut out = Vec::new();
    node.tick(ms(60), &mut out);
    let asked = |out: &[PressOutput]| {
        out.iter().filter(|out| matches!(out.message, PressMessage::ChangesRequest { .. })).count()
    };
    assert_eq!((asked(&out), node.due()), (1, ms(560)), "it is asked again");
    node.receive(ms(70), A, later(1), &mut Vec::new());
    node.receive(ms(70), A, later(2), &mut Vec::new());
    out.clear();
    node.tick(ms(560), &mut out);
    assert_eq!(asked(&out), 0);
    assert!(node.due() > ms(560));
}

fn sent(out: &[PressOutput]) -> Vec<CacheChange> {
    let changes = out.iter().filter_map(|out| match &out.message {
        PressMessage::Changes { items, .. } => Some(items.clone()),
        _ => None,
    });
    changes.flatten().collect()
}

/// Returns a node that sends each change at once, has sent its load, and reads X.
fn node_that_reads() -> (Press, Vec<PressOutput>) {
    let mut node = node([0, 0]);
    node.settings.gather = Duration::ZERO;
    node.tick(Time::ZERO, &mut Vec::new());
    let (mut out, decision) = (Vec::new(), node.decide(ms(10), X, None));
    node.begin_read(ms(10), decision, X, &mut out);
    (node, out)
}

const CACHED: CacheChange = CacheChange { target: X, cached: true };
const EVICTED: CacheChange = CacheChange { target: X, cached: false };

#[test]
fn a_read_is_announced_when_it_begins() {
    let (mut node, mut out) = node_that_reads();
    assert_eq!(sent(&out), [CACHED]);
    assert_eq!(node.decide(ms(11), X, None).reason, PressReason::Here, "whoever asks waits for the read");
    assert!(!node.holds(X) && node.cached_targets().is_empty() && node.servers(X) == [ME]);
    out.clear();
    node.set_cached(ms(30), X, true, &mut out);
    node.tick(ms(6_000), &mut out);
    assert_eq!((sent(&out), node.holds(X)), (vec![], true), "it is told once");
    node.set_cached(ms(6_001), X, false, &mut out);
    assert_eq!(sent(&out), [EVICTED]);
}

#[test]
fn a_missing_target_is_withdrawn_at_once() {
    let (mut node, mut out) = node_that_reads();
    out.clear();
    node.record_missing(ms(20), X, &mut out);
    node.record_missing(ms(20), X, &mut out);
    assert_eq!(sent(&out), [EVICTED]);
    assert!(!node.servers(X).contains(&ME));
    out.clear();
    node.set_cached(ms(30), X, true, &mut out);
    node.record_missing(ms(40), X, &mut out);
    assert_eq!(sent(&out), [CACHED], "its error is kept: it is there");
}

#[test]
fn a_failed_read_is_withdrawn_and_not_announced_again() {
    let (mut node, mut out) = node_that_reads();
    out.clear();
    assert!(node.due() <= ms(5_010));
    node.tick(ms(5_010), &mut out);
    assert_eq!(sent(&out), [EVICTED]);
    out.clear();
    let decision = node.decide(ms(5_020), X, None);
    node.begin_read(ms(5_020), decision, X, &mut out);
    assert_eq!((decision.reason, sent(&out)), (PressReason::First, vec![]));
    node.set_cached(ms(5_030), X, true, &mut out);
    node.set_cached(ms(5_040), X, false, &mut out);
    out.clear();
    node.begin_read(ms(5_050), decision, X, &mut out);
    assert_eq!(sent(&out), [CACHED], "it has come once");
    out.clear();
    node.record_served(ms(5_060), X, Bytes::mib(1), true, &mut out);
    assert_eq!(sent(&out), [EVICTED], "too large to be kept");
}

/// Reads distinct targets from this number on, one per millisecond. The targets for which `kept` is true are in
/// memory 20 ms later. Returns the number of sent changes.
fn read_all(node: &mut Press, from: u64, count: u64, kept: impl Fn(u64) -> bool) -> usize {
    node.settings.gather = Duration::ZERO;
    let mut out = Vec::new();
    for number in from..from + count + 20 {
        node.tick(ms(number), &mut out);
        if number < from + count {
            let decision = node.decide(ms(number), TargetId(number), None);
            node.begin_read(ms(number), decision, TargetId(number), &mut out);
        }
        if number >= from + 20 && kept(number - 20) {
            node.set_cached(ms(number), TargetId(number - 20), true, &mut out);
        }
    }
    sent(&out).len()
}

#[test]
fn uncacheable_targets_cost_no_changes_in_the_long_run() {
    let mut node = node([0, 0]);
    assert_eq!(read_all(&mut node, 1_000, 20_000, |_| false), 2 * 1_024, "told and taken back");
    assert_eq!(read_all(&mut node, 30_000, 20_000, |_| false), 0);
    assert_eq!(node.table_sizes(), (0, 0));
    // A target that is kept now is still announced, and soon already when its read begins.
    assert_eq!(read_all(&mut node, 60_000, 1_000, |_| true), 1_000);
    let decision = node.decide(ms(70_000), X, None);
    node.begin_read(ms(70_000), decision, X, &mut Vec::new());
    assert_eq!(node.decide(ms(70_001), X, None).reason, PressReason::Here);
}

#[test]
fn a_few_uncacheable_targets_cost_two_changes_each() {
    let mut node = node([0, 0]);
    let changes = read_all(&mut node, 1_000, 20_000, |number| number % 10 != 0);
    let (mut out, until) = (Vec::new(), ms(30_000));
    node.tick(until, &mut out);
    assert_eq!(changes + sent(&out).len(), 18_000 + 2 * 2_000);
    assert_eq!(node.cached_targets().len(), 18_000);
}

#[test]
fn only_local_reads_are_announced() {
    let mut node = node([0, 0]);
    node.settings.gather = Duration::ZERO;
    let mut out = Vec::new();
    for reason in PressReason::ALL
        .into_iter()
        .filter(|reason| !matches!(reason, PressReason::First | PressReason::Relief))
    {
        node.begin_read(ms(1), PressDecision { node: ME, reason, keep: true }, X, &mut out);
    }
    node.begin_read(ms(1), PressDecision { node: ME, reason: PressReason::First, keep: false }, X, &mut out);
    node.settings.announce_reads = false;
    node.begin_read(ms(1), PressDecision { node: ME, reason: PressReason::First, keep: true }, X, &mut out);
    assert_eq!(sent(&out), []);
}
