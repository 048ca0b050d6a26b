use super::*;
use crate::peers::Change;

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

/// A node with two peers, who have told their loads.
fn node(loads: [u32; 2]) -> Press {
    let mut node = Press::new(ME, 1, always());
    for (peer, load) in [A, B].into_iter().zip(loads) {
        node.joined(Time::ZERO, peer, &mut Vec::new());
        hear_load(&mut node, Time::ZERO, peer, load, 0);
    }
    node
}

fn hear_load(node: &mut Press, now: Time, from: NodeId, load: u32, changes: u64) -> Vec<Outgoing> {
    let mut out = Vec::new();
    node.hear(now, from, Message::Load { epoch: 1, load, sharing: true, changes }, &mut out);
    out
}

fn has(node: &mut Press, from: NodeId, first: u64, target: TargetId, cached: bool) {
    let message = Message::Changes { epoch: 1, first, items: vec![Change { target, cached }] };
    node.hear(Time::ZERO, from, message, &mut Vec::new());
}

fn begin(node: &mut Press, count: u32) {
    (0..count).for_each(|_| node.begun(Time::ZERO, &mut Vec::new()));
}

fn decided(node: &mut Press) -> (NodeId, Why) {
    let verdict = node.decide(Time::ZERO, X, Some(Bytes(1_000)));
    (verdict.node, verdict.why)
}

#[test]
fn the_first_request_for_a_target_is_served_where_it_arrives() {
    assert_eq!(decided(&mut node([0, 0])), (ME, Why::First));
}

#[test]
fn a_target_is_served_where_it_is() {
    let mut node = node([3, 5]);
    has(&mut node, B, 1, X, true);
    assert_eq!(decided(&mut node), (B, Why::Peer));
    has(&mut node, A, 1, X, true);
    assert_eq!(decided(&mut node), (A, Why::Peer));
    node.noted(Time::ZERO, X, true, &mut Vec::new());
    assert_eq!(decided(&mut node), (ME, Why::Here));
    node.noted(Time::ZERO, X, false, &mut Vec::new());
    has(&mut node, A, 2, X, false);
    has(&mut node, B, 2, X, false);
    assert_eq!(decided(&mut node), (ME, Why::First));
}

#[test]
fn overload_adds_servers() {
    let mut node = node([9, 11]);
    has(&mut node, B, 1, X, true);
    assert_eq!(decided(&mut node), (ME, Why::Relief), "this node has room");
    begin(&mut node, 10);
    assert_eq!(decided(&mut node), (A, Why::Spread), "another node has room");
    assert_eq!(node.servers(X), [A, B]);
    assert_eq!(decided(&mut node), (A, Why::Peer), "which is a server now");
    assert_eq!(decided(&mut node).1, Why::Crowded, "what was sent to it counts");
}

#[test]
fn equally_loaded_servers_take_turns_as_they_are_sent_to() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    has(&mut node, B, 1, X, true);
    let mut counts = [0; 3];
    (0..8).for_each(|_| counts[decided(&mut node).0.index()] += 1);
    assert_eq!(counts, [0, 4, 4]);
}

#[test]
fn what_has_come_back_does_not_count() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    for _ in 0..100 {
        assert_eq!(decided(&mut node), (A, Why::Peer));
        node.returned(A);
    }
}

#[test]
fn large_targets_are_served_where_they_are_asked_for() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    let verdict = node.decide(Time::ZERO, X, Some(Bytes::kib(128)));
    assert_eq!(verdict, Verdict { node: ME, why: Why::Large, keep: false });
    assert_eq!(node.decide(Time::ZERO, X, None).node, A);
    node.served(Time::ZERO, X, Bytes::kib(128), true, &mut Vec::new());
    assert_eq!(node.decide(Time::ZERO, X, None), verdict, "as large as it was");
    node.served(Time::ZERO, X, Bytes(1), true, &mut Vec::new());
    assert_eq!(node.decide(Time::ZERO, X, None).node, A);
}

#[test]
fn a_load_is_told_by_steps_and_as_a_sign_of_life() {
    let mut node = node([0, 0]);
    let mut out = Vec::new();
    node.tick(Time::ZERO, &mut out);
    out.clear();
    let told = |out: &[Outgoing]| out.iter().map(|sent| sent.message.clone()).collect::<Vec<_>>();
    let load = |load| Message::Load { epoch: 1, load, sharing: true, changes: 0 };
    (0..9).for_each(|_| node.begun(ms(1), &mut out));
    assert_eq!(told(&out), [load(4), load(8)]);
    out.clear();
    (0..5).for_each(|_| node.ended(ms(2), &mut out));
    assert_eq!(told(&out), [load(4)]);
    out.clear();
    assert_eq!(node.due(), ms(1_002));
    node.tick(ms(1_002), &mut out);
    assert_eq!(told(&out), [load(4)]);
    assert!(out.iter().all(|sent| sent.to == To::All));
}

