//! The machine by itself. `larder sim faults --protocol edge` runs it against a model of everything around it.

use super::*;
use crate::policy::Reason;
use core::cell::Cell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

struct Bench {
    machine: EdgeMachine<Test>,
    plane: Plane,
    /// Connections that the dispatcher counts.
    load: Rc<Cell<i32>>,
    now: Time,
}

#[derive(Debug)]
struct Test;

impl Parts for Test {
    type Key = u16;
    type Packet = Segment;
    type Load = Counted;
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
struct Counted(Rc<Cell<i32>>, bool);

impl Load for Counted {
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

impl Drop for Counted {
    fn drop(&mut self) {
        self.release(Time::ZERO);
    }
}

#[derive(Default)]
struct Plane {
    flows: BTreeMap<u16, Flow>,
    now: Time,
    /// It has no room for a connection.
    full: bool,
}

impl View<u16> for Plane {
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

impl Bench {
    fn new(change: impl FnOnce(&mut EdgeSettings)) -> Self {
        let mut settings = EdgeSettings::default();
        change(&mut settings);
        let machine = EdgeMachine::new(settings);
        Self { machine, plane: Plane::default(), load: Rc::default(), now: Time::from_secs(10) }
    }

    /// Gives an input, and those that follow from the plane's answers. Returns what is to be done, in a word each.
    fn give(&mut self, input: Input<Test>) -> Vec<String> {
        let (mut inputs, mut told) = (vec![input], Vec::new());
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.machine.handle(self.now, input, &self.plane, &mut out);
            for output in out {
                if let Output::Point { key, to, by } = output {
                    let done = !self.plane.full;
                    if done {
                        self.point(key, to);
                    }
                    inputs.push(Input::Pointed { key, by, done });
                }
                told.extend(word(&output));
            }
        }
        told
    }

    fn point(&mut self, key: u16, to: To) {
        let now = self.plane.now;
        self.plane.flows.entry(key).or_insert(Flow { opened: now, ..flow(to, 0) }).to = to;
    }

    fn load(&self, node: NodeId) -> (Decision, Counted) {
        self.load.set(self.load.get() + 1);
        (Decision { node, reason: Reason::Reuse }, Counted(self.load.clone(), true))
    }

    /// The first packet of a connection comes, with this sequence number; gives the generation.
    fn comes(&mut self, key: u16, seq: u32) -> u64 {
        let opened = self.plane.now;
        self.plane.flows.insert(key, Flow { opened, first_seq: seq, ..flow(To::Held, seq) });
        self.give(Input::Packet { key, first: true, packet: Segment(seq), late: false });
        self.machine.next_undecided().expect("it is to be decided").1
    }

    fn hand(&mut self, key: u16, seq: u32, node: NodeId) -> Vec<String> {
        let generation = self.comes(key, seq);
        let (decision, load) = self.load(node);
        self.give(Input::At { key, generation, decision, load })
    }

    /// Its state is sent to a node.
    fn send(&mut self, key: u16, seq: u32) -> Vec<String> {
        let generation = self.comes(key, seq);
        let (decision, load) = self.load(NODE);
        let state = "state";
        self.give(Input::State { key, generation, decision, load, state, first_seq: seq, complete: true })
    }

    /// A node that drains gives a connection up to another one.
    fn passes(&mut self, key: u16) {
        assert_eq!(self.give(Input::Leave { node: NODE, key }), ["choose"]);
        let next = Some(self.load(OTHER));
        assert_eq!(self.give(Input::Chosen { key, from: NODE, next }), ["point node 4", "give"]);
    }

