//! Packets that no socket can take yet.

use crate::frame::{FIN, Segment};
use crate::lab::{INTERFACE, Lab, eventually, vip};
use crate::support::{
    COOKIE, SERVICE, STASH, accept, connect, count, exchange, expect_bytes, listen, start_lab,
};
use crate::wire::set_repair;
use larder_kernel::FlowKey;
use larder_kernel::guard::{Guard, GuardEvent, accepts_cookies};
use larder_kernel::inject::Tap;
use std::io::{Read, Write};

fn stashed(guard: &Guard, into: &mut Vec<(FlowKey, bool, Vec<u8>)>) {
    guard.read_events(|event| {
        if let GuardEvent::Stash { key, frozen, packet, .. } = event {
            into.push((key, frozen, packet.to_vec()));
        }
    });
}

#[test]
fn packets_without_a_socket_are_stashed_and_injected() {
    let Some((lab, guard)) = start_lab(STASH) else { return };
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let mut client = connect(&lab, vip(v6));
        client.write_all(b"hello").expect("sent");
        let mut kept = Vec::new();
        eventually("a stashed packet", || {
            stashed(&guard, &mut kept);
            (!kept.is_empty()).then_some(())
        });
        let (key, frozen, packet) = kept.remove(0);
        let from = client.local_addr().expect("an address");
        assert_eq!(key, FlowKey::new(from, SERVICE));
        assert!(!frozen);
        assert_eq!(Segment::read(&packet), lab.first_segment_from(from));
        assert!(lab.settings().from_node.iter().all(|s| s.to != from), "no reset");
        if !accepts_cookies() {
            continue;
        }
        // Once the node accepts cookies, the same packet opens the connection.
        guard.set_service(SERVICE, vip(v6), COOKIE).expect("set");
        let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
        tap.write_frame(&packet).expect("written");
        let mut server = accept(&listener);
        expect_bytes(&mut server, b"hello");
        assert!(lab.node.ifindex(tap.name()).is_ok());
        let name = tap.name().to_owned();
        drop(tap);
        // A process of another test may have had a copy of the descriptor between fork and exec.
        let gone = || lab.node.ifindex(&name).is_err();
        eventually("the device is gone", || gone().then_some(()));
    }
}

/// Nothing that arrives while a connection is frozen reaches its socket, and nothing its socket sends gets out; what
/// was kept, merged by the kernel or not, continues the stream.
#[test]
fn frozen_connection_is_silent_and_resumes() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    lab.merge_segments();
    let mut merged = false;
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, mut server) = exchange(&lab, &listener, v6);
        let key = FlowKey::new(client.local_addr().expect("an address"), SERVICE);
        guard.freeze(key).expect("frozen");
        let dropped = count(&guard, "egress_dropped");
        let upload: Vec<u8> = (0..13_000_u32).map(|i| (i % 241) as u8).collect();
        client.write_all(&upload).expect("sent");
        let mut kept = Vec::new();
        eventually("all of it", || {
            stashed(&guard, &mut kept);
            let segments = kept.iter().filter_map(|(.., packet)| Segment::read(packet));
            (segments.map(|segment| segment.payload.len()).sum::<usize>() >= upload.len()).then_some(())
        });
        assert!(kept.iter().all(|(whose, frozen, _)| *whose == key && *frozen));
        server.set_nonblocking(true).expect("set");
        assert!(server.read(&mut [0; 1]).is_err(), "nothing arrived");
        server.set_nonblocking(false).expect("set");
        server.write_all(b"unheard").expect("sent");
        eventually("a dropped answer", || (count(&guard, "egress_dropped") > dropped).then_some(()));
        guard.thaw(key).expect("thawed");
        merged |= kept.iter().any(|(.., packet)| packet.len() > 2000);
        for (.., packet) in &kept {
            tap.write_frame(packet).expect("written");
        }
        expect_bytes(&mut server, &upload);
        expect_bytes(&mut client, b"unheard");
    }
    assert!(merged, "the kernel merges segments here");
}

/// A packet for a socket in repair mode waits, whatever the service's rules.
#[test]
fn packets_for_a_socket_in_repair_mode_are_stashed() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    set_repair(&server, 1).expect("into repair");
    client.write_all(b"wait").expect("sent");
    let mut kept = Vec::new();
    eventually("a stashed packet", || {
        stashed(&guard, &mut kept);
        (!kept.is_empty()).then_some(())
    });
    set_repair(&server, -1).expect("out of repair");
    tap.write_packet(&kept[0].2[14..]).expect("written");
    expect_bytes(&mut server, b"wait");
}

/// The acknowledgement of a client's last packets was lost, so it sends them again while the kernel keeps the node's
/// end in TIME_WAIT. They belong to that connection, not to the next one with its addresses, whose packets are stashed.
#[test]
fn repeated_fin_is_acknowledged_again() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    for v6 in [false, true] {
        guard.set_service(SERVICE, vip(v6), COOKIE).expect("set");
        let listener = listen(&lab, vip(v6));
        let (mut client, server) = exchange(&lab, &listener, v6);
        let from = client.local_addr().expect("an address");
        guard.set_service(SERVICE, vip(v6), STASH).expect("set");
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).expect("its end"), 0);
        lab.settings().mute = true;
        drop(client);
        let end = |lab: &Lab| {
            lab.settings().to_node.iter().rfind(|s| s.from == from && s.flags & FIN != 0).cloned()
        };
        let fin = eventually("the client's end", || end(&lab));
        let acknowledged = |s: &Segment| s.to == from && s.ack == fin.seq.wrapping_add(1);
        lab.expect_from_node("what will be lost", acknowledged);
        let mut settings = lab.settings();
        settings.from_node.retain(|segment| !acknowledged(segment));
        settings.mute = false;
        drop(settings);
        lab.expect_from_node("the same again", acknowledged);
        let mut kept = Vec::new();
        stashed(&guard, &mut kept);
        assert_eq!(kept, [], "nothing is kept of it");
        // Of another connection, whose number is slightly lower: the client's clock has advanced.
        let mut options = end(&lab).expect("sent").options;
        let value = options.len() - 8..options.len() - 4;
        let later = u32::from_be_bytes(options[value.clone()].try_into().expect("four")).wrapping_add(9);
        options[value].copy_from_slice(&later.to_be_bytes());
        let next = Segment { ack: fin.ack.wrapping_add(9), seq: fin.seq.wrapping_sub(9), options, ..fin };
        lab.inject(&next);
        eventually("a stashed packet", || {
            stashed(&guard, &mut kept);
            (!kept.is_empty()).then_some(())
        });
        assert_eq!(Segment::read(&kept[0].2), Some(next));
    }
}
