//! Messages of CARD as bytes: a kind, then numbers as varints, targets and names as 8 bytes each.

use super::{BATCH_MAX, Batch, CardMessage, Ends, NameKey};
use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};

/// Kinds. Those of other policies are others, so that nothing is taken for what it is not.
const BATCH: u8 = 16;
const ANSWERS: u8 = 17;
const UNKNOWN: u8 = 18;

/// No message has more bytes.
const BYTES_MAX: usize = BATCH_MAX * (8 + 8 + 5) + 64;

impl CardMessage {
    /// The message as bytes, less than 32 KB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Batch(Batch { epoch, account, number, heard, lot, ends, asks }) => {
                out.push(BATCH);
                [epoch, account, number, heard, lot].into_iter().for_each(|value| put(&mut out, *value));
                put(&mut out, ends.len() as u64);
                for Ends { node, count } in ends {
                    out.extend_from_slice(&node.0.to_le_bytes());
                    put(&mut out, u64::from(*count));
                }
                put(&mut out, asks.len() as u64);
                asks.iter().for_each(|target| out.extend_from_slice(&target.0.to_le_bytes()));
            }
            Self::Answers { number, nodes } => {
                out.push(ANSWERS);
                put(&mut out, *number);
                put(&mut out, nodes.len() as u64);
                nodes.iter().for_each(|node| out.extend_from_slice(&node.0.to_le_bytes()));
            }
            Self::Unknown { number } => {
                out.push(UNKNOWN);
                put(&mut out, *number);
            }
        }
        out
    }

    /// The message that these bytes are.
    ///
    /// # Errors
    /// They are no message, or more than one.
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
                heard: wire.number("number of a batch")?,
                lot: wire.number("number of a lot")?,
                ends: ends(&mut wire)?,
                asks: words(&mut wire, "number of requests")?.into_iter().map(TargetId).collect(),
            }),
            ANSWERS => {
                let number = wire.number("number of a batch")?;
                let nodes = words(&mut wire, "number of answers")?.into_iter().map(NameKey).collect();
                Self::Answers { number, nodes }
            }
            UNKNOWN => Self::Unknown { number: wire.number("number of a batch")? },
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn ends(wire: &mut Wire<'_>) -> Result<Vec<Ends>, WireError> {
    let count = wire.count("number of ends", BATCH_MAX)?;
    let one = |_| Ok(Ends { node: NameKey(wire.word("name")?), count: wire.small("number of requests")? });
    (0..count).map(one).collect()
}

fn words(wire: &mut Wire<'_>, what: &'static str) -> Result<Vec<u64>, WireError> {
    let count = wire.count(what, BATCH_MAX)?;
    (0..count).map(|_| wire.word("target or name")).collect()
}
