//! Packets of held connections: Ethernet frames in order of arrival.

use larder_core::handoff::Packet;
use larder_kernel::frame::{TcpFrame, tcp_flag};
use std::sync::Arc;

/// Maximum size of a request header that is reassembled from held packets. Bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// A frame from the plane.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Arc<[u8]>,
    /// Hash of the request head for the fast path, if the frame opens a connection and has one.
    pub(crate) head: Option<u64>,
}

impl Frame {
    pub(crate) fn new(bytes: &[u8], head: Option<u64>) -> Self {
        Self { bytes: bytes.into(), head }
    }
}

impl Packet for Frame {
    fn length(&self) -> usize {
        self.bytes.len()
    }

    fn first_seq(&self) -> Option<u32> {
        TcpFrame::parse(&self.bytes).filter(|packet| !packet.payload.is_empty()).map(|packet| packet.seq)
    }

    fn acknowledges(&self) -> Option<u32> {
        TcpFrame::parse(&self.bytes).map(|packet| packet.ack)
    }
}

/// Returns the client's bytes up to the first gap.
pub(crate) fn payload(frames: &[Frame]) -> Vec<u8> {
    let segments = frames.iter().filter_map(|frame| TcpFrame::parse(&frame.bytes));
    let mut segments: Vec<TcpFrame<'_>> = segments.filter(|segment| !segment.payload.is_empty()).collect();
    let Some(first) = segments.first().map(|segment| segment.seq) else { return Vec::new() };
    segments.sort_by_key(|segment| segment.seq.wrapping_sub(first));
    let mut bytes: Vec<u8> = Vec::new();
    for TcpFrame { seq, payload, .. } in segments {
        let at = seq.wrapping_sub(first) as usize;
        if at > bytes.len() || bytes.len() >= HEAD_BYTES_MAX {
            break;
        }
        // A retransmitted segment begins before the end of the collected bytes.
        bytes.extend_from_slice(payload.get(bytes.len() - at..).unwrap_or_default());
    }
    bytes
}

/// Whether `received` bytes, as [`payload`] returns them, are all bytes of the frames: there is no FIN and no byte
/// behind a gap.
pub(crate) fn is_complete(frames: &[Frame], received: usize) -> bool {
    let first = frames.first().and_then(|frame| TcpFrame::parse(&frame.bytes)).map(|segment| segment.seq);
    frames.iter().all(|frame| {
        let Some((segment, first)) = TcpFrame::parse(&frame.bytes).zip(first) else { return false };
        let end = segment.seq.wrapping_sub(first) as usize + segment.payload.len();
        segment.flags & tcp_flag::FIN == 0 && end <= received
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    /// Returns a frame with this payload.
    pub(in crate::handoff) fn frame(seq: u32, payload: &[u8], v6: bool) -> Vec<u8> {
        let ip: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let unspecified = SocketAddr::new(ip, 0);
        TcpFrame { seq, payload, ..TcpFrame::new(unspecified, unspecified, 0) }.bytes().expect("a frame")
    }

    proptest! {
        #[test]
        fn segments_reassemble_in_any_order(
            text in prop::collection::vec(any::<u8>(), 1..200),
            first in any::<u32>(),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 1..60_usize), 0..12),
        ) {
            let mut held = vec![Frame::new(&frame(first, &text[..1], false), None)];
            for (at, length) in cuts {
                let at = at.index(text.len());
                let end = (at + length).min(text.len());
                held.push(Frame::new(&frame(first.wrapping_add(at as u32), &text[at..end], at % 2 == 0), None));
            }
            let bytes = payload(&held);
            prop_assert!(!bytes.is_empty() && text.starts_with(&bytes));
            // The whole text is returned once every byte has arrived.
            held.push(Frame::new(&frame(first, &text, false), None));
            prop_assert_eq!(payload(&held), text);
        }
    }
}
