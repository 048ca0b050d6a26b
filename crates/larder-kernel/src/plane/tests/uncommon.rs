//! TCP packets with IP options, extension headers, or in fragments.

use super::packet::{ACK, FIN, Packet, RST, SYN};
use super::{Bench, Fate, KEYS, NODE_MAC, OUR_MAC, for_each_setup, full_service};
use crate::abi::flow_state;
use crate::frame::{checksum, set_ip_checksum};
use crate::plane::FlowDestination;

/// Three no-operations and the end of the options.
const OPTIONS: [u8; 4] = [1, 1, 1, 0];
const ID: [u8; 4] = [0, 0, 0x77, 0x66];

fn lengthen(frame: &mut [u8], by: u16, v6: bool) {
    let at = if v6 { 18 } else { 16 };
    let length = u16::from_be_bytes([frame[at], frame[at + 1]]) + by;
    frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

fn set_checksum(frame: &mut [u8]) {
    let header = 14 + usize::from(frame[14] & 15) * 4;
    set_ip_checksum(&mut frame[14..header]);
}

/// The packet with IPv4 options, or with a hop-by-hop and a destination header of IPv6.
fn with_options(packet: &Packet, v6: bool) -> Vec<u8> {
    let mut frame = packet.frame();
    if v6 {
        frame[20] = 0;
        lengthen(&mut frame, 24, true);
        let headers = [[60, 0, 1, 4, 0, 0, 0, 0], [6, 1, 1, 12, 0, 0, 0, 0], [0; 8]].concat();
        frame.splice(54..54, headers);
    } else {
        frame[14] = 0x46;
        lengthen(&mut frame, 4, false);
        frame.splice(34..34, OPTIONS);
        set_checksum(&mut frame);
    }
    frame
}

/// The packet in two fragments, cut 40 bytes after the IP header.
fn fragments(packet: &Packet, v6: bool) -> [Vec<u8>; 2] {
    const CUT: usize = 40;
    let whole = packet.frame();
    let l4 = if v6 { 54 } else { 34 };
    let piece = |from: usize, to: usize, more: bool| {
        let offset = (from - l4) as u16;
        let mut frame = whole[..l4].to_vec();
        if v6 {
            frame[20] = 44;
            let [high, low] = (offset | u16::from(more)).to_be_bytes();
            frame.extend([6, 0, high, low]);
            frame.extend(ID);
        } else {
            let field = (offset / 8) | if more { 0x2000 } else { 0 };
            frame[18..20].copy_from_slice(&ID[2..]);
            frame[20..22].copy_from_slice(&field.to_be_bytes());
        }
        frame.extend(&whole[from..to]);
        let length = (frame.len() - if v6 { 54 } else { 14 }) as u16;
        let at = if v6 { 18 } else { 16 };
        frame[at..at + 2].copy_from_slice(&length.to_be_bytes());
        if !v6 {
            set_checksum(&mut frame);
        }
        frame
    };
    [piece(l4, l4 + CUT, true), piece(l4 + CUT, whole.len(), false)]
}

fn data(bench: &Bench) -> Packet {
    bench.packet().opened(KEYS[0], 0).payload(&[b'x'; 100])
}

/// Checks that the frame goes to the node with its hop limit decremented, and otherwise unchanged.
#[track_caller]
fn expect_forwarded(bench: &Bench, frame: &[u8]) {
    let sent = bench.run(frame).sent();
    assert_eq!([&sent[..6], &sent[6..12]], [NODE_MAC, OUR_MAC]);
    let (hops, l3) = if bench.v6 { (21, 22) } else { (22, 26) };
    assert_eq!((sent[hops], &sent[l3..]), (63, &frame[l3..]));
    if !bench.v6 {
        assert_eq!(checksum(&[&sent[14..14 + usize::from(sent[14] & 15) * 4]]), 0);
    }
}

#[test]
fn packets_of_handed_off_connections_are_forwarded() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        expect_forwarded(bench, &with_options(&data(bench), bench.v6));
        for piece in fragments(&data(bench), bench.v6) {
            expect_forwarded(bench, &piece);
        }
        assert_eq!((bench.counter("uncommon"), bench.counter("uncommon_lost")), (3, 0));
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.packets, flow.last_seq), (0, 0), "nothing is noted of them");
    });
}

#[test]
fn packets_that_must_be_inspected_are_dropped_and_counted() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        for flags in [RST, FIN | ACK, SYN] {
            assert_eq!(bench.run(&with_options(&data(bench).flags(flags), bench.v6)), Fate::Dropped);
        }
        bench.plane.put_flow(bench.key(), FlowDestination::Hold).expect("a flow");
        assert_eq!(bench.run(&with_options(&data(bench), bench.v6)), Fate::Dropped);
        assert_eq!(bench.plane.flow(bench.key()).map(|flow| flow.state), Some(flow_state::HOLD));
        assert_eq!((bench.counter("uncommon"), bench.counter("uncommon_lost")), (0, 4));
    });
}

/// Packets of connections without a node go to the stack, which relays or resets them.
#[test]
fn packets_of_other_connections_go_to_the_stack() {
    for_each_setup(full_service(), |bench| {
        let [first, second] = fragments(&data(bench), bench.v6);
        assert_eq!(bench.run(&with_options(&data(bench), bench.v6)), Fate::Passed);
        bench.plane.put_flow(bench.key(), FlowDestination::Local).expect("a flow");
        for frame in [&first, &second] {
            assert_eq!(bench.run(frame), Fate::Passed);
        }
        // A fragment that came before the first one is then counted as lost.
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        expect_forwarded(bench, &first);
        expect_forwarded(bench, &second);
        assert_eq!((bench.counter("uncommon"), bench.counter("uncommon_lost")), (2, 1));
    });
}

/// However cut or altered, a packet leaves only to the node.
#[test]
fn damaged_packets_are_never_forwarded_wrongly() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let [first, second] = fragments(&data(bench), bench.v6);
        for frame in [with_options(&data(bench), bench.v6), first, second] {
            for length in 54..frame.len() {
                assert!(!matches!(bench.run(&frame[..length]), Fate::Sent(_)), "{length} bytes");
            }
            for bit in 12 * 8..frame.len().min(90) * 8 {
                let mut flipped = frame.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Fate::Sent(sent) = bench.run(&flipped) {
                    assert!(sent[..6] == NODE_MAC && sent[6..12] == OUR_MAC, "bit {bit}");
                }
            }
        }
    });
}
