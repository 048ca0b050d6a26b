//! Packets of a switch in another network.

use crate::frame::{Encapsulation, SYN, Segment, too_big};
use crate::lab::{KEY, address, eventually, vip};
use crate::support::{COOKIE, accept, count, exchange, expect_bytes, first_segment_of, listen, start_lab};
use crate::wire::tcp_info;
use larder_kernel::guard::{InboundTunnel, InboundTunnelKind};
use std::io::Write;
use std::net::SocketAddr;

#[test]
fn tunnels_are_decapsulated() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let kinds = [
        (Encapsulation::Ipip, InboundTunnelKind::Ipip),
        (Encapsulation::Gue(6080), InboundTunnelKind::Gue { port: 6080 }),
        (Encapsulation::GueDirect(6081), InboundTunnelKind::Gue { port: 6081 }),
        (Encapsulation::Vxlan(4789, 77), InboundTunnelKind::Vxlan { port: 4789, vni: 77 }),
    ];
    for inner_v6 in [false, true] {
        let listener = listen(&lab, vip(inner_v6));
        for outer_v6 in [false, true] {
            let (from, to) = (address(outer_v6, 3), address(outer_v6, 17));
            for (encapsulation, kind) in kinds {
                let tunnel = InboundTunnel { kind, local: to, remote: Some(from) };
                guard.add_tunnel(&tunnel).expect("added");
                lab.settings().encapsulation = Some((encapsulation, from, to));
                let before = count(&guard, "decapsulated");
                let (mut client, mut server) = exchange(&lab, &listener, inner_v6);
                // More than a segment, so that the kernel may merge segments.
                let upload = [b'u'; 100_000];
                let writer = std::thread::spawn(move || {
                    client.write_all(&upload).expect("sent");
                    client
                });
                expect_bytes(&mut server, &upload);
                let mut client = writer.join().expect("written");
                server.write_all(b"answer").expect("sent");
                expect_bytes(&mut client, b"answer");
                assert!(count(&guard, "decapsulated") > before, "{encapsulation:?} over IPv6 {outer_v6}");
                guard.remove_tunnel(&tunnel).expect("removed");
            }
        }
    }
    lab.settings().encapsulation = None;
}

/// Tunnels accept only packets to our listen addresses, and only from their remote end.
#[test]
fn foreign_packets_in_tunnels_are_dropped() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let other = listen(&lab, SocketAddr::new(address(false, 100), 81));
    lab.settings().mute = true;
    let (from, to) = (address(false, 3), address(false, 17));
    let kind = InboundTunnelKind::Vxlan { port: 4789, vni: 5 };
    guard.add_tunnel(&InboundTunnel { kind, local: to, remote: Some(from) }).expect("added");
    let bad = || count(&guard, "malformed");
    // Another service.
    lab.settings().encapsulation = Some((Encapsulation::Vxlan(4789, 5), from, to));
    let syn =
        Segment::new("10.9.0.2:9000".parse().expect("an address"), other.local_addr().expect("one"), SYN);
    lab.inject(&syn);
    eventually("a drop", || (bad() == 1).then_some(()));
    // Another network.
    lab.settings().encapsulation = Some((Encapsulation::Vxlan(4789, 6), from, to));
    lab.inject(&first_segment_of(false, 5001, KEY));
    eventually("a drop", || (bad() == 2).then_some(()));
    // Another sender: not through our tunnel.
    lab.settings().encapsulation = Some((Encapsulation::Vxlan(4789, 5), address(false, 4), to));
    lab.inject(&first_segment_of(false, 5001, KEY));
    lab.settings().encapsulation = Some((Encapsulation::Vxlan(4789, 5), from, to));
    lab.inject(&first_segment_of(false, 5002, KEY));
    assert_eq!(accept(&listener).peer_addr().expect("a peer").port(), 5002);
    assert!(listener.accept().is_err());
    assert_eq!(bad(), 2);
}

/// A router on the path to the client reports to the service address that packets are too big; the switch forwards the
/// message.
#[test]
fn smaller_path_mtu_is_learned_through_a_tunnel() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let (from, to) = (address(false, 3), address(false, 17));
    guard
        .add_tunnel(&InboundTunnel { kind: InboundTunnelKind::Ipip, local: to, remote: Some(from) })
        .expect("added");
    lab.settings().encapsulation = Some((Encapsulation::Ipip, from, to));
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, mut server) = exchange(&lab, &listener, v6);
        // Without acknowledgements, because the stack accepts only messages about packets in flight.
        lab.settings().deaf = true;
        server.write_all(b"answer").expect("sent");
        let peer = client.local_addr().expect("an address");
        let data = lab.expect_from_node("data", |s| s.to == peer && !s.payload.is_empty());
        lab.inject_packet(&too_big(&data, address(v6, 99), 1300));
        let headers = if v6 { 40 } else { 20 } + 20 + 12;
        eventually("smaller segments", || (tcp_info(&server).tcpi_snd_mss == 1300 - headers).then_some(()));
        lab.settings().deaf = false;
        expect_bytes(&mut client, b"answer");
        // About another host's packet.
        let before = count(&guard, "malformed");
        let foreign = Segment { from: SocketAddr::new(data.from.ip(), 81), ..data };
        lab.inject_packet(&too_big(&foreign, address(v6, 99), 1300));
        eventually("a drop", || (count(&guard, "malformed") == before + 1).then_some(()));
    }
}
