//! Encoding of CARD messages: a kind, then numbers and incarnations as varints, and targets and names as 8 bytes
//! each.

use super::message::{BATCH_MAX, Batch, CardMessage, EndedRequests, NameKey, NodeInstance};
use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};
use alloc::vec::Vec;

/// Kinds of messages. Other policies use other kinds, so that no message is misread. Kinds 16 and 17 belong to an
/// older format without incarnations and are refused.
const BATCH: u8 = 19;
const ANSWERS: u8 = 20;
const UNKNOWN: u8 = 18;

/// Largest message in bytes.
const BYTES_MAX: usize = BATCH_MAX * (10 + 5 + 8) + 64;

impl CardMessage {
    /// Encodes the message, in less than 32 KB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Batch(Batch { epoch, account, number, acknowledged, group, ended, targets }) => {
                out.push(BATCH);
                [epoch, account, number, acknowledged, group]
                    .into_iter()
                    .for_each(|value| put(&mut out, *value));
                put(&mut out, ended.len() as u64);
                for EndedRequests { incarnation, count } in ended {
                    put(&mut out, *incarnation);
                    put(&mut out, u64::from(*count));
                }
                put(&mut out, targets.len() as u64);
                targets.iter().for_each(|target| out.extend_from_slice(&target.0.to_le_bytes()));
            }
            Self::Answers { number, instances } => {
                out.push(ANSWERS);
                put(&mut out, *number);
                put(&mut out, instances.len() as u64);
                for NodeInstance { node, incarnation } in instances {
                    out.extend_from_slice(&node.0.to_le_bytes());
                    put(&mut out, *incarnation);
                }
            }
            Self::Unknown { number } => {
                out.push(UNKNOWN);
                put(&mut out, *number);
            }
        }
        out
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Returns an error if the bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > BYTES_MAX {
            return Err(WireError::TooLong(bytes.len() as u64));
        }
        let mut wire = Wire(bytes);
        let message = match wire.byte("kind of message")? {
            BATCH => Self::Batch(Batch {
                epoch: wire.number("epoch")?,
                account: wire.number("number of an account")?,
                number: wire.number("number of a batch")?,
                acknowledged: wire.number("number of a batch")?,
                group: wire.number("number of a lot")?,
                ended: read_ended(&mut wire)?,
                targets: read_targets(&mut wire)?,
            }),
            ANSWERS => Self::Answers {
                number: wire.number("number of a batch")?,
                instances: read_instances(&mut wire)?,
            },
            UNKNOWN => Self::Unknown { number: wire.number("number of a batch")? },
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn read_ended(wire: &mut Wire<'_>) -> Result<Vec<EndedRequests>, WireError> {
    let count = wire.count("number of ends", BATCH_MAX)?;
    let one =
        |_| Ok(EndedRequests { incarnation: wire.number("life")?, count: wire.small("number of requests")? });
    (0..count).map(one).collect()
}

fn read_targets(wire: &mut Wire<'_>) -> Result<Vec<TargetId>, WireError> {
    let count = wire.count("number of requests", BATCH_MAX)?;
    (0..count).map(|_| wire.word("target").map(TargetId)).collect()
}

fn read_instances(wire: &mut Wire<'_>) -> Result<Vec<NodeInstance>, WireError> {
    let count = wire.count("number of answers", BATCH_MAX)?;
    let one = |_| Ok(NodeInstance { node: NameKey(wire.word("name")?), incarnation: wire.number("life")? });
    (0..count).map(one).collect()
}
