//! TCP packets in Ethernet frames: parsing, building, checksums.
//!
//! Frames hold IPv4, with or without options, or IPv6 without extension headers. Fragments are not parsed. RFC 9293
//! section 3.1 (TCP header, pseudo header), RFC 791, RFC 8200 section 8.1, RFC 1071 (checksum).
//!
//! A checksum may be *partial*. A packet that was sent by a host on the same machine, or that the kernel has merged from
//! several (GRO), holds only the sum of the pseudo header in its checksum field (`CHECKSUM_PARTIAL`,
//! include/linux/skbuff.h). Its bytes were verified before or never left memory. Only such a checksum is completed: a
//! wrong checksum must stay wrong.

mod tcp_frame;
#[cfg(test)]
mod tests;

pub use tcp_frame::TcpFrame;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const TCP: u8 = 6;
/// TCP header without options.
const TCP_BYTES_MIN: usize = 20;
/// Offset of the checksum in the TCP header.
const CHECKSUM_AT: usize = 16;
/// Bits of the IPv4 fragment field that are set in fragments only: the offset, and "more fragments".
const FRAGMENT: u16 = 0x3fff;

/// Flags of the TCP header.
pub mod tcp_flag {
    /// The sender has sent all its bytes.
    pub const FIN: u8 = 1;
    /// Opens a connection.
    pub const SYN: u8 = 2;
    /// Resets the connection.
    pub const RST: u8 = 4;
    /// The receiver should read the bytes now.
    pub const PSH: u8 = 8;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
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

/// Sets the checksum of an IPv4 header.
pub(crate) fn set_ip_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = checksum(&[header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Positions of the headers in a frame.
#[derive(Clone, Copy, Debug)]
struct Layout {
    ipv6: bool,
    tcp_at: usize,
    payload_at: usize,
    /// Length of the frame without padding. The frame may be shorter, but has all headers.
    end: usize,
}

impl Layout {
    /// Finds the headers. Returns `None` for any other frame.
    fn of(frame: &[u8]) -> Option<Self> {
        let (ipv6, tcp_at, end) = match be16(frame, 12)? {
            ETHERTYPE_V4 => {
                let first = *frame.get(ETHERNET_BYTES)?;
                let header_bytes = usize::from(first & 15) * 4;
                let fragment = be16(frame, 20)? & FRAGMENT != 0;
                if first >> 4 != 4 || header_bytes < 20 || fragment || *frame.get(23)? != TCP {
                    return None;
                }
                (false, ETHERNET_BYTES + header_bytes, ETHERNET_BYTES + usize::from(be16(frame, 16)?))
            }
            ETHERTYPE_V6 if *frame.get(20)? == TCP => (true, 54, 54 + usize::from(be16(frame, 18)?)),
            _ => return None,
        };
        let payload_at = tcp_at + usize::from(*frame.get(tcp_at + 12)? >> 4) * 4;
        let complete = payload_at >= tcp_at + TCP_BYTES_MIN && payload_at <= end.min(frame.len());
        complete.then_some(Self { ipv6, tcp_at, payload_at, end })
    }

    /// Returns the IP addresses of a frame with this layout, source first.
    fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        if self.ipv6 { &frame[22..54] } else { &frame[26..34] }
    }

    /// Returns the sum of the pseudo header for a frame with this layout, which must not have padding.
    fn pseudo_header_sum(&self, frame: &[u8]) -> u16 {
        let [high, low] = ((frame.len() - self.tcp_at) as u16).to_be_bytes();
        !checksum(&[self.addresses(frame), &[0, TCP, high, low]])
    }

    /// Sets the TCP checksum of a frame with this layout, which must not have padding.
    fn set_tcp_checksum(&self, frame: &mut [u8]) {
        let field = self.tcp_at + CHECKSUM_AT;
        let sum = self.pseudo_header_sum(frame);
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        let sum = checksum(&[&frame[self.tcp_at..]]);
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Sets lengths and checksums of a frame with this layout, which must not have padding.
    fn set_lengths_and_checksums(&self, frame: &mut [u8]) {
        let length_after = |at: usize| ((frame.len() - at) as u16).to_be_bytes();
        if self.ipv6 {
            let length = length_after(54);
            frame[18..20].copy_from_slice(&length);
        } else {
            let length = length_after(ETHERNET_BYTES);
            frame[16..18].copy_from_slice(&length);
            set_ip_checksum(&mut frame[ETHERNET_BYTES..self.tcp_at]);
        }
        self.set_tcp_checksum(frame);
    }
}

/// Correctness of a TCP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumState {
    Complete,
    Partial,
    Wrong,
}

/// A frame with a complete TCP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// The frame without padding.
    bytes: &'a [u8],
    layout: Layout,
}

impl<'a> Frame<'a> {
    /// Parses a frame. Returns `None` for any other frame. Cuts off padding after the packet.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let layout = Layout::of(bytes)?;
        Some(Self { bytes: bytes.get(..layout.end)?, layout })
    }

