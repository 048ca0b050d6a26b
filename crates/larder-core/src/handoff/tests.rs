//! Tests of the machine alone. `larder sim faults --protocol edge` runs it against a model of its environment.

use super::*;
use crate::policy::Reason;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;

struct TestBench {
    machine: EdgeMachine<Test>,
    plane: TestPlane,
    /// The number of connections that the dispatcher counts.
    load: Rc<Cell<i32>>,
    now: Time,
}

#[derive(Debug)]
struct Test;

impl EdgeTypes for Test {
    type Key = u16;
    type Packet = Segment;
    type Load = TestLoad;
    type Verdict = ();
    type State = &'static str;
    type Waiter = ();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment(u32);

impl Packet for Segment {
    fn length(&self) -> usize {
        100
    }

    fn first_seq(&self) -> Option<u32> {
        Some(self.0)
    }

    fn acknowledges(&self) -> Option<u32> {
        Some(5)
    }
}

#[derive(Debug)]
struct TestLoad(Rc<Cell<i32>>, bool);

impl ConnectionLoad for TestLoad {
    fn release(&mut self, _: Time) {
        if core::mem::take(&mut self.1) {
            self.0.set(self.0.get() - 1);
        }
    }

    fn take_again(&mut self, now: Time, _: NodeId) -> bool {
        self.release(now);
        self.0.set(self.0.get() + 1);
        self.1 = true;
        true
    }

    fn take_over(&mut self, now: Time, mut other: Self) {
        self.release(now);
        self.1 = core::mem::take(&mut other.1);
    }
}

impl Drop for TestLoad {
    fn drop(&mut self) {
        self.release(Time::ZERO);
    }
}

#[derive(Default)]
struct TestPlane {
    flows: BTreeMap<u16, Flow>,
    now: Time,
    /// Whether the plane has no room for a connection.
    full: bool,
}

impl FlowLookup<u16> for TestPlane {
    fn flow(&self, key: u16) -> Option<Flow> {
        self.flows.get(&key).copied()
    }

    fn now(&self) -> Time {
        self.now
    }
}

const KEY: u16 = 1;
const NODE: NodeId = NodeId(3);
const OTHER: NodeId = NodeId(4);

impl TestBench {
    fn new(change: impl FnOnce(&mut EdgeSettings)) -> Self {
        let mut settings = EdgeSettings::default();
        change(&mut settings);
        let machine = EdgeMachine::new(settings);
        Self { machine, plane: TestPlane::default(), load: Rc::default(), now: Time::from_secs(10) }
    }

    /// Gives an input, and the inputs that follow from the plane's results. Returns the actions, one word each.
    fn give(&mut self, input: Input<Test>) -> Vec<String> {
        let (mut inputs, mut told) = (vec![input], Vec::new());
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.machine.handle(self.now, input, &self.plane, &mut out);
            for output in out {
                if let Output::Route { key, to, by } = output {
                    let done = !self.plane.full;
                    if done {
                        self.point(key, to);
                    }
                    inputs.push(Input::Routed { key, by, done });
                }
                told.extend(name_of(&output));
            }
        }
        told
    }

    fn point(&mut self, key: u16, to: FlowTarget) {
        let now = self.plane.now;
        self.plane.flows.entry(key).or_insert(Flow { opened: now, ..flow(to, 0) }).to = to;
    }

    fn load(&self, node: NodeId) -> (Decision, TestLoad) {
        self.load.set(self.load.get() + 1);
        (Decision { node, reason: Reason::Reuse }, TestLoad(self.load.clone(), true))
    }

    /// Delivers the first packet of a connection with this sequence number, and returns the generation.
    fn comes(&mut self, key: u16, seq: u32) -> u64 {
        let opened = self.plane.now;
        self.plane.flows.insert(key, Flow { opened, first_seq: seq, ..flow(FlowTarget::Held, seq) });
        self.give(Input::Packet { key, first: true, packet: Segment(seq), late: false });
        self.machine.next_undecided().expect("it is to be decided").1
    }

    fn accept_by_cookie(&mut self, key: u16, seq: u32, node: NodeId) -> Vec<String> {
        let generation = self.comes(key, seq);
        let (decision, load) = self.load(node);
        self.give(Input::HandOff { key, generation, decision, load })
    }

