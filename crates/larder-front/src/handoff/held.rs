//! Connections that wait for their decision: their packets, in the order in which they came.
//!
//! Nothing of what is held has been acknowledged, so that whatever is lost here the client sends again. A connection
//! keeps at most what the plane hands over (`hold_packets`); their number has a limit of its own, and so have all their bytes together.

use larder_handoff::FlowKey;
use std::collections::HashMap;

/// The most of a request header that is put together from held packets. Bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// All held packets together. Bytes.
pub(crate) const ALL_BYTES_MAX: usize = 64 << 20;
/// What a packet takes beside its bytes, about.
const PACKET_BYTES: usize = 48;

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Ethernet frames.
    packets: Vec<Box<[u8]>>,
    /// The fast path's hash of its head.
    pub(crate) head: Option<u64>,
    pub(crate) wait: Wait,
    /// It is among those that are to be decided.
    pub(crate) due: bool,
    /// Tells it from an earlier one of the same addresses.
    pub(crate) generation: u64,
}

/// What a held connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Its decision is being made.
    #[default]
    Nothing,
    /// The rest of its header.
    Header,
    /// A place among the admitted: further packets decide nothing.
    Admission,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'p> {
    pub(crate) seq: u32,
    pub(crate) fin: bool,
    pub(crate) payload: &'p [u8],
}

const TCP: u8 = 6;

/// The TCP segment in an Ethernet frame as the plane hands it over; `None` if it is something else.
pub(crate) fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let be16 = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (l4, total) = match be16(12)? {
        0x0800 if *frame.get(14)? == 0x45 && *frame.get(23)? == TCP => (34, 14 + usize::from(be16(16)?)),
        0x86dd if *frame.get(20)? == TCP => (54, 54 + usize::from(be16(18)?)),
        _ => return None,
    };
    let seq = u32::from_be_bytes(frame.get(l4 + 4..l4 + 8)?.try_into().ok()?);
    let data = l4 + usize::from(frame.get(l4 + 12)? >> 4) * 4;
    // A frame may be padded to the least that Ethernet sends.
    let fin = *frame.get(l4 + 13)? & 1 == 1;
    Some(Segment { seq, fin, payload: frame.get(data..total)? })
}

/// What a frame with a TCP segment acknowledges.
pub(crate) fn acknowledges(frame: &[u8]) -> Option<u32> {
    let l4 = if *frame.get(12)? == 0x86 { 54 } else { 34 };
    segment(frame)?;
    frame.get(l4 + 8..l4 + 12)?.try_into().ok().map(u32::from_be_bytes)
}

/// Whether a frame carries the client's first bytes, which have the number `first_seq`.
pub(crate) fn begins(frame: &[u8], first_seq: Option<u32>) -> bool {
    segment(frame).is_some_and(|segment| !segment.payload.is_empty() && Some(segment.seq) == first_seq)
}

impl Held {
    pub(crate) fn push(&mut self, packet: &[u8]) {
        self.packets.push(packet.into());
    }

    fn cost(&self) -> usize {
        self.packets.iter().map(|packet| packet.len() + PACKET_BYTES).sum()
    }

    pub(crate) fn packets(&self) -> &[Box<[u8]>] {
        &self.packets
    }

    /// Whether `received` bytes from the first one on, as [`Held::bytes`] gives them, are all that the packets say: no end of
    /// the client's, and nothing behind a gap.
    pub(crate) fn is_all(&self, received: usize) -> bool {
        let first = self.packets.first().and_then(|packet| segment(packet)).map(|segment| segment.seq);
        self.packets.iter().all(|packet| {
            let Some((segment, first)) = segment(packet).zip(first) else { return false };
            let end = segment.seq.wrapping_sub(first) as usize + segment.payload.len();
            !segment.fin && end <= received
        })
    }

    /// What the client has sent so far without a gap, from its first byte on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut segments: Vec<Segment<'_>> = self
            .packets
            .iter()
            .filter_map(|packet| segment(packet))
            .filter(|s| !s.payload.is_empty())
            .collect();
        let Some(first) = segments.first().map(|segment| segment.seq) else { return Vec::new() };
        segments.sort_by_key(|segment| segment.seq.wrapping_sub(first));
        let mut bytes: Vec<u8> = Vec::new();
        for Segment { seq, payload, .. } in segments {
            let at = seq.wrapping_sub(first) as usize;
            if at > bytes.len() || bytes.len() >= HEAD_BYTES_MAX {
                break;
            }
            // What was sent again begins before the end of what is there.
            bytes.extend_from_slice(payload.get(bytes.len() - at..).unwrap_or_default());
        }
        bytes
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    by_key: HashMap<FlowKey, Held>,
    begun: u64,
    /// What all packets take.
    bytes: usize,
}

impl Holding {
    pub(crate) fn get_mut(&mut self, key: FlowKey) -> Option<&mut Held> {
        self.by_key.get_mut(&key)
    }

    /// One that is due no more, unless it has been decided already.
    pub(crate) fn undecided(&mut self, key: FlowKey) -> Option<&mut Held> {
        let held = self.by_key.get_mut(&key)?;
        held.due = false;
        (held.wait != Wait::Admission).then_some(held)
    }

    /// A connection begins to wait; whatever an earlier one of the same addresses has left is dropped.
    pub(crate) fn begin(&mut self, key: FlowKey) -> &mut Held {
        self.begun += 1;
        self.bytes -= self.by_key.get(&key).map_or(0, Held::cost);
        let held = self.by_key.entry(key).or_default();
        *held = Held { generation: self.begun, ..Held::default() };
        held
    }

    /// Takes a connection out; of a later one of the same addresses, if `generation` says so, nothing.
    pub(crate) fn take(&mut self, key: FlowKey, generation: Option<u64>) -> Option<Held> {
        let same = |held: &Held| generation.is_none_or(|generation| held.generation == generation);
        let held = same(self.by_key.get(&key)?).then(|| self.by_key.remove(&key))??;
        self.bytes -= held.cost();
        Some(held)
    }

    /// Takes all out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = (FlowKey, Held)> + use<> {
        self.bytes = 0;
        std::mem::take(&mut self.by_key).into_iter()
    }

    /// Keeps a packet of a connection that is held; says whether there was room for it.
    pub(crate) fn push(&mut self, key: FlowKey, packet: &[u8]) -> Option<(&mut Held, bool)> {
        let held = self.by_key.get_mut(&key)?;
        held.push(packet);
        self.bytes += packet.len() + PACKET_BYTES;
        Some((held, self.bytes <= ALL_BYTES_MAX))
    }

    pub(crate) fn contains(&self, key: FlowKey) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A frame with this payload.
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
    fn padding_is_no_payload() {
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
        fn bytes_are_put_together_however_they_come(
            text in prop::collection::vec(any::<u8>(), 1..200),
            first in any::<u32>(),
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 1..60_usize), 0..12),
        ) {
            let mut held = Held::default();
            held.push(&frame(first, &text[..1], false));
            for (at, length) in cuts {
                let at = at.index(text.len());
                let end = (at + length).min(text.len());
                held.push(&frame(first.wrapping_add(at as u32), &text[at..end], at % 2 == 0));
            }
            let bytes = held.bytes();
            prop_assert!(!bytes.is_empty() && text.starts_with(&bytes));
            // All of the text is there once every byte of it has come.
            held.push(&frame(first, &text, false));
            prop_assert_eq!(held.bytes(), text);
        }

        #[test]
        fn any_frame_is_read(frame in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = segment(&frame);
        }
    }
}
