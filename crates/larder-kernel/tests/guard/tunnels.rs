//! Packets of a front-end in another network.

use crate::frame::{SYN, Segment, Wrapping, too_big};
use crate::lab::{KEY, address, eventually, vip};
use crate::support::{COOKIE, accept, claim, count, exchange, expect_bytes, guarded, listen};
use crate::wire::tcp_info;
use larder_kernel::guard::{Tunnel, TunnelKind};
use std::io::Write;
use std::net::SocketAddr;

#[test]
fn tunnels_are_unwrapped() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let kinds = [
        (Wrapping::Ipip, TunnelKind::Ipip),
        (Wrapping::Gue(6080), TunnelKind::Gue { port: 6080 }),
        (Wrapping::GueDirect(6081), TunnelKind::Gue { port: 6081 }),
        (Wrapping::Vxlan(4789, 77), TunnelKind::Vxlan { port: 4789, vni: 77 }),
    ];
    for inner_v6 in [false, true] {
        let listener = listen(&lab, vip(inner_v6));
        for outer_v6 in [false, true] {
            let (from, to) = (address(outer_v6, 3), address(outer_v6, 17));
            for (wrapping, kind) in kinds {
                let tunnel = Tunnel { kind, local: to, remote: Some(from) };
                guard.add_tunnel(&tunnel).expect("added");
                lab.orders().wrapping = Some((wrapping, from, to));
                let before = count(&guard, "decapsulated");
                let (mut client, mut server) = exchange(&lab, &listener, inner_v6);
                // More than a segment, so that the kernel may merge what it can.
                let upload = [b'u'; 100_000];
                let writer = std::thread::spawn(move || {
                    client.write_all(&upload).expect("sent");
                    client
                });
                expect_bytes(&mut server, &upload);
                let mut client = writer.join().expect("written");
                server.write_all(b"answer").expect("sent");
                expect_bytes(&mut client, b"answer");
                assert!(count(&guard, "decapsulated") > before, "{wrapping:?} over IPv6 {outer_v6}");
                guard.remove_tunnel(&tunnel).expect("removed");
            }
        }
    }
    lab.orders().wrapping = None;
}

/// Tunnels carry nothing but packets to our listen addresses, from whom they are meant for.
#[test]
fn foreign_packets_in_tunnels_are_dropped() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let other = listen(&lab, SocketAddr::new(address(false, 100), 81));
    lab.orders().mute = true;
    let (from, to) = (address(false, 3), address(false, 17));
    let kind = TunnelKind::Vxlan { port: 4789, vni: 5 };
    guard.add_tunnel(&Tunnel { kind, local: to, remote: Some(from) }).expect("added");
    let bad = || count(&guard, "malformed");
    // Another service.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), from, to));
    let syn =
        Segment::new("10.9.0.2:9000".parse().expect("an address"), other.local_addr().expect("one"), SYN);
    lab.inject(&syn);
    eventually("a drop", || (bad() == 1).then_some(()));
    // Another network.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 6), from, to));
    lab.inject(&claim(false, 5001, KEY));
    eventually("a drop", || (bad() == 2).then_some(()));
    // Another sender: not our tunnel at all.
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), address(false, 4), to));
    lab.inject(&claim(false, 5001, KEY));
    lab.orders().wrapping = Some((Wrapping::Vxlan(4789, 5), from, to));
    lab.inject(&claim(false, 5002, KEY));
    assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), 5002);
    assert!(listener.accept().is_err());
    assert_eq!(bad(), 2);
}

/// A router on the way to the client says that packets are too big, to the service address; the front-end passes it on.
#[test]
fn a_smaller_path_is_heard_of_through_a_tunnel() {
    let Some((lab, guard)) = guarded(COOKIE) else { return };
    let (from, to) = (address(false, 3), address(false, 17));
    guard.add_tunnel(&Tunnel { kind: TunnelKind::Ipip, local: to, remote: Some(from) }).expect("added");
    lab.orders().wrapping = Some((Wrapping::Ipip, from, to));
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, mut server) = exchange(&lab, &listener, v6);
        // Without an acknowledgement, as the stack believes only what is said about packets on their way.
        lab.orders().deaf = true;
        server.write_all(b"answer").expect("sent");
        let peer = client.local_addr().expect("an address");
        let data = lab.expect_from_node("data", |s| s.to == peer && !s.payload.is_empty());
        lab.inject_packet(&too_big(&data, address(v6, 99), 1300));
        let headers = if v6 { 40 } else { 20 } + 20 + 12;
        eventually("smaller segments", || (tcp_info(&server).tcpi_snd_mss == 1300 - headers).then_some(()));
        lab.orders().deaf = false;
        expect_bytes(&mut client, b"answer");
        // About somebody else's packet.
        let before = count(&guard, "malformed");
        let foreign = Segment { from: SocketAddr::new(data.from.ip(), 81), ..data };
        lab.inject_packet(&too_big(&foreign, address(v6, 99), 1300));
        eventually("a drop", || (count(&guard, "malformed") == before + 1).then_some(()));
    }
}
