//! Finds and destroys a socket by its addresses (`NETLINK_SOCK_DIAG`), even one in TIME_WAIT, which no process has
//! open.
//!
//! If no socket has both addresses, the kernel looks for a listening one, and `SOCK_DESTROY` would destroy that. So the
//! socket is queried first, and then destroyed by its cookie if it is the right one.
//!
//! Source: Linux `net/ipv4/inet_diag.c` (`inet_diag_find_one_icsk`), `net/ipv4/tcp_diag.c` (`tcp_diag_destroy`),
//! `include/uapi/linux/inet_diag.h`.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

const HEADER_BYTES: usize = 16;
const SOCKET_ID_BYTES: usize = 48;
const REQUEST_BYTES: usize = HEADER_BYTES + 8 + SOCKET_ID_BYTES;
const REPLY_BYTES_MAX: usize = 4096;
/// Maximum number of replies to one request: the socket, then the acknowledgement.
const REPLIES_MAX: usize = 4;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const ANY_COOKIE: [u8; 8] = [0xff; 8];
const TCP: u8 = 6;
const LISTEN: u8 = 10;

/// Result of [`kill_socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillResult {
    /// A socket was destroyed.
    Killed,
    /// There was no socket.
    NotFound,
}

/// Destroys the socket between `local` and `remote` in this network namespace, in whatever state it is. A listening
/// socket is left alone. An open socket sends a RST. A client with a newer connection on these addresses ignores it,
/// because it is outside its window (RFC 5961 section 3); a client of this very connection is reset.
///
/// # Errors
///
/// `PermissionDenied` without `CAP_NET_ADMIN`; `Unsupported` if the kernel was built without
/// `CONFIG_INET_DIAG_DESTROY`.
pub fn kill_socket(local: SocketAddr, remote: SocketAddr) -> io::Result<KillResult> {
    let (local, remote) = (canonical(local), canonical(remote));
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let diag = socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    let Some(found) = ask(&diag, SOCK_DIAG_BY_FAMILY, local, remote, ANY_COOKIE)? else {
        return Ok(KillResult::NotFound);
    };
    if found.state == LISTEN || found.remote_port != remote.port() {
        return Ok(KillResult::NotFound);
    }
    ask(&diag, SOCK_DESTROY, local, remote, found.cookie)
        .map(|ended| if ended.is_some() { KillResult::Killed } else { KillResult::NotFound })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A socket as described by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SocketInfo {
    state: u8,
    remote_port: u16,
    cookie: [u8; 8],
}

/// Sends one request and reads its replies, which the kernel has queued before the send returns. Returns `None` if
/// there is no such socket.
fn ask(
    diag: &OwnedFd,
    kind: u16,
    local: SocketAddr,
    remote: SocketAddr,
    cookie: [u8; 8],
) -> io::Result<Option<SocketInfo>> {
    send(diag, &request(kind, local, remote, cookie), SendFlags::empty())?;
    let mut found = SocketInfo::default();
    let mut buffer = [0; REPLY_BYTES_MAX];
    for _ in 0..REPLIES_MAX {
        let (length, _) = recv(diag, &mut buffer[..], RecvFlags::DONTWAIT)?;
        for message in messages(&buffer[..length]) {
            match message.kind {
                NLMSG_ERROR => return outcome(message.body, found),
                SOCK_DIAG_BY_FAMILY => found = describe(message.body).unwrap_or(found),
                _ => {}
            }
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Parses an `NLMSG_ERROR`; 0 is the acknowledgement.
fn outcome(body: &[u8], found: SocketInfo) -> io::Result<Option<SocketInfo>> {
    let code = body.first_chunk().map(|code| -i32::from_ne_bytes(*code));
    match code {
        Some(0) => Ok(Some(found)),
        Some(libc::ENOENT | libc::ESTALE) => Ok(None),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Parses `struct inet_diag_msg`: family, state, timer, retransmissions, then `struct inet_diag_sockid`.
fn describe(body: &[u8]) -> Option<SocketInfo> {
    let id = body.get(4..4 + SOCKET_ID_BYTES)?;
    Some(SocketInfo {
        state: body[1],
        remote_port: u16::from_be_bytes([id[2], id[3]]),
        cookie: *id.last_chunk()?,
    })
}

struct Message<'a> {
    kind: u16,
    body: &'a [u8],
}

/// Returns the messages of one reply, up to the first truncated one.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, body })
    })
}

/// Builds `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(kind: u16, local: SocketAddr, remote: SocketAddr, cookie: [u8; 8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    out.extend((REQUEST_BYTES as u32).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    out.extend([0; 8]);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    out.extend([family as u8, TCP, 0, 0]);
    out.extend(u32::MAX.to_ne_bytes());
    out.extend(local.port().to_be_bytes());
    out.extend(remote.port().to_be_bytes());
    out.extend(address_words(local));
    out.extend(address_words(remote));
    out.extend([0; 4]);
    out.extend(cookie);
    out
}

fn address_words(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(v4) => {
            let mut words = [0; 16];
            words[..4].copy_from_slice(&v4.ip().octets());
            words
        }
        SocketAddr::V6(v6) => v6.ip().octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_has_the_length_of_its_structs() {
        let (local, remote) = ("10.0.0.1:80".parse().expect("one"), "10.0.0.2:9".parse().expect("one"));
        assert_eq!(request(SOCK_DESTROY, local, remote, ANY_COOKIE).len(), REQUEST_BYTES);
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0..99_u32) {
            let mut bytes = bytes;
            bytes.iter_mut().zip(length.to_ne_bytes()).for_each(|(byte, to)| *byte = to);
            for message in messages(&bytes).take(100) {
                let _ = (describe(message.body), outcome(message.body, SocketInfo::default()).is_ok());
            }
        }
    }
}
