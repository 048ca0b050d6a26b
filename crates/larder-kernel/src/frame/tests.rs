//! Frames that are parsed, built and damaged.

use super::tcp_flag::{ACK, FIN, PSH, SYN};
use super::*;
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

const V4: &str = "10.9.0.2:40000 10.9.0.100:80";
const V6: &str = "[fd09::2]:40000 [fd09::64]:80";

/// A packet between a source and a destination.
fn packet<'a>(ends: &str, options: &'a [u8], payload: &'a [u8]) -> TcpFrame<'a> {
    let mut ends = ends.split(' ').map(|end| end.parse().expect("an address"));
    let (from, to) = (ends.next().expect("a source"), ends.next().expect("a destination"));
    let numbers =
        TcpFrame { seq: 0x0102_0304, ack: 0x0506_0708, window: 500, ..TcpFrame::new(from, to, PSH | ACK) };
    TcpFrame { macs: [[1; 6], [2; 6]], options, payload, ..numbers }
}

fn frame(ends: &str, payload: &[u8]) -> Vec<u8> {
    packet(ends, &[], payload).bytes().expect("a frame")
}

/// Offset of the TCP header.
fn tcp_at(frame: &[u8]) -> usize {
    if frame[12] == 0x86 { 54 } else { 34 }
}

fn state(frame: &[u8]) -> ChecksumState {
    Frame::parse(frame).expect("a packet").checksum_state()
}

/// The frame with a partial checksum.
fn with_partial_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let at = tcp_at(&frame);
    let addresses = if at == 54 { &frame[22..54] } else { &frame[26..34] };
    let sum = !checksum(&[addresses, &[0, TCP], &((frame.len() - at) as u16).to_be_bytes()]);
    frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A frame of IPv4 with four bytes of options.
fn with_ip_options() -> Vec<u8> {
    let mut frame = frame(V4, b"text");
    frame[14] = 0x46;
    frame[17] += 4;
    frame.splice(34..34, [1, 1, 1, 0]);
    set_ip_checksum(&mut frame[14..38]);
    frame
}

fn fragment() -> Vec<u8> {
    let mut frame = frame(V4, b"text");
    frame[20] = 0x20;
    frame
}

/// The checksums were computed by another program.
#[test]
fn built_packets_have_the_known_bytes() {
    let v4 = b"\x45\x00\x00\x2d\x00\x00\x40\x00\x40\x06\x26\x54\x0a\x09\x00\x02\x0a\x09\x00\x64\
        \x9c\x40\x00\x50\x01\x02\x03\x04\x05\x06\x07\x08\x50\x18\x01\xf4\xa8\xe5\x00\x00hello";
    assert_eq!(packet(V4, &[], b"hello").packet().expect("a packet"), v4);
    let v6 = b"\x60\x00\x00\x00\x00\x19\x06\x40\xfd\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\
        \xfd\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\x64\
        \x9c\x40\x00\x50\x01\x02\x03\x04\x05\x06\x07\x08\x50\x18\x01\xf4\xc2\xe3\x00\x00hello";
    assert_eq!(packet(V6, &[], b"hello").packet().expect("a packet"), v6);
    assert_eq!(checksum(&[&[0, 1, 0xf2, 3], &[0xf4, 0xf5, 0xf6, 0xf7]]), 0x220d, "the example of RFC 1071");
}

proptest! {
    #[test]
    fn built_frames_are_parsed(
        (v6, ips, ports, macs) in any::<(bool, [[u8; 16]; 2], [u16; 2], [[u8; 6]; 2])>(),
        (seq, ack, flags, window) in any::<(u32, u32, u8, u16)>(),
        options in prop::collection::vec(any::<u8>(), 0..=40),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        padding in 0..9_usize,
    ) {
        let end = |at: usize| {
            let ip = ips[at];
            let ip: IpAddr = if v6 { ip.into() } else { [ip[0], ip[1], ip[2], ip[3]].into() };
            SocketAddr::new(ip, ports[at])
        };
        let (options, payload) = (&options[..], &payload[..]);
        let built = TcpFrame { macs, from: end(0), to: end(1), seq, ack, flags, window, options, payload };
        let mut frame = built.bytes().expect("a frame");
        prop_assert_eq!(state(&frame), ChecksumState::Complete);
        let length = frame.len();
        frame.resize(length + padding, 0xff);
        let parsed = TcpFrame::parse(&frame).expect("a packet");
        prop_assert!(parsed.options.starts_with(options) && parsed.options.len() == options.len().next_multiple_of(4));
        prop_assert_eq!(TcpFrame { options, ..parsed }, built);
        prop_assert_eq!(TcpFrame::parse_truncated(&frame), Some((parsed, length)));
    }

    #[test]
    fn any_bytes_are_handled(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..3) {
        if bytes.len() > 24 && kind > 0 {
            let (ethertype, first, protocol) = if kind == 1 { ([8, 0], 0x45, 23) } else { ([0x86, 0xdd], 0x60, 20) };
            bytes[16..22].fill(0);
            bytes[12..14].copy_from_slice(&ethertype);
            (bytes[14], bytes[protocol]) = (first, TCP);
            bytes[if kind == 1 { 17 } else { 19 }] = 60;
        }
        let _ = (TcpFrame::parse_truncated(&bytes), is_undamaged(&bytes));
        if let Some(frame) = Frame::parse(&bytes) {
            let _ = (frame.with_checksum(), frame.split_segment(), frame.outer_port(), frame.packet());
        }
        complete_checksum(&mut bytes);
        set_tcp_checksum(&mut bytes);
    }
}

