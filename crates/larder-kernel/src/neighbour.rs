//! Who is next on the way to an address: interface, source, Ethernet addresses. By netlink (`man 7 rtnetlink`).

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
/// Discard (RFC 863): a datagram there makes the kernel look for the neighbour and harms nobody.
const DISCARD_PORT: u16 = 9;
/// How long a neighbour may take to answer, in tries of [`PAUSE`].
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// The next hop to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface by which packets leave.
    pub ifindex: u32,
    /// This host's address there.
    pub source: IpAddr,
    /// This host's Ethernet address there.
    pub source_mac: [u8; 6],
    /// The next hop's Ethernet address.
    pub mac: [u8; 6],
}

/// The next hop to `to`. Blocks for at most a second while the neighbour is looked for.
///
/// # Errors
/// No route, an interface without Ethernet addresses, or nobody answers there.
pub fn next_hop(to: IpAddr) -> io::Result<Hop> {
    let (family, octets) = match to {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    };
    // struct rtmsg, then the destination
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
    Ok(Hop { ifindex, source, source_mac, mac })
}

/// The address that packets to `to` leave with.
fn source_of(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(to, DISCARD_PORT))?;
    Ok(socket.local_addr()?.ip())
}

fn neighbour(ifindex: u32, to: IpAddr, family: u8) -> io::Result<[u8; 6]> {
    for try_ in 0..TRIES {
        // struct ndmsg
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

/// The largest packet of an interface. Bytes.
///
/// # Errors
/// There is no such interface.
pub fn mtu(interface: &str) -> io::Result<u32> {
    let found = links()?.into_iter().find(|link| link.name == interface);
    found.map(|link| link.mtu).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The interface by which clients reach an address of this host: the one that has it, or, where it is on the loopback
/// interface or none (a virtual address), the only other one that is up. `None` if that is not clear.
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

/// The interface of this host that has an address, the loopback interface included; `None` if none has.
///
/// # Errors
/// The kernel does not tell.
pub fn holder(address: IpAddr) -> io::Result<Option<String>> {
    let (links, addresses) = (links()?, addresses()?);
    let of = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    Ok(addresses.iter().filter(|own| own.ip == address).find_map(|own| of(own.index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_at_its_interface() {
        let holder = |text: &str| holder(text.parse().expect("an address")).expect("told");
        assert_eq!(holder("127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(holder("192.0.2.77"), None);
    }
}
