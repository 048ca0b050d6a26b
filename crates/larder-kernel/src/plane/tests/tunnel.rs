//! Outer headers, written by the programs and by user space.

use super::super::link::{NodeRouteError, encapsulate};
use super::packet::{be16, read};
use super::{Bench, KEYS, LOOPBACK, OUR_MAC, for_each_setup, full_service};
use crate::frame::{Frame, checksum};
use crate::plane::{FlowDestination, NodeRoute, OutboundTunnel, OutboundTunnelKind};
use std::net::IpAddr;

const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
const INNER: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

fn link(kind: OutboundTunnelKind, outer_v6: bool) -> NodeRoute {
    let ip = |end: u16| -> IpAddr {
        if outer_v6 {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, end])
        } else {
            IpAddr::from([10, 0, 0, end as u8])
        }
    };
    let tunnel = Some(OutboundTunnel { kind, local: ip(1), remote: ip(2) });
    NodeRoute { tag: 0, ifindex: LOOPBACK, source_mac: OUR_MAC, next_hop: ROUTER, tunnel }
}

fn kinds() -> [OutboundTunnelKind; 3] {
    [
        OutboundTunnelKind::Ipip,
        OutboundTunnelKind::Gue { port: 6080 },
        OutboundTunnelKind::Vxlan { port: 4789, vni: 0x00ab_cdef, mac: INNER },
    ]
}

/// Checks the outer headers against the RFCs, and returns the inner frame.
#[track_caller]
fn decapsulate(bench: &Bench, kind: OutboundTunnelKind, outer_v6: bool, frame: &[u8]) -> Vec<u8> {
    assert_eq!((&frame[..6], &frame[6..12]), (ROUTER.as_slice(), OUR_MAC.as_slice()));
    let (protocol, l4) = if outer_v6 {
        assert_eq!((&frame[12..14], frame[14] >> 4, frame[21]), ([0x86, 0xdd].as_slice(), 6, 64));
        assert_eq!(usize::from(be16(&frame[18..])), frame.len() - 54);
        assert_eq!((frame[22], frame[37], frame[38], frame[53]), (0xfd, 1, 0xfd, 2));
        (frame[20], 54)
    } else {
        assert_eq!((&frame[12..15], frame[22]), ([8, 0, 0x45].as_slice(), 64));
        assert_eq!(usize::from(be16(&frame[16..])), frame.len() - 14);
        assert_eq!(checksum(&[&frame[14..34]]), 0);
        assert_eq!((&frame[26..30], &frame[30..34]), ([10, 0, 0, 1].as_slice(), [10, 0, 0, 2].as_slice()));
        (frame[23], 34)
    };
    let inner_protocol = if bench.v6 { 41 } else { 4 };
    let ethernet: &[u8] = if bench.v6 { &[0x86, 0xdd] } else { &[8, 0] };
    let udp = |port: u16| {
        assert_eq!(protocol, 17);
        assert!(be16(&frame[l4..]) >= 0xc000);
        assert_eq!((be16(&frame[l4 + 2..]), be16(&frame[l4 + 6..])), (port, 0));
        assert_eq!(usize::from(be16(&frame[l4 + 4..])), frame.len() - l4);
        &frame[l4 + 8..]
    };
    match kind {
        OutboundTunnelKind::Ipip => {
            assert_eq!(protocol, inner_protocol);
            [&[0; 12], ethernet, &frame[l4..]].concat()
        }
        OutboundTunnelKind::Gue { port } => {
            let inner = udp(port);
            assert_eq!(inner[..4], [0, inner_protocol, 0, 0]);
            [&[0; 12], ethernet, &inner[4..]].concat()
        }
        OutboundTunnelKind::Vxlan { port, .. } => {
            let inner = udp(port);
            assert_eq!(inner[..8], [8, 0, 0, 0, 0xab, 0xcd, 0xef, 0]);
            assert_eq!((&inner[8..14], &inner[14..20]), (INNER.as_slice(), OUR_MAC.as_slice()));
            assert_eq!(&inner[20..22], ethernet);
            inner[8..].to_vec()
        }
    }
}

#[test]
fn packets_are_encapsulated_unchanged() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        for kind in kinds() {
            for outer_v6 in [false, true] {
                bench.plane.set_link(7, Some(&link(kind, outer_v6))).expect("a link");
                for payload in [0, 1, 1300] {
                    let packet = bench.packet().opened(KEYS[0], 0).payload(&vec![0x5a; payload]);
                    let frame = packet.frame();
                    let sent = bench.run(&frame).sent();
                    let inner = decapsulate(bench, kind, outer_v6, &sent);
                    read(&inner);
                    assert_eq!(inner[14..], frame[14..], "the inner packet is as it was");
                    // User space wraps packets in the same way, with the same source port.
                    let raw = bench.plane.link(7).expect("the link");
                    assert_eq!(encapsulate(&raw, &Frame::parse(&frame).expect("a frame")), sent, "{kind:?}");
                }
            }
        }
        assert_eq!(bench.counter("forwarded"), 18);
    });
}

#[test]
fn user_space_rewrites_l2_packets_the_same_way() {
    for_each_setup(full_service(), |bench| {
        bench.plane.put_flow(bench.key(), FlowDestination::Node(7)).expect("a flow");
        let frame = bench.packet().opened(KEYS[0], 0).payload(b"x").frame();
        let raw = bench.plane.link(7).expect("the link");
        assert_eq!(encapsulate(&raw, &Frame::parse(&frame).expect("a frame")), bench.run(&frame).sent());
    });
}

#[test]
fn invalid_routes_are_refused() {
    let mut mixed = link(OutboundTunnelKind::Ipip, false);
    if let Some(tunnel) = &mut mixed.tunnel {
        tunnel.remote = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
    }
    assert_eq!(mixed.raw(), Err(NodeRouteError::Families));
    let vxlan = OutboundTunnelKind::Vxlan { port: 4789, vni: 1 << 24, mac: INNER };
    assert_eq!(link(vxlan, true).raw(), Err(NodeRouteError::Vni));
}
