//! Netlink queries (rtnetlink(7), sock_diag(7)): interfaces, addresses, routes, and whether sockets can be destroyed.
//! Nothing here changes anything.

use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const NETLINK: i32 = 16;
pub(crate) const NETLINK_ROUTE: i32 = 0;
const NETLINK_SOCK_DIAG: i32 = 4;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
pub(crate) const RTM_GETROUTE: u16 = 26;
const SOCK_DESTROY: u16 = 21;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
pub(crate) const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const IFF_UP: u32 = 1;
/// Bit of an attribute's type that marks nested attributes.
const NESTED: u16 = 0x8000;
/// Maximum number of messages in one answer.
const MESSAGES_MAX: usize = 100_000;

pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
}

pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) index: u32,
}

pub(super) struct NetlinkRoute {
    pub(crate) index: u32,
    pub(super) on_link: bool,
}

pub(crate) fn links() -> io::Result<Vec<Link>> {
    // struct ifinfomsg.
    let answers = ask(NETLINK_ROUTE, RTM_GETLINK, NLM_F_DUMP, &[0; 16])?;
    let read = |body: &Vec<u8>| {
        let (mut name, mut mtu) = (None, None);
        for (kind, value) in attributes(body.get(16..)?) {
            match kind {
                IFLA_IFNAME => name = Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()),
                IFLA_MTU => mtu = u32_at(value, 0),
                _ => {}
            }
        }
        Some(Link { index: u32_at(body, 4)?, name: name?, mtu: mtu?, up: u32_at(body, 8)? & IFF_UP != 0 })
    };
    Ok(answers.iter().filter_map(read).collect())
}

pub(crate) fn addresses() -> io::Result<Vec<Address>> {
    // struct ifaddrmsg.
    let answers = ask(NETLINK_ROUTE, RTM_GETADDR, NLM_F_DUMP, &[0; 8])?;
    let read = |body: &Vec<u8>| {
        let (mut local, mut any) = (None, None);
        for (kind, value) in attributes(body.get(8..)?) {
            match kind {
                IFA_LOCAL => local = ip(value),
                IFA_ADDRESS => any = ip(value),
                _ => {}
            }
        }
        Some(Address { ip: local.or(any)?, index: u32_at(body, 4)? })
    };
    Ok(answers.iter().filter_map(read).collect())
}

/// Returns the route to an address. `from`, if given, is a local source address of the same family.
pub(super) fn route(to: IpAddr, from: Option<IpAddr>) -> io::Result<NetlinkRoute> {
    let octets = |ip| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let bits = if to.is_ipv4() { 32 } else { 128 };
    // struct rtmsg, then destination and source.
    let mut body = vec![family, bits, from.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (kind, ip) in [(RTA_DST, Some(to)), (RTA_SRC, from)] {
        let Some(octets) = ip.map(octets) else { continue };
        let length = u16::try_from(4 + octets.len()).unwrap_or(0);
        body.extend_from_slice(&length.to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(&octets);
    }
    let answers = ask(NETLINK_ROUTE, RTM_GETROUTE, 0, &body)?;
    let body = answers.first().ok_or_else(|| io::Error::other("no answer"))?;
    let mut way = NetlinkRoute { index: 0, on_link: true };
    for (kind, value) in attributes(body.get(12..).unwrap_or_default()) {
        match kind {
            RTA_OIF => way.index = u32_at(value, 0).unwrap_or(0),
            RTA_GATEWAY | RTA_VIA => way.on_link = false,
            _ => {}
        }
    }
    Ok(way)
}

/// Asks to destroy a connection that does not exist. A kernel with the function reports that there is none.
pub(super) fn sock_destroy() -> io::Result<()> {
    // struct inet_diag_req_v2: family, protocol, ext, pad, states, id { sport, dport, src, dst, if, cookie }
    let mut body = vec![libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend_from_slice(&u32::MAX.to_ne_bytes());
    body.extend_from_slice(&1_u16.to_be_bytes());
    body.extend_from_slice(&1_u16.to_be_bytes());
    // Documentation addresses (RFC 5737): no connection of this host is between them.
    for address in [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)] {
        body.extend_from_slice(&address.octets());
        body.extend_from_slice(&[0; 12]);
    }
    body.extend_from_slice(&[0; 4]);
    // No cookie: `INET_DIAG_NOCOOKIE`.
    body.extend_from_slice(&[0xff; 8]);
    match ask(NETLINK_SOCK_DIAG, SOCK_DESTROY, NLM_F_ACK, &body) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Err(io::Error::other("destroyed what is not there")),
    }
}

/// Sends a request and returns the bodies of all answers.
pub(crate) fn ask(family: i32, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut socket = Socket::new(Domain::from(NETLINK), Type::RAW, Some(Protocol::from(family)))?;
    socket.set_read_timeout(Some(std::time::Duration::from_secs(2)))?;
    let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    socket.write_all(&message)?;
    let many = flags & NLM_F_DUMP == NLM_F_DUMP;
    let mut answers = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while answers.len() < MESSAGES_MAX {
        let read = socket.read(&mut buffer)?;
        let mut rest = &buffer[..read];
        while let Some((kind, body, after)) = message_of(rest) {
            match kind {
                NLMSG_DONE => return Ok(answers),
                NLMSG_ERROR => {
                    return match i32::from_ne_bytes(first_four(body)?) {
                        0 => Ok(answers),
                        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    };
                }
                _ => answers.push(body.to_vec()),
            }
            rest = after;
        }
        if !many && !answers.is_empty() {
            return Ok(answers);
        }
    }
    Err(io::Error::other("an answer without end"))
}

/// Splits off one message: its type, its body, and the rest.
fn message_of(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the types and values of attributes, up to the first invalid one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn first_four(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let four = bytes.get(..4).and_then(|b| b.try_into().ok());
    four.ok_or_else(|| io::Error::other("a short answer"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

pub(crate) fn ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(value).ok().map(|sixteen| Ipv6Addr::from(sixteen).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_a_loopback_interface() {
        let links = links().expect("interfaces");
        let lo = links.iter().find(|l| l.name == "lo").expect("lo");
        assert!(lo.mtu >= 1280, "{}", lo.mtu);
        let way = route(Ipv4Addr::LOCALHOST.into(), None).expect("a way to itself");
        assert_eq!((way.index, way.on_link), (lo.index, true));
        if lo.up {
            let addresses = addresses().expect("addresses");
            assert!(addresses.iter().any(|a| a.ip == Ipv4Addr::LOCALHOST && a.index == lo.index));
        }
    }

    #[test]
    fn truncated_messages_end_the_iteration() {
        for cut in [&[][..], &[1, 0], &[200, 0, 1, 0, 9], &[0, 0, 1, 0], &[3, 0, 1, 0]] {
            assert_eq!(attributes(cut).count(), 0, "{cut:?}");
            assert!(message_of(cut).is_none(), "{cut:?}");
        }
        let two = [5, 0, 1, 0, 7, 0, 0, 0, 4, 0, 2, 0x80];
        let read: Vec<_> = attributes(&two).collect();
        assert_eq!(read, [(1, &[7_u8][..]), (2, &[][..])]);
    }
}