#[test]
fn changes_are_gathered() {
    let mut node = node([0, 0]);
    let mut out = Vec::new();
    for target in 0..3 {
        node.noted(ms(5), TargetId(target), true, &mut out);
    }
    assert!(out.is_empty());
    assert!(node.due() <= ms(25));
    node.tick(ms(25), &mut out);
    let changes = |out: &[Outgoing]| {
        let items = |sent: &Outgoing| match &sent.message {
            Message::Changes { first, items, .. } => Some((*first, items.len())),
            _ => None,
        };
        out.iter().filter_map(items).collect::<Vec<_>>()
    };
    assert_eq!(changes(&out), [(1, 3)]);
    out.clear();
    (10..10 + UNTOLD_MAX).for_each(|target| node.noted(ms(30), TargetId(target), true, &mut out));
    assert_eq!(changes(&out), [(4, 64)], "before their time");
}

#[test]
fn a_server_that_is_silent_is_no_worse_than_an_overloaded_one() {
    let mut node = node([9, 0]);
    has(&mut node, A, 1, X, true);
    has(&mut node, B, 1, X, true);
    hear_load(&mut node, ms(3_500), A, 9, 1);
    let at = |node: &mut Press| node.decide(ms(3_600), X, None).node;
    assert_eq!(at(&mut node), A, "B's load is unknown");
    hear_load(&mut node, ms(3_500), A, 11, 1);
    assert_eq!(at(&mut node), B);
}

#[test]
fn a_node_of_unknown_load_is_never_made_a_server() {
    let mut node = node([11, 0]);
    has(&mut node, A, 1, X, true);
    begin(&mut node, 10);
    hear_load(&mut node, ms(3_500), A, 11, 1);
    assert_eq!(node.decide(ms(3_500), X, None).why, Why::Crowded);
    hear_load(&mut node, ms(3_500), B, 0, 0);
    assert_eq!(node.decide(ms(3_500), X, None).node, B);
}

#[test]
fn one_that_does_not_answer_is_shunned_until_it_answers() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    assert_eq!(decided(&mut node), (A, Why::Peer));
    let unanswered = Verdict { node: ME, why: Why::Unanswered, keep: true };
    assert_eq!(node.unanswered(Time::ZERO, A, X, false), unanswered);
    assert_eq!(decided(&mut node), (A, Why::Peer), "it was not to blame");
    assert_eq!(node.unanswered(Time::ZERO, A, X, true), unanswered);
    assert_eq!(decided(&mut node), (ME, Why::First));
    hear_load(&mut node, Time::ZERO, A, 0, 1);
    assert_eq!(decided(&mut node), (ME, Why::First), "it speaks, and may not answer all the same");
    assert_eq!(node.decide(ms(1_000), X, None).node, A, "one trial");
    assert_eq!(node.decide(ms(1_000), X, None).node, ME);
    node.answered(A);
    assert_eq!(node.decide(ms(1_000), X, None).node, A);
}

#[test]
fn what_another_has_forwarded_is_served_here() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    assert_eq!(node.forwarded(X, None), Verdict { node: ME, why: Why::Forwarded, keep: true });
    let large = Some(always().large_min);
    assert_eq!(node.forwarded(X, large), Verdict { node: ME, why: Why::Forwarded, keep: false });
}

#[test]
fn who_leaves_takes_his_targets_along() {
    let mut node = node([0, 0]);
    has(&mut node, A, 1, X, true);
    node.left(A);
    assert_eq!(decided(&mut node), (ME, Why::First));
    node.joined(Time::ZERO, A, &mut Vec::new());
    hear_load(&mut node, Time::ZERO, A, 0, 0);
    assert_eq!(decided(&mut node), (ME, Why::First));
}

#[test]
fn an_assumed_server_is_forgotten_without_its_word() {
    let mut node = node([0, 11]);
    has(&mut node, B, 1, X, true);
    begin(&mut node, 10);
    assert_eq!(decided(&mut node), (A, Why::Spread));
    node.tick(ms(4_999), &mut Vec::new());
    assert_eq!(node.servers(X), [A, B]);
    node.tick(ms(5_000), &mut Vec::new());
    assert_eq!(node.servers(X), [B]);
    assert_eq!(decided(&mut node), (A, Why::Spread));
}