    /// Sends the connection's state to a node.
    fn send(&mut self, key: u16, seq: u32) -> Vec<String> {
        let generation = self.comes(key, seq);
        let (decision, load) = self.load(NODE);
        let state = "state";
        self.give(Input::SendState { key, generation, decision, load, state, first_seq: seq, complete: true })
    }

    /// A draining node gives a connection up to another one.
    fn passes(&mut self, key: u16) {
        assert_eq!(self.give(Input::RequestTransfer { node: NODE, key }), ["choose"]);
        let next = Some(self.load(OTHER));
        assert_eq!(self.give(Input::Chosen { key, from: NODE, next }), ["point node 4", "give"]);
    }

    /// A node lists these connections, with their numbers. The plane learns all of them, which is omitted here.
    fn process_list(&mut self, node: NodeId, connections: &[(u16, u32)]) -> Vec<String> {
        let mut told = self.give(Input::Listed { node, connections: connections.to_vec(), last: true });
        while self.machine.has_lists() {
            told.extend(self.give(Input::CompareList));
        }
        told.retain(|output| output != "learn");
        told
    }

    fn later(&mut self, by: Duration) {
        self.now += by;
        self.plane.now += by;
    }
}

fn refused(node: NodeId) -> Input<Test> {
    Input::Refused { node, id: 1, why: "full".to_owned() }
}

fn flow(to: FlowTarget, first_seq: u32) -> Flow {
    Flow {
        to,
        fin: false,
        reset: false,
        answered: true,
        denied: false,
        opened: Time::ZERO,
        seen: Time::ZERO,
        first_seq,
        first_ack: 1,
        last_ack: 1_002,
        asked_ack: 1,
        packets: 3,
        requests: 1,
    }
}

fn name_of(output: &Output<Test>) -> Option<String> {
    Some(match output {
        Output::Route { to: FlowTarget::Node(node), .. } => format!("point node {}", node.0),
        Output::Route { .. } => "point here".to_owned(),
        Output::Forward { node, packet } => format!("forward {} to {}", packet.0, node.0),
        Output::Inject(packet) => format!("inject {}", packet.0),
        Output::Accept { why, packets, .. } => format!("accept {} for {}", packets.len(), why_of(why)),
        Output::Forget(_) => "forget".to_owned(),
        Output::Reset { ack, .. } => format!("reset {ack:?}"),
        Output::Freeze { .. } => "freeze".to_owned(),
        Output::NotMoved { load } => format!("not moved {}", load.is_some()),
        Output::Send { first_seq, state, then, .. } => {
            format!("send {state} {first_seq} then {}", then.len())
        }
        Output::GiveBack(_) => "give back".to_owned(),
        Output::Answer { answer, .. } => match answer {
            SocketOutcome::Close => "close",
            SocketOutcome::Thaw(..) => "thaw",
            SocketOutcome::Abort => "abort",
        }
        .to_owned(),
        Output::Choose { .. } => "choose".to_owned(),
        Output::Tell { message, .. } => format!("{message:?}").to_lowercase(),
        Output::Ask { .. } => "ask".to_owned(),
        Output::Unknown { .. } => "stranger".to_owned(),
        Output::Resumed { .. } => "resumed".to_owned(),
        Output::Learn { .. } => "learn".to_owned(),
        Output::Ended(ended) => format!("ended {} {:?}", ended.end.name(), ended.bytes),
        Output::Late => "late".to_owned(),
        Output::MarkIdle(_) => "idle".to_owned(),
        Output::MarkEnded(_)
        | Output::MarkResumed(_)
        | Output::Entered { .. }
        | Output::LoadChanged(_)
        | Output::Note(_) => return None,
    })
}

fn why_of(why: &AcceptReason<Test>) -> &'static str {
    match why {
        AcceptReason::Decided(()) => "decided",
        AcceptReason::HoldFull => "hold_full",
        AcceptReason::MovesFull(..) => "moves_full",
        AcceptReason::Incomplete => "incomplete",
        AcceptReason::Failed(..) => "failed",
        AcceptReason::Reload => "reload",
    }
}

