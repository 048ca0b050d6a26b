//! Settings of a guard: listen addresses and tunnels.

use super::abi::{RawTunnel, RawTunnelKey};
use crate::abi::{Service, ServiceKey, link_kind, service_flag};
use crate::flow::mapped;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Protocol numbers of outer headers (IANA).
const IPPROTO_IPIP: u8 = 4;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_IPV6: u8 = 41;

/// Rules for the packets of a listen address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardService {
    /// Listeners accept connections whose first segment carries a valid cookie.
    pub cookie: bool,
    /// Packets without a socket are handed to user space until a connection is restored.
    pub stash: bool,
    /// Packets of no connection are dropped; otherwise the stack answers them with a RST. For the time after a restart.
    pub grace: bool,
    /// SYNs go to the stack. For a switch; a node drops them, because it must not answer for the address.
    pub syns: bool,
}

impl GuardService {
    pub(super) fn raw(self, id: u16) -> Service {
        let bits = [
            (self.cookie, service_flag::COOKIE),
            (self.stash, service_flag::STASH),
            (self.grace, service_flag::GRACE),
            (self.syns, service_flag::SYNS),
        ];
        let flags = bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
        Service { id, flags, mss: 0, zero: 0 }
    }
}

pub(super) fn service_key(address: SocketAddr) -> ServiceKey {
    ServiceKey { address: mapped(address.ip()), port_be: address.port().to_be_bytes(), zero: 0 }
}

/// Encapsulation of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InboundTunnelKind {
    /// IP in IP, any version in any (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP encapsulation (draft-ietf-intarea-gue-09), variants 0 and 1. Port 6080 by custom.
    Gue {
        /// UDP destination port.
        port: u16,
    },
    /// VXLAN (RFC 7348). Port 4789 by IANA.
    Vxlan {
        /// UDP destination port.
        port: u16,
        /// Network identifier, below 2^24.
        vni: u32,
    },
}

/// A tunnel through which packets arrive. Inner packets must be for a listen address of the guard; all others are
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundTunnel {
    /// The encapsulation.
    pub kind: InboundTunnelKind,
    /// The outer destination: an address of this host.
    pub local: IpAddr,
    /// The outer source: a switch. `None` accepts any source, which lets every host that can reach `local` forge
    /// clients.
    pub remote: Option<IpAddr>,
}

impl InboundTunnel {
    /// Returns the table entries of this tunnel.
    pub(super) fn raw(&self) -> impl Iterator<Item = (RawTunnelKey, RawTunnel)> + use<> {
        let (kind, port, vni, protocols): (_, _, _, &[u8]) = match self.kind {
            InboundTunnelKind::Ipip => (link_kind::IPIP, 0, 0, &[IPPROTO_IPIP, IPPROTO_IPV6]),
            InboundTunnelKind::Gue { port } => (link_kind::GUE, port, 0, &[IPPROTO_UDP]),
            InboundTunnelKind::Vxlan { port, vni } => (link_kind::VXLAN, port, vni, &[IPPROTO_UDP]),
        };
        let (local, remote) = (mapped(self.local), self.remote.map_or([0; 16], mapped));
        protocols.iter().map(move |&protocol| {
            let key = RawTunnelKey { local, remote, port_be: u16::to_be_bytes(port), protocol, zero: 0 };
            (key, RawTunnel { kind, zero: [0; 3], vni })
        })
    }
}
