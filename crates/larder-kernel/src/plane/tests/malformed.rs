//! Incomplete and unrelated packets.

use super::packet::{ACK, FIN, MSS, Packet, TIMESTAMPS, is_forwarded, read};
use super::{AttachMode, Bench, Fate, KEYS, OwnedEvent, for_each_setup, full_service};
use crate::abi::PUNT_BYTES_MAX;
use crate::frame::{Frame, set_ip_checksum};
use crate::plane::FlowDestination;

/// Packets cut at every length that the kernel accepts are never forwarded or answered.
#[test]
fn truncated_packets_are_not_forwarded() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let data = bench.packet().opened(KEYS[0], 0).tsecr(9 << 24).payload(b"GET / HTTP/1.1\r\nHost: a\r\n");
        let syn = bench.packet().syn(&[&MSS, &TIMESTAMPS]);
        let unknown = Packet { from: bench.client(), ..data.clone() };
        let mut unknown = unknown;
        unknown.from.set_port(1);
        for packet in [data, syn, unknown] {
            let frame = packet.frame();
            // The kernel drops a frame without an IP header before our program runs.
            for length in 54..frame.len() {
                let fate = bench.run(&frame[..length]);
                assert!(matches!(fate, Fate::Passed | Fate::Dropped), "{length} bytes: {fate:?}");
            }
        }
        assert!(bench.events().is_empty());
        assert!(bench.counter("malformed") > 0);
    });
}

/// Every byte of the headers, one bit at a time: the result is a packet to the node, or nothing.
#[test]
fn flipped_bits_are_never_forwarded_wrongly() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let frame = bench.packet().opened(KEYS[0], 0).tsecr(3 << 24).payload(b"12345").frame();
        let header = frame.len() - 5;
        for bit in 12 * 8..header * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Fate::Sent(sent) = bench.run(&flipped) {
                assert!(sent.len() <= flipped.len(), "bit {bit}");
                let to_node = sent[..6] == super::NODE_MAC && sent[6..12] == super::OUR_MAC;
                // The SYN flag makes it a SYN without ACK only if ACK is off, which takes two bits.
                assert!(to_node, "bit {bit}");
            }
        }
    });
}

/// Wrong header lengths.
#[test]
fn wrong_lengths_are_malformed() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
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
fn other_packets_go_to_the_stack() {
    for_each_setup(full_service(), |bench| {
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

/// Packets larger than the ring accepts. From a link: counted as lost, and no connection is left. Merged by the kernel:
/// cut, as if the rest were lost.
#[test]
fn packet_too_large_to_punt_is_cut_or_dropped() {
    for_each_setup(full_service(), |bench| {
        let mut packet = bench.packet().opened(KEYS[0], 0).payload(&[b'x'; 3000]).flags(ACK | FIN);
        let frame = packet.frame();
        assert_eq!(bench.run(&frame), Fate::Dropped);
        if bench.plane.attached() == AttachMode::Native {
            assert!(bench.plane.flow(bench.key()).is_none());
            assert_eq!((bench.counter("punt_lost"), bench.events().len()), (1, 0));
            return;
        }
        let events = bench.events();
        let Some(OwnedEvent::Punt { first: true, packet: cut, .. }) = events.first() else {
            unreachable!("{events:?}")
        };
        assert_eq!(cut.len(), PUNT_BYTES_MAX);
        let whole =
            Frame::parse(cut).and_then(|frame| frame.with_checksum()).expect("a packet with a checksum");
        let (cut, _) = read(&whole);
        packet.payload.truncate(cut.payload.len());
        packet.flags = ACK;
        assert_eq!(whole[14..], packet.frame()[14..]);
    });
}

/// A router's "packet too big" about a packet of a node.
fn too_big(bench: &Bench, mtu: u16) -> Vec<u8> {
    let sent = Packet::new(bench.server(), bench.client()).payload(&[0; 64]).frame();
    let mut icmp = if bench.v6 { vec![2, 0, 0, 0, 0, 0] } else { vec![3, 4, 0, 0, 0, 0] };
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&sent[14..]);
    let carrier = bench.packet().payload(&icmp[20..]).frame();
    let (at, protocol) = if bench.v6 { (54, 58) } else { (34, 1) };
    let mut frame = carrier;
    frame[at..].copy_from_slice(&icmp);
    frame[if bench.v6 { 20 } else { 23 }] = protocol;
    if !bench.v6 {
        set_ip_checksum(&mut frame[14..34]);
    }
    frame
}

#[test]
fn packet_too_big_is_forwarded_to_the_node() {
    for_each_setup(full_service(), |bench| {
        let frame = too_big(bench, 1280);
        assert_eq!(bench.run(&frame), Fate::Passed, "nobody's");
        bench.plane.put_flow(bench.key(), FlowDestination::Local).expect("a flow");
        assert_eq!(bench.run(&frame), Fate::Passed, "this host's");
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let sent = bench.run(&frame).sent();
        assert_eq!((&sent[..6], &sent[6..12]), (super::NODE_MAC.as_slice(), super::OUR_MAC.as_slice()));
        let ip_end = if bench.v6 { 54 } else { 34 };
        assert_eq!(sent[ip_end..], frame[ip_end..]);
        assert_eq!(sent[if bench.v6 { 21 } else { 22 }], 63);
        for length in ip_end..frame.len() {
            assert_eq!(bench.run(&frame[..length]), Fate::Passed, "{length} bytes");
        }
        // Another message about the same packet stays on this host.
        let mut other = frame.clone();
        other[ip_end] = if bench.v6 { 1 } else { 11 };
        assert_eq!(bench.run(&other), Fate::Passed);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.packets, flow.last_seq), (0, 0), "it is no packet of the client's");
    });
}
