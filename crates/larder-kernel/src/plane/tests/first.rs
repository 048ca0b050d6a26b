//! First packets: what is held, what the fast path takes, what is refused.

use super::packet::{ACK, FIN, ISN, Packet, RST, is_forwarded};
use super::{Bench, Fate, KEYS, Told, all_on, everywhere};
use crate::FlowKey;
use crate::abi::{NO_NODE, flow_flag, flow_state};
use crate::cookie::siphash;
use crate::netns::{self, Namespace};
use crate::plane::{FlowTo, ServiceSpec, TargetEntry};
use crate::repair::{Mends, checkpoint, freeze};
use socket2::SockRef;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

const GET: &[u8] = b"GET /a/b?c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n";
const TARGET: TargetEntry = TargetEntry { id: 77, node: 7, route: 3, service: 5, class: 2 };
const LONG: Duration = Duration::from_secs(60);

/// SipHash-2-4 of bytes, from the hash of whole words: the closing word is the rest and the length.
fn hash_of(bench: &Bench, bytes: &[u8]) -> u64 {
    use libbpf_rs::{MapCore, MapFlags};
    use zerocopy::FromBytes;
    let keys = bench.plane.keys.lookup(&[0; 4], MapFlags::ANY).expect("keys").expect("keys");
    let key = crate::abi::Keys::read_from_bytes(&keys).expect("keys").hash;
    // Each listen address has its own.
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
fn the_reference_hash_is_siphash() {
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let message: Vec<u8> = (0..15).collect();
    assert_eq!(sip_bytes(key, &message), 0xa129_ca61_49be_45e5);
    assert_eq!(sip_bytes(key, &message[..8]), siphash(key, &[0x0706_0504_0302_0100]));
}

/// The hash that the first segment with `head` is punted with.
fn punted_hash(bench: &Bench, head: &[u8]) -> Option<u64> {
    let packet = bench.packet().opened(KEYS[0], 0).payload(head);
    assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
    let told = bench.told();
    bench.plane.remove_flow(bench.key()).expect("removed");
    match told.as_slice() {
        [Told::Punt { first: true, head_hash, packet: punted }] => {
            assert_eq!(punted, &packet.frame());
            *head_hash
        }
        other => unreachable!("not punted: {other:?}"),
    }
}

#[test]
fn a_first_segment_is_held_and_punted() {
    everywhere(all_on(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(GET);
        let mut frame = packet.frame();
        let whole = frame.len();
        frame.extend([0; 5]); // padding stays behind
        assert_eq!(bench.run(&frame), Fate::Dropped);
        let hash = hash_of(bench, &GET[..40]);
        assert_eq!(
            bench.told(),
            [Told::Punt { first: true, head_hash: Some(hash), packet: frame[..whole].to_vec() }]
        );
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.node, flow.held, flow.requests), (flow_state::HOLD, NO_NODE, 1, 1));
        assert_eq!(flow.first_seq, ISN.wrapping_add(1));
        assert_eq!(flow.last_seq, flow.first_seq.wrapping_add(GET.len() as u32));
        assert_eq!(flow.last_ack, packet.ack);
    });
}