    pub(crate) fn ipv6(&self) -> bool {
        self.layout.ipv6
    }

    /// Returns the IP packet.
    pub(crate) fn packet(&self) -> &'a [u8] {
        &self.bytes[ETHERNET_BYTES..]
    }

    /// Returns the hop limit.
    pub(crate) fn hop_limit(&self) -> u8 {
        self.bytes[if self.layout.ipv6 { 21 } else { 22 }]
    }

    /// Returns the source port of an outer UDP header, as `outer_port_be` of `bpf/front_forward.h` does.
    pub(crate) fn outer_port(&self) -> u16 {
        let client = if self.layout.ipv6 {
            self.bytes[22..38].try_into().unwrap_or([0; 16])
        } else {
            let v4: [u8; 4] = self.bytes[26..30].try_into().unwrap_or([0; 4]);
            std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets()
        };
        let port = u16::from_le_bytes([self.bytes[self.layout.tcp_at], self.bytes[self.layout.tcp_at + 1]]);
        let whole = u128::from_le_bytes(client);
        let mixed =
            (whole as u64 ^ (whole >> 64) as u64 ^ u64::from(port) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        0xc000 | (mixed >> 50) as u16
    }

    pub(crate) fn checksum_state(&self) -> ChecksumState {
        let partial = self.layout.pseudo_header_sum(self.bytes);
        let tcp = &self.bytes[self.layout.tcp_at..];
        if checksum(&[&partial.to_be_bytes(), tcp]) == 0 {
            ChecksumState::Complete
        } else if be16(tcp, CHECKSUM_AT) == Some(partial) {
            ChecksumState::Partial
        } else {
            ChecksumState::Wrong
        }
    }

    /// Returns the frame with a complete checksum. Returns `None` if the packet is damaged.
    pub(crate) fn with_checksum(&self) -> Option<Vec<u8>> {
        let mut bytes = self.bytes.to_vec();
        match self.checksum_state() {
            ChecksumState::Complete => {}
            ChecksumState::Partial => self.layout.set_lengths_and_checksums(&mut bytes),
            ChecksumState::Wrong => return None,
        }
        Some(bytes)
    }

    /// Splits the payload into two frames, for a path with a smaller MTU. Returns `None` if there is no payload to
    /// split.
    pub(crate) fn split_segment(&self) -> Option<[Vec<u8>; 2]> {
        let Layout { tcp_at, payload_at, .. } = self.layout;
        let (headers, payload) = self.bytes.split_at(payload_at);
        let (head, tail) = payload.split_at(payload.len() / 2);
        if head.is_empty() {
            return None;
        }
        let mut first = [headers, head].concat();
        let mut second = [headers, tail].concat();
        // FIN and PSH belong to the second half.
        first[tcp_at + 13] &= !(tcp_flag::FIN | tcp_flag::PSH);
        let seq_at = tcp_at + 4..tcp_at + 8;
        let seq = u32::from_be_bytes(self.bytes[seq_at.clone()].try_into().ok()?);
        second[seq_at].copy_from_slice(&seq.wrapping_add(head.len() as u32).to_be_bytes());
        self.layout.set_lengths_and_checksums(&mut first);
        self.layout.set_lengths_and_checksums(&mut second);
        Some([first, second])
    }
}

/// Whether an Ethernet frame is a complete TCP packet with a correct or partial checksum.
pub fn is_undamaged(frame: &[u8]) -> bool {
    Frame::parse(frame).is_some_and(|frame| frame.checksum_state() != ChecksumState::Wrong)
}

/// Sets the TCP checksum of a frame with a complete TCP packet. Leaves other frames unchanged.
pub fn set_tcp_checksum(frame: &mut [u8]) {
    if let Some(Frame { layout, .. }) = Frame::parse(frame) {
        layout.set_tcp_checksum(&mut frame[..layout.end]);
    }
}

/// Completes the TCP checksum of a frame if it is partial. Leaves other frames unchanged.
pub(crate) fn complete_checksum(frame: &mut [u8]) {
    if Frame::parse(frame).is_some_and(|frame| frame.checksum_state() == ChecksumState::Partial) {
        set_tcp_checksum(frame);
    }
}

/// Decrements the hop limit in an Ethernet frame with an IP packet.
pub(crate) fn decrement_hop_limit(frame: &mut [u8]) {
    if be16(frame, 12) == Some(ETHERTYPE_V6) {
        frame[21] = frame[21].saturating_sub(1);
    } else {
        frame[22] = frame[22].saturating_sub(1);
        let header_end = ETHERNET_BYTES + usize::from(frame[ETHERNET_BYTES] & 15) * 4;
        set_ip_checksum(&mut frame[ETHERNET_BYTES..header_end]);
    }
}
