//! RSTs and FINs that end a connection, and connections that continue after one.

use super::packet::{ACK, FIN, Packet, RST, is_forwarded};
use super::{Bench, KEYS, OwnedEvent, for_each_setup, full_service};
use crate::abi::flow_flag;
use crate::plane::FlowDestination;

fn data(bench: &Bench, at: u32, payload: &[u8]) -> Packet {
    bench.packet().opened(KEYS[0], at).payload(payload)
}

/// A packet that acknowledges this much of the reply.
fn acks(bench: &Bench, at: u32, bytes: u32) -> Packet {
    let mut packet = data(bench, at, b"");
    packet.ack = packet.ack.wrapping_add(bytes);
    packet
}

/// A connection whose client has sent 5 bytes.
fn open_flow(bench: &Bench) {
    bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
    bench.run(&data(bench, 0, b"12345").frame()).sent();
}

fn flags(bench: &Bench) -> u8 {
    bench.plane.flow(bench.key()).expect("the flow").flags
}

/// Offsets from the next number, from a byte to a whole window.
const OFF: [u32; 8] = [1, 2, 100, 1_460, 65_535, u32::MAX, u32::MAX - 3, u32::MAX - 65_535];

#[test]
fn inexact_end_is_forwarded_and_counted() {
    for_each_setup(full_service(), |bench| {
        open_flow(bench);
        for kind in [RST, RST | ACK, FIN | ACK] {
            for off in OFF {
                let packet = data(bench, 5_u32.wrapping_add(off), b"").flags(kind);
                is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
                assert_eq!((bench.events(), flags(bench)), (vec![], 0), "{kind} at {off:#x}");
            }
        }
        // The FIN at -1 looks like a retransmission.
        assert_eq!(bench.counter("inexact_end"), 3 * 8 - 1);
        bench.run(&data(bench, 5, b"67").flags(FIN | ACK).frame()).sent();
        assert_eq!(bench.events(), [OwnedEvent::Ended { node: 7, flags: flow_flag::CLIENT_FIN }]);
    });
}

/// Bytes after a gap do not change the number that an end must have, not even when the gap is partly filled.
#[test]
fn out_of_order_bytes_do_not_make_an_end_exact() {
    for_each_setup(full_service(), |bench| {
        open_flow(bench);
        bench.run(&data(bench, 1_000, b"forged").frame()).sent();
        bench.run(&data(bench, 1_006, b"").flags(RST).frame()).sent();
        bench.run(&data(bench, 1_006, b"").flags(FIN | ACK).frame()).sent();
        bench.run(&data(bench, 5, b"6789").frame()).sent();
        bench.run(&data(bench, 1_006, b"").flags(RST).frame()).sent();
        assert_eq!((bench.events(), flags(bench)), (vec![], 0));
        bench.run(&data(bench, 9, b"").flags(RST).frame()).sent();
        assert_eq!(bench.events(), [OwnedEvent::Ended { node: 7, flags: flow_flag::CLIENT_RST }]);
    });
}

/// If user space has made the entry, no sequence number is known.
#[test]
fn reset_with_unknown_numbers_is_ignored() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        bench.run(&data(bench, 5, b"").flags(RST).frame()).sent();
        assert_eq!((bench.events(), bench.counter("inexact_end")), (vec![], 1));
    });
}

#[test]
fn connection_that_continues_after_a_reset_is_reported() {
    type Next = fn(&Bench) -> Packet;
    let expect_forwarded: [Next; 2] = [|bench| acks(bench, 5, 1_000), |bench| data(bench, 5, b"more")];
    for next in expect_forwarded {
        for_each_setup(full_service(), |bench| {
            open_flow(bench);
            bench.run(&data(bench, 5, b"").flags(RST).frame()).sent();
            assert!(matches!(bench.events().as_slice(), [OwnedEvent::Ended { node: 7, .. }]));
            // Late copies, and replies of the client's host to the node's packets.
            bench.run(&data(bench, 0, b"12345").frame()).sent();
            bench.run(&data(bench, 5, b"").frame()).sent();
            bench.run(&data(bench, 5, b"").flags(RST).frame()).sent();
            assert_eq!(bench.events(), []);
            bench.run(&next(bench).frame()).sent();
            bench.run(&acks(bench, 9, 2_000).frame()).sent();
            assert_eq!(bench.events(), [OwnedEvent::Resumed { node: 7 }], "once");
            // Once its node has it, it can end again.
            let ends = flow_flag::CLIENT_RST | flow_flag::END_REPORTED | flow_flag::IDLE;
            bench.plane.clear_flags(bench.key(), ends).expect("cleared");
            let at = bench.plane.flow(bench.key()).expect("the flow").next_seq;
            let mut rst = data(bench, 0, b"").flags(RST);
            rst.seq = at;
            bench.run(&rst.frame()).sent();
            assert!(matches!(bench.events().as_slice(), [OwnedEvent::Ended { node: 7, .. }]));
        });
    }
}

/// User space has taken a silence for the end.
#[test]
fn connection_that_continues_after_its_end_is_reported() {
    for_each_setup(full_service(), |bench| {
        open_flow(bench);
        bench.run(&data(bench, 5, b"").flags(FIN | ACK).frame()).sent();
        bench.run(&acks(bench, 6, 1_000).frame()).sent();
        bench.events();
        bench.plane.add_flags(bench.key(), flow_flag::IDLE).expect("marked");
        // The node's FIN.
        bench.run(&acks(bench, 6, 1_001).frame()).sent();
        assert_eq!(bench.events(), []);
        bench.run(&acks(bench, 6, 3_000).frame()).sent();
        assert_eq!(bench.events(), [OwnedEvent::Resumed { node: 7 }]);
    });
}
