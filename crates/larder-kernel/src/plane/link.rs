//! Routes to nodes, and the outer headers of tunnels.
//!
//! IP in IP: RFC 2003, RFC 2473. GUE: draft-ietf-intarea-gue, version 0 without options, as in Linux' fou. VXLAN: RFC
//! 7348. UDP checksums are 0, which RFC 6935 allows for tunnels over IPv6 as well: the inner packet has its own.

use crate::abi::{ENCAP_BYTES_MAX, NodeLink, link_kind};
use crate::frame::{Frame, decrement_hop_limit, set_ip_checksum};
use std::net::IpAddr;

const ETHERTYPE_V4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_V6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_UDP: u8 = 17;
/// Hop limit of outer headers, enough for any path (RFC 1700).
const HOP_LIMIT: u8 = 64;

/// The route to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRoute {
    /// The node's tag in TCP timestamps, unique among the nodes; 0 for none.
    pub tag: u8,
    /// The outgoing interface.
    pub ifindex: u32,
    /// MAC address of the outgoing interface.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop: the node itself, or a router.
    pub next_hop: [u8; 6],
    /// The tunnel, for a node on another network. `None` if the node is the next hop and has the service's address.
    pub tunnel: Option<OutboundTunnel>,
}

/// A tunnel to a node. The path must carry packets that are longer by the outer header (20 to 70 bytes), or the service
/// must offer clients a smaller segment size: outer packets are not fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboundTunnel {
    /// The encapsulation.
    pub kind: OutboundTunnelKind,
    /// Source address of outer packets, of the same family as `remote`.
    pub local: IpAddr,
    /// The node's address.
    pub remote: IpAddr,
}

/// Encapsulation of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboundTunnelKind {
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation.
    Gue {
        /// The node's UDP port.
        port: u16,
    },
    /// VXLAN.
    Vxlan {
        /// The node's UDP port, usually 4789.
        port: u16,
        /// Network identifier, below 2^24.
        vni: u32,
        /// MAC address of the node's end.
        mac: [u8; 6],
    },
}

/// Reason why a route is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeRouteError {
    /// The ends of a tunnel are of different address families.
    #[error("tunnel from IPv4 to IPv6 or back")]
    Families,
    /// The VXLAN identifier has more than 24 bits.
    #[error("VXLAN network identifier above 16777215")]
    Vni,
}

impl NodeRoute {
    /// Returns the route as the programs read it.
    pub(super) fn raw(&self) -> Result<NodeLink, NodeRouteError> {
        let mut raw = NodeLink {
            kind: link_kind::L2,
            tag: self.tag,
            header_bytes: 0,
            ifindex: self.ifindex,
            mac: self.next_hop,
            source_mac: self.source_mac,
            outer_ipv6: 0,
            zero: [0; 3],
            header: [0; ENCAP_BYTES_MAX],
        };
        if let Some(tunnel) = &self.tunnel {
            let mut header = Vec::with_capacity(ENCAP_BYTES_MAX);
            header.extend(self.next_hop);
            header.extend(self.source_mac);
            raw.outer_ipv6 = u8::from(tunnel.outer_ip(&mut header)?);
            raw.kind = tunnel.kind.inner_header(&mut header)?;
            if let OutboundTunnelKind::Vxlan { mac, .. } = tunnel.kind {
                raw.mac = mac;
            }
            raw.header_bytes = header.len() as u16;
            raw.header[..header.len()].copy_from_slice(&header);
        }
        Ok(raw)
    }
}

impl OutboundTunnel {
    /// Appends the Ethernet type and the outer IP header, with lengths and checksum 0. Returns whether it is IPv6.
    fn outer_ip(&self, header: &mut Vec<u8>) -> Result<bool, NodeRouteError> {
        let protocol = if self.kind == OutboundTunnelKind::Ipip { PROTOCOL_IPV4 } else { PROTOCOL_UDP };
        match (self.local, self.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                header.extend(ETHERTYPE_V4);
                // Version, length, TOS; total length, id; don't fragment; hop limit, protocol; checksum.
                header.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0]);
                header.extend(local.octets());
                header.extend(remote.octets());
                Ok(false)
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                header.extend(ETHERTYPE_V6);
                header.extend([0x60, 0, 0, 0, 0, 0, protocol, HOP_LIMIT]);
                header.extend(local.octets());
                header.extend(remote.octets());
                Ok(true)
            }
            _ => Err(NodeRouteError::Families),
        }
    }
}

impl OutboundTunnelKind {
    /// Appends the headers between the outer IP header and the inner packet.
    fn inner_header(self, header: &mut Vec<u8>) -> Result<u8, NodeRouteError> {
        let mut udp = |port: u16| {
            header.extend([0, 0]);
            header.extend(port.to_be_bytes());
            header.extend([0; 4]);
        };
        match self {
            Self::Ipip => Ok(link_kind::IPIP),
            Self::Gue { port } => {
                udp(port);
                header.extend([0, PROTOCOL_IPV4, 0, 0]);
                Ok(link_kind::GUE)
            }
            Self::Vxlan { port, vni, .. } => {
                if vni >> 24 != 0 {
                    return Err(NodeRouteError::Vni);
                }
                udp(port);
                header.extend([0x08, 0, 0, 0]);
                header.extend((vni << 8).to_be_bytes());
                Ok(link_kind::VXLAN)
            }
        }
    }
}

/// Encapsulates an Ethernet frame for the node, as the programs do.
pub(super) fn encapsulate(link: &NodeLink, frame: &Frame<'_>) -> Vec<u8> {
    let packet = frame.packet();
    let (ethertype, protocol) =
        if frame.ipv6() { (ETHERTYPE_V6, PROTOCOL_IPV6) } else { (ETHERTYPE_V4, PROTOCOL_IPV4) };
    if link.kind == link_kind::L2 {
        let mut out = [&link.mac, &link.source_mac, ethertype.as_slice(), packet].concat();
        decrement_hop_limit(&mut out);
        return out;
    }
    let header = &link.header[..usize::from(link.header_bytes).min(ENCAP_BYTES_MAX)];
    let mut out = header.to_vec();
    if link.kind == link_kind::VXLAN {
        out.extend(link.mac);
        out.extend(link.source_mac);
        out.extend(ethertype);
    }
    out.extend(packet);
    let l4 = if link.outer_ipv6 == 1 { 54 } else { 34 };
    let behind = |at: usize, out: &[u8]| u16::try_from(out.len() - at).unwrap_or(u16::MAX).to_be_bytes();
    if link.kind != link_kind::IPIP {
        let length = behind(l4, &out);
        out[l4 + 4..l4 + 6].copy_from_slice(&length);
        out[l4..l4 + 2].copy_from_slice(&frame.outer_port().to_be_bytes());
    }
    if link.kind == link_kind::GUE {
        out[l4 + 9] = protocol;
    }
    if link.outer_ipv6 == 1 {
        let length = behind(54, &out);
        out[18..20].copy_from_slice(&length);
        if link.kind == link_kind::IPIP {
            out[20] = protocol;
        }
    } else {
        let length = behind(14, &out);
        out[16..18].copy_from_slice(&length);
        if link.kind == link_kind::IPIP {
            out[23] = protocol;
        }
        set_ip_checksum(&mut out[14..34]);
    }
    out
}
