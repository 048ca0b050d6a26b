//! Sends frames by an interface, past the shaping program.

#![expect(unsafe_code, reason = "a link-layer address is a struct that only the C library names")]

use socket2::{Domain, SockAddr, Socket, Type};
use std::io;

/// The program lets packets with this mark pass: `TREATED`.
const TREATED: u32 = 0x7368_6170;
const ETHERNET: usize = 14;
const TCP: u8 = 6;

/// A raw socket for all interfaces of the thread's network namespace.
pub(super) struct Wire(Socket);

impl Wire {
    /// Needs `CAP_NET_RAW`, and `CAP_NET_ADMIN` for the mark.
    pub(super) fn open() -> io::Result<Self> {
        // No protocol: it receives nothing.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_mark(TREATED)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sends a frame with its TCP checksum made anew: where the sender left that to its interface, the frame that the
    /// program saw had none.
    pub(super) fn send(&self, ifindex: u32, frame: &mut [u8]) -> io::Result<()> {
        set_tcp_checksum(frame);
        self.0.send_to(frame, &link_address(ifindex)?).map(|_| ())
    }
}

fn link_address(ifindex: u32) -> io::Result<SockAddr> {
    let index = i32::try_from(ifindex).map_err(io::Error::other)?;
    let fill = |storage: *mut socket2::SockAddrStorage, length: *mut libc::socklen_t| {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: 0,
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the storage is as large and aligned as any address, this one included.
        unsafe { storage.cast::<libc::sockaddr_ll>().write(address) };
        // SAFETY: the length is ours to write for as long as this closure runs.
        unsafe { length.write(size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
        Ok(())
    };
    // SAFETY: the closure has written a whole address and its length.
    let (_, address) = unsafe { SockAddr::try_init(fill) }?;
    Ok(address)
}

/// Sets the TCP checksum (RFC 9293 §3.1) of an Ethernet frame with IPv4 or IPv6 without extension headers; leaves every
/// other frame, and fragments, as they are.
fn set_tcp_checksum(frame: &mut [u8]) {
    let Some((at, sum)) = tcp_at(frame) else { return };
    let Some(segment) = frame.get_mut(at.clone()) else { return };
    if segment.len() < 20 {
        return;
    }
    segment[16..18].fill(0);
    let checksum = fold(sum + words(segment));
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// Where the TCP segment lies, and the sum of its pseudo header.
fn tcp_at(frame: &[u8]) -> Option<(std::ops::Range<usize>, u64)> {
    let ip = frame.get(ETHERNET..)?;
    let (header, length, addresses) = match frame.get(12..ETHERNET)? {
        [0x08, 0x00] => {
            let header = usize::from(ip.first()? & 0x0f) * 4;
            let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff;
            if *ip.get(9)? != TCP || fragment != 0 {
                return None;
            }
            let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
            (header, total.checked_sub(header)?, ip.get(12..20)?)
        }
        [0x86, 0xdd] => {
            if *ip.get(6)? != TCP {
                return None;
            }
            (40, usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?])), ip.get(8..40)?)
        }
        _ => return None,
    };
    let at = ETHERNET + header;
    Some((at..at + length, words(addresses) + u64::from(TCP) + length as u64))
}

/// The sum of 16-bit words in network order.
fn words(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    pairs.map(u64::from).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with a right checksum sums up to nothing.
    fn is_right(frame: &[u8]) -> bool {
        let (at, sum) = tcp_at(frame).expect("a TCP segment");
        fold(sum + words(&frame[at])) == 0
    }

    fn v4(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET + 20 + 20];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[ETHERNET] = 0x45;
        let total = u16::try_from(40 + payload.len()).expect("short");
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
        frame[ETHERNET + 9] = TCP;
        frame[ETHERNET + 12..ETHERNET + 20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
        frame[ETHERNET + 20 + 12] = 0x50;
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn checksums_are_right_whatever_stood_there() {
        for payload in [&b""[..], b"a", b"an even text", b"an odd text"] {
            let mut frame = v4(payload);
            frame[ETHERNET + 20 + 16] = 0xab;
            set_tcp_checksum(&mut frame);
            assert!(is_right(&frame), "{payload:?}");
            // Bytes behind the packet, which Ethernet fills up with, do not count.
            let mut padded = frame.clone();
            padded.extend_from_slice(&[0xff; 6]);
            set_tcp_checksum(&mut padded);
            assert_eq!(padded[..frame.len()], frame);
        }
        let mut frame = vec![0; ETHERNET + 40 + 20 + 3];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[ETHERNET + 5] = 23;
        frame[ETHERNET + 6] = TCP;
        frame[ETHERNET + 8] = 0xfd;
        set_tcp_checksum(&mut frame);
        assert!(is_right(&frame));
    }

    #[test]
    fn what_is_no_whole_segment_stays() {
        let mut fragment = v4(b"text");
        fragment[ETHERNET + 6] = 0x20;
        let mut cut = v4(b"text");
        cut.truncate(ETHERNET + 30);
        let mut lying = v4(b"");
        lying[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&[0, 3]);
        for frame in [fragment, cut, lying, vec![0; 60], vec![8; 13], Vec::new()] {
            let mut sent = frame.clone();
            set_tcp_checksum(&mut sent);
            assert_eq!(sent, frame);
        }
    }
}
