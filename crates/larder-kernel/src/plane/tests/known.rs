//! Packets of known connections.

use super::packet::{ACK, FIN, ISN, MSS, Packet, RST, SYN, is_forwarded, read};
use super::{
    Bench, Fate, KEYS, LOOPBACK, NODE_MAC, OUR_MAC, OwnedEvent, clock_now, for_each_setup, full_service,
};
use crate::abi::{Flow, NO_NODE, RawFlowKey, flow_flag, flow_state};
use crate::plane::{FlowDestination, NodeRoute, ServiceSpec, now_ns};
use libbpf_rs::{MapCore, MapFlags};
use zerocopy::IntoBytes;

fn to_node(bench: &Bench) {
    bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
}

fn data(bench: &Bench, at: u32, payload: &[u8]) -> Packet {
    bench.packet().opened(KEYS[0], at).payload(payload)
}

#[test]
fn packets_are_forwarded_and_noted() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        for at in [0, 10, 5] {
            let packet = data(bench, at, b"12345");
            is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
        }
        let packet = data(bench, 15, b"");
        is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.packets, flow.requests, flow.held), (4, 3, 0));
        assert_eq!(flow.last_seq, ISN.wrapping_add(16));
        assert_eq!(flow.last_ack, packet.ack);
        assert!(flow.seen_ns > 0 && flow.seen_ns <= crate::plane::now_ns());
        assert_eq!((bench.counter("forwarded"), bench.events().len()), (4, 0));
    });
}

const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];

/// A held connection whose client echoes timestamps; node 7 has tag 9, node 3 tag 4.
fn opened_by_cookie(bench: &Bench) -> Packet {
    let link =
        NodeRoute { tag: 4, ifindex: LOOPBACK, source_mac: OUR_MAC, next_hop: OTHER_MAC, tunnel: None };
    bench.plane.set_link(3, Some(&link)).expect("a link");
    let first = bench.packet().with_cookie(KEYS[0], ISN, Some(clock_now())).payload(b"PUT ");
    assert_eq!(bench.run(&first.frame()), Fate::Dropped);
    assert_eq!(bench.events().len(), 1);
    first
}

/// The destination of a packet that echoes this tag.
fn next_hop(bench: &Bench, packet: &Packet, tag: u32) -> [u8; 6] {
    read(&bench.run(&packet.clone().tsecr(tag << 24 | 5).frame()).sent()).1[0]
}

/// Two nodes have accepted the connection, each through another switch. The client continues with one of them.
#[test]
fn connection_at_two_nodes_follows_the_echoed_tag() {
    for_each_setup(full_service(), |bench| {
        let packet = opened_by_cookie(bench);
        to_node(bench);
        let hops = [9, 4, 0, 5, 4].map(|tag| next_hop(bench, &packet, tag));
        assert_eq!(hops, [NODE_MAC, OTHER_MAC, NODE_MAC, NODE_MAC, OTHER_MAC]);
        assert_eq!(bench.counter("other_node"), 2);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.node, flow.packets), (7, 5), "a tag proves nothing");
        // The previous node's timestamps continue when another node or slot has the connection.
        for (node, tag, mac) in [(3, 9, OTHER_MAC), (7, 4, NODE_MAC)] {
            bench.plane.put_flow(bench.key(), FlowDestination::Node(node)).expect("a flow");
            assert_eq!(next_hop(bench, &packet, tag), mac);
        }
        assert_eq!(bench.counter("other_node"), 2);
    });
}

