//! Addresses that come again, where this host's stack answers SYNs: what proves a new connection is the number of the answer.

use super::packet::{ACK, FIN, MSS, Packet, RST, SYN, is_forwarded};
use super::{Bench, Fate, all_on, everywhere};
use crate::abi::{flow_flag, flow_state};
use crate::plane::{FlowTo, ServiceSpec};

/// What the client has sent on the connection before, and what the stack answers the next one with.
const LAST: u32 = 0x7000_0000;
const ANSWER: u32 = 0x5000_0000;

fn stack_answers() -> ServiceSpec {
    ServiceSpec { cookie: false, grace: false, ..all_on() }
}

fn packet(bench: &Bench, flags: u8, seq: u32, ack: u32) -> Packet {
    let mut packet = bench.packet().flags(flags);
    (packet.seq, packet.ack) = (seq, ack);
    packet
}

/// From this host.
fn outwards(bench: &Bench, flags: u8, seq: u32, ack: u32) -> Fate {
    let mut packet = packet(bench, flags, seq, ack);
    (packet.from, packet.to) = (packet.to, packet.from);
    bench.run_egress(&packet.frame())
}

/// A SYN comes by.
fn syn(bench: &Bench, isn: u32) {
    let mut syn = bench.packet().syn(&[&MSS]);
    syn.seq = isn;
    assert_eq!(bench.run(&syn.frame()), Fate::Passed);
}

/// A SYN comes by, and the stack answers it. The client's first segment.
fn begins(bench: &Bench, isn: u32) -> Packet {
    syn(bench, isn);
    let next = isn.wrapping_add(1);
    assert_eq!(outwards(bench, SYN | ACK, ANSWER, next), Fate::Passed);
    packet(bench, ACK, next, ANSWER + 1).payload(b"GET ")
}

fn flags(bench: &Bench) -> u8 {
    bench.plane.flow(bench.key()).expect("the flow").flags
}

/// A connection, of which something or nothing is known.
fn entered(bench: &Bench, to: FlowTo, seen: bool) {
    let _ = bench.plane.remove_flow(bench.key());
    bench.plane.put_flow(bench.key(), to).expect("a flow");
    if seen {
        bench.plane.note_frozen(bench.key(), LAST, 1).expect("noted");
    }
}

#[test]
fn whoever_acknowledges_the_answer_has_a_new_connection_whatever_its_numbers() {
    everywhere(stack_answers(), |bench| {
        for isn in [0, LAST - 2, LAST - 1, LAST, LAST + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            for (to, seen) in [
                (FlowTo::Reset, false),
                (FlowTo::Reset, true),
                (FlowTo::Node(7), false),
                (FlowTo::Node(7), true),
            ] {
                entered(bench, to, seen);
                let mut next = begins(bench, isn);
                // The first segment may be lost, or overtaken.
                next.seq = next.seq.wrapping_add(1_400);
                assert_eq!(bench.run(&next.frame()), Fate::Passed, "{isn:#x} {to:?} {seen}");
                assert!(bench.plane.flow(bench.key()).is_none(), "{isn:#x} {to:?} {seen}");
            }
        }
        assert_eq!(bench.counter("reused"), 8 * 4);
    });
}

/// SYN and segment of somebody who does not see the answer, and late copies of those of an earlier connection.
#[test]
fn whoever_does_not_leaves_the_connection_alone() {
    everywhere(stack_answers(), |bench| {
        for isn in [1, LAST - 2, LAST + 5, 0x9000_0000] {
            for (seen, end) in [(false, 0), (true, 0), (true, flow_flag::CLIENT_FIN)] {
                entered(bench, FlowTo::Node(7), seen);
                bench.plane.add_flags(bench.key(), end).expect("flags");
                // Before the stack has answered, and after it.
                syn(bench, isn);
                let forged = packet(bench, ACK, isn.wrapping_add(1), 1).payload(b"GET ");
                is_forwarded(&bench.run(&forged.frame()).sent(), &forged);
                begins(bench, isn);
                for ack in [0, ANSWER, ANSWER + 2, 0x7777_7777] {
                    let forged = packet(bench, ACK, isn.wrapping_add(1), ack).payload(b"GET ");
                    is_forwarded(&bench.run(&forged.frame()).sent(), &forged);
                }
                assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.state), Some(flow_state::NODE));
            }
        }
        assert_eq!(bench.counter("reused"), 0);
    });
}

/// Where the plane answers SYNs, which at tc leave by the same hook, a cookie is the proof and nothing else.
#[test]
fn the_planes_own_answer_is_none_of_the_stacks() {
    everywhere(all_on(), |bench| {
        entered(bench, FlowTo::Node(7), true);
        let mut syn = bench.packet().syn(&[&MSS]);
        syn.seq = 0x1000_0000;
        let answer = bench.run(&syn.frame()).sent();
        assert_eq!(bench.run_egress(&answer), Fate::Passed);
        assert_eq!(flags(bench) & (flow_flag::SYN_SEEN | flow_flag::ANSWERED), flow_flag::SYN_SEEN);
    });
}

