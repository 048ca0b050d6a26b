//! Raw frames on a link, for packets that no socket sends.

#![expect(unsafe_code, reason = "a link-layer address is a struct that only the C library names")]

use super::{Namespace, NetnsError};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};

const ETHERNET: usize = 14;
const TCP: u8 = 6;
/// Hop limit of IPv4 packets, as Linux sends them.
const HOP_LIMIT: u8 = 64;

/// A raw socket that sends through any interface of one network namespace. It receives nothing.
#[derive(Debug)]
pub struct Wire(Socket);

impl Wire {
    /// Opens a socket in a namespace.
    ///
    /// # Errors
    ///
    /// Without `CAP_NET_RAW`.
    pub fn open(namespace: &Namespace) -> Result<Self, NetnsError> {
        let opened = namespace.run(Self::open_here)?;
        opened.map_err(|e| NetnsError::io(format!("opening a raw socket in {}", namespace.name()), e))
    }

    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    ///
    /// Without `CAP_NET_RAW`.
    pub fn open_here() -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Sets a mark on its packets, by which tc programs recognise them. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// If the kernel rejects it.
    pub fn mark(&self, mark: u32) -> io::Result<()> {
        self.0.set_mark(mark)
    }

    /// Sends a frame unchanged, starting with its Ethernet header.
    ///
    /// # Errors
    ///
    /// If the interface is down, gone or full, or the frame exceeds its MTU.
    pub fn send(&self, ifindex: u32, frame: &[u8]) -> io::Result<()> {
        self.0.send_to(frame, &link_address(ifindex)?).map(|_| ())
    }
}

/// Contents of a TCP packet.
#[derive(Clone, Debug)]
pub struct TcpFrame<'a> {
    /// MAC addresses of source and destination.
    pub macs: [[u8; 6]; 2],
    /// Source; of the same family as `to`.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags: FIN (1), SYN (2), RST (4), PSH (8), ACK (16).
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
    /// TCP options, 0 to 40 bytes; padded with 0 to a multiple of 4.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