/// A node's clock reaches the tag 2.3 hours after the connection opened. Connections that user space has added may have
/// timestamps of this host's stack.
#[test]
fn tag_is_ignored_where_it_may_be_absent() {
    for_each_setup(full_service(), |bench| {
        let packet = opened_by_cookie(bench);
        to_node(bench);
        let aged = |hours: u64, change: fn(&mut Flow)| {
            let mut flow = bench.plane.flow(bench.key()).expect("the flow");
            flow.opened_ns = now_ns().wrapping_sub(hours * 3_600_000_000_000);
            change(&mut flow);
            let key = RawFlowKey::from(bench.key());
            bench.plane.flows.update(key.as_bytes(), flow.as_bytes(), MapFlags::ANY).expect("set");
            next_hop(bench, &packet, 4)
        };
        assert_eq!(aged(1, |_| {}), OTHER_MAC);
        assert_eq!(aged(3, |_| {}), NODE_MAC);
        assert_eq!(aged(1, |flow| flow.first_echo = 0), NODE_MAC);
    });
}

#[test]
fn held_packets_are_punted_up_to_a_limit() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Hold).expect("a flow");
        for at in 0..6 {
            assert_eq!(bench.run(&data(bench, at, b"x").frame()), Fate::Dropped);
        }
        let want = |at: u32| OwnedEvent::Punt {
            first: false,
            head_hash: None,
            packet: data(bench, at, b"x").frame(),
        };
        assert_eq!(bench.events(), (0..4).map(want).collect::<Vec<_>>());
        assert_eq!((bench.counter("held"), bench.counter("hold_full")), (4, 2));
        to_node(bench);
        let packet = data(bench, 6, b"x");
        is_forwarded(&bench.run(&packet.frame()).sent(), &packet);
    });
}

#[test]
fn local_connection_goes_to_the_stack() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Local).expect("a flow");
        assert_eq!(bench.run(&data(bench, 0, b"x").frame()), Fate::Passed);
        assert_eq!(bench.counter("local"), 1);
    });
}

#[test]
fn end_is_reported_once() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        let fin = data(bench, 5, b"").flags(FIN | ACK);
        is_forwarded(&bench.run(&fin.frame()).sent(), &fin);
        bench.run(&fin.frame()).sent();
        let rst = data(bench, 6, b"").flags(RST);
        is_forwarded(&bench.run(&rst.frame()).sent(), &rst);
        assert_eq!(bench.events(), [OwnedEvent::Ended { node: 7, flags: flow_flag::CLIENT_FIN }]);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        let all = flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST | flow_flag::END_REPORTED;
        assert_eq!((flow.flags, flow.last_seq), (all, ISN.wrapping_add(7)));
    });
}

/// After its FIN, the client's acknowledgements show whether the node still sends.
#[test]
fn client_that_keeps_acknowledging_is_reported() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        let acks = |bytes: u32, flags| {
            let mut packet = data(bench, 5, b"").flags(flags);
            packet.ack = packet.ack.wrapping_add(bytes);
            packet.frame()
        };
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        bench.run(&acks(1_000, FIN | ACK)).sent();
        let flags = flow_flag::CLIENT_FIN | flow_flag::ACKED;
        assert_eq!(bench.events(), [OwnedEvent::Ended { node: 7, flags }]);
        // The node's FIN has a number, and ends the connection.
        bench.run(&acks(1_001, ACK)).sent();
        assert_eq!(bench.events(), []);
        for bytes in [2_000, 3_000] {
            bench.run(&acks(bytes, ACK)).sent();
        }
        assert_eq!(bench.events(), [OwnedEvent::Resumed { node: 7 }]);
    });
}

/// A RST of an attacker who does not see the connection reaches the node, which ignores it, and ends nothing here.
#[test]
fn blind_reset_is_not_an_end() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        for off in [1 << 20, 1 << 31, 0xfff0_0000] {
            bench.run(&data(bench, off, b"").flags(RST).frame()).sent();
        }
        assert_eq!((bench.events().len(), bench.plane.flow(bench.key()).expect("the flow").flags), (0, 0));
        bench.run(&data(bench, 5, b"").flags(RST).frame()).sent();
        assert_eq!(bench.events(), [OwnedEvent::Ended { node: 7, flags: flow_flag::CLIENT_RST }]);
    });
}