#[test]
fn connection_counts_at_its_node_until_the_node_reports_its_end() {
    let mut bench = TestBench::new(|_| {});
    assert_eq!(bench.accept_by_cookie(KEY, 7, NODE), ["forward 7 to 3", "point node 3"]);
    // A packet that was delivered before the plane knew the node.
    let packet = Segment(8);
    assert_eq!(bench.give(Input::Packet { key: KEY, first: false, packet, late: false }), ["forward 8 to 3"]);
    let closed = |node, first_seq| Input::Closed { node, key: KEY, first_seq };
    assert!(bench.give(closed(OTHER, 7)).is_empty(), "another node says nothing about it");
    assert!(bench.give(closed(NODE, 6)).is_empty(), "the connection before");
    assert_eq!(
        (bench.load.get(), bench.give(closed(NODE, 7))),
        (1, vec!["ended closed Some(1000)".to_owned()])
    );
    assert_eq!((bench.load.get(), bench.machine.len()), (0, 0));
}

#[test]
fn client_is_reset_when_the_plane_has_no_room() {
    let mut bench = TestBench::new(|_| {});
    bench.plane.full = true;
    let told = bench.accept_by_cookie(KEY, 7, NODE);
    assert_eq!(told[2..], ["reset Some(5)", "ended node_lost Some(1000)"]);
    assert_eq!(bench.load.get(), 0);
}

/// The client gave the connection up while it waited, and the plane knows of the next one already.
#[test]
fn decision_does_not_affect_the_next_connection() {
    let mut bench = TestBench::new(|_| {});
    let generation = bench.comes(KEY, 7);
    bench.plane.flows.insert(KEY, flow(FlowTarget::Held, 9_007));
    let (decision, load) = bench.load(NODE);
    assert!(bench.give(Input::HandOff { key: KEY, generation, decision, load }).is_empty());
    assert_eq!((bench.load.get(), bench.machine.len(), bench.machine.held()), (0, 0, 0));
}

/// A packet that arrives during a decision asks for no second one, unless the header was incomplete.
#[test]
fn connection_is_decided_once() {
    let mut bench = TestBench::new(|_| {});
    let generation = bench.comes(KEY, 7);
    let more = || Input::Packet { key: KEY, first: false, packet: Segment(8), late: false };
    bench.give(more());
    assert_eq!(bench.machine.next_undecided(), None);
    bench.give(Input::Incomplete { key: KEY, generation });
    assert_eq!(bench.machine.next_undecided(), Some((KEY, generation)), "it has come meanwhile");
    bench.give(Input::Incomplete { key: KEY, generation });
    assert_eq!(bench.machine.next_undecided(), None);
    bench.give(more());
    assert_eq!(bench.machine.next_undecided(), Some((KEY, generation)));
    bench.give(Input::AwaitAdmission { key: KEY, generation });
    bench.give(more());
    assert_eq!(bench.machine.next_undecided(), None);
}

/// A socket that was not sent yet is at no other host, whatever happens to its node, and after a reload none moves.
#[test]
fn socket_whose_state_was_not_sent_continues_here() {
    for input in [Input::GiveUp { node: NODE }, Input::ReleasePlane] {
        let mut bench = TestBench::new(|_| {});
        let (decision, load) = bench.load(NODE);
        bench.give(Input::Move { key: KEY, decision, load, waiter: () });
        assert_eq!(bench.give(input), ["point here", "thaw"]);
        let late = Input::Frozen { key: KEY, id: 1, first_seq: 7, first_ack: 77, state: "socket" };
        assert!(bench.give(late).is_empty());
    }
    let mut bench = TestBench::new(|_| {});
    bench.give(Input::ReleasePlane);
    let (decision, load) = bench.load(NODE);
    assert_eq!(bench.give(Input::Move { key: KEY, decision, load, waiter: () }), ["not moved true"]);
}

/// A request that arrives while a connection moves to another node counts, and continues to count there.
#[test]
fn connection_that_resumes_during_a_transfer_counts() {
    let mut bench = TestBench::new(|_| {});
    bench.accept_by_cookie(KEY, 7, NODE);
    bench.later(Duration::from_secs(2));
    bench.plane.flows.get_mut(&KEY).expect("it is known").last_ack = 2_000;
    assert_eq!(bench.give(Input::Review { key: KEY }), ["idle", "give back"]);
    bench.give(Input::GiveBack { key: KEY });
    assert_eq!(bench.load.get(), 0);
    bench.passes(KEY);
    assert_eq!(bench.load.get(), 1, "a place at the next node");
    bench.give(Input::Active { key: KEY, node: OTHER });
    bench.give(Input::TransferState { node: NODE, key: KEY, first_seq: 7, state: "given" });
    bench.give(Input::Restored { node: OTHER, id: 1 });
    assert_eq!((bench.load.get(), bench.machine.active()), (1, vec![KEY]));
}