/// Its answer may have left by an interface that the plane does not see.
#[test]
fn what_is_lost_gives_way_to_what_follows_a_syn() {
    everywhere(stack_answers(), |bench| {
        entered(bench, FlowTo::Reset, true);
        syn(bench, 0x1000_0000);
        assert_eq!(
            bench.run(&packet(bench, ACK, 0x1000_0000, 9).frame()).sent().len(),
            54 + 20 * usize::from(bench.v6)
        );
        assert_eq!(bench.run(&packet(bench, ACK, 0x1000_0001, 9).frame()), Fate::Passed);
        assert!(bench.plane.flow(bench.key()).is_none());
    });
}

/// A handshake here that the client has given up must not keep its next SYN from being answered: the reset that says so is for the
/// stack, and says nothing of the connection that a node has.
#[test]
fn a_reset_of_a_handshake_is_for_the_stack() {
    everywhere(stack_answers(), |bench| {
        for (to, seen, isn) in [
            (FlowTo::Node(7), true, 0x1000_0000),
            (FlowTo::Node(7), true, LAST - 500),
            (FlowTo::Node(7), false, 0x1000_0000),
            (FlowTo::Reset, false, 0x1000_0000),
        ] {
            entered(bench, to, seen);
            let next = begins(bench, isn);
            assert_eq!(bench.run(&packet(bench, RST, next.seq, 0).frame()), Fate::Passed);
            assert_eq!(flags(bench) & flow_flag::CLIENT_RST, 0);
            let own = packet(bench, RST, LAST, 0);
            let fate = bench.run(&own.frame());
            match to {
                FlowTo::Node(_) => {
                    is_forwarded(&fate.sent(), &own);
                    // If no number was seen, the node reports the end.
                    assert_eq!(flags(bench) & flow_flag::CLIENT_RST != 0, seen);
                }
                _ => assert_eq!(fate, Fate::Dropped),
            }
        }
    });
}

/// The socket of a connection on its way is silent, but that it asks whether a SYN was its client's. What it asks with acknowledges
/// nothing that came after its state was read.
#[test]
fn a_frozen_socket_asks_about_a_syn_and_says_nothing_else() {
    everywhere(stack_answers(), |bench| {
        entered(bench, FlowTo::Node(7), true);
        let says = |flags, ack| outwards(bench, flags, 1, ack);
        assert_eq!(says(ACK, LAST), Fate::Dropped, "nobody has asked");
        syn(bench, 0x1000_0000);
        assert_eq!([says(ACK, LAST), says(ACK, LAST + 1)], [Fate::Passed, Fate::Passed]);
        assert_eq!([says(ACK, LAST - 1), says(ACK, LAST + 2)], [Fate::Dropped, Fate::Dropped]);
        for flags in [RST, RST | ACK, FIN | ACK] {
            assert_eq!(says(flags, LAST), Fate::Dropped, "{flags}");
        }
        let mut data = packet(bench, ACK, 1, LAST).payload(b"x");
        (data.from, data.to) = (data.to, data.from);
        assert_eq!(bench.run_egress(&data.frame()), Fate::Dropped);
        // What the client's host answers; not what somebody guesses.
        for (seq, denied) in [(LAST + (1 << 20), 0), (LAST - 1, 0), (LAST + 2, 0), (LAST, 1)] {
            bench.run(&packet(bench, RST, seq, 0).frame()).sent();
            assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.denied), Some(denied), "{seq:#x}");
        }
    });
}

/// The stack asks so too, of a handshake that has another number.
#[test]
fn a_handshake_asks_about_another_syn() {
    everywhere(stack_answers(), |bench| {
        entered(bench, FlowTo::Node(7), false);
        let next = begins(bench, 0x1000_0000);
        assert_eq!(outwards(bench, ACK, ANSWER + 1, next.seq), Fate::Passed);
        assert_eq!(outwards(bench, ACK, ANSWER + 1, next.seq + 1), Fate::Dropped);
        assert_eq!(outwards(bench, ACK, ANSWER, next.seq), Fate::Dropped);
    });
}

/// What user space knows does not displace what packets have told.
#[test]
fn numbers_are_noted_while_nothing_is_known() {
    everywhere(stack_answers(), |bench| {
        let seen = || bench.plane.flow(bench.key()).map(|flow| (flow.last_seq, flow.last_ack));
        entered(bench, FlowTo::Node(7), true);
        assert_eq!(seen(), Some((LAST, 1)));
        bench.plane.note_frozen(bench.key(), 5, 6).expect("known");
        assert_eq!(seen(), Some((LAST, 1)));
        entered(bench, FlowTo::Node(7), false);
        bench.run(&packet(bench, ACK, 100, 200).frame()).sent();
        bench.plane.note_frozen(bench.key(), 5, 6).expect("known");
        assert_eq!(seen(), Some((100, 200)));
        bench.plane.remove_flow(bench.key()).expect("removed");
        assert!(bench.plane.note_frozen(bench.key(), 5, 6).is_err());
    });
}

/// Between a look and a change addresses may become another connection's.
#[test]
fn a_change_from_a_state_that_is_no_more_is_none() {
    everywhere(stack_answers(), |bench| {
        let change = |from| bench.plane.put_flow_from(bench.key(), from, FlowTo::Reset).is_ok();
        assert!(!change(flow_state::NODE) && bench.plane.flow(bench.key()).is_none());
        entered(bench, FlowTo::Node(7), false);
        assert!(!change(flow_state::RESET) && change(flow_state::NODE));
        assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.state), Some(flow_state::RESET));
    });
}