/// The next connection on the same addresses: announced by its SYN, proved by its cookie.
fn second(bench: &Bench) -> (Packet, Packet) {
    let mut syn = bench.packet().syn(&[&MSS]);
    syn.seq = 0x4000_0000;
    let (reply, _) = read(&bench.run(&syn.frame()).sent());
    let mut ack = bench.packet();
    (ack.seq, ack.ack) = (syn.seq + 1, reply.seq.wrapping_add(1));
    (syn, ack)
}

#[test]
fn proven_new_connection_replaces_the_old_one() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        let (_, ack) = second(bench);
        // A correct number with a wrong cookie still belongs to the old connection.
        let mut forged = ack.clone();
        forged.ack ^= 1 << 16;
        bench.run(&forged.frame()).sent();
        assert!(bench.events().is_empty());
        assert_eq!(bench.run(&ack.frame()), Fate::Dropped);
        assert!(matches!(bench.events().as_slice(), [OwnedEvent::Ended { node: 7, .. }]));
        assert!(bench.plane.flow(bench.key()).is_none());
        assert_eq!(bench.counter("reused"), 1);
        let request = ack.payload(b"PUT ");
        assert_eq!(bench.run(&request.frame()), Fate::Dropped);
        assert!(matches!(bench.events().as_slice(), [OwnedEvent::Punt { first: true, .. }]));
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.first_seq), (flow_state::HOLD, 0x4000_0001));
    });
}

/// After the SYN of the next connection was answered, another SYN overwrote its entry.
#[test]
fn closing_connection_is_replaced_by_any_proven_one() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"1").flags(FIN | ACK).frame()).sent();
        let (mut syn, ack) = second(bench);
        syn.seq = 1;
        read(&bench.run(&syn.frame()).sent());
        assert!(matches!(bench.events().as_slice(), [OwnedEvent::Ended { .. }]));
        assert_eq!(bench.run(&ack.payload(b"PUT ").frame()), Fate::Dropped);
        assert!(
            matches!(bench.events().as_slice(), [OwnedEvent::Punt { first: true, .. }]),
            "its end was told before"
        );
    });
}

/// Delayed copies of the first packets of an older connection.
#[test]
fn late_first_packet_does_not_end_the_next_connection() {
    for_each_setup(full_service(), |bench| {
        let now = clock_now();
        let begins = |isn: u32, age: u32| {
            bench.packet().with_cookie(KEYS[0], isn, Some(now.wrapping_sub(age))).payload(b"PUT ")
        };
        let (older, newer, third) = (begins(9000, 20), begins(500, 10), begins(100, 5));
        assert_eq!(bench.run(&newer.frame()), Fate::Dropped);
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((flow.state, flow.first_echo >> 12), (flow_state::HOLD, now.wrapping_sub(10) & 0x7ff));
        to_node(bench);
        let mut syn = bench.packet().syn(&[&MSS]);
        syn.seq = 9000;
        read(&bench.run(&syn.frame()).sent());
        is_forwarded(&bench.run(&older.frame()).sent(), &older);
        // The same while it is closing.
        let mut fin = newer.clone().payload(b"").flags(FIN | ACK);
        fin.seq = newer.seq.wrapping_add(4);
        bench.run(&fin.frame()).sent();
        is_forwarded(&bench.run(&older.frame()).sent(), &older);
        assert_eq!(bench.plane.flow(bench.key()).expect("the flow").first_seq, newer.seq);
        assert_eq!(bench.run(&third.frame()), Fate::Dropped);
        assert_eq!(bench.plane.flow(bench.key()).expect("the flow").first_seq, third.seq);
        assert_eq!(bench.counter("reused"), 1);
    });
}

