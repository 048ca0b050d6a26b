//! The address and packet size of a network interface, asked of the kernel (rtnetlink(7), `RTM_GETLINK`): unlike files
//! below `/sys` the answer is always about the caller's own network namespace.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const HEADER_BYTES: usize = 16;
/// Length of `struct ifinfomsg`. Bytes.
const INFO_BYTES: usize = 16;
/// Maximum length of a name with its terminator (`IFNAMSIZ`). Bytes.
const NAME_BYTES_MAX: usize = 16;

/// MAC address and MTU of an interface. A switch needs them to send packets to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Its MTU. Bytes.
    pub mtu: u32,
}

/// Reads the properties of the interface `name`.
///
/// # Errors
///
/// If there is no such interface, or the kernel rejects the request.
pub fn interface(name: &str) -> io::Result<Interface> {
    if name.is_empty() || name.len() >= NAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface's name has 1 to 15 bytes"));
    }
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    // Without a protocol it is NETLINK_ROUTE, whose number is 0.
    let route = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    send(&route, &request(name), SendFlags::empty())?;
    // The kernel has answered before the send returns.
    let mut reply = vec![0; 64 << 10];
    let (length, _) = recv(&route, &mut reply[..], RecvFlags::DONTWAIT)?;
    answer(reply.get(..length).unwrap_or_default())
}

fn request(name: &str) -> Vec<u8> {
    let attribute_bytes = 4 + name.len() + 1;
    let mut out = vec![0; HEADER_BYTES + INFO_BYTES];
    out[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    out[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // The name is short, as checked above.
    out.extend(u16::try_from(attribute_bytes).unwrap_or(0).to_ne_bytes());
    out.extend(IFLA_IFNAME.to_ne_bytes());
    out.extend(name.as_bytes());
    out.resize((HEADER_BYTES + INFO_BYTES + attribute_bytes).next_multiple_of(4), 0);
    let length = u32::try_from(out.len()).unwrap_or(0);
    out[..4].copy_from_slice(&length.to_ne_bytes());
    out
}

fn answer(reply: &[u8]) -> io::Result<Interface> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let header: &[u8; HEADER_BYTES] = reply.first_chunk().ok_or_else(invalid)?;
    let body = reply.get(HEADER_BYTES..).ok_or_else(invalid)?;
    match u16::from_ne_bytes([header[4], header[5]]) {
        RTM_NEWLINK => {}
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(*body.first_chunk().ok_or_else(invalid)?);
            return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
        }
        _ => return Err(invalid()),
    }
    let mut found = Interface { mac: None, mtu: 0 };
    for (kind, value) in attributes(body.get(INFO_BYTES..).ok_or_else(invalid)?) {
        match kind {
            // The loopback interface has an address of zeros.
            IFLA_ADDRESS => found.mac = value.try_into().ok().filter(|mac| *mac != [0; 6]),
            IFLA_MTU => found.mtu = value.first_chunk().map_or(0, |mtu| u32::from_ne_bytes(*mtu)),
            _ => {}
        }
    }
    Ok(found)
}

/// Parses attributes as kinds and values, up to the first truncated one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head: &[u8; 4] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loopback_interface_is_described() {
        let found = interface("lo").expect("every machine has it");
        assert_eq!(found.mac, None);
        assert!(found.mtu >= 1_500, "{found:?}");
    }

    #[test]
    fn missing_interface_is_not_found() {
        let missing = interface("larder-none-0").expect_err("no such interface");
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV), "{missing}");
        assert_eq!(interface("a-name-of-16-byt").expect_err("too long").kind(), io::ErrorKind::InvalidInput);
        assert!(interface("").is_err());
    }

    #[test]
    fn mac_address_is_parsed() {
        let mut reply = vec![0; HEADER_BYTES + INFO_BYTES];
        reply[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        for (kind, value) in [(IFLA_MTU, &[220, 5, 0, 0][..]), (IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7])] {
            reply.extend(u16::try_from(4 + value.len()).expect("short").to_ne_bytes());
            reply.extend(kind.to_ne_bytes());
            reply.extend(value);
            reply.resize(reply.len().next_multiple_of(4), 0);
        }
        let found = answer(&reply).expect("an answer");
        let mtu = u32::from_ne_bytes([220, 5, 0, 0]);
        assert_eq!(found, Interface { mac: Some([2, 0, 0, 0, 0, 7]), mtu });
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(reply in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = answer(&reply);
            let mut link = reply;
            if link.len() > 6 {
                link[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
                let _ = answer(&link);
            }
        }
    }
}