/// Lines of every length around the limit and around words, and heads that have no hash.
#[test]
fn the_hash_is_over_the_first_two_lines() {
    everywhere(all_on(), |bench| {
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

/// What an earlier, longer segment left in the programs' memory does not complete a later one.
#[test]
fn nothing_of_an_earlier_head_is_seen() {
    everywhere(all_on(), |bench| {
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
fn a_known_target_goes_straight_to_its_node() {
    everywhere(all_on(), |bench| {
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        gates_open(bench);
        is_forwarded(&bench.run(&get(bench).frame()).sent(), &get(bench));
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.node, flow.flags), (flow_state::NODE, 7, flow_flag::FAST));
        assert_eq!(bench.told(), [Told::Opened { node: 7, route: 3, class: 2, target: 77 }]);
        assert_eq!((bench.plane.opened(Some(7)), bench.plane.opened(None)), (1, 1));
        assert_eq!((bench.counter("fast"), bench.counter("forwarded")), (1, 1));
        // The same segment again is of a known connection.
        is_forwarded(&bench.run(&get(bench).frame()).sent(), &get(bench));
        assert_eq!(bench.plane.opened(None), 1);
    });
}

#[test]
fn gates_bound_the_fast_path() {
    everywhere(all_on(), |bench| {
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        let fast = |bench: &Bench| {
            let sent = matches!(bench.run(&get(bench).frame()), Fate::Sent(_));
            bench.plane.remove_flow(bench.key()).expect("removed");
            bench.told();
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
fn decisions_end() {
    everywhere(all_on(), |bench| {
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
    everywhere(ServiceSpec { fast: false, ..all_on() }, |bench| {
        gates_open(bench);
        bench.plane.put_target(hash_of(bench, &GET[..40]), &TARGET, LONG).expect("a target");
        assert_eq!(bench.run(&get(bench).frame()), Fate::Dropped);
    });
}

/// When the ring is full nothing is opened, and nothing stays behind.
#[test]
fn a_full_ring_drops_first_packets() {
    everywhere(all_on(), |bench| {
        let mut filler = bench.packet();
        let mut fill = |port: u16, payload: &[u8]| {
            filler.from.set_port(port);
            let packet = filler.clone().opened(KEYS[0], 0).payload(payload);
            assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        };
        (1..60).for_each(|port| fill(port, &[b'x'; 1400]));
        assert!(bench.counter("punt_lost") > 0, "the ring is full");
        // Smaller records until none fits: packets, then events alone.
        (1000..1100).for_each(|port| fill(port, b"x"));
        for port in 3000..3004 {
            let mut fin = bench.packet().flags(FIN | ACK);
            fin.from.set_port(port);
            bench.plane.put_flow(FlowKey::new(fin.from, 5), FlowTo::Node(7)).expect("a flow");
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
fn a_packet_without_cookie_opens_nothing() {
    everywhere(all_on(), |bench| {
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
        assert!(bench.told().is_empty());
        let mut flows = 0;
        bench.plane.each_flow(|_, _| flows += 1).expect("listed");
        assert_eq!(flows, 0);
    });
    everywhere(ServiceSpec { grace: false, ..all_on() }, |bench| {
        let mut packet = get(bench);
        packet.ack ^= 1 << 20;
        assert_eq!(bench.run(&packet.frame()), Fate::Passed, "the stack resets it");
    });
}

#[test]
fn the_end_of_a_handshake_leaves_nothing() {
    everywhere(all_on(), |bench| {
        let ack = bench.packet().opened(KEYS[0], 0);
        assert_eq!(bench.run(&ack.frame()), Fate::Dropped);
        assert_eq!(bench.run(&ack.clone().flags(ACK | RST).frame()), Fate::Dropped);
        assert!(bench.plane.flow(bench.key()).is_none());
        assert!(bench.told().is_empty());
        assert_eq!(bench.counter("handshake_ack"), 1);
        // It ends without a request: this host's stack says goodbye.
        let fin = ack.flags(ACK | FIN);
        assert_eq!(bench.run(&fin.frame()), Fate::Passed);
        assert_eq!(bench.plane.flow(bench.key()).expect("the flow").state, flow_state::LOCAL);
        assert_eq!(bench.run(&fin.frame()), Fate::Passed);
    });
}

#[test]
fn a_request_with_its_end_is_held_and_told() {
    everywhere(all_on(), |bench| {
        let packet = bench.packet().opened(KEYS[0], 0).payload(b"GET / HTTP/1.0\r\n\r\n").flags(ACK | FIN);
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
        let flags = flow_flag::CLIENT_FIN;
        assert_eq!(
            bench.told(),
            [
                Told::Punt { first: true, head_hash: None, packet: packet.frame() },
                Told::Ended { node: NO_NODE, flags }
            ]
        );
    });
}

/// The tag of a node in the timestamp that the client echoes.
#[test]
fn unknown_connections_go_by_their_tag() {
    everywhere(all_on(), |bench| {
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
    everywhere(ServiceSpec { tags: false, ..all_on() }, |bench| {
        let packet = bench.packet().flags(ACK).tsecr(9 << 24).payload(b"x");
        assert_eq!(bench.run(&packet.frame()), Fate::Dropped);
    });
    // The stack has answered a SYN, and its own clock looks like a tag.
    everywhere(all_on(), |bench| {
        let here = TcpListener::bind(if bench.v6 { "[::1]:0" } else { "127.0.0.1:0" }).expect("a listener");
        let server = here.local_addr().expect("an address");
        bench.plane.set_service(5, server, all_on()).expect("a service");
        let stream = TcpStream::connect(server).expect("connected");
        let client = stream.local_addr().expect("an address");
        let tagged = |client| Packet::new(client, server).flags(ACK).tsecr(9 << 24 | 77).payload(b"x");
        assert_eq!(bench.run(&tagged(client).frame()), Fate::Passed);
        // Its last packets too, when all that is left is a TIME_WAIT.
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
    // The stack has its own connections on a listen address without cookies.
    everywhere(ServiceSpec { cookie: false, grace: false, ..all_on() }, |bench| {
        let tagged = bench.packet().flags(ACK).tsecr(9 << 24).payload(b"x");
        assert_eq!(bench.run(&bench.packet().opened(KEYS[0], 0).payload(GET).frame()), Fate::Passed);
        is_forwarded(&bench.run(&tagged.frame()).sent(), &tagged);
    });
}

/// The plane enters the connections of a node's list. Meanwhile a client has ended one of them, and begun a new one on the same
/// addresses with this host's stack.
#[test]
fn a_nodes_list_takes_no_connection_from_the_stack() {
    for spec in [all_on(), ServiceSpec { cookie: false, grace: false, ..all_on() }] {
        everywhere(spec, |bench| {
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
            // It moves to a node: what is left of it here is frozen.
            bench.plane.put_flow(key, FlowTo::Node(7)).expect("a flow");
            is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
            assert_eq!(bench.run_egress(&answer.frame()), Fate::Dropped);
            // One that the stack does not have is the node's from its first packet on.
            assert!(bench.plane.add_flow(bench.key(), 7).expect("room"));
            is_forwarded(&bench.run(&bench.packet().flags(ACK).frame()).sent(), &bench.packet().flags(ACK));
            let flow = bench.plane.flow(bench.key()).expect("the flow");
            assert_eq!((flow.state, flow.flags_rest), (flow_state::NODE, [0; 3]));
        });
    }
}

/// A connection that the stack has answered with a cookie of its own, as under a flood of SYNs, has no socket until the handshake
/// is over.
#[test]
fn what_has_a_cookie_of_the_stacks_goes_there() {
    let Some(host) = netns::or_skip(Namespace::new("cookies")) else { return };
    host.ip("link set lo up").expect("up");
    // For every SYN.
    host.sysctl("net.ipv4.tcp_syncookies", "2").expect("a sysctl");
    let tested = host.run(|| {
        everywhere(all_on(), |bench| {
            let here =
                TcpListener::bind(if bench.v6 { "[::1]:0" } else { "127.0.0.1:0" }).expect("a listener");
            let server = here.local_addr().expect("an address");
            bench.plane.set_service(5, server, all_on()).expect("a service");
            let stream = TcpStream::connect(server).expect("connected");
            let client = stream.local_addr().expect("an address");
            let (accepted, _) = here.accept().expect("accepted");
            freeze(stream.as_fd(), &Mends::default()).expect("frozen");
            let numbers = checkpoint(stream.as_fd(), &Mends::default()).expect("its numbers");
            // Nothing is left of it but its numbers.
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
fn every_damaged_byte_is_noticed() {
    everywhere(all_on(), |bench| {
        let frame = bench.packet().payload(GET).frame();
        assert!(crate::plane::is_undamaged(&frame));
        let tcp_at = if frame[12] == 0x86 { 54 } else { 34 };
        for at in tcp_at..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x41;
            assert!(!crate::plane::is_undamaged(&damaged), "byte {at}");
        }
    });
}
