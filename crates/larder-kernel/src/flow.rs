//! Keys of connections.

use crate::abi::RawFlowKey;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Key of a connection: the client's address and the number of the listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The client's address. IPv4 addresses are never mapped.
    pub client: SocketAddr,
    /// Number of the listen address.
    pub service: u16,
}

impl FlowKey {
    /// Creates a key. The client's address may be mapped.
    pub fn new(client: SocketAddr, service: u16) -> Self {
        Self { client: SocketAddr::new(client.ip().to_canonical(), client.port()), service }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (listen address {})", self.client, self.service)
    }
}

/// Returns an address as the programs store it: IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl From<FlowKey> for RawFlowKey {
    fn from(key: FlowKey) -> Self {
        Self {
            client: mapped(key.client.ip()),
            client_port_be: key.client.port().to_be_bytes(),
            service: key.service,
        }
    }
}

impl From<RawFlowKey> for FlowKey {
    fn from(raw: RawFlowKey) -> Self {
        let address = IpAddr::V6(Ipv6Addr::from(raw.client));
        Self::new(SocketAddr::new(address, u16::from_be_bytes(raw.client_port_be)), raw.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_through_raw_form() {
        for client in ["192.0.2.7:40000", "[2001:db8::7]:1"] {
            let key = FlowKey::new(client.parse().expect("an address"), 3);
            assert_eq!(FlowKey::from(RawFlowKey::from(key)), key);
        }
        let mapped = FlowKey::new("[::ffff:192.0.2.7]:40000".parse().expect("an address"), 3);
        assert_eq!(mapped, FlowKey::new("192.0.2.7:40000".parse().expect("an address"), 3));
    }
}
