//! TCP segments as frames and in tunnels, built and read independently of the programs under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// A TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// A multiple of 4 bytes.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self { from, to, seq: 0, ack: 0, flags, window: 0xffff, options: Vec::new(), payload: Vec::new() }
    }

    /// Reads an Ethernet frame; `None` if it is not TCP over IP.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        let (from, to, tcp): (IpAddr, IpAddr, _) = match ip.first()? >> 4 {
            4 if *ip.get(9)? == 6 => {
                let total = usize::from(be16(ip, 2)?);
                let address =
                    |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
                (address(12)?.into(), address(16)?.into(), ip.get(usize::from(ip[0] & 15) * 4..total)?)
            }
            6 if *ip.get(6)? == 6 => {
                let total = 40 + usize::from(be16(ip, 4)?);
                let address =
                    |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(ip.get(at..at + 16)?).ok()?));
                (address(8)?.into(), address(24)?.into(), ip.get(40..total)?)
            }
            _ => return None,
        };
        let be32 = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let header = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            from: SocketAddr::new(from, be16(tcp, 0)?),
            to: SocketAddr::new(to, be16(tcp, 2)?),
            seq: be32(4)?,
            ack: be32(8)?,
            flags: *tcp.get(13)?,
            window: be16(tcp, 14)?,
            options: tcp.get(20..header)?.to_vec(),
            payload: tcp.get(header..)?.to_vec(),
        })
    }

    /// Returns the frame with correct checksums.
    pub(crate) fn frame(&self, to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
        let packet = self.packet();
        let protocol: [u8; 2] = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        [&to[..], &from, &protocol, &packet].concat()
    }

    /// Returns the IP packet with correct checksums.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let header = u8::try_from((20 + self.options.len()) / 4).expect("a header has 60 bytes at most");
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([header << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let length = u16::try_from(tcp.len()).expect("short");
        let addresses = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
            (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
            _ => unreachable!("addresses of one family"),
        };
        let sum = checksum(&[&addresses[..], &[0, 6], &length.to_be_bytes(), &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        ip(self.from.ip(), self.to.ip(), 6, &tcp)
    }

    /// Returns value and echo of the timestamp option.
    pub(crate) fn timestamps(&self) -> Option<(u32, u32)> {
        let option = self.option(8)?;
        let word = |at: usize| Some(u32::from_be_bytes(option.get(at..at + 4)?.try_into().ok()?));
        Some((word(0)?, word(4)?))
    }

    /// Returns the value of an option.
    pub(crate) fn option(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = &self.options[..];
        loop {
            match *rest {
                [1, ..] => rest = &rest[1..],
                [found, length, ..] if length >= 2 && rest.len() >= usize::from(length) => {
                    if found == kind {
                        return Some(&rest[2..usize::from(length)]);
                    }
                    rest = &rest[usize::from(length)..];
                }
                _ => return None,
            }
        }
    }
}

/// Returns a router's message to the sender of `packet` that a link on its path carries at most `mtu` bytes, as an IP
/// packet.
pub(crate) fn too_big(packet: &Segment, router: IpAddr, mtu: u32) -> Vec<u8> {
    let quoted = packet.packet();
    let mtu = mtu.to_be_bytes();
    if packet.from.is_ipv4() {
        let mut icmp = [&[3, 4, 0, 0], &mtu[..], &quoted[..28]].concat();
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        return ip(router, packet.from.ip(), 1, &icmp);
    }
    let mut icmp = [&[2, 0, 0, 0], &mtu[..], &quoted[..60]].concat();
    let length = u32::try_from(icmp.len()).expect("short").to_be_bytes();
    let (IpAddr::V6(from), IpAddr::V6(to)) = (router, packet.from.ip()) else { unreachable!("one family") };
    let sum = checksum(&[&from.octets()[..], &to.octets(), &length, &[0, 0, 0, 58], &icmp].concat());
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    ip(router, packet.from.ip(), 58, &icmp)
}

/// An IP packet around `payload`.
fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend([0x45, 0]);
            packet.extend(u16::try_from(20 + payload.len()).expect("short").to_be_bytes());
            packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(u16::try_from(payload.len()).expect("short").to_be_bytes());
            packet.extend([protocol, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        _ => unreachable!("addresses of one family"),
    }
    packet.extend(payload);
    packet
}

/// Encapsulation of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Encapsulation {
    Ipip,
    /// Variant 0, with a private option of 4 bytes.
    Gue(u16),
    /// Variant 1: no header of its own.
    GueDirect(u16),
    Vxlan(u16, u32),
}

/// Wraps the packet in a frame. The outer UDP checksum is 0, as RFC 6935 allows for tunnels.
pub(crate) fn encapsulate(frame: &[u8], encapsulation: Encapsulation, from: IpAddr, to: IpAddr) -> Vec<u8> {
    let (ethernet, inner) = frame.split_at(14);
    let protocol = if inner[0] >> 4 == 4 { 4 } else { 41 };
    let (outer_protocol, body) = match encapsulation {
        Encapsulation::Ipip => (protocol, inner.to_vec()),
        Encapsulation::Gue(port) => (17, udp(port, &[&[1, protocol, 0, 0, 0, 0, 0, 0], inner].concat())),
        Encapsulation::GueDirect(port) => (17, udp(port, inner)),
        Encapsulation::Vxlan(port, vni) => {
            (17, udp(port, &[&[8, 0, 0, 0], &(vni << 8).to_be_bytes()[..], frame].concat()))
        }
    };
    let outer = ip(from, to, outer_protocol, &body);
    let ethertype: [u8; 2] = if to.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
    [&ethernet[..12], &ethertype, &outer].concat()
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("short");
    [&50_000_u16.to_be_bytes()[..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
