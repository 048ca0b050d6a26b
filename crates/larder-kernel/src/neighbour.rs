//! Finds the next hop to an address: interface, source address and MAC addresses. Uses netlink (rtnetlink(7)).

use crate::probe::netlink::{
    NETLINK_ROUTE, NLM_F_DUMP, RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_GETROUTE, addresses, ask, attributes, ip,
    links, u32_at,
};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

const RTM_GETLINK: u16 = 18;
const RTM_GETNEIGH: u16 = 30;
const RTA_PREFSRC: u16 = 7;
const IFLA_ADDRESS: u16 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// The discard port (RFC 863). A datagram to it makes the kernel resolve the neighbour, and has no other effect.
const DISCARD_PORT: u16 = 9;
/// Maximum number of attempts to resolve a neighbour, [`PAUSE`] apart.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The next hop to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The outgoing interface.
    pub ifindex: u32,
    /// This host's address on that interface.
    pub source: IpAddr,
    /// MAC address of that interface.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub mac: [u8; 6],
}

/// Finds the next hop to `to`. Blocks for up to a second while the neighbour is resolved.
///
/// # Errors
///
/// If there is no route, the interface has no MAC address, or the neighbour does not answer.
pub fn next_hop(to: IpAddr) -> io::Result<NextHop> {
    let (family, octets) = match to {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    };
    // struct rtmsg, then the destination.
    let bits = u8::try_from(octets.len() * 8).unwrap_or(0);
    let mut body = vec![family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&u16::try_from(4 + octets.len()).unwrap_or(0).to_ne_bytes());
    body.extend_from_slice(&RTA_DST.to_ne_bytes());
    body.extend_from_slice(&octets);
    let answers = ask(NETLINK_ROUTE, RTM_GETROUTE, 0, &body)?;
    let answer = answers.first().ok_or_else(|| io::Error::other("no route"))?;
    let (mut ifindex, mut gateway, mut source) = (0, None, None);
    for (kind, value) in attributes(answer.get(12..).unwrap_or_default()) {
        match kind {
            RTA_OIF => ifindex = u32_at(value, 0).unwrap_or(0),
            RTA_GATEWAY => gateway = ip(value),
            RTA_PREFSRC => source = ip(value),
            _ => {}
        }
    }
    let source = match source {
        Some(source) => source,
        None => source_of(to)?,
    };
    let source_mac = mac_of(ifindex)?;
    let mac = neighbour(ifindex, gateway.unwrap_or(to), family)?;
    Ok(NextHop { ifindex, source, source_mac, mac })
}

/// Returns the source address of packets to `to`.
fn source_of(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to, DISCARD_PORT))?;
    Ok(socket.local_addr()?.ip())
}

fn neighbour(ifindex: u32, to: IpAddr, family: u8) -> io::Result<[u8; 6]> {
    for try_ in 0..ATTEMPTS {
        // struct ndmsg.
        let mut body = [0; 12];
        body[0] = family;
        for answer in ask(NETLINK_ROUTE, RTM_GETNEIGH, NLM_F_DUMP, &body)? {
            let (mut address, mut mac) = (None, None);
            for (kind, value) in attributes(answer.get(12..).unwrap_or_default()) {
                match kind {
                    NDA_DST => address = ip(value),
                    NDA_LLADDR => mac = <[u8; 6]>::try_from(value).ok(),
                    _ => {}
                }
            }
            if u32_at(&answer, 4) == Some(ifindex)
                && address == Some(to)
                && let Some(mac) = mac
            {
                return Ok(mac);
            }
        }
        if try_ % 10 == 0 {
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let _ = UdpSocket::bind(SocketAddr::new(any, 0))
                .and_then(|socket| socket.send_to(&[], SocketAddr::new(to, DISCARD_PORT)));
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::Error::other(format!("{to} does not answer on its link")))
}

fn mac_of(ifindex: u32) -> io::Result<[u8; 6]> {
    for answer in ask(NETLINK_ROUTE, RTM_GETLINK, NLM_F_DUMP, &[0; 16])? {
        if u32_at(&answer, 4) == Some(ifindex) {
            let address =
                attributes(answer.get(16..).unwrap_or_default()).find(|(kind, _)| *kind == IFLA_ADDRESS);
            return address
                .and_then(|(_, value)| <[u8; 6]>::try_from(value).ok())
                .ok_or_else(|| io::Error::other("the interface has no Ethernet address"));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Returns the MTU of an interface. Bytes.
///
/// # Errors
///
/// If there is no such interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let found = links()?.into_iter().find(|link| link.name == interface);
    found.map(|link| link.mtu).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the interface by which clients reach an address of this host: the one that has the address. If the address
/// is on the loopback interface or on none (a virtual address), it is the only other interface that is up. `None` if
/// there are several.
pub fn interface_for(address: IpAddr) -> Option<String> {
    let (links, addresses) = (links().ok()?, addresses().ok()?);
    let name = |index: u32| {
        links.iter().find(|link| link.index == index && link.name != "lo").map(|l| l.name.clone())
    };
    if let Some(owner) = addresses.iter().filter(|own| own.ip == address).find_map(|own| name(own.index)) {
        return Some(owner);
    }
    let mut others = links.iter().filter(|link| link.up && link.name != "lo");
    let only = others.next()?;
    others.next().is_none().then(|| only.name.clone())
}

/// Returns the interface of this host that has an address, which may be the loopback interface.
///
/// # Errors
///
/// If the kernel does not return its addresses.
pub fn holder(address: IpAddr) -> io::Result<Option<String>> {
    let (links, addresses) = (links()?, addresses()?);
    let of = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    Ok(addresses.iter().filter(|own| own.ip == address).find_map(|own| of(own.index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_at_its_interface() {
        let holder = |text: &str| holder(text.parse().expect("an address")).expect("told");
        assert_eq!(holder("127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(holder("192.0.2.77"), None);
    }
}
