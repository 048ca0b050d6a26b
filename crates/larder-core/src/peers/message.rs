//! Messages between the nodes of PRESS, and their bytes.
//!
//! PRESS (PPoPP 2001, section 3) broadcasts a node's load when it has changed by a step, and the files that it
//! starts to cache or evicts. It assumes a network without loss. Here a message may be lost with its connection. So
//! a node numbers the changes of its cache and sends the latest number with its load. A peer that has missed changes
//! requests them. The node answers from its log of the latest changes, or with the list of all cached targets, part
//! by part.
//!
//! A node that restarts counts from 0 under a higher *epoch*. Messages of an older epoch are ignored.
//!
//! Encoding: a kind (1 byte), then numbers as varints, targets as 8 bytes each, and flags as bits. No message is
//! longer than [`MESSAGE_BYTES_MAX`].

use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};
use alloc::vec::Vec;

/// Largest number of changes in one message.
pub const CHANGES_MAX: usize = 1_024;
/// Largest number of targets in one part of a list.
pub const LIST_MAX: usize = 4_096;
/// Largest message in bytes.
pub const MESSAGE_BYTES_MAX: usize = LIST_MAX * 8 + 64;

/// Change of a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheChange {
    /// Target.
    pub target: TargetId,
    /// True if the target is in memory now; false if it was evicted.
    pub cached: bool,
}

/// Message between peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PressMessage {
    /// Load of the sender. It is sent at each step of the load, and as a heartbeat.
    Load {
        /// Epoch of the sender.
        epoch: u64,
        /// Connections that the sender serves.
        load: u32,
        /// True if the sender shares its cache. A node that does not is not asked for anything.
        sharing: bool,
        /// Number of cache changes of the sender so far.
        changes: u64,
    },
    /// Changes of the sender's cache, in order.
    Changes {
        /// Epoch of the sender.
        epoch: u64,
        /// Number of the first change, from 1.
        first: u64,
        /// Changes.
        items: Vec<CacheChange>,
    },
    /// Request for the receiver's changes after a number.
    ChangesRequest {
        /// Epoch of the receiver.
        epoch: u64,
        /// Last number that the sender knows.
        after: u64,
    },
    /// Request for the part of the receiver's list that begins after a target.
    ListRequest {
        /// Epoch of the receiver.
        epoch: u64,
        /// Target before the part; `None` for the first part.
        after: Option<TargetId>,
    },
    /// Part of the list of all targets in the sender's memory, in order of their ids.
    List {
        /// Epoch of the sender.
        epoch: u64,
        /// Number of the sender's latest change when the part was made.
        changes: u64,
        /// Target before the part.
        after: Option<TargetId>,
        /// True for the last part.
        last: bool,
        /// Targets.
        targets: Vec<TargetId>,
    },
}