#[test]
fn refused_state_returns_with_its_packets() {
    let mut bench = TestBench::new(|_| {});
    assert_eq!(bench.send(KEY, 7), ["point node 3", "send state 7 then 0"]);
    bench.plane.flows.get_mut(&KEY).expect("it is known").answered = false;
    assert_eq!(bench.give(refused(OTHER)), [""; 0], "a number of another node");
    assert_eq!(bench.give(refused(NODE)), ["accept 1 for failed"]);
    assert_eq!((bench.load.get(), bench.machine.len()), (0, 0), "with its load, which is dropped here");
}

#[test]
fn missing_answer_resets_the_connection_once() {
    let mut bench = TestBench::new(|_| {});
    bench.send(KEY, 7);
    bench.later(Duration::from_secs(31));
    assert_eq!(bench.give(Input::Tick), ["reset None", "ended node_lost Some(1000)"]);
    assert_eq!(bench.give(Input::Restored { node: NODE, id: 1 }), [""; 0], "too late");
    assert_eq!(bench.load.get(), 0);
}

/// A node that lists the addresses may still have the earlier connection.
#[test]
fn list_with_an_earlier_connection_does_not_confirm_a_move() {
    for (number, expected) in [(6, "accept 1 for failed"), (7, ""), (0, "")] {
        let mut bench = TestBench::new(|_| {});
        bench.give(Input::Up { node: NODE });
        bench.process_list(NODE, &[]);
        bench.send(KEY, 7);
        bench.plane.flows.get_mut(&KEY).expect("it is known").answered = false;
        bench.give(Input::Up { node: NODE });
        assert!(
            bench.process_list(NODE, &[(KEY, number)]).is_empty(),
            "the first list may be older than the state"
        );
        let told = bench.process_list(NODE, &[(KEY, number)]);
        assert_eq!(told.first().map_or("", |first| first), expected, "{number}");
        assert_eq!(bench.machine.moves(), 0, "{number}");
    }
}

/// Only the socket knew the numbers of a moved connection, if its client has sent nothing since.
#[test]
fn moved_connections_are_reset_with_the_sockets_numbers() {
    let mut bench = TestBench::new(|_| {});
    let (decision, load) = bench.load(NODE);
    assert_eq!(bench.give(Input::Move { key: KEY, decision, load, waiter: () }), ["point node 3", "freeze"]);
    let frozen = Input::Frozen { key: KEY, id: 1, first_seq: 7, first_ack: 77, state: "socket" };
    assert_eq!(bench.give(frozen), ["send socket 7 then 0"]);
    assert_eq!(bench.give(Input::Restored { node: NODE, id: 1 }), ["close"]);
    assert_eq!(bench.give(Input::Dead { node: NODE })[0], "reset Some(77)");
    assert_eq!(bench.load.get(), 0);
}

#[test]
fn transferred_connection_takes_its_load_along() {
    let mut bench = TestBench::new(|_| {});
    bench.accept_by_cookie(KEY, 7, NODE);
    bench.passes(KEY);
    let given = Input::TransferState { node: NODE, key: KEY, first_seq: 7, state: "given" };
    assert_eq!(bench.give(given), ["send given 7 then 0"]);
    assert_eq!(bench.give(Input::Restored { node: OTHER, id: 1 }), ["taken"]);
    assert_eq!(bench.machine.connection(KEY).map(|one| one.decision.node), Some(OTHER));
    assert_eq!(bench.load.get(), 1);
}

/// The client has begun another connection with the addresses of one that moves. Neither its state nor an answer
/// about it belongs to the new connection.
#[test]
fn transfer_does_not_affect_the_next_connection() {
    for sent in [false, true] {
        let mut bench = TestBench::new(|_| {});
        bench.accept_by_cookie(KEY, 7, NODE);
        bench.passes(KEY);
        let given = || Input::TransferState { node: NODE, key: KEY, first_seq: 7, state: "given" };
        if sent {
            bench.give(given());
        }
        bench.later(Duration::from_millis(1));
        bench.accept_by_cookie(KEY, 9_007, OTHER);
        let told = if sent { bench.give(refused(OTHER)) } else { bench.give(given()) };
        assert_eq!(told, [if sent { "keep" } else { "taken" }]);
        let flow = bench.plane.flows[&KEY];
        assert_eq!(
            (flow.to, bench.load.get(), bench.machine.len()),
            (FlowTarget::Node(OTHER), 1, 1),
            "{sent}"
        );
    }
}