/// Without timestamps, a lower number belongs to an older connection.
#[test]
fn closing_connection_is_not_replaced_by_a_lower_number() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"1").flags(FIN | ACK).frame()).sent();
        let mut older = bench.packet().payload(b"PUT ");
        let isn = ISN.wrapping_sub(100_000);
        (older.seq, older.ack) = (isn.wrapping_add(1), cookie(bench, isn).wrapping_add(1));
        is_forwarded(&bench.run(&older.frame()).sent(), &older);
        assert_eq!(bench.counter("reused"), 0);
    });
}

fn cookie(bench: &Bench, isn: u32) -> u32 {
    bench.packet().with_cookie(KEYS[0], isn, None).ack.wrapping_sub(1)
}

/// Without cookies, or with the service closed, the stack answers the SYN; the acknowledgement of that answer goes to
/// the stack.
#[test]
fn stack_connection_replaces_the_old_one() {
    let repair = ServiceSpec { cookie: false, grace: false, ..full_service() };
    let closed = ServiceSpec { closed: true, grace: false, ..full_service() };
    for_each_setup(repair, check_replacement_by_the_stack);
    for_each_setup(closed, check_replacement_by_the_stack);
}

fn check_replacement_by_the_stack(bench: &Bench) {
    to_node(bench);
    bench.run(&data(bench, 0, b"12345").frame()).sent();
    let mut syn = bench.packet().syn(&[&MSS]);
    syn.seq = 0x4000_0000;
    assert_eq!(bench.run(&syn.frame()), Fate::Passed);
    let mut answer = Packet::new(bench.server(), bench.client()).flags(SYN | ACK);
    (answer.seq, answer.ack) = (0x5000_0000, 0x4000_0001);
    assert_eq!(bench.run_egress(&answer.frame()), Fate::Passed);
    bench.run(&data(bench, 5, b"still the old one").frame()).sent();
    let mut ack = bench.packet();
    (ack.seq, ack.ack) = (0x4000_0001, 0x5000_0001);
    assert_eq!(bench.run(&ack.frame()), Fate::Passed);
    assert!(matches!(bench.events().as_slice(), [OwnedEvent::Ended { node: 7, .. }]));
    assert!(bench.plane.flow(bench.key()).is_none());
}

#[test]
fn sockets_whose_connection_moved_are_silent() {
    for_each_setup(ServiceSpec { cookie: false, ..full_service() }, |bench| {
        let packet = Packet::new(bench.server(), bench.client()).payload(b"reply");
        let fates = |bench: &Bench| {
            [ACK, RST, FIN | ACK, SYN | ACK]
                .map(|flags| bench.run_egress(&packet.clone().flags(flags).frame()) == Fate::Passed)
        };
        assert_eq!(fates(bench), [true; 4]);
        for (to, passes) in
            [(FlowDestination::Hold, true), (FlowDestination::Local, true), (FlowDestination::Reset, true)]
        {
            bench.plane.put_flow(bench.key(), to).expect("a flow");
            assert_eq!(fates(bench), [passes; 4], "{to:?}");
        }
        to_node(bench);
        assert_eq!(fates(bench), [false; 4]);
        assert_eq!(bench.counter("egress_dropped"), 4);
        let mut other = packet.clone();
        other.from.set_port(81);
        assert_eq!(bench.run_egress(&other.frame()), Fate::Passed);
    });
}

#[test]
fn node_without_a_route_gets_nothing() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(8)).expect("a flow");
        assert_eq!(bench.run(&data(bench, 0, b"x").frame()), Fate::Dropped);
        bench.plane.put_flow(bench.key(), FlowDestination::Node(NO_NODE - 1)).expect("a flow");
        assert_eq!(bench.run(&data(bench, 0, b"x").frame()), Fate::Dropped);
        assert_eq!(bench.counter("no_link"), 2);
    });
}

#[test]
fn hop_limit_ends_a_loop() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        let mut frame = data(bench, 0, b"x").frame();
        frame[if bench.v6 { 21 } else { 22 }] = 1;
        assert_eq!(bench.run(&frame), Fate::Dropped);
    });
}

