//! Reused addresses if this host's stack answers SYNs: the number in the answer proves a new connection.

use super::packet::{ACK, FIN, MSS, Packet, RST, SYN, is_forwarded};
use super::{Bench, Fate, for_each_setup, full_service};
use crate::abi::{flow_flag, flow_state};
use crate::plane::{FlowDestination, ServiceSpec};

/// The client's last number on the previous connection, and the number of the stack's answer to the next one.
const LAST: u32 = 0x7000_0000;
const ANSWER: u32 = 0x5000_0000;

fn stack_answers() -> ServiceSpec {
    ServiceSpec { cookie: false, grace: false, ..full_service() }
}

fn packet(bench: &Bench, flags: u8, seq: u32, ack: u32) -> Packet {
    let mut packet = bench.packet().flags(flags);
    (packet.seq, packet.ack) = (seq, ack);
    packet
}

/// A packet of this host.
fn outwards(bench: &Bench, flags: u8, seq: u32, ack: u32) -> Fate {
    let mut packet = packet(bench, flags, seq, ack);
    (packet.from, packet.to) = (packet.to, packet.from);
    bench.run_egress(&packet.frame())
}

/// Passes a SYN through the plane.
fn syn(bench: &Bench, isn: u32) {
    let mut syn = bench.packet().syn(&[&MSS]);
    syn.seq = isn;
    assert_eq!(bench.run(&syn.frame()), Fate::Passed);
}

/// Passes a SYN through the plane and lets the stack answer it. Returns the client's first segment.
fn begins(bench: &Bench, isn: u32) -> Packet {
    syn(bench, isn);
    let next = isn.wrapping_add(1);
    assert_eq!(outwards(bench, SYN | ACK, ANSWER, next), Fate::Passed);
    packet(bench, ACK, next, ANSWER + 1).payload(b"GET ")
}

fn flags(bench: &Bench) -> u8 {
    bench.plane.flow(bench.key()).expect("the flow").flags
}

/// A connection of which some numbers are known, or none.
fn put_flow(bench: &Bench, to: FlowDestination, seen: bool) {
    let _ = bench.plane.remove_flow(bench.key());
    bench.plane.put_flow(bench.key(), to).expect("a flow");
    if seen {
        bench.plane.note_frozen(bench.key(), LAST, 1).expect("noted");
    }
}

#[test]
fn acknowledged_syn_ack_replaces_the_flow() {
    for_each_setup(stack_answers(), |bench| {
        for isn in [0, LAST - 2, LAST - 1, LAST, LAST + 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
            for (to, seen) in [
                (FlowDestination::Reset, false),
                (FlowDestination::Reset, true),
                (FlowDestination::Node(7), false),
                (FlowDestination::Node(7), true),
            ] {
                put_flow(bench, to, seen);
                let mut next = begins(bench, isn);
                // The first segment may be lost or overtaken.
                next.seq = next.seq.wrapping_add(1_400);
                assert_eq!(bench.run(&next.frame()), Fate::Passed, "{isn:#x} {to:?} {seen}");
                assert!(bench.plane.flow(bench.key()).is_none(), "{isn:#x} {to:?} {seen}");
            }
        }
        assert_eq!(bench.counter("reused"), 8 * 4);
    });
}