#[test]
fn by_itself_a_node_says_nothing_until_it_takes_part() {
    let sharing = SharingSettings { window: 100, off_windows: 1, ..SharingSettings::default() };
    let mut node = Press::new(ME, 1, PressSettings { memory: Bytes(100), sharing, ..always() });
    let mut out = Vec::new();
    node.joined(Time::ZERO, A, &mut out);
    node.begun(Time::ZERO, &mut out);
    (0..50).for_each(|at| node.noted(Time::ZERO, TargetId(at), true, &mut out));
    node.tick(ms(10_000), &mut out);
    assert!(out.is_empty() && node.due() == Time::MAX);
    assert_eq!(decided(&mut node), (ME, Why::Alone));
    (0..100).for_each(|at| node.served(ms(1), TargetId(at), Bytes(10), true, &mut out));
    let load = Message::Load { epoch: 1, load: 1, sharing: true, changes: 50 };
    assert_eq!(out, [Outgoing { to: To::All, message: load }]);
    assert!(node.shares());
}

/// Two nodes that hear one another: what one has the other comes to know, from its log or from its list.
#[test]
fn what_was_missed_is_asked_for() {
    for missed in [10, PressSettings::default().log_max as u64 + 5_000] {
        let (mut a, mut b) = (Press::new(A, 3, always()), Press::new(B, 4, always()));
        (0..missed).for_each(|at| a.noted(Time::ZERO, TargetId(at), true, &mut Vec::new()));
        a.tick(ms(100), &mut Vec::new());
        let mut now = ms(100);
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        a.joined(now, B, &mut to_b);
        b.joined(now, A, &mut to_a);
        for _ in 0..100 {
            now += Duration::from_millis(10);
            let (heard_by_a, heard_by_b) = (core::mem::take(&mut to_a), core::mem::take(&mut to_b));
            heard_by_a.into_iter().for_each(|sent: Outgoing| a.hear(now, B, sent.message, &mut to_b));
            heard_by_b.into_iter().for_each(|sent: Outgoing| b.hear(now, A, sent.message, &mut to_a));
            a.tick(now, &mut to_b);
            b.tick(now, &mut to_a);
        }
        assert!(b.knows(A), "{missed}");
        assert_eq!(b.sizes().0 as u64, missed);
        assert_eq!(b.servers(TargetId(missed - 1)), [A]);
    }
}

#[test]
fn a_tick_is_due_when_something_is_to_be_asked_and_not_after_it_came() {
    let mut node = node([0, 0]);
    node.tick(Time::ZERO, &mut Vec::new());
    let beat = node.due();
    let later = |first| Message::Changes { epoch: 1, first, items: vec![Change { target: X, cached: true }] };
    node.hear(ms(10), A, later(2), &mut Vec::new());
    assert!(node.due() <= ms(60) && node.due() < beat);
    let mut out = Vec::new();
    node.tick(ms(60), &mut out);
    let asked =
        |out: &[Outgoing]| out.iter().filter(|out| matches!(out.message, Message::Ask { .. })).count();
    assert_eq!((asked(&out), node.due()), (1, ms(560)), "it is asked again");
    node.hear(ms(70), A, later(1), &mut Vec::new());
    node.hear(ms(70), A, later(2), &mut Vec::new());
    out.clear();
    node.tick(ms(560), &mut out);
    assert_eq!(asked(&out), 0);
    assert!(node.due() > ms(560));
}

fn told(out: &[Outgoing]) -> Vec<Change> {
    let changes = out.iter().filter_map(|out| match &out.message {
        Message::Changes { items, .. } => Some(items.clone()),
        _ => None,
    });
    changes.flatten().collect()
}

/// A node that tells each change at once, has told its load, and reads X.
fn reads() -> (Press, Vec<Outgoing>) {
    let mut node = node([0, 0]);
    node.settings.gather = Duration::ZERO;
    node.tick(Time::ZERO, &mut Vec::new());
    let (mut out, verdict) = (Vec::new(), node.decide(ms(10), X, None));
    node.reading(ms(10), verdict, X, &mut out);
    (node, out)
}

const COMES: Change = Change { target: X, cached: true };
const GOES: Change = Change { target: X, cached: false };