impl PressMessage {
    /// Encodes the message, in at most [`MESSAGE_BYTES_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Load { epoch, load, sharing, changes } => {
                out.push(if *sharing { 1 } else { 0 });
                put(&mut out, *epoch);
                put(&mut out, u64::from(*load));
                put(&mut out, *changes);
            }
            Self::Changes { epoch, first, items } => {
                out.push(2);
                put(&mut out, *epoch);
                put(&mut out, *first);
                put(&mut out, items.len() as u64);
                for marks in items.chunks(8) {
                    let bit = |(at, item): (usize, &CacheChange)| u8::from(item.cached) << at;
                    out.push(marks.iter().enumerate().map(bit).sum());
                }
                items.iter().for_each(|item| put_target(&mut out, item.target));
            }
            Self::ChangesRequest { epoch, after } => {
                out.push(3);
                put(&mut out, *epoch);
                put(&mut out, *after);
            }
            Self::ListRequest { epoch, after } => {
                out.push(4);
                put(&mut out, *epoch);
                put_option(&mut out, *after);
            }
            Self::List { epoch, changes, after, last, targets } => {
                out.push(if *last { 6 } else { 5 });
                put(&mut out, *epoch);
                put(&mut out, *changes);
                put_option(&mut out, *after);
                put(&mut out, targets.len() as u64);
                targets.iter().for_each(|target| put_target(&mut out, *target));
            }
        }
        out
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLong(bytes.len() as u64));
        }
        let mut wire = Wire(bytes);
        let message = match wire.byte("kind of message")? {
            kind @ 0..=1 => Self::Load {
                epoch: wire.number("epoch")?,
                load: wire.small("load")?,
                sharing: kind == 1,
                changes: wire.number("number of changes")?,
            },
            2 => Self::Changes {
                epoch: wire.number("epoch")?,
                first: wire.number("number of a change")?,
                items: read_changes(&mut wire)?,
            },
            3 => Self::ChangesRequest {
                epoch: wire.number("epoch")?,
                after: wire.number("number of a change")?,
            },
            4 => Self::ListRequest { epoch: wire.number("epoch")?, after: read_after(&mut wire)? },
            kind @ 5..=6 => Self::List {
                epoch: wire.number("epoch")?,
                changes: wire.number("number of changes")?,
                after: read_after(&mut wire)?,
                last: kind == 6,
                targets: read_targets(&mut wire)?,
            },
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn put_target(out: &mut Vec<u8>, target: TargetId) {
    out.extend_from_slice(&target.0.to_le_bytes());
}

fn put_option(out: &mut Vec<u8>, after: Option<TargetId>) {
    out.push(u8::from(after.is_some()));
    if let Some(target) = after {
        put_target(out, target);
    }
}

fn read_after(wire: &mut Wire<'_>) -> Result<Option<TargetId>, WireError> {
    match wire.byte("sign of a target")? {
        0 => Ok(None),
        1 => wire.word("target").map(TargetId).map(Some),
        sign => Err(WireError::Value { what: "sign of a target", value: sign.into() }),
    }
}

fn read_changes(wire: &mut Wire<'_>) -> Result<Vec<CacheChange>, WireError> {
    let count = wire.count("number of changes", CHANGES_MAX)?;
    let marks: Vec<u8> =
        (0..count.div_ceil(8)).map(|_| wire.byte("marks of changes")).collect::<Result<_, _>>()?;
    let change = |at: usize| {
        let target = TargetId(wire.word("target")?);
        Ok(CacheChange { target, cached: marks[at / 8] >> (at % 8) & 1 == 1 })
    };
    (0..count).map(change).collect()
}

fn read_targets(wire: &mut Wire<'_>) -> Result<Vec<TargetId>, WireError> {
    let count = wire.count("number of targets", LIST_MAX)?;
    (0..count).map(|_| wire.word("target").map(TargetId)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target() -> impl Strategy<Value = TargetId> {
        any::<u64>().prop_map(TargetId)
    }

    fn message() -> impl Strategy<Value = PressMessage> {
        let change = (target(), any::<bool>()).prop_map(|(target, cached)| CacheChange { target, cached });
        prop_oneof![
            (any::<u64>(), any::<u32>(), any::<bool>(), any::<u64>()).prop_map(
                |(epoch, load, sharing, changes)| PressMessage::Load { epoch, load, sharing, changes }
            ),
            (any::<u64>(), any::<u64>(), prop::collection::vec(change, 0..40))
                .prop_map(|(epoch, first, items)| PressMessage::Changes { epoch, first, items }),
            (any::<u64>(), any::<u64>())
                .prop_map(|(epoch, after)| PressMessage::ChangesRequest { epoch, after }),
            (any::<u64>(), prop::option::of(target()))
                .prop_map(|(epoch, after)| PressMessage::ListRequest { epoch, after }),
            (
                any::<u64>(),
                any::<u64>(),
                prop::option::of(target()),
                any::<bool>(),
                prop::collection::vec(target(), 0..40)
            )
                .prop_map(|(epoch, changes, after, last, targets)| PressMessage::List {
                    epoch,
                    changes,
                    after,
                    last,
                    targets
                }),
        ]
    }

    proptest! {
        #[test]
        fn a_decoded_message_equals_the_encoded_one(message in message()) {
            prop_assert_eq!(PressMessage::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn truncated_bytes_are_refused(message in message(), at in any::<prop::sample::Index>()) {
            let bytes = message.encode();
            prop_assert!(PressMessage::decode(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn random_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = PressMessage::decode(&bytes) {
                prop_assert_eq!(PressMessage::decode(&message.encode()), Ok(message));
            }
        }
    }

    #[test]
    fn the_longest_messages_fit() {
        let targets = vec![TargetId(u64::MAX); LIST_MAX];
        let list = PressMessage::List {
            epoch: u64::MAX,
            changes: u64::MAX,
            after: Some(TargetId(0)),
            last: true,
            targets,
        };
        let items = vec![CacheChange { target: TargetId(1), cached: true }; CHANGES_MAX];
        let changes = PressMessage::Changes { epoch: u64::MAX, first: u64::MAX, items };
        for message in [list, changes] {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(PressMessage::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn counts_beyond_the_limit_are_refused() {
        let error = PressMessage::decode(&[2, 0, 1, 0x81, 0x08]);
        assert_eq!(error, Err(WireError::Value { what: "number of changes", value: 1_025 }));
        assert_eq!(PressMessage::decode(&[9]), Err(WireError::Value { what: "kind of message", value: 9 }));
        assert_eq!(PressMessage::decode(&[3, 0, 1, 0]), Err(WireError::Left(1)));
    }
}