    /// A node names these, with their numbers. The plane learns of all of them, which is left out here.
    fn named(&mut self, node: NodeId, connections: &[(u16, u32)]) -> Vec<String> {
        let mut told = self.give(Input::Named { node, connections: connections.to_vec(), last: true });
        while self.machine.has_lists() {
            told.extend(self.give(Input::Judge));
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

fn flow(to: To, first_seq: u32) -> Flow {
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

fn word(output: &Output<Test>) -> Option<String> {
    Some(match output {
        Output::Point { to: To::Node(node), .. } => format!("point node {}", node.0),
        Output::Point { .. } => "point here".to_owned(),
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
            Answer::Close => "close",
            Answer::Thaw(..) => "thaw",
            Answer::Abort => "abort",
        }
        .to_owned(),
        Output::Choose { .. } => "choose".to_owned(),
        Output::Tell { say, .. } => format!("{say:?}").to_lowercase(),
        Output::Ask { .. } => "ask".to_owned(),
        Output::Stranger { .. } => "stranger".to_owned(),
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
fn a_connection_counts_at_its_node_until_that_says_it_has_ended() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.hand(KEY, 7, NODE), ["forward 7 to 3", "point node 3"]);
    // A packet that was handed over before the plane knew.
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
fn a_client_is_told_where_the_plane_has_no_room() {
    let mut bench = Bench::new(|_| {});
    bench.plane.full = true;
    let told = bench.hand(KEY, 7, NODE);
    assert_eq!(told[2..], ["reset Some(5)", "ended node_lost Some(1000)"]);
    assert_eq!(bench.load.get(), 0);
}

/// The client has given the connection up while it waited, and the plane knows of the next one already.
#[test]
fn a_decision_takes_no_effect_on_the_next_connection() {
    let mut bench = Bench::new(|_| {});
    let generation = bench.comes(KEY, 7);
    bench.plane.flows.insert(KEY, flow(To::Held, 9_007));
    let (decision, load) = bench.load(NODE);
    assert!(bench.give(Input::At { key: KEY, generation, decision, load }).is_empty());
    assert_eq!((bench.load.get(), bench.machine.len(), bench.machine.held()), (0, 0, 0));
}

/// A packet that comes during a decision asks for no second one, unless the header was not complete.
#[test]
fn a_connection_is_decided_once() {
    let mut bench = Bench::new(|_| {});
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
    bench.give(Input::Waits { key: KEY, generation });
    bench.give(more());
    assert_eq!(bench.machine.next_undecided(), None);
}

/// A socket that was not sent yet is nowhere else, whatever happens to its node, and after a reload none moves.
#[test]
fn a_socket_whose_state_was_not_sent_goes_on_here() {
    for input in [Input::GiveUp { node: NODE }, Input::LetGo] {
        let mut bench = Bench::new(|_| {});
        let (decision, load) = bench.load(NODE);
        bench.give(Input::Move { key: KEY, decision, load, waiter: () });
        assert_eq!(bench.give(input), ["point here", "thaw"]);
        let late = Input::Frozen { key: KEY, id: 1, first_seq: 7, first_ack: 77, state: "socket" };
        assert!(bench.give(late).is_empty());
    }
    let mut bench = Bench::new(|_| {});
    bench.give(Input::LetGo);
    let (decision, load) = bench.load(NODE);
    assert_eq!(bench.give(Input::Move { key: KEY, decision, load, waiter: () }), ["not moved true"]);
}

/// A request that comes while a connection goes to another node counts, and goes on counting there.
#[test]
fn a_connection_that_wakes_on_its_way_counts() {
    let mut bench = Bench::new(|_| {});
    bench.hand(KEY, 7, NODE);
    bench.later(Duration::from_secs(2));
    bench.plane.flows.get_mut(&KEY).expect("it is known").last_ack = 2_000;
    assert_eq!(bench.give(Input::Review { key: KEY }), ["idle", "give back"]);
    bench.give(Input::GiveBack { key: KEY });
    assert_eq!(bench.load.get(), 0);
    bench.passes(KEY);
    assert_eq!(bench.load.get(), 1, "a place at the next node");
    bench.give(Input::Woke { key: KEY, node: OTHER });
    bench.give(Input::GivenUp { node: NODE, key: KEY, first_seq: 7, state: "given" });
    bench.give(Input::Restored { node: OTHER, id: 1 });
    assert_eq!((bench.load.get(), bench.machine.active()), (1, vec![KEY]));
}

#[test]
fn a_state_that_is_refused_comes_back_with_its_packets() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.send(KEY, 7), ["point node 3", "send state 7 then 0"]);
    bench.plane.flows.get_mut(&KEY).expect("it is known").answered = false;
    assert_eq!(bench.give(refused(OTHER)), [""; 0], "a number of another node");
    assert_eq!(bench.give(refused(NODE)), ["accept 1 for failed"]);
    assert_eq!((bench.load.get(), bench.machine.len()), (0, 0), "with its load, which is dropped here");
}

#[test]
fn an_answer_that_does_not_come_costs_the_client_its_connection_once() {
    let mut bench = Bench::new(|_| {});
    bench.send(KEY, 7);
    bench.later(Duration::from_secs(31));
    assert_eq!(bench.give(Input::Tick), ["reset None", "ended node_lost Some(1000)"]);
    assert_eq!(bench.give(Input::Restored { node: NODE, id: 1 }), [""; 0], "too late");
    assert_eq!(bench.load.get(), 0);
}

/// A node that names the addresses may still have the connection before.
#[test]
fn a_list_with_an_earlier_connection_does_not_say_that_a_state_has_arrived() {
    for (number, expected) in [(6, "accept 1 for failed"), (7, ""), (0, "")] {
        let mut bench = Bench::new(|_| {});
        bench.give(Input::Up { node: NODE });
        bench.named(NODE, &[]);
        bench.send(KEY, 7);
        bench.plane.flows.get_mut(&KEY).expect("it is known").answered = false;
        bench.give(Input::Up { node: NODE });
        assert!(bench.named(NODE, &[(KEY, number)]).is_empty(), "the first list may be older than the state");
        let told = bench.named(NODE, &[(KEY, number)]);
        assert_eq!(told.first().map_or("", |first| first), expected, "{number}");
        assert_eq!(bench.machine.moves(), 0, "{number}");
    }
}

/// Only the socket knew the numbers of a moved connection, if its client has sent nothing since.
#[test]
fn clients_of_moved_connections_are_told_with_the_sockets_numbers() {
    let mut bench = Bench::new(|_| {});
    let (decision, load) = bench.load(NODE);
    assert_eq!(bench.give(Input::Move { key: KEY, decision, load, waiter: () }), ["point node 3", "freeze"]);
    let frozen = Input::Frozen { key: KEY, id: 1, first_seq: 7, first_ack: 77, state: "socket" };
    assert_eq!(bench.give(frozen), ["send socket 7 then 0"]);
    assert_eq!(bench.give(Input::Restored { node: NODE, id: 1 }), ["close"]);
    assert_eq!(bench.give(Input::Dead { node: NODE })[0], "reset Some(77)");
    assert_eq!(bench.load.get(), 0);
}

#[test]
fn a_connection_goes_to_another_node_with_its_load() {
    let mut bench = Bench::new(|_| {});
    bench.hand(KEY, 7, NODE);
    bench.passes(KEY);
    let given = Input::GivenUp { node: NODE, key: KEY, first_seq: 7, state: "given" };
    assert_eq!(bench.give(given), ["send given 7 then 0"]);
    assert_eq!(bench.give(Input::Restored { node: OTHER, id: 1 }), ["taken"]);
    assert_eq!(bench.machine.connection(KEY).map(|one| one.decision.node), Some(OTHER));
    assert_eq!(bench.load.get(), 1);
}

/// The client has begun another connection with the addresses of one that passes. Neither its state nor an answer about it is
/// the new connection's.
#[test]
fn a_connection_that_passes_leaves_the_next_one_alone() {
    for sent in [false, true] {
        let mut bench = Bench::new(|_| {});
        bench.hand(KEY, 7, NODE);
        bench.passes(KEY);
        let given = || Input::GivenUp { node: NODE, key: KEY, first_seq: 7, state: "given" };
        if sent {
            bench.give(given());
        }
        bench.later(Duration::from_millis(1));
        bench.hand(KEY, 9_007, OTHER);
        let told = if sent { bench.give(refused(OTHER)) } else { bench.give(given()) };
        assert_eq!(told, [if sent { "keep" } else { "taken" }]);
        let flow = bench.plane.flows[&KEY];
        assert_eq!((flow.to, bench.load.get(), bench.machine.len()), (To::Node(OTHER), 1, 1), "{sent}");
    }
}

/// A connection that sends a request from time to time is found by the next sweep, whenever it was.
#[test]
fn a_sweep_finds_what_has_sent_something_since_the_one_before() {
    let mut bench = Bench::new(|_| {});
    bench.later(Duration::from_secs(10));
    bench.plane.flows.insert(KEY, flow(To::Node(NODE), 7));
    let sweep = |bench: &mut Bench, seen_ago: u64| {
        bench.give(Input::SweepBegins);
        let seen = Time::from_nanos(bench.plane.now.as_nanos() - seen_ago * 1_000_000);
        let flow = Flow { seen, ..bench.plane.flows[&KEY] };
        let odd = bench.machine.note_seen(KEY, &flow, bench.plane.now);
        let told = if odd { bench.give(Input::Seen { key: KEY, flow }) } else { Vec::new() };
        bench.give(Input::SweepEnds);
        bench.later(Duration::from_secs(2));
        told
    };
    assert!(sweep(&mut bench, 1_900).is_empty(), "at first what rests is let rest");
    assert_eq!(sweep(&mut bench, 1_900), ["stranger"]);
    assert!(sweep(&mut bench, 2_100).is_empty());
}

/// A node may not have a connection that the plane forwards to it: it is asked.
#[test]
fn an_adopted_connection_is_looked_for_at_its_node() {
    let mut bench = Bench::new(|_| {});
    bench.give(Input::Up { node: NODE });
    bench.named(NODE, &[]);
    bench.plane.flows.insert(KEY, flow(To::Node(NODE), 7));
    let (decision, load) = bench.load(NODE);
    bench.give(Input::Adopt { key: KEY, decision, load });
    let mut told = Vec::new();
    for _ in 0..3 {
        bench.later(Duration::from_secs(5));
        if bench.give(Input::Tick) == ["ask"] {
            told = bench.named(NODE, &[]);
        }
    }
    assert_eq!(told, ["reset None", "ended node_lost Some(1000)"]);
    assert_eq!(bench.load.get(), 0);
}

#[test]
fn each_limit_has_its_outcome() {
    let mut bench = Bench::new(|settings| {
        (settings.held_max, settings.transfers_max, settings.resumed_max) = (1, 0, 0);
    });
    bench.comes(KEY, 7);
    let first = |key| Input::Packet { key, first: true, packet: Segment(7), late: false };
    assert_eq!(bench.give(first(2)), ["accept 1 for hold_full"]);
    let mut bytes = Bench::new(|settings| settings.held_bytes_max = 200);
    bytes.comes(KEY, 7);
    assert_eq!(bytes.give(first(2)), ["accept 1 for hold_full"]);
    bench.give(Input::LetGo);
    bench.plane.flows.insert(KEY, flow(To::Node(NODE), 7));
    assert_eq!(bench.give(Input::Leave { node: NODE, key: KEY }), ["keep"]);
    assert_eq!(bench.give(Input::Woke { key: 9, node: NODE }), ["idle"], "its next packet is told again");
    let mut moves = Bench::new(|settings| settings.held_max = 1);
    moves.send(KEY, 7);
    let generation = moves.comes(2, 7);
    let (decision, load) = moves.load(NODE);
    let state =
        Input::State { key: 2, generation, decision, load, state: "state", first_seq: 7, complete: true };
    assert_eq!(moves.give(state), ["accept 1 for moves_full"]);
}

#[test]
fn a_header_that_does_not_come_is_accepted_here_in_time() {
    let mut bench = Bench::new(|_| {});
    let generation = bench.comes(KEY, 7);
    bench.give(Input::Incomplete { key: KEY, generation });
    let due = bench.machine.due().expect("its time is limited");
    assert_eq!(due.since(bench.now), EdgeSettings::default().header_wait);
    assert!(bench.give(Input::Tick).is_empty());
    bench.now = due;
    assert_eq!(bench.give(Input::Tick), ["accept 1 for incomplete"]);
}

#[test]
fn another_process_gets_nothing_that_is_held_here() {
    let mut bench = Bench::new(|_| {});
    bench.send(2, 9);
    bench.comes(KEY, 7);
    assert_eq!(bench.give(Input::LetGo), ["accept 1 for reload", "ended silent None"]);
    assert_eq!((bench.load.get(), bench.machine.held(), bench.machine.moves()), (0, 0, 0));
}
