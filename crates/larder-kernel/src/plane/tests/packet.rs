//! A small builder of TCP packets, and a reader that checks every length and checksum.

use super::super::frame::checksum;
use super::{NODE_MAC, OUR_MAC};
use crate::{CookieKey, SynAckCookie, SynOptions};
use std::net::{IpAddr, SocketAddr};

pub(in super::super) const FIN: u8 = 1;
pub(in super::super) const SYN: u8 = 2;
pub(in super::super) const RST: u8 = 4;
pub(in super::super) const ACK: u8 = 16;
pub(in super::super) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The client's initial sequence number.
pub(in super::super) const ISN: u32 = 0xffff_fff0;

pub(in super::super) const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
pub(in super::super) const SACK: [u8; 2] = [4, 2];
pub(in super::super) const TIMESTAMPS: [u8; 10] = [8, 10, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0];
pub(in super::super) const WSCALE: [u8; 3] = [3, 3, 9];

/// A packet to be built.
#[derive(Clone, Debug)]
pub(in super::super) struct Packet {
    pub(in super::super) from: SocketAddr,
    pub(in super::super) to: SocketAddr,
    pub(in super::super) flags: u8,
    pub(in super::super) seq: u32,
    pub(in super::super) ack: u32,
    pub(in super::super) options: Vec<u8>,
    pub(in super::super) payload: Vec<u8>,
}

/// TCP options that every client here offers, besides timestamps.
pub(in super::super) fn offered() -> SynOptions {
    SynOptions { mss: 1460, sack: true, timestamps: false, wscale: Some(9) }
}

impl Packet {
    pub(in super::super) fn new(from: SocketAddr, to: SocketAddr) -> Self {
        Self { from, to, flags: ACK, seq: ISN, ack: 0, options: Vec::new(), payload: Vec::new() }
    }

    pub(in super::super) fn syn(mut self, options: &[&[u8]]) -> Self {
        self.flags = SYN;
        self.options = options.concat();
        while !self.options.len().is_multiple_of(4) {
            self.options.push(1);
        }
        self
    }

    /// A packet after the handshake: it acknowledges a cookie made with `key`, `sent` bytes into the connection.
    pub(in super::super) fn opened(self, key: CookieKey, sent: u32) -> Self {
        let mut packet = self.with_cookie(key, ISN, None);
        packet.seq = packet.seq.wrapping_add(sent);
        packet
    }

    /// The first packet after the handshake of a connection with this initial sequence number. `clock` is that of its
    /// SYN-ACK, if the client offered timestamps.
    pub(in super::super) fn with_cookie(mut self, key: CookieKey, isn: u32, clock: Option<u32>) -> Self {
        let options = SynOptions { timestamps: clock.is_some(), ..offered() };
        let answer = SynAckCookie::make(key, (self.from, self.to), isn, options, clock.unwrap_or(0));
        (self.seq, self.ack) = (isn.wrapping_add(1), answer.cookie.0.wrapping_add(1));
        match answer.echo {
            Some(echo) => self.tsecr(echo),
            None => self,
        }
    }

    pub(in super::super) fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    pub(in super::super) fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Adds timestamps in the layout of Linux.
    pub(in super::super) fn tsecr(mut self, tsecr: u32) -> Self {
        self.options = [&[1, 1, 8, 10, 0, 0, 0, 1], tsecr.to_be_bytes().as_slice()].concat();
        self
    }

    pub(in super::super) fn frame(&self) -> Vec<u8> {
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([((5 + self.options.len() / 4) << 4) as u8, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        tcp.extend(&self.options);
        tcp.extend(&self.payload);
        let mut frame = [OUR_MAC, CLIENT_MAC].concat();
        let length = (tcp.len() as u16).to_be_bytes();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let total = (tcp.len() as u16 + 20).to_be_bytes();
                frame.extend([8, 0, 0x45, 0, total[0], total[1], 0x12, 0x34, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
                let sum = checksum(&[&frame[14..34]]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], 6, 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => unreachable!("two families"),
        }
        let sum = checksum(&[addresses(&frame), &[0, 6], &length, &tcp]);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        frame.extend(tcp);
        frame
    }
}

fn addresses(frame: &[u8]) -> &[u8] {
    if frame[12] == 0x86 { &frame[22..54] } else { &frame[26..34] }
}

pub(in super::super) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Reads a frame back. Lengths and checksums must be correct. Also returns the MAC addresses, destination first.
#[track_caller]
pub(in super::super) fn read(frame: &[u8]) -> (Packet, [[u8; 6]; 2]) {
    let v6 = frame[12..14] == [0x86, 0xdd];
    let (tcp_at, end) = if v6 {
        assert_eq!((frame[14] >> 4, frame[20]), (6, 6));
        (54, 54 + usize::from(be16(&frame[18..])))
    } else {
        assert_eq!((frame[14], frame[23]), (0x45, 6));
        assert_eq!(checksum(&[&frame[14..34]]), 0, "IP checksum");
        (34, 14 + usize::from(be16(&frame[16..])))
    };
    let tcp = &frame[tcp_at..end];
    let length = (tcp.len() as u16).to_be_bytes();
    assert_eq!(checksum(&[addresses(frame), &[0, 6], &length, tcp]), 0, "TCP checksum");
    let header = usize::from(tcp[12] >> 4) * 4;
    let socket = |address: usize, port: usize| {
        let ip = if v6 {
            IpAddr::from(<[u8; 16]>::try_from(&frame[22 + 16 * address..][..16]).expect("16 bytes"))
        } else {
            IpAddr::from(<[u8; 4]>::try_from(&frame[26 + 4 * address..][..4]).expect("4 bytes"))
        };
        SocketAddr::new(ip, be16(&tcp[port..]))
    };
    let packet = Packet {
        from: socket(0, 0),
        to: socket(1, 2),
        flags: tcp[13],
        seq: be32(&tcp[4..]),
        ack: be32(&tcp[8..]),
        options: tcp[20..header].to_vec(),
        payload: tcp[header..].to_vec(),
    };
    let mac = |at: usize| <[u8; 6]>::try_from(&frame[at..at + 6]).expect("6 bytes");
    (packet, [mac(0), mac(6)])
}

/// Checks that the frame is `packet` on its way to the node on the same layer 2, with its hop limit decremented.
#[track_caller]
pub(in super::super) fn is_forwarded(frame: &[u8], packet: &Packet) {
    let (read, macs) = read(frame);
    assert_eq!(macs, [NODE_MAC, OUR_MAC]);
    assert_eq!(frame[if frame[12] == 0x86 { 21 } else { 22 }], 63, "hops");
    assert_eq!(read.frame()[14..20], packet.frame()[14..20]);
    assert_eq!((read.seq, read.ack, read.flags), (packet.seq, packet.ack, packet.flags));
    assert_eq!((read.options, read.payload), (packet.options.clone(), packet.payload.clone()));
}