/// A connection that sends a request from time to time is found by the next sweep, at whatever time it was.
#[test]
fn sweep_finds_connections_active_since_the_previous_sweep() {
    let mut bench = TestBench::new(|_| {});
    bench.later(Duration::from_secs(10));
    bench.plane.flows.insert(KEY, flow(FlowTarget::Node(NODE), 7));
    let sweep = |bench: &mut TestBench, seen_ago: u64| {
        bench.give(Input::SweepBegins);
        let seen = Time::from_nanos(bench.plane.now.as_nanos() - seen_ago * 1_000_000);
        let flow = Flow { seen, ..bench.plane.flows[&KEY] };
        let odd = bench.machine.record_seen(KEY, &flow, bench.plane.now);
        let told = if odd { bench.give(Input::Seen { key: KEY, flow }) } else { Vec::new() };
        bench.give(Input::SweepEnds);
        bench.later(Duration::from_secs(2));
        told
    };
    assert!(sweep(&mut bench, 1_900).is_empty(), "at first what rests is let rest");
    assert_eq!(sweep(&mut bench, 1_900), ["stranger"]);
    assert!(sweep(&mut bench, 2_100).is_empty());
}

/// A node may not have a connection that the plane forwards to it, so it is asked.
#[test]
fn adopted_connection_is_verified_at_its_node() {
    let mut bench = TestBench::new(|_| {});
    bench.give(Input::Up { node: NODE });
    bench.process_list(NODE, &[]);
    bench.plane.flows.insert(KEY, flow(FlowTarget::Node(NODE), 7));
    let (decision, load) = bench.load(NODE);
    bench.give(Input::Adopt { key: KEY, decision, load });
    let mut told = Vec::new();
    for _ in 0..3 {
        bench.later(Duration::from_secs(5));
        if bench.give(Input::Tick) == ["ask"] {
            told = bench.process_list(NODE, &[]);
        }
    }
    assert_eq!(told, ["reset None", "ended node_lost Some(1000)"]);
    assert_eq!(bench.load.get(), 0);
}

#[test]
fn each_limit_has_its_outcome() {
    let mut bench = TestBench::new(|settings| {
        (settings.held_max, settings.transfers_max, settings.resumed_max) = (1, 0, 0);
    });
    bench.comes(KEY, 7);
    let first = |key| Input::Packet { key, first: true, packet: Segment(7), late: false };
    assert_eq!(bench.give(first(2)), ["accept 1 for hold_full"]);
    let mut bytes = TestBench::new(|settings| settings.held_bytes_max = 200);
    bytes.comes(KEY, 7);
    assert_eq!(bytes.give(first(2)), ["accept 1 for hold_full"]);
    bench.give(Input::ReleasePlane);
    bench.plane.flows.insert(KEY, flow(FlowTarget::Node(NODE), 7));
    assert_eq!(bench.give(Input::RequestTransfer { node: NODE, key: KEY }), ["keep"]);
    assert_eq!(bench.give(Input::Active { key: 9, node: NODE }), ["idle"], "its next packet is told again");
    let mut moves = TestBench::new(|settings| settings.held_max = 1);
    moves.send(KEY, 7);
    let generation = moves.comes(2, 7);
    let (decision, load) = moves.load(NODE);
    let state =
        Input::SendState { key: 2, generation, decision, load, state: "state", first_seq: 7, complete: true };
    assert_eq!(moves.give(state), ["accept 1 for moves_full"]);
}

#[test]
fn incomplete_header_is_accepted_here_in_time() {
    let mut bench = TestBench::new(|_| {});
    let generation = bench.comes(KEY, 7);
    bench.give(Input::Incomplete { key: KEY, generation });
    let due = bench.machine.due().expect("its time is limited");
    assert_eq!(due.since(bench.now), EdgeSettings::default().header_wait);
    assert!(bench.give(Input::Tick).is_empty());
    bench.now = due;
    assert_eq!(bench.give(Input::Tick), ["accept 1 for incomplete"]);
}

#[test]
fn held_connections_are_accepted_before_another_process_takes_over() {
    let mut bench = TestBench::new(|_| {});
    bench.send(2, 9);
    bench.comes(KEY, 7);
    assert_eq!(bench.give(Input::ReleasePlane), ["accept 1 for reload", "ended silent None"]);
    assert_eq!((bench.load.get(), bench.machine.held(), bench.machine.moves()), (0, 0, 0));
}
