//! Messages of CARD as bytes: a kind, then numbers and lives as varints, targets and names as 8 bytes each.

use super::message::{BATCH_MAX, Batch, CardMessage, Ends, NameKey, Seat};
use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};

/// Kinds. Those of other policies are others, so that nothing is taken for what it is not; 16 and 17, whose ends and answers
/// say nothing of lives, are refused.
const BATCH: u8 = 19;
const ANSWERS: u8 = 20;
const UNKNOWN: u8 = 18;

/// No message has more bytes.
const BYTES_MAX: usize = BATCH_MAX * (10 + 5 + 8) + 64;

impl CardMessage {
    /// The message as bytes, less than 32 KB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Batch(Batch { epoch, account, number, heard, lot, ends, asks }) => {
                out.push(BATCH);
                [epoch, account, number, heard, lot].into_iter().for_each(|value| put(&mut out, *value));
                put(&mut out, ends.len() as u64);
                for Ends { life, count } in ends {
                    put(&mut out, *life);
                    put(&mut out, u64::from(*count));
                }
                put(&mut out, asks.len() as u64);
                asks.iter().for_each(|target| out.extend_from_slice(&target.0.to_le_bytes()));
            }
            Self::Answers { number, seats } => {
                out.push(ANSWERS);
                put(&mut out, *number);
                put(&mut out, seats.len() as u64);
                for Seat { node, life } in seats {
                    out.extend_from_slice(&node.0.to_le_bytes());
                    put(&mut out, *life);
                }
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
                asks: asks(&mut wire)?,
            }),
            ANSWERS => Self::Answers { number: wire.number("number of a batch")?, seats: seats(&mut wire)? },
            UNKNOWN => Self::Unknown { number: wire.number("number of a batch")? },
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn ends(wire: &mut Wire<'_>) -> Result<Vec<Ends>, WireError> {
    let count = wire.count("number of ends", BATCH_MAX)?;
    let one = |_| Ok(Ends { life: wire.number("life")?, count: wire.small("number of requests")? });
    (0..count).map(one).collect()
}

fn asks(wire: &mut Wire<'_>) -> Result<Vec<TargetId>, WireError> {
    let count = wire.count("number of requests", BATCH_MAX)?;
    (0..count).map(|_| wire.word("target").map(TargetId)).collect()
}

fn seats(wire: &mut Wire<'_>) -> Result<Vec<Seat>, WireError> {
    let count = wire.count("number of answers", BATCH_MAX)?;
    let one = |_| Ok(Seat { node: NameKey(wire.word("name")?), life: wire.number("life")? });
    (0..count).map(one).collect()
}
