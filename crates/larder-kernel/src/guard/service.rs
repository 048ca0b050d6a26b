//! What a guard is told about listen addresses and tunnels.

use super::abi::{RawTunnel, RawTunnelKey};
use crate::abi::{Service, ServiceKey, link_kind, service_flag};
use crate::flow::mapped;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Protocol numbers of the outer header (IANA).
const IPPROTO_IPIP: u8 = 4;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_IPV6: u8 = 41;

/// What a guard does on a listen address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardService {
    /// Listeners accept connections whose first segment proves a cookie.
    pub cookie: bool,
    /// Packets without a socket are handed to user space, for the socket that is to come.
    pub stash: bool,
    /// Packets that belong to nothing are dropped; else the stack answers with a RST. For the time after a restart.
    pub grace: bool,
    /// SYNs go to the stack. For the front-end itself: a node drops them, as it must not answer for the address.
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

/// How packets are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TunnelKind {
    /// IP in IP, any version in any (RFC 2003, RFC 2473, RFC 4213).
    Ipip,
    /// Generic UDP encapsulation (draft-ietf-intarea-gue-09), variants 0 and 1. Port 6080 by custom.
    Gue {
        /// UDP's destination port.
        port: u16,
    },
    /// VXLAN (RFC 7348). Port 4789 by IANA.
    Vxlan {
        /// UDP's destination port.
        port: u16,
        /// The network, below 2^24.
        vni: u32,
    },
}

/// Where wrapped packets come from. What is in them must be for a listen address of the guard; all else is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// How they are wrapped.
    pub kind: TunnelKind,
    /// The outer destination: an address of this host.
    pub local: IpAddr,
    /// The outer source: a front-end. `None`: anybody, which lets anybody who can reach `local` forge clients.
    pub remote: Option<IpAddr>,
}

impl Tunnel {
    /// The entries of the table that stand for this tunnel.
    pub(super) fn raw(&self) -> impl Iterator<Item = (RawTunnelKey, RawTunnel)> + use<> {
        let (kind, port, vni, protocols): (_, _, _, &[u8]) = match self.kind {
            TunnelKind::Ipip => (link_kind::IPIP, 0, 0, &[IPPROTO_IPIP, IPPROTO_IPV6]),
            TunnelKind::Gue { port } => (link_kind::GUE, port, 0, &[IPPROTO_UDP]),
            TunnelKind::Vxlan { port, vni } => (link_kind::VXLAN, port, vni, &[IPPROTO_UDP]),
        };
        let (local, remote) = (mapped(self.local), self.remote.map_or([0; 16], mapped));
        protocols.iter().map(move |&protocol| {
            let key = RawTunnelKey { local, remote, port_be: u16::to_be_bytes(port), protocol, zero: 0 };
            (key, RawTunnel { kind, zero: [0; 3], vni })
        })
    }
}