#[test]
fn invalid_packets_are_not_built() {
    let mixed = TcpFrame { to: packet(V6, &[], &[]).to, ..packet(V4, &[], &[]) };
    assert!(mixed.bytes().is_none());
    assert!(packet(V4, &[1; 41], &[]).bytes().is_none());
    assert!(packet(V4, &[], &[0; 65_500]).bytes().is_none());
    let longest = packet(V6, &[1; 40], b"text").bytes().expect("made");
    assert_eq!(longest.len(), ETHERNET_BYTES + 40 + 60 + 4);
}

#[test]
fn other_frames_are_not_parsed() {
    let mut short_total = frame(V4, b"");
    short_total[16..18].copy_from_slice(&[0, 3]);
    let mut short_header = frame(V4, b"text");
    short_header[34 + 12] = 4 << 4;
    let mut long_header = frame(V6, b"text");
    long_header[54 + 12] = 7 << 4;
    let mut udp = frame(V6, b"text");
    udp[20] = 17;
    let cut = frame(V4, b"text")[..ETHERNET_BYTES + 30].to_vec();
    for other in
        [fragment(), short_total, short_header, long_header, udp, cut, vec![0; 60], vec![8; 13], vec![]]
    {
        assert_eq!((TcpFrame::parse(&other), TcpFrame::parse_truncated(&other)), (None, None), "{other:?}");
        let mut same = other.clone();
        set_tcp_checksum(&mut same);
        complete_checksum(&mut same);
        assert_eq!(same, other);
        assert!(!is_undamaged(&other));
    }
}

#[test]
fn truncated_frames_have_the_bytes_that_are_left() {
    for ends in [V4, V6] {
        let whole = frame(ends, b"0123456789");
        let payload_at = whole.len() - 10;
        for length in 0..whole.len() {
            let cut = &whole[..length];
            assert_eq!(TcpFrame::parse(cut), None, "{length}");
            let seen = TcpFrame::parse_truncated(cut).map(|(packet, bytes)| (packet.payload.len(), bytes));
            assert_eq!(seen, (length >= payload_at).then(|| (length - payload_at, whole.len())), "{length}");
        }
    }
}

#[test]
fn ip_options_are_skipped() {
    let mut frame = with_ip_options();
    assert_eq!(TcpFrame::parse(&frame), Some(packet(V4, &[], b"text")));
    assert_eq!(state(&frame), ChecksumState::Complete);
    let [first, second] = Frame::parse(&frame).and_then(|frame| frame.split_segment()).expect("halves");
    assert_eq!((state(&first), state(&second)), (ChecksumState::Complete, ChecksumState::Complete));
    decrement_hop_limit(&mut frame);
    assert_eq!((frame[22], checksum(&[&frame[14..38]])), (63, 0));
}

#[test]
fn checksum_is_set_whatever_was_there() {
    for ends in [V4, V6] {
        for payload in [&b""[..], b"a", b"an even text", b"an odd text"] {
            let right = frame(ends, payload);
            let mut wrong = right.clone();
            wrong[tcp_at(&right) + 16] ^= 0xab;
            // Ethernet padding after the packet does not count, and stays.
            wrong.extend([0xff; 6]);
            set_tcp_checksum(&mut wrong);
            assert_eq!(wrong, [&right[..], &[0xff; 6]].concat(), "{payload:?}");
        }
    }
}

#[test]
fn checksums_are_completed_but_never_replaced() {
    for ends in [V4, V6] {
        let right = frame(ends, b"0123456789a");
        let partial = with_partial_checksum(right.clone());
        let mut wrong = right.clone();
        *wrong.last_mut().expect("a byte") ^= 1;
        let expected = [
            (&right, ChecksumState::Complete, Some(&right)),
            (&partial, ChecksumState::Partial, Some(&right)),
            (&wrong, ChecksumState::Wrong, None),
        ];
        for (before, expected_state, completed) in expected {
            assert_eq!(state(before), expected_state);
            assert_eq!(is_undamaged(before), completed.is_some());
            let whole = Frame::parse(before).expect("a packet").with_checksum();
            assert_eq!(whole.as_ref(), completed);
            let mut in_place = before.clone();
            complete_checksum(&mut in_place);
            assert_eq!(&in_place, completed.unwrap_or(before));
        }
    }
}

#[test]
fn packet_is_halved_without_losing_a_byte() {
    let whole = TcpFrame { flags: FIN | PSH | ACK, ..packet(V4, &[1; 4], b"0123456789a") };
    let frame = whole.bytes().expect("a frame");
    let [first, second] = Frame::parse(&frame).and_then(|frame| frame.split_segment()).expect("halves");
    assert_eq!((state(&first), state(&second)), (ChecksumState::Complete, ChecksumState::Complete));
    assert_eq!(TcpFrame::parse(&first), Some(TcpFrame { flags: ACK, payload: b"01234", ..whole }));
    let seq = whole.seq.wrapping_add(5);
    assert_eq!(TcpFrame::parse(&second), Some(TcpFrame { seq, payload: b"56789a", ..whole }));
    let single = TcpFrame { flags: SYN, ..packet(V4, &[], b"") }.bytes().expect("a frame");
    assert!(Frame::parse(&single).and_then(|frame| frame.split_segment()).is_none());
}