#[test]
fn flows_are_listed_and_removed() {
    for_each_setup(full_service(), |bench| {
        for port in 1..=300 {
            let mut client = bench.client();
            client.set_port(port);
            let key = crate::FlowKey::new(client, 5);
            bench.plane.put_flow_seen(key, FlowDestination::Node(7), 10, 20).expect("a flow");
        }
        let mut ports = std::collections::BTreeSet::new();
        let list = |ports: &mut std::collections::BTreeSet<u16>| {
            let each = |key: crate::FlowKey, flow: crate::abi::Flow| {
                assert_eq!((flow.node, flow.last_seq, flow.last_ack), (7, 10, 20));
                ports.insert(key.client.port());
            };
            bench.plane.each_flow(each).expect("listed");
        };
        list(&mut ports);
        assert_eq!(ports.len(), 300);
        let mut client = bench.client();
        client.set_port(17);
        bench.plane.remove_flow(crate::FlowKey::new(client, 5)).expect("removed");
        bench.plane.remove_flow(crate::FlowKey::new(client, 5)).expect("again");
        ports.clear();
        list(&mut ports);
        assert!(ports.len() == 299 && !ports.contains(&17));
    });
}

/// A node's listing does not replace a newer connection on the same addresses.
#[test]
fn flow_is_added_only_where_there_is_none() {
    for_each_setup(full_service(), |bench| {
        let flow = || bench.plane.flow(bench.key()).map(|flow| (flow.state, flow.node));
        assert!(bench.plane.add_flow(bench.key(), 7).expect("room"));
        assert_eq!(flow(), Some((flow_state::NODE, 7)));
        assert!(!bench.plane.add_flow(bench.key(), 8).expect("room"));
        bench.plane.put_flow(bench.key(), FlowDestination::Hold).expect("room");
        assert!(!bench.plane.add_flow(bench.key(), 8).expect("room"));
        assert_eq!(flow().map(|(state, _)| state), Some(flow_state::HOLD));
    });
}

const ROUNDS: u32 = 20_000;

/// Programs and user space set flags at the same time: none is lost.
#[test]
fn concurrent_flag_changes_are_all_kept() {
    let closed = ServiceSpec { closed: true, ..full_service() };
    for_each_setup(closed, |bench| {
        // Repeated runs of XDP programs take milliseconds to start; the source is one.
        if bench.plane.attached() != super::AttachMode::Tc {
            return;
        }
        // It changes only the flag, and leaves the frame as it is.
        let syn = bench.packet().syn(&[&MSS]).frame();
        let (done, mut lost) = (std::sync::atomic::AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    bench.run_often(&syn, 1000);
                }
            });
            let all = [flow_flag::IDLE, flow_flag::ACKED, flow_flag::END_REPORTED, flow_flag::CLIENT_FIN];
            let want = all.iter().fold(0, |all, flag| all | flag);
            for _ in 0..ROUNDS {
                let _ = bench.plane.remove_flow(bench.key());
                let _ = bench.plane.put_flow(bench.key(), FlowDestination::Node(7));
                all.iter().for_each(|&flag| drop(bench.plane.add_flags(bench.key(), flag)));
                lost += u32::from(bench.plane.flow(bench.key()).is_none_or(|flow| flow.flags & want != want));
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(lost, 0, "of {ROUNDS} times");
    });
}

