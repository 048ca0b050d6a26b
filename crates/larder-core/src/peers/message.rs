//! What peers tell one another, and its bytes.
//!
//! PRESS (PPoPP 2001, section 3) broadcasts two things: a node's load, when it has changed by a step, and which files it has
//! begun to cache or has evicted. It runs over a network that loses nothing. Here a message may be lost with the connection
//! that carried it, so a node numbers the changes of its cache, says with its load how many there have been, and is asked
//! for those that somebody has missed: from a log of the latest ones, or, where that reaches back too little, for the list
//! of all it holds, part by part.
//!
//! A node that starts again counts from 0 under a higher *epoch*; what is left of an older epoch is ignored.
//!
//! Bytes: a kind (1 byte), then numbers as varints, targets as 8 bytes each, marks as bits. No message is longer than
//! [`MESSAGE_BYTES_MAX`].

use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};

/// Most changes in one message.
pub const CHANGES_MAX: usize = 1_024;
/// Most targets in one part of a list.
pub const LIST_MAX: usize = 4_096;
/// No message has more bytes.
pub const MESSAGE_BYTES_MAX: usize = LIST_MAX * 8 + 64;

/// A change of what a node has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The target.
    pub target: TargetId,
    /// Whether it is in memory now; else it was, and was evicted.
    pub cached: bool,
}

/// A message between peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// How loaded the sender is. Sent at each step of its load, and as a sign of life.
    Load {
        /// The sender's epoch.
        epoch: u64,
        /// Connections being serviced.
        load: u32,
        /// Whether it takes part: a node that is by itself is asked for nothing.
        sharing: bool,
        /// Changes of its cache so far.
        changes: u64,
    },
    /// Changes of the sender's cache, in order.
    Changes {
        /// The sender's epoch.
        epoch: u64,
        /// The number of the first, from 1.
        first: u64,
        /// They.
        items: Vec<Change>,
    },
    /// The receiver is asked for its changes after this number.
    Ask {
        /// The receiver's epoch.
        of: u64,
        /// The last number that the sender knows.
        after: u64,
    },
    /// The receiver is asked for the part of its list that begins after this target.
    AskList {
        /// The receiver's epoch.
        of: u64,
        /// None for the first part.
        after: Option<TargetId>,
    },
    /// A part of the list of all that the sender has in memory, in order of their ids.
    List {
        /// The sender's epoch.
        epoch: u64,
        /// The number of its latest change: the list is as it was then.
        changes: u64,
        /// The part begins after this one.
        after: Option<TargetId>,
        /// Nothing follows.
        last: bool,
        /// They.
        targets: Vec<TargetId>,
    },
}

impl Message {
    /// The message as bytes, at most [`MESSAGE_BYTES_MAX`].
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
                    let bit = |(at, item): (usize, &Change)| u8::from(item.cached) << at;
                    out.push(marks.iter().enumerate().map(bit).sum());
                }
                items.iter().for_each(|item| put_target(&mut out, item.target));
            }
            Self::Ask { of, after } => {
                out.push(3);
                put(&mut out, *of);
                put(&mut out, *after);
            }
            Self::AskList { of, after } => {
                out.push(4);
                put(&mut out, *of);
                put_after(&mut out, *after);
            }
            Self::List { epoch, changes, after, last, targets } => {
                out.push(if *last { 6 } else { 5 });
                put(&mut out, *epoch);
                put(&mut out, *changes);
                put_after(&mut out, *after);
                put(&mut out, targets.len() as u64);
                targets.iter().for_each(|target| put_target(&mut out, *target));
            }
        }
        out
    }

    /// The message that these bytes are.
    ///
    /// # Errors
    /// They are no message, or more than one.
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
                items: changes(&mut wire)?,
            },
            3 => Self::Ask { of: wire.number("epoch")?, after: wire.number("number of a change")? },
            4 => Self::AskList { of: wire.number("epoch")?, after: after(&mut wire)? },
            kind @ 5..=6 => Self::List {
                epoch: wire.number("epoch")?,
                changes: wire.number("number of changes")?,
                after: after(&mut wire)?,
                last: kind == 6,
                targets: targets(&mut wire)?,
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

fn put_after(out: &mut Vec<u8>, after: Option<TargetId>) {
    out.push(u8::from(after.is_some()));
    if let Some(target) = after {
        put_target(out, target);
    }
}

fn after(wire: &mut Wire<'_>) -> Result<Option<TargetId>, WireError> {
    match wire.byte("sign of a target")? {
        0 => Ok(None),
        1 => wire.word("target").map(TargetId).map(Some),
        sign => Err(WireError::Value { what: "sign of a target", value: sign.into() }),
    }
}

fn changes(wire: &mut Wire<'_>) -> Result<Vec<Change>, WireError> {
    let count = wire.count("number of changes", CHANGES_MAX)?;
    let marks: Vec<u8> =
        (0..count.div_ceil(8)).map(|_| wire.byte("marks of changes")).collect::<Result<_, _>>()?;
    let change = |at: usize| {
        let target = TargetId(wire.word("target")?);
        Ok(Change { target, cached: marks[at / 8] >> (at % 8) & 1 == 1 })
    };
    (0..count).map(change).collect()
}

fn targets(wire: &mut Wire<'_>) -> Result<Vec<TargetId>, WireError> {
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

    fn message() -> impl Strategy<Value = Message> {
        let change = (target(), any::<bool>()).prop_map(|(target, cached)| Change { target, cached });
        prop_oneof![
            (any::<u64>(), any::<u32>(), any::<bool>(), any::<u64>())
                .prop_map(|(epoch, load, sharing, changes)| Message::Load { epoch, load, sharing, changes }),
            (any::<u64>(), any::<u64>(), prop::collection::vec(change, 0..40))
                .prop_map(|(epoch, first, items)| Message::Changes { epoch, first, items }),
            (any::<u64>(), any::<u64>()).prop_map(|(of, after)| Message::Ask { of, after }),
            (any::<u64>(), prop::option::of(target())).prop_map(|(of, after)| Message::AskList { of, after }),
            (
                any::<u64>(),
                any::<u64>(),
                prop::option::of(target()),
                any::<bool>(),
                prop::collection::vec(target(), 0..40)
            )
                .prop_map(|(epoch, changes, after, last, targets)| Message::List {
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
        fn a_message_is_its_bytes(message in message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn cut_bytes_are_no_message(message in message(), at in any::<prop::sample::Index>()) {
            let bytes = message.encode();
            prop_assert!(Message::decode(&bytes[..at.index(bytes.len())]).is_err());
        }

        #[test]
        fn foreign_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }

    #[test]
    fn the_longest_fit() {
        let targets = vec![TargetId(u64::MAX); LIST_MAX];
        let list = Message::List {
            epoch: u64::MAX,
            changes: u64::MAX,
            after: Some(TargetId(0)),
            last: true,
            targets,
        };
        let items = vec![Change { target: TargetId(1), cached: true }; CHANGES_MAX];
        let changes = Message::Changes { epoch: u64::MAX, first: u64::MAX, items };
        for message in [list, changes] {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn counts_beyond_the_limit_are_refused() {
        let error = Message::decode(&[2, 0, 1, 0x81, 0x08]);
        assert_eq!(error, Err(WireError::Value { what: "number of changes", value: 1_025 }));
        assert_eq!(Message::decode(&[9]), Err(WireError::Value { what: "kind of message", value: 9 }));
        assert_eq!(Message::decode(&[3, 0, 1, 0]), Err(WireError::Left(1)));
    }
}
