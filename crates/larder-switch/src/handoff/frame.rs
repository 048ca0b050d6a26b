//! Packets of held connections: Ethernet frames in order of arrival.

use larder_core::handoff::Packet;
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
        segment(&self.bytes).filter(|segment| !segment.payload.is_empty()).map(|segment| segment.seq)
    }

    fn acknowledges(&self) -> Option<u32> {
        let frame = &self.bytes;
        let l4 = if *frame.get(12)? == 0x86 { 54 } else { 34 };
        segment(frame)?;
        frame.get(l4 + 8..l4 + 12)?.try_into().ok().map(u32::from_be_bytes)
    }
}

/// TCP segment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'p> {
    pub(crate) seq: u32,
    pub(crate) fin: bool,
    pub(crate) payload: &'p [u8],
}

const TCP: u8 = 6;

/// Returns the TCP segment of an Ethernet frame; `None` if it contains something else.
pub(crate) fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let be16 = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (l4, total) = match be16(12)? {
        0x0800 if *frame.get(14)? == 0x45 && *frame.get(23)? == TCP => (34, 14 + usize::from(be16(16)?)),
        0x86dd if *frame.get(20)? == TCP => (54, 54 + usize::from(be16(18)?)),
        _ => return None,
    };
    let seq = u32::from_be_bytes(frame.get(l4 + 4..l4 + 8)?.try_into().ok()?);
    let data = l4 + usize::from(frame.get(l4 + 12)? >> 4) * 4;
    // A frame may be padded to Ethernet's minimum size.
    let fin = *frame.get(l4 + 13)? & 1 == 1;
    Some(Segment { seq, fin, payload: frame.get(data..total)? })
}

/// Returns the client's bytes up to the first gap.
pub(crate) fn payload(frames: &[Frame]) -> Vec<u8> {
    let segments = frames.iter().filter_map(|frame| segment(&frame.bytes));
    let mut segments: Vec<Segment<'_>> = segments.filter(|segment| !segment.payload.is_empty()).collect();
    let Some(first) = segments.first().map(|segment| segment.seq) else { return Vec::new() };
    segments.sort_by_key(|segment| segment.seq.wrapping_sub(first));
    let mut bytes: Vec<u8> = Vec::new();
    for Segment { seq, payload, .. } in segments {
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
    let first = frames.first().and_then(|frame| segment(&frame.bytes)).map(|segment| segment.seq);
    frames.iter().all(|frame| {
        let Some((segment, first)) = segment(&frame.bytes).zip(first) else { return false };
        let end = segment.seq.wrapping_sub(first) as usize + segment.payload.len();
        !segment.fin && end <= received
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a frame with this payload.
    pub(in crate::handoff) fn frame(seq: u32, payload: &[u8], v6: bool) -> Vec<u8> {
        let mut tcp = vec![0; 20];
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[12] = 5 << 4;
        tcp.extend_from_slice(payload);
        let mut frame = vec![0; 12];
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((tcp.len() as u16).to_be_bytes());
            frame.extend([TCP, 64]);
            frame.extend([0; 32]);
        } else {
            frame.extend([0x08, 0, 0x45, 0]);
            frame.extend((tcp.len() as u16 + 20).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, TCP]);
            frame.extend([0; 10]);
        }
        frame.extend(tcp);
        frame
    }

    #[test]
    fn padding_is_not_payload() {
        for v6 in [false, true] {
            let mut padded = frame(7, b"G", v6);
            padded.extend([0; 9]);
            assert_eq!(segment(&padded), Some(Segment { seq: 7, fin: false, payload: b"G" }));
            for end in 0..padded.len() - 9 {
                assert_eq!(segment(&padded[..end]), None, "{end}");
            }
        }
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

        #[test]
        fn any_frame_parses_without_panic(frame in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = segment(&frame);
        }
    }
}
