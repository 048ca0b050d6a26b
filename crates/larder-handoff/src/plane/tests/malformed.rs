//! Packets that are not whole, or not ours.

use super::packet::{MSS, Packet, TIMESTAMPS, is_forwarded};
use super::{Fate, KEYS, all_on, everywhere};
use crate::plane::FlowTo;

/// Cut at every length the kernel lets in: never forwarded, never answered.
#[test]
fn truncated_packets_go_nowhere() {
    everywhere(all_on(), |bench| {
        bench.plane.put_flow(bench.key(), FlowTo::Node(7)).expect("a flow");
        let data = bench.packet().opened(KEYS[0], 0).tsecr(9 << 24).payload(b"GET / HTTP/1.1\r\nHost: a\r\n");
        let syn = bench.packet().syn(&[&MSS, &TIMESTAMPS]);
        let unknown = Packet { from: bench.client(), ..data.clone() };
        let mut unknown = unknown;
        unknown.from.set_port(1);
        for packet in [data, syn, unknown] {
            let frame = packet.frame();
            // A frame whose IP header is missing is refused before our program runs.
            for length in 54..frame.len() {
                let fate = bench.run(&frame[..length]);
                assert!(matches!(fate, Fate::Passed | Fate::Dropped), "{length} bytes: {fate:?}");
            }
        }
        assert!(bench.told().is_empty());
        assert!(bench.counter("malformed") > 0);
    });
}

/// Every byte of the headers, one bit at a time: what comes out is a packet to the node, or nothing.
#[test]
fn flipped_bits_never_leave_by_mistake() {
    everywhere(all_on(), |bench| {
        bench.plane.put_flow(bench.key(), FlowTo::Node(7)).expect("a flow");
        let frame = bench.packet().opened(KEYS[0], 0).tsecr(3 << 24).payload(b"12345").frame();
        let header = frame.len() - 5;
        for bit in 12 * 8..header * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Fate::Sent(sent) = bench.run(&flipped) {
                assert!(sent.len() <= flipped.len(), "bit {bit}");
                let to_node = sent[..6] == super::NODE_MAC && sent[6..12] == super::OUR_MAC;
                // The SYN flag turns it into a SYN without ACK only if ACK is off: one bit does not do both.
                assert!(to_node, "bit {bit}");
            }
        }
    });
}

/// Header lengths that lie.
#[test]
fn lengths_that_lie_are_malformed() {
    everywhere(all_on(), |bench| {
        bench.plane.put_flow(bench.key(), FlowTo::Node(7)).expect("a flow");
        let packet = bench.packet().opened(KEYS[0], 0).payload(b"12345");
        let frame = packet.frame();
        let tcp = if bench.v6 { 54 } else { 34 };
        for words in (0..5).chain(7..16) {
            let mut lies = frame.clone();
            lies[tcp + 12] = words << 4;
            assert_eq!(bench.run(&lies), Fate::Dropped, "{words} words of TCP header");
        }
        let length_at = if bench.v6 { 18 } else { 16 };
        let right = u16::from_be_bytes([frame[length_at], frame[length_at + 1]]);
        for length in (0..right).filter(|l| *l + 6 <= right).step_by(1).chain([right + 1, 1500, 65535]) {
            let mut lies = frame.clone();
            lies[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
            let fate = bench.run(&lies);
            let least = if bench.v6 { 20 } else { 40 };
            if length < least || length > right {
                assert_eq!(fate, Fate::Dropped, "{length}");
            }
        }
        is_forwarded(&bench.run(&frame).sent(), &packet);
    });
}

#[test]
fn what_is_not_ours_goes_to_the_stack() {
    everywhere(all_on(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(b"x");
        let mut port = packet.clone();
        port.to.set_port(81);
        assert_eq!(bench.run(&port.frame()), Fate::Passed);
        let mut address = packet.clone();
        address.to =
            if bench.v6 { "[2001:db8::65]:80" } else { "10.9.0.101:80" }.parse().expect("an address");
        assert_eq!(bench.run(&address.frame()), Fate::Passed);
        let mut udp = packet.frame();
        udp[if bench.v6 { 20 } else { 23 }] = 17;
        assert_eq!(bench.run(&udp), Fate::Passed);
        let mut arp = packet.frame();
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(bench.run(&arp), Fate::Passed);
        if !bench.v6 {
            let mut fragment = packet.frame();
            fragment[20..22].copy_from_slice(&[0x20, 0]);
            assert_eq!(bench.run(&fragment), Fate::Passed);
        }
        bench.plane.remove_service(bench.server()).expect("removed");
        assert_eq!(bench.run(&packet.frame()), Fate::Passed);
        bench.plane.remove_service(bench.server()).expect("again");
    });
}

/// Larger than the ring takes: lost by name, and no connection is left.
#[test]
fn a_packet_too_large_to_punt_is_dropped() {
    everywhere(all_on(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(&[b'x'; 2030]);
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none());
        assert_eq!((bench.counter("punt_lost"), bench.told().len()), (1, 0));
    });
}
