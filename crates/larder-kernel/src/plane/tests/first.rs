//! First packets: held, taken by the fast path, or refused.

use super::packet::{ACK, FIN, ISN, Packet, RST, is_forwarded};
use super::{Bench, Fate, KEYS, OwnedEvent, for_each_setup, full_service};
use crate::FlowKey;
use crate::abi::{NO_NODE, flow_flag, flow_state};
use crate::cookie::siphash;
use crate::netns::Namespace;
use crate::plane::{FlowDestination, ServiceSpec, TargetEntry};
use crate::repair::{RaceFixes, checkpoint, freeze};
use socket2::SockRef;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

const GET: &[u8] = b"GET /a/b?c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n";
const TARGET: TargetEntry = TargetEntry { id: 77, node: 7, route: 3, service: 5, class: 2 };
const LONG: Duration = Duration::from_secs(60);

/// SipHash-2-4 of bytes, from the hash of whole words: the last word is the rest and the length.
fn hash_of(bench: &Bench, bytes: &[u8]) -> u64 {
    use libbpf_rs::{MapCore, MapFlags};
    use zerocopy::FromBytes;
    let keys = bench.plane.keys.lookup(&[0; 4], MapFlags::ANY).expect("keys").expect("keys");
    let key = crate::abi::Keys::read_from_bytes(&keys).expect("keys").hash;
    // Each listen address has its own hash.
    sip_bytes(key, bytes) ^ u64::from(bench.key().service).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn sip_bytes(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        0x736f_6d65_7073_6575 ^ key[0],
        0x646f_7261_6e64_6f6d ^ key[1],
        0x6c79_6765_6e65_7261 ^ key[0],
        0x7465_6462_7974_6573 ^ key[1],
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].wrapping_add(v[3]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].wrapping_add(v[1]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    };
    let (whole, rest) = bytes.split_at(bytes.len() / 8 * 8);
    let mut last = rest.to_vec();
    last.resize(7, 0);
    last.push(bytes.len() as u8);
    for word in whole.chunks(8).chain([last.as_slice()]) {
        let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// The vector of the paper's appendix A, and agreement with the crate's hash of whole words.
#[test]
fn reference_hash_is_siphash() {
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let message: Vec<u8> = (0..15).collect();
    assert_eq!(sip_bytes(key, &message), 0xa129_ca61_49be_45e5);
    assert_eq!(sip_bytes(key, &message[..8]), siphash(key, &[0x0706_0504_0302_0100]));
}

/// The hash with which the first segment with `head` is punted.
fn punted_hash(bench: &Bench, head: &[u8]) -> Option<u64> {
    let packet = bench.packet().opened(KEYS[0], 0).payload(head);
    assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
    let events = bench.events();
    bench.plane.remove_flow(bench.key()).expect("removed");
    match events.as_slice() {
        [OwnedEvent::Punt { first: true, head_hash, packet: punted }] => {
            assert_eq!(punted, &packet.frame());
            *head_hash
        }
        other => unreachable!("not punted: {other:?}"),
    }
}

#[test]
fn first_segment_is_held_and_punted() {
    for_each_setup(full_service(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(GET);
        let mut frame = packet.frame();
        let whole = frame.len();
        frame.extend([0; 5]); // padding stays behind
        assert_eq!(bench.run(&frame), Fate::Dropped);
        let hash = hash_of(bench, &GET[..40]);
        assert_eq!(
            bench.events(),
            [OwnedEvent::Punt { first: true, head_hash: Some(hash), packet: frame[..whole].to_vec() }]
        );
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.node, flow.held, flow.requests), (flow_state::HOLD, NO_NODE, 1, 1));
        assert_eq!(flow.first_seq, ISN.wrapping_add(1));
        assert_eq!(flow.last_seq, flow.first_seq.wrapping_add(GET.len() as u32));
        assert_eq!(flow.last_ack, packet.ack);
    });
}