#[test]
fn what_is_read_is_told_when_the_read_begins() {
    let (mut node, mut out) = reads();
    assert_eq!(told(&out), [COMES]);
    assert_eq!(node.decide(ms(11), X, None).why, Why::Here, "whoever asks waits for the read");
    assert!(!node.holds(X) && node.held().is_empty() && node.servers(X) == [ME]);
    out.clear();
    node.noted(ms(30), X, true, &mut out);
    node.tick(ms(6_000), &mut out);
    assert_eq!((told(&out), node.holds(X)), (vec![], true), "it is told once");
    node.noted(ms(6_001), X, false, &mut out);
    assert_eq!(told(&out), [GOES]);
}

#[test]
fn what_is_not_there_is_taken_back_at_once() {
    let (mut node, mut out) = reads();
    out.clear();
    node.came_to_nothing(ms(20), X, &mut out);
    node.came_to_nothing(ms(20), X, &mut out);
    assert_eq!(told(&out), [GOES]);
    assert!(!node.servers(X).contains(&ME));
    out.clear();
    node.noted(ms(30), X, true, &mut out);
    node.came_to_nothing(ms(40), X, &mut out);
    assert_eq!(told(&out), [COMES], "its error is kept: it is there");
}

#[test]
fn what_does_not_come_is_taken_back_and_not_told_again() {
    let (mut node, mut out) = reads();
    out.clear();
    assert!(node.due() <= ms(5_010));
    node.tick(ms(5_010), &mut out);
    assert_eq!(told(&out), [GOES]);
    out.clear();
    let verdict = node.decide(ms(5_020), X, None);
    node.reading(ms(5_020), verdict, X, &mut out);
    assert_eq!((verdict.why, told(&out)), (Why::First, vec![]));
    node.noted(ms(5_030), X, true, &mut out);
    node.noted(ms(5_040), X, false, &mut out);
    out.clear();
    node.reading(ms(5_050), verdict, X, &mut out);
    assert_eq!(told(&out), [COMES], "it has come once");
    out.clear();
    node.served(ms(5_060), X, Bytes::mib(1), true, &mut out);
    assert_eq!(told(&out), [GOES], "too large to be kept");
}

/// Reads targets of their own, from this number on, one a millisecond; `kept` is there 20 ms later. The changes told.
fn read_all(node: &mut Press, from: u64, count: u64, kept: impl Fn(u64) -> bool) -> usize {
    node.settings.gather = Duration::ZERO;
    let mut out = Vec::new();
    for number in from..from + count + 20 {
        node.tick(ms(number), &mut out);
        if number < from + count {
            let verdict = node.decide(ms(number), TargetId(number), None);
            node.reading(ms(number), verdict, TargetId(number), &mut out);
        }
        if number >= from + 20 && kept(number - 20) {
            node.noted(ms(number), TargetId(number - 20), true, &mut out);
        }
    }
    told(&out).len()
}

#[test]
fn what_nobody_may_keep_costs_no_more_changes_in_the_end() {
    let mut node = node([0, 0]);
    assert_eq!(read_all(&mut node, 1_000, 20_000, |_| false), 2 * 1_024, "told and taken back");
    assert_eq!(read_all(&mut node, 30_000, 20_000, |_| false), 0);
    assert_eq!(node.sizes(), (0, 0));
    // What is kept now is told all the same, and soon when its read begins.
    assert_eq!(read_all(&mut node, 60_000, 1_000, |_| true), 1_000);
    let verdict = node.decide(ms(70_000), X, None);
    node.reading(ms(70_000), verdict, X, &mut Vec::new());
    assert_eq!(node.decide(ms(70_001), X, None).why, Why::Here);
}

#[test]
fn a_tenth_that_nobody_may_keep_costs_two_changes_each() {
    let mut node = node([0, 0]);
    let changes = read_all(&mut node, 1_000, 20_000, |number| number % 10 != 0);
    let (mut out, until) = (Vec::new(), ms(30_000));
    node.tick(until, &mut out);
    assert_eq!(changes + told(&out).len(), 18_000 + 2 * 2_000);
    assert_eq!(node.held().len(), 18_000);
}

#[test]
fn what_is_not_read_here_is_not_told() {
    let mut node = node([0, 0]);
    node.settings.gather = Duration::ZERO;
    let mut out = Vec::new();
    for why in Why::ALL.into_iter().filter(|why| !matches!(why, Why::First | Why::Relief)) {
        node.reading(ms(1), Verdict { node: ME, why, keep: true }, X, &mut out);
    }
    node.reading(ms(1), Verdict { node: ME, why: Why::First, keep: false }, X, &mut out);
    node.settings.tell_reads = false;
    node.reading(ms(1), Verdict { node: ME, why: Why::First, keep: true }, X, &mut out);
    assert_eq!(told(&out), []);
}
