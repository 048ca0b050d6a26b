//! Ethernet frames in user space: packets of held connections on their way to a node, and the reset of a client.

use std::io;
use std::net::{IpAddr, SocketAddr};

const ETHERNET_BYTES: usize = 14;
const TCP: u8 = 6;

/// A frame with a complete TCP packet over IPv4 (no options) or IPv6 (no extension headers), as punted by the programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    bytes: &'a [u8],
    ipv6: bool,
    tcp_at: usize,
    header_bytes: usize,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

/// Internet checksum (RFC 1071) of consecutive parts. All but the last have an even length.
pub(crate) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u64;
    for part in parts {
        for word in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Decrements the hop limit in an Ethernet frame with an IP packet.
pub(super) fn decrement_hop_limit(frame: &mut [u8]) {
    if frame[12..14] == [0x86, 0xdd] {
        frame[21] = frame[21].saturating_sub(1);
    } else {
        frame[22] = frame[22].saturating_sub(1);
        frame[24..26].fill(0);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

impl<'a> Frame<'a> {
    /// Parses a frame. Returns `None` for any other frame. Cuts off padding after the packet.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (ipv6, tcp_at, end) = match be16(bytes, 12)? {
            0x0800 if *bytes.get(14)? == 0x45 && *bytes.get(23)? == TCP => {
                (false, 34, ETHERNET_BYTES + usize::from(be16(bytes, 16)?))
            }
            0x86dd if *bytes.get(20)? == TCP => (true, 54, 54 + usize::from(be16(bytes, 18)?)),
            _ => return None,
        };
        let bytes = bytes.get(..end)?;
        let header_bytes = usize::from(*bytes.get(tcp_at + 12)? >> 4) * 4;
        let whole = header_bytes >= 20 && bytes.len() >= tcp_at + header_bytes;
        whole.then_some(Self { bytes, ipv6, tcp_at, header_bytes })
    }

    pub(crate) fn ipv6(&self) -> bool {
        self.ipv6
    }

    /// Returns the IP packet.
    pub(crate) fn packet(&self) -> &'a [u8] {
        &self.bytes[ETHERNET_BYTES..]
    }

    /// Returns the TCP payload.
    pub(crate) fn payload(&self) -> &'a [u8] {
        &self.bytes[self.tcp_at + self.header_bytes..]
    }

    /// Returns the TCP header with its options; at least 20 bytes.
    pub(crate) fn header(&self) -> &'a [u8] {
        &self.bytes[self.tcp_at..self.tcp_at + self.header_bytes]
    }

    fn addresses(&self) -> &'a [u8] {
        if self.ipv6 { &self.bytes[22..54] } else { &self.bytes[26..34] }
    }

    /// Returns the hop limit.
    pub(crate) fn hop_limit(&self) -> u8 {
        self.bytes[if self.ipv6 { 21 } else { 22 }]
    }

    /// Returns the source port of an outer UDP header, as `outer_port_be` of `bpf/front_forward.h` does.
    pub(super) fn outer_port(&self) -> u16 {
        let client = if self.ipv6 {
            self.bytes[22..38].try_into().unwrap_or([0; 16])
        } else {
            let v4: [u8; 4] = self.bytes[26..30].try_into().unwrap_or([0; 4]);
            std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets()
        };
        let port = u16::from_le_bytes([self.bytes[self.tcp_at], self.bytes[self.tcp_at + 1]]);
        let whole = u128::from_le_bytes(client);
        let mixed =
            (whole as u64 ^ (whole >> 64) as u64 ^ u64::from(port) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        0xc000 | (mixed >> 50) as u16
    }

    /// Returns the pseudo header (RFC 9293 section 3.1) after the addresses.
    fn pseudo_tail(&self) -> [u8; 4] {
        let [high, low] = ((self.bytes.len() - self.tcp_at) as u16).to_be_bytes();
        [0, TCP, high, low]
    }

    /// Returns the frame with a complete checksum. The checksum of a packet that never left this machine may be
    /// partial: the field then holds the sum of the pseudo header. Returns `None` if the packet is damaged.
    pub(crate) fn with_checksum(&self) -> Option<Vec<u8>> {
        let tcp = &self.bytes[self.tcp_at..];
        if checksum(&[self.addresses(), &self.pseudo_tail(), tcp]) == 0 {
            return Some(self.bytes.to_vec());
        }
        let waits = !checksum(&[self.addresses(), &self.pseudo_tail()]);
        (be16(tcp, 16)? == waits).then(|| {
            let mut bytes = self.bytes.to_vec();
            set_checksums(&mut bytes);
            bytes
        })
    }

    /// Splits the payload into two frames, for a path with a smaller MTU. Returns `None` if there is no payload to
    /// split.
    pub(crate) fn split_segment(&self) -> Option<[Vec<u8>; 2]> {
        let payload = self.payload();
        let (head, tail) = payload.split_at(payload.len() / 2);
        if head.is_empty() {
            return None;
        }
        let headers = &self.bytes[..self.tcp_at + self.header_bytes];
        let mut first = [headers, head].concat();
        let mut second = [headers, tail].concat();
        // FIN and PSH belong to the second half.
        first[self.tcp_at + 13] &= !0x09;
        let seq_at = self.tcp_at + 4..self.tcp_at + 8;
        let seq = u32::from_be_bytes(self.bytes[seq_at.clone()].try_into().ok()?);
        second[seq_at].copy_from_slice(&seq.wrapping_add(head.len() as u32).to_be_bytes());
        set_checksums(&mut first);
        set_checksums(&mut second);
        Some([first, second])
    }
}

/// Whether an Ethernet frame from the programs is a complete TCP packet with a correct or partial checksum.
pub fn is_undamaged(frame: &[u8]) -> bool {
    Frame::parse(frame).is_some_and(|frame| {
        let tcp = &frame.bytes[frame.tcp_at..];
        let right = checksum(&[frame.addresses(), &frame.pseudo_tail(), tcp]) == 0;
        right || be16(tcp, 16) == Some(!checksum(&[frame.addresses(), &frame.pseudo_tail()]))
    })
}

/// Sets lengths and checksums of a frame that `Frame::parse` accepts.
fn set_checksums(frame: &mut [u8]) {
    let ipv6 = frame[12..14] == [0x86, 0xdd];
    let tcp_at = if ipv6 { 54 } else { 34 };
    let behind = |at: usize| ((frame.len() - at) as u16).to_be_bytes();
    if ipv6 {
        let length = behind(54);
        frame[18..20].copy_from_slice(&length);
    } else {
        let length = behind(14);
        frame[16..18].copy_from_slice(&length);
        frame[24..26].fill(0);
        let sum = checksum(&[&frame[14..34]]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame[tcp_at + 16..tcp_at + 18].fill(0);
    let [high, low] = ((frame.len() - tcp_at) as u16).to_be_bytes();
    let addresses = if ipv6 { &frame[22..54] } else { &frame[26..34] };
    let sum = checksum(&[addresses, &[0, TCP, high, low], &frame[tcp_at..]]);
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Returns an IP packet with a RST from `from` to `to` and the sequence number `seq` (RFC 9293 section 3.10.7.1).
pub(crate) fn reset(from: SocketAddr, to: SocketAddr, seq: u32) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, TCP, 64]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(seq.to_be_bytes());
    // No acknowledgement; header length, RST; window, checksum, urgent pointer.
    frame.extend([0, 0, 0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 0]);
    set_checksums(&mut frame);
    Ok(frame.split_off(ETHERNET_BYTES))
}
