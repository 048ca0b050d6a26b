//! Fields of a TCP packet, read from a frame and written to one.

use super::{ETHERNET_BYTES, ETHERTYPE_V4, ETHERTYPE_V6, Frame, Layout, TCP, TCP_BYTES_MIN};
use std::net::{IpAddr, SocketAddr};

/// Hop limit of built packets, as Linux sends them.
const HOP_LIMIT: u8 = 64;

/// Contents of a TCP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// See [`tcp_flag`](super::tcp_flag).
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
    /// TCP options, 0 to 40 bytes. A built frame has them padded with 0 to a multiple of 4.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
}

/// Returns an address of 4 or 16 bytes.
fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match <[u8; 4]>::try_from(bytes) {
        Ok(v4) => Some(v4.into()),
        Err(_) => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

impl<'a> TcpFrame<'a> {
    /// Creates a packet without options and payload. Its numbers and MAC addresses are 0.
    pub fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self { macs: [[0; 6]; 2], from, to, seq: 0, ack: 0, flags, window: 0, options: &[], payload: &[] }
    }

    /// Parses an Ethernet frame, without verifying checksums. Returns `None` if the frame is not a complete TCP packet.
    /// Padding after the packet is ignored.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let complete = Frame::parse(frame)?.bytes;
        Self::parse_truncated(complete).map(|(parsed, _)| parsed)
    }

    /// Does the same as [`TcpFrame::parse`] for a frame whose payload may be truncated, as in a capture. Also returns
    /// the length of the frame before truncation, without padding.
    pub fn parse_truncated(frame: &'a [u8]) -> Option<(Self, usize)> {
        let layout = Layout::of(frame)?;
        let (tcp, payload) =
            frame.get(layout.tcp_at..)?.split_at_checked(layout.payload_at - layout.tcp_at)?;
        let be16 = |at: usize| super::be16(tcp, at);
        let be32 = |at: usize| tcp.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let addresses = layout.addresses(frame);
        let (source, destination) = addresses.split_at(addresses.len() / 2);
        let mac = |at: usize| frame.get(at..at + 6)?.try_into().ok();
        let parsed = Self {
            macs: [mac(6)?, mac(0)?],
            from: SocketAddr::new(ip(source)?, be16(0)?),
            to: SocketAddr::new(ip(destination)?, be16(2)?),
            seq: be32(4)?,
            ack: be32(8)?,
            flags: *tcp.get(13)?,
            window: be16(14)?,
            options: tcp.get(TCP_BYTES_MIN..)?,
            payload: payload.get(..layout.end - layout.payload_at).unwrap_or(payload),
        };
        Some((parsed, layout.end))
    }

    /// Returns the frame with its checksums. `None` if the families differ, or options or payload are too long.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let options_bytes = self.options.len().next_multiple_of(4);
        let header_words =
            u8::try_from((TCP_BYTES_MIN + options_bytes) / 4).ok().filter(|words| *words <= 15)?;
        let mut frame = [self.macs[1], self.macs[0]].concat();
        // Lengths and checksums are set at the end.
        let (ipv6, tcp_at) = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend(ETHERTYPE_V4.to_be_bytes());
                // Version and header length, service, length; no identification, don't fragment.
                frame.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, TCP, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                (false, 34)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend(ETHERTYPE_V6.to_be_bytes());
                frame.extend([0x60, 0, 0, 0, 0, 0, TCP, HOP_LIMIT]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                (true, 54)
            }
            _ => return None,
        };
        frame.extend(self.from.port().to_be_bytes());
        frame.extend(self.to.port().to_be_bytes());
        frame.extend(self.seq.to_be_bytes());
        frame.extend(self.ack.to_be_bytes());
        frame.extend([header_words << 4, self.flags]);
        frame.extend(self.window.to_be_bytes());
        // Checksum and urgent pointer.
        frame.extend([0; 4]);
        frame.extend(self.options);
        let payload_at = tcp_at + TCP_BYTES_MIN + options_bytes;
        frame.resize(payload_at, 0);
        frame.extend(self.payload);
        let end = frame.len();
        // The length in an IPv6 header does not include the header.
        u16::try_from(end - if ipv6 { tcp_at } else { ETHERNET_BYTES }).ok()?;
        Layout { ipv6, tcp_at, payload_at, end }.set_lengths_and_checksums(&mut frame);
        Some(frame)
    }

    /// Returns the IP packet, which is [`TcpFrame::bytes`] without the Ethernet header.
    pub fn packet(&self) -> Option<Vec<u8>> {
        self.bytes().map(|mut frame| frame.split_off(ETHERNET_BYTES))
    }
}