/// SYN and segment of an attacker who does not see the answer, and late copies of an earlier connection.
#[test]
fn unacknowledged_syn_ack_keeps_the_flow() {
    for_each_setup(stack_answers(), |bench| {
        for isn in [1, LAST - 2, LAST + 5, 0x9000_0000] {
            for (seen, end) in [(false, 0), (true, 0), (true, flow_flag::CLIENT_FIN)] {
                put_flow(bench, FlowDestination::Node(7), seen);
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

/// If the plane answers SYNs, which leave by the same hook in tc, only a cookie is a proof.
#[test]
fn plane_syn_ack_is_not_noted_as_stack_syn_ack() {
    for_each_setup(full_service(), |bench| {
        put_flow(bench, FlowDestination::Node(7), true);
        let mut syn = bench.packet().syn(&[&MSS]);
        syn.seq = 0x1000_0000;
        let answer = bench.run(&syn.frame()).sent();
        assert_eq!(bench.run_egress(&answer), Fate::Passed);
        assert_eq!(flags(bench) & (flow_flag::SYN_SEEN | flow_flag::STACK_SYN_ACK), flow_flag::SYN_SEEN);
    });
}

/// The answer may have left through an interface that the plane does not see.
#[test]
fn reset_flow_is_replaced_after_a_syn() {
    for_each_setup(stack_answers(), |bench| {
        put_flow(bench, FlowDestination::Reset, true);
        syn(bench, 0x1000_0000);
        assert_eq!(
            bench.run(&packet(bench, ACK, 0x1000_0000, 9).frame()).sent().len(),
            54 + 20 * usize::from(bench.v6)
        );
        assert_eq!(bench.run(&packet(bench, ACK, 0x1000_0001, 9).frame()), Fate::Passed);
        assert!(bench.plane.flow(bench.key()).is_none());
    });
}

/// A handshake that the client has abandoned must not keep its next SYN from being answered: the reset that says so is
/// for the stack, and says nothing of the connection that a node has.
#[test]
fn reset_of_a_handshake_goes_to_the_stack() {
    for_each_setup(stack_answers(), |bench| {
        for (to, seen, isn) in [
            (FlowDestination::Node(7), true, 0x1000_0000),
            (FlowDestination::Node(7), true, LAST - 500),
            (FlowDestination::Node(7), false, 0x1000_0000),
            (FlowDestination::Reset, false, 0x1000_0000),
        ] {
            put_flow(bench, to, seen);
            let next = begins(bench, isn);
            assert_eq!(bench.run(&packet(bench, RST, next.seq, 0).frame()), Fate::Passed);
            assert_eq!(flags(bench) & flow_flag::CLIENT_RST, 0);
            let own = packet(bench, RST, LAST, 0);
            let fate = bench.run(&own.frame());
            match to {
                FlowDestination::Node(_) => {
                    is_forwarded(&fate.sent(), &own);
                    // If no number was seen, the node reports the end.
                    assert_eq!(flags(bench) & flow_flag::CLIENT_RST != 0, seen);
                }
                _ => assert_eq!(fate, Fate::Dropped),
            }
        }
    });
}

/// The socket of a moving connection is silent, except that it sends challenge ACKs for a SYN. They acknowledge nothing
/// that arrived after its state was read.
#[test]
fn frozen_socket_sends_only_challenge_acks() {
    for_each_setup(stack_answers(), |bench| {
        put_flow(bench, FlowDestination::Node(7), true);
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
        // The reply of the client's host counts; a guess does not.
        for (seq, denied) in [(LAST + (1 << 20), 0), (LAST - 1, 0), (LAST + 2, 0), (LAST, 1)] {
            bench.run(&packet(bench, RST, seq, 0).frame()).sent();
            assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.denied), Some(denied), "{seq:#x}");
        }
    });
}

/// The stack also sends challenge ACKs for a handshake that has another number.
#[test]
fn handshake_sends_challenge_ack_for_another_syn() {
    for_each_setup(stack_answers(), |bench| {
        put_flow(bench, FlowDestination::Node(7), false);
        let next = begins(bench, 0x1000_0000);
        assert_eq!(outwards(bench, ACK, ANSWER + 1, next.seq), Fate::Passed);
        assert_eq!(outwards(bench, ACK, ANSWER + 1, next.seq + 1), Fate::Dropped);
        assert_eq!(outwards(bench, ACK, ANSWER, next.seq), Fate::Dropped);
    });
}

/// Numbers from user space do not replace those of packets.
#[test]
fn frozen_numbers_are_noted_only_while_unknown() {
    for_each_setup(stack_answers(), |bench| {
        let seen = || bench.plane.flow(bench.key()).map(|flow| (flow.last_seq, flow.last_ack));
        put_flow(bench, FlowDestination::Node(7), true);
        assert_eq!(seen(), Some((LAST, 1)));
        bench.plane.note_frozen(bench.key(), 5, 6).expect("known");
        assert_eq!(seen(), Some((LAST, 1)));
        put_flow(bench, FlowDestination::Node(7), false);
        bench.run(&packet(bench, ACK, 100, 200).frame()).sent();
        bench.plane.note_frozen(bench.key(), 5, 6).expect("known");
        assert_eq!(seen(), Some((100, 200)));
        bench.plane.remove_flow(bench.key()).expect("removed");
        assert!(bench.plane.note_frozen(bench.key(), 5, 6).is_err());
    });
}

/// Between a read and a change, the addresses may become those of another connection.
#[test]
fn change_from_another_state_is_refused() {
    for_each_setup(stack_answers(), |bench| {
        let change = |from| bench.plane.put_flow_from(bench.key(), from, FlowDestination::Reset).is_ok();
        assert!(!change(flow_state::NODE) && bench.plane.flow(bench.key()).is_none());
        put_flow(bench, FlowDestination::Node(7), false);
        assert!(!change(flow_state::RESET) && change(flow_state::NODE));
        assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.state), Some(flow_state::RESET));
    });
}