/// An attacker who does not see the connection guesses its numbers: nothing of his packets is noted.
#[test]
fn implausible_sequence_numbers_are_not_noted() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        let before = bench.plane.flow(bench.key()).expect("the flow");
        for (seq, ack) in [(17 << 20, 0), (0, 17 << 20), (1 << 30, 1 << 30), (0, 1 << 31), (0xfe00_0000, 100)]
        {
            let mut forged = data(bench, 5, b"x").flags(FIN | ACK);
            (forged.seq, forged.ack) = (forged.seq.wrapping_add(seq), forged.ack.wrapping_add(ack));
            is_forwarded(&bench.run(&forged.frame()).sent(), &forged);
        }
        let after = bench.plane.flow(bench.key()).expect("the flow");
        let noted =
            |flow: crate::abi::Flow| (flow.last_seq, flow.last_ack, flow.flags, flow.requests, flow.seen_ns);
        assert_eq!((noted(after), bench.counter("implausible")), (noted(before), 5));
        // A client that has had 15 MB acknowledged at once and has sent as much, unseen.
        let mut next = data(bench, 15 << 20, b"x");
        next.ack = next.ack.wrapping_add(15 << 20);
        bench.run(&next.frame()).sent();
        let after = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!((after.last_ack, after.flags), (next.ack, flow_flag::ACKED));
        // An unknown number is accepted.
        bench.plane.remove_flow(bench.key()).expect("removed");
        bench.plane.put_flow_seen(bench.key(), FlowDestination::Node(7), next.seq, 0).expect("a flow");
        bench.run(&next.frame()).sent();
        assert_eq!(bench.plane.flow(bench.key()).expect("the flow").last_ack, next.ack);
    });
}

/// A connection that was with another switch for 100 MB is recognised once its client has continued from there for a
/// second. Packets forged while the client sends are not accepted, nor is a forged end.
#[test]
fn numbers_are_accepted_when_the_client_continues_from_them() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        bench.run(&data(bench, 0, b"12345").frame()).sent();
        let far = |more: u32, flags| {
            let mut packet = data(bench, (100 << 20) + more, b"x").flags(flags);
            packet.ack = packet.ack.wrapping_add((100 << 20) + more);
            packet
        };
        let noted =
            || bench.plane.flow(bench.key()).map(|flow| (flow.last_seq, flow.last_ack)).expect("the flow");
        let wait = || larder_testkit::take_time(std::time::Duration::from_millis(1_050));
        let before = noted();
        for more in [0, 1] {
            is_forwarded(&bench.run(&far(more, ACK).frame()).sent(), &far(more, ACK));
        }
        assert_eq!(noted(), before, "not at once");
        wait();
        bench.run(&data(bench, 5, b"6").frame()).sent();
        let spoken = noted();
        bench.run(&far(2, ACK).frame()).sent();
        assert_eq!(noted(), spoken, "the client has gone on where it was");
        wait();
        bench.run(&far(3, ACK | FIN).frame()).sent();
        assert_eq!(noted(), spoken, "an end is not believed");
        bench.run(&far(4, ACK).frame()).sent();
        let last = far(4, ACK);
        assert_eq!(noted(), (last.seq.wrapping_add(1), last.ack));
        let flow = bench.plane.flow(bench.key()).expect("the flow");
        assert_eq!(
            (flow.flags & flow_flag::CLIENT_FIN, flow.flags & flow_flag::ACKED),
            (0, flow_flag::ACKED)
        );
        // From here on it is like any other.
        bench.run(&far(5, ACK | FIN).frame()).sent();
        assert_ne!(bench.plane.flow(bench.key()).expect("the flow").flags & flow_flag::CLIENT_FIN, 0);
    });
}

/// Samples of later requests leave room in the ring for first packets.
#[test]
fn samples_do_not_displace_first_packets() {
    for_each_setup(full_service(), |bench| {
        to_node(bench);
        for at in 0..3000_u32 {
            bench.run(&data(bench, at, &[b'x'; 1000]).frame()).sent();
        }
        assert!(bench.counter("later_skipped") > 0);
        assert!(bench.counter("punted") >= 10, "some are shown");
        for port in 1..=20 {
            let mut first = data(bench, 0, &[b'x'; 1000]);
            first.from.set_port(port);
            first = first.opened(KEYS[0], 0);
            assert_eq!(bench.run(&first.frame()), Fate::Dropped);
        }
        assert_eq!(bench.counter("punt_lost"), 0);
    });
}