/// Lines of all lengths around the limit and around word boundaries, and heads without a hash.
#[test]
fn hash_covers_the_first_two_lines() {
    for_each_setup(full_service(), |bench| {
        for path in (1..40).chain(470..490) {
            let mut head = b"GET /".to_vec();
            head.resize(4 + path, b'x');
            head.extend(b" HTTP/1.1\r\nhost: a\r\n");
            let lines = head.len();
            head.extend(b"\r\n");
            let want = (lines <= 512).then(|| hash_of(bench, &head[..lines]));
            assert_eq!(punted_hash(bench, &head), want, "{lines} bytes");
        }
        let none: [&[u8]; 9] = [
            b"POST / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nAccept: a\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a",
            b"GET / HTTP/1.1\r\nHost: example.org\r",
            b"GET / HTTP/1.1",
            b"G",
            b"GET /\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
            b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.1\r\nHOST: a\r\n\r\n",
        ];
        for head in none {
            assert_eq!(punted_hash(bench, head), None, "{}", String::from_utf8_lossy(head));
        }
    });
}

/// Data that an earlier, longer segment left in the programs' memory does not complete a later one.
#[test]
fn earlier_heads_do_not_affect_the_hash() {
    for_each_setup(full_service(), |bench| {
        assert!(punted_hash(bench, GET).is_some());
        for cut in 1..40 {
            assert_eq!(punted_hash(bench, &GET[..cut]), None, "{cut}");
        }
        assert!(punted_hash(bench, &GET[..40]).is_some());
    });
}

fn gates_open(bench: &Bench) {
    bench.plane.set_gate(Some(7), 10, true);
    bench.plane.set_gate(None, 100, true);
}

fn get(bench: &Bench) -> Packet {
    bench.packet().opened(KEYS[0], 0).payload(GET)
}

#[test]
fn known_target_is_forwarded_to_its_node() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        gates_open(bench);
        is_forwarded(&bench.run(&get(bench).frame()).sent(), &get(bench));
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.node, flow.flags), (flow_state::NODE, 7, flow_flag::FAST));
        assert_eq!(bench.events(), [OwnedEvent::Opened { node: 7, route: 3, class: 2, target: 77 }]);
        assert_eq!((bench.plane.opened(Some(7)), bench.plane.opened(None)), (1, 1));
        assert_eq!((bench.counter("fast"), bench.counter("forwarded")), (1, 1));
        // The same segment again belongs to a known connection.
        is_forwarded(&bench.run(&get(bench).frame()).sent(), &get(bench));
        assert_eq!(bench.plane.opened(None), 1);
    });
}

#[test]
fn gates_limit_the_fast_path() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        let fast = |bench: &Bench| {
            let sent = matches!(bench.run(&get(bench).frame()), Fate::Sent(_));
            bench.plane.remove_flow(bench.key()).expect("removed");
            bench.events();
            sent
        };
        assert!(!fast(bench), "no gate is open");
        bench.plane.set_gate(Some(7), 2, true);
        assert!(!fast(bench), "the sum is closed");
        bench.plane.set_gate(None, 3, true);
        assert!(fast(bench) && fast(bench));
        assert!(!fast(bench), "the node is full");
        bench.plane.set_base(Some(7), 0, 2);
        assert!(fast(bench), "two have ended");
        assert!(!fast(bench), "the sum is full");
        bench.plane.set_base(None, 2, 3);
        assert!(fast(bench));
        assert!(!fast(bench));
        bench.plane.set_base(None, 0, 4);
        bench.plane.set_base(Some(7), 0, 4);
        bench.plane.set_gate(Some(7), 2, false);
        assert!(!fast(bench), "not usable");
        assert_eq!((bench.plane.opened(Some(7)), bench.plane.opened(None)), (4, 4));
        assert_eq!(bench.counter("gate_closed"), 6);
    });
}