impl TcpFrame<'_> {
    /// Returns the frame with its checksums. `None` if the families differ, or options or payload are too long.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let header = 20 + self.options.len().next_multiple_of(4);
        let length = u16::try_from(header + self.payload.len()).ok()?;
        let offset = u8::try_from(header / 4).ok().filter(|words| *words <= 15)?;
        let mut frame = Vec::with_capacity(ETHERNET + 40 + usize::from(length));
        frame.extend_from_slice(&self.macs[1]);
        frame.extend_from_slice(&self.macs[0]);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend_from_slice(&[0x08, 0x00, 0x45, 0]);
                frame.extend_from_slice(&length.checked_add(20)?.to_be_bytes());
                // No identification, don't fragment; the checksum is computed below.
                frame.extend_from_slice(&[0, 0, 0x40, 0, HOP_LIMIT, TCP, 0, 0]);
                frame.extend_from_slice(&from.octets());
                frame.extend_from_slice(&to.octets());
                let checksum = fold(words(&frame[ETHERNET..]));
                frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend_from_slice(&length.to_be_bytes());
                frame.extend_from_slice(&[TCP, HOP_LIMIT]);
                frame.extend_from_slice(&from.octets());
                frame.extend_from_slice(&to.octets());
            }
            _ => return None,
        }
        frame.extend_from_slice(&self.from.port().to_be_bytes());
        frame.extend_from_slice(&self.to.port().to_be_bytes());
        frame.extend_from_slice(&self.seq.to_be_bytes());
        frame.extend_from_slice(&self.ack.to_be_bytes());
        frame.extend_from_slice(&[offset << 4, self.flags]);
        frame.extend_from_slice(&self.window.to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(self.options);
        frame.resize(frame.len() + header - 20 - self.options.len(), 0);
        frame.extend_from_slice(self.payload);
        set_tcp_checksum(&mut frame);
        Some(frame)
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

/// Sets the TCP checksum (RFC 9293 §3.1) of an Ethernet frame with IPv4, or with IPv6 without extension headers. Leaves
/// other frames and fragments unchanged.
pub fn set_tcp_checksum(frame: &mut [u8]) {
    let Some((at, sum)) = tcp_at(frame) else { return };
    let Some(segment) = frame.get_mut(at.clone()) else { return };
    if segment.len() < 20 {
        return;
    }
    segment[16..18].fill(0);
    let checksum = fold(sum + words(segment));
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the range of the TCP segment, and the sum of its pseudo header.
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

/// Sum of 16-bit words in network order.
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
    use crate::netns::{INTERFACE, Topology, TopologySpec, or_skip};
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Addresses of the topology's network that no host has.
    const UNUSED_ADDRESSES: (Ipv4Addr, Ipv6Addr) =
        (Ipv4Addr::new(10, 9, 0, 250), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 250));

    /// The sum over a segment with a correct checksum is 0.
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
    fn checksums_are_correct_whatever_was_there() {
        for payload in [&b""[..], b"a", b"an even text", b"an odd text"] {
            let mut frame = v4(payload);
            frame[ETHERNET + 20 + 16] = 0xab;
            set_tcp_checksum(&mut frame);
            assert!(is_right(&frame), "{payload:?}");
            // Ethernet padding after the packet does not count.
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
    fn incomplete_segments_are_unchanged() {
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

    #[test]
    fn invalid_frames_are_none() {
        let v4: SocketAddr = "192.0.2.1:1".parse().expect("an address");
        let v6: SocketAddr = "[2001:db8::1]:1".parse().expect("an address");
        let frame = |from, to, options: &[u8], payload: &[u8]| {
            let macs = [[0; 6]; 2];
            TcpFrame { macs, from, to, seq: 0, ack: 0, flags: 2, window: 1, options, payload }.bytes()
        };
        assert!(frame(v4, v6, &[], &[]).is_none());
        assert!(frame(v4, v4, &[1; 41], &[]).is_none());
        assert!(frame(v4, v4, &[], &[0; 65_500]).is_none());
        let longest = frame(v6, v6, &[1; 40], b"text").expect("made");
        assert_eq!(longest.len(), ETHERNET + 40 + 60 + 4);
        assert!(is_right(&longest));
    }

    /// A kernel accepts the frames: each SYN leaves a half-open connection.
    #[test]
    fn kernel_accepts_the_packets() {
        let Some(topology) = or_skip(Topology::new(&TopologySpec { nodes: 1, ..TopologySpec::default() }))
        else {
            return;
        };
        let (client, node) = (topology.client(), &topology.nodes[0]);
        let wire = Wire::open(&client.namespace).expect("opened");
        let ifindex = client.namespace.ifindex(INTERFACE).expect("there");
        let pairs: [(IpAddr, IpAddr, &str); 2] = [
            (UNUSED_ADDRESSES.0.into(), node.v4.into(), "tcp"),
            (UNUSED_ADDRESSES.1.into(), node.v6.into(), "tcp6"),
        ];
        for (silent, node_at, table) in pairs {
            let bind = || std::net::TcpListener::bind((node_at, 0));
            let listener = node.namespace.run(bind).expect("entered").expect("bound");
            // No host has this address, so nothing resets the connections.
            for port in 1_000..1_020 {
                let frame = TcpFrame {
                    macs: [client.mac, node.mac],
                    from: SocketAddr::new(silent, port),
                    to: listener.local_addr().expect("an address"),
                    seq: 7,
                    ack: 0,
                    flags: 2,
                    window: 1_000,
                    options: &[2, 4, 5, 0xb4, 1],
                    payload: &[],
                };
                wire.send(ifindex, &frame.bytes().expect("made")).expect("sent");
            }
            assert_eq!(half_open(&node.namespace, table), 20, "{table}");
        }
    }

    /// Returns the connections in SYN_RECV (3), once there are 20 or a second has passed.
    fn half_open(namespace: &Namespace, table: &str) -> usize {
        let path = format!("/proc/thread-self/net/{table}");
        let count = || {
            let text = std::fs::read_to_string(&path).expect("read");
            text.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count()
        };
        let mut found = 0;
        larder_testkit::within(std::time::Duration::from_secs(5), || {
            found = namespace.run(count).expect("entered");
            found >= 20
        });
        found
    }
}
