//! A small builder of TCP packets, and a reader that checks every length and checksum.

use super::{NODE_MAC, OUR_MAC};
pub(in super::super) use crate::frame::tcp_flag::{ACK, FIN, RST, SYN};
use crate::frame::{ChecksumState, Frame, TcpFrame, checksum};
use crate::{CookieKey, SynAckCookie, SynOptions};
use std::net::SocketAddr;

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
        let Self { from, to, flags, seq, ack, ref options, ref payload } = *self;
        let (macs, window) = ([CLIENT_MAC, OUR_MAC], 0xfaf0);
        TcpFrame { macs, from, to, seq, ack, flags, window, options, payload }.bytes().expect("a frame")
    }
}

pub(in super::super) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

/// Reads a frame back. Lengths and checksums must be correct. Also returns the MAC addresses, destination first.
#[track_caller]
pub(in super::super) fn read(frame: &[u8]) -> (Packet, [[u8; 6]; 2]) {
    if frame[12..14] == [0x86, 0xdd] {
        assert_eq!(frame[14] >> 4, 6);
    } else {
        assert_eq!(frame[14], 0x45);
        assert_eq!(checksum(&[&frame[14..34]]), 0, "IP checksum");
    }
    let state = Frame::parse(frame).expect("a TCP packet").checksum_state();
    assert_eq!(state, ChecksumState::Complete, "TCP checksum");
    let TcpFrame { macs: [source, destination], from, to, seq, ack, flags, options, payload, .. } =
        TcpFrame::parse(frame).expect("a TCP packet");
    let (options, payload) = (options.to_vec(), payload.to_vec());
    (Packet { from, to, flags, seq, ack, options, payload }, [destination, source])
}

/// Checks that the frame is `packet` on its way to the node on the same layer 2, with its hop limit decremented.
#[track_caller]
pub(in super::super) fn is_forwarded(frame: &[u8], packet: &Packet) {
    let (read, macs) = read(frame);
    assert_eq!(macs, [NODE_MAC, OUR_MAC]);
    assert_eq!(frame[if frame[12] == 0x86 { 21 } else { 22 }], 63, "hops");
    assert_eq!(frame[14..20], packet.frame()[14..20]);
    assert_eq!((read.seq, read.ack, read.flags), (packet.seq, packet.ack, packet.flags));
    assert_eq!((read.options, read.payload), (packet.options.clone(), packet.payload.clone()));
}