#[test]
fn decisions_expire() {
    for_each_setup(full_service(), |bench| {
        gates_open(bench);
        let hash = hash_of(bench, &GET[..40]);
        let held = |bench: &Bench, why: &str| {
            assert_eq!(bench.run(&get(bench).frame()), Fate::Dropped, "{why}");
            bench.plane.remove_flow(bench.key()).expect("removed");
        };
        bench.plane.put_target(hash, &TARGET, Duration::ZERO).expect("a target");
        held(bench, "expired");
        bench.plane.put_target(hash, &TargetEntry { service: 6, ..TARGET }, LONG).expect("a target");
        held(bench, "another listen address");
        bench.plane.put_target(hash, &TargetEntry { node: 8, ..TARGET }, LONG).expect("a target");
        held(bench, "a node without a link");
        bench.plane.put_target(hash, &TARGET, LONG).expect("a target");
        bench.plane.forget_target(hash).expect("forgotten");
        held(bench, "forgotten");
        assert_eq!(bench.plane.opened(None), 0);
    });
    for_each_setup(ServiceSpec { fast: false, ..full_service() }, |bench| {
        gates_open(bench);
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        assert_eq!(bench.run(&get(bench).frame()), Fate::Dropped);
    });
}

/// If the ring is full, no connection is opened, and nothing is left behind.
#[test]
fn full_ring_drops_first_packets() {
    for_each_setup(full_service(), |bench| {
        let mut filler = bench.packet();
        let mut fill = |port: u16, payload: &[u8]| {
            filler.from.set_port(port);
            let packet = filler.clone().opened(KEYS[0], 0).payload(payload);
            assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        };
        (1..60).for_each(|port| fill(port, &[b'x'; 1400]));
        assert!(bench.counter("punt_lost") > 0, "the ring is full");
        // Smaller records until none fits: packets, then events without a packet.
        (1000..1100).for_each(|port| fill(port, b"x"));
        for port in 3000..3004 {
            let mut fin = bench.packet().flags(FIN | ACK);
            fin.from.set_port(port);
            bench.plane.put_flow(FlowKey::new(fin.from, 5), FlowDestination::Node(7)).expect("a flow");
            bench.run(&fin.frame()).sent();
        }
        let lost = bench.counter("event_lost");
        assert!(lost > 0);
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        gates_open(bench);
        assert_eq!(bench.run(&get(bench).frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none());
        assert_eq!((bench.plane.opened(Some(7)), bench.plane.opened(None)), (0, 0));
        assert_eq!(bench.counter("event_lost"), lost + 1);
        let read = bench.plane.read_events(|_| ());
        assert!(read > 40, "{read}");
        bench.run(&get(bench).frame()).sent();
    });
}

#[test]
fn packet_without_cookie_creates_no_flow() {
    for_each_setup(full_service(), |bench| {
        let good = get(bench);
        let mut forged = Vec::new();
        for bit in 0..32 {
            let mut packet = good.clone();
            packet.ack ^= 1 << bit;
            forged.push(packet);
        }
        let mut packet = good.clone();
        packet.seq = packet.seq.wrapping_add(1);
        forged.push(packet);
        let mut packet = good.clone();
        packet.from.set_port(40001);
        forged.push(packet);
        forged.push(good.clone().opened(crate::CookieKey([9, 9]), 0));
        for packet in &forged {
            assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        }
        assert_eq!(bench.counter("bad_cookie"), forged.len() as u64);
        assert!(bench.events().is_empty());
        let mut flows = 0;
        bench.plane.each_flow(|_, _| flows += 1).expect("listed");
        assert_eq!(flows, 0);
    });
    for_each_setup(ServiceSpec { grace: false, ..full_service() }, |bench| {
        let mut packet = get(bench);
        packet.ack ^= 1 << 20;
        assert_eq!(bench.run(&packet.frame()), Fate::Passed, "the stack resets it");
    });
}

#[test]
fn last_packet_of_a_handshake_creates_no_flow() {
    for_each_setup(full_service(), |bench| {
        let ack = bench.packet().opened(KEYS[0], 0);
        assert_eq!(bench.run(&ack.frame()), Fate::Dropped);
        assert_eq!(bench.run(&ack.clone().flags(ACK | RST).frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none());
        assert!(bench.events().is_empty());
        assert_eq!(bench.counter("handshake_ack"), 1);
        // It ends without a request: this host's stack closes it.
        let fin = ack.flags(ACK | FIN);
        assert_eq!(bench.run(&fin.frame()), Fate::Passed);
        assert_eq!(bench.plane.flow(bench.key()).expect("the flow").state, flow_state::LOCAL);
        assert_eq!(bench.run(&fin.frame()), Fate::Passed);
    });
}

#[test]
fn request_with_fin_is_held_and_reported() {
    for_each_setup(full_service(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(b"GET / HTTP/1.0\r\n\r\n").flags(ACK | FIN);
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        let flags = flow_flag::CLIENT_FIN;
        assert_eq!(
            bench.events(),
            [
                OwnedEvent::Punt { first: true, head_hash: None, packet: packet.frame() },
                OwnedEvent::Ended { node: NO_NODE, flags }
            ]
        );
    });
}

/// The node's tag in the timestamp that the client echoes.
#[test]
fn unknown_connections_are_forwarded_by_tag() {
    for_each_setup(full_service(), |bench| {
        let packet = bench.packet().flags(ACK).tsecr(9 << 24 | 1234).payload(b"x");
        is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
        assert_eq!(
            bench.plane.flow(bench.key()),
            None,
            "a tag proves nothing, so that nothing is written down"
        );
        assert_eq!(bench.counter("by_tag"), 1);
        bench.plane.remove_flow(bench.key()).expect("removed");
        for tag in [0, 8, 255] {
            assert_eq!(bench.run(&packet.clone().tsecr(tag << 24 | 1).frame()), Fate::Dropped, "{tag}");
        }
        bench.plane.set_link(7, None).expect("no link");
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped, "a tag without a node");
    });
    for_each_setup(ServiceSpec { tags: false, ..full_service() }, |bench| {
        let packet = bench.packet().flags(ACK).tsecr(9 << 24).payload(b"x");
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
    });
    // The stack has answered a SYN, and its own clock looks like a tag.
    for_each_setup(full_service(), |bench| {
        let here = TcpListener::bind(if bench.v6 { "[::1]:0" } else { "127.0.0.1:0" }).expect("a listener");
        let server = here.local_addr().expect("an address");
        bench.plane.set_service(5, server, full_service()).expect("a service");
        let stream = TcpStream::connect(server).expect("connected");
        let client = stream.local_addr().expect("an address");
        let tagged = |client| Packet::new(client, server).flags(ACK).tsecr(9 << 24 | 77).payload(b"x");
        assert_eq!(bench.run(&tagged(client).frame()), Fate::Passed);
        // Its last packets too, when only a TIME_WAIT is left.
        drop(here.accept().expect("accepted"));
        drop(stream);
        assert_eq!(bench.run(&tagged(client).flags(FIN | ACK).frame()), Fate::Passed);
        let key = FlowKey::new(client, 5);
        assert_eq!(bench.plane.flow(key).map(|flow| flow.state), Some(flow_state::LOCAL));
        bench.plane.remove_flow(key).expect("removed");
        is_forwarded(&bench.run(&tagged(client).frame()).sent(), &tagged(client));
        // A listening socket has no connection.
        is_forwarded(&bench.run(&tagged(bench.client()).frame()).sent(), &tagged(bench.client()));
    });
    // On a listen address without cookies, the stack has its own connections.
    for_each_setup(ServiceSpec { cookie: false, grace: false, ..full_service() }, |bench| {
        let tagged = bench.packet().flags(ACK).tsecr(9 << 24).payload(b"x");
        assert_eq!(bench.run(&bench.packet().opened(KEYS[0], 0).payload(GET).frame()), Fate::Passed);
        is_forwarded(&bench.run(&tagged.frame()).sent(), &tagged);
    });
}

/// The plane adds the connections of a node's listing. Meanwhile a client has closed one of them and opened a new one
/// on the same addresses with this host's stack.
#[test]
fn node_listing_takes_no_connection_from_the_stack() {
    for spec in [full_service(), ServiceSpec { cookie: false, grace: false, ..full_service() }] {
        for_each_setup(spec, |bench| {
            let here =
                TcpListener::bind(if bench.v6 { "[::1]:0" } else { "127.0.0.1:0" }).expect("a listener");
            let server = here.local_addr().expect("an address");
            bench.plane.set_service(5, server, spec).expect("a service");
            let stream = TcpStream::connect(server).expect("connected");
            let client = stream.local_addr().expect("an address");
            let key = FlowKey::new(client, 5);
            assert!(bench.plane.add_flow(key, 7).expect("room"));
            let packet = Packet::new(client, server).flags(ACK).payload(b"x");
            let answer = Packet::new(server, client).flags(ACK);
            for _ in 0..2 {
                assert_eq!(bench.run(&packet.frame()), Fate::Passed);
                assert_eq!(bench.run_egress(&answer.frame()), Fate::Passed);
            }
            // It moves to a node: its socket on this host is frozen.
            bench.plane.put_flow(key, FlowDestination::Node(7)).expect("a flow");
            is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
            assert_eq!(bench.run_egress(&answer.frame()), Fate::Dropped);
            // A connection that the stack does not have is the node's from its first packet on.
            assert!(bench.plane.add_flow(bench.key(), 7).expect("room"));
            is_forwarded(&bench.run(&bench.packet().flags(ACK).frame()).sent(), &bench.packet().flags(ACK));
            let flow = bench.plane.flow(bench.key()).expect("the flow");
            assert_eq!((flow.state, flow.flags_rest), (flow_state::NODE, [0; 3]));
        });
    }
}

/// A connection that the stack has answered with a SYN cookie, as under a SYN flood, has no socket until the handshake
/// is complete.
#[test]
fn stack_cookies_go_to_the_stack() {
    let Some(host) = larder_testkit::or_skip(Namespace::new("cookies")) else { return };
    host.ip("link set lo up").expect("up");
    // For every SYN.
    host.sysctl("net.ipv4.tcp_syncookies", "2").expect("a sysctl");
    let tested = host.run(|| {
        for_each_setup(full_service(), |bench| {
            let here =
                TcpListener::bind(if bench.v6 { "[::1]:0" } else { "127.0.0.1:0" }).expect("a listener");
            let server = here.local_addr().expect("an address");
            bench.plane.set_service(5, server, full_service()).expect("a service");
            let stream = TcpStream::connect(server).expect("connected");
            let client = stream.local_addr().expect("an address");
            let (accepted, _) = here.accept().expect("accepted");
            freeze(stream.as_fd(), &RaceFixes::default()).expect("frozen");
            let numbers = checkpoint(stream.as_fd(), &RaceFixes::default()).expect("its numbers");
            // Only its numbers are left.
            for socket in [stream, accepted] {
                SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("linger");
            }
            let mut packet = Packet::new(client, server).flags(ACK).tsecr(9 << 24 | 77).payload(b"x");
            (packet.seq, packet.ack) = (numbers.unacknowledged_seq(), numbers.rcv_nxt);
            assert_eq!(bench.run(&packet.frame()), Fate::Passed, "a node's tag or not");
            let mut untagged = packet.clone();
            untagged.options.clear();
            assert_eq!(bench.run(&untagged.frame()), Fate::Passed);
            let reset = untagged.clone().flags(RST | ACK);
            assert_eq!(bench.run(&reset.frame()), Fate::Dropped, "there is nothing to end");
            untagged.ack ^= 1 << 16;
            assert_eq!(bench.run(&untagged.frame()), Fate::Dropped, "a cookie of nobody's");
        });
    });
    tested.expect("a thread of the host");
}

#[test]
fn every_damaged_byte_is_detected() {
    for_each_setup(full_service(), |bench| {
        let frame = bench.packet().payload(GET).frame();
        assert!(crate::frame::is_undamaged(&frame));
        let tcp_at = if frame[12] == 0x86 { 54 } else { 34 };
        for at in tcp_at..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x41;
            assert!(!crate::frame::is_undamaged(&damaged), "byte {at}");
        }
    });
}
