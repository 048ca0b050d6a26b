//! Messages of CARD as bytes: a kind, then numbers as varints, targets and names as 8 bytes each.

use super::{BATCH_MAX, CardMessage, Ends, NameKey};
use crate::id::TargetId;
use crate::wire::{Wire, WireError, put};

/// No message has more bytes.
const BYTES_MAX: usize = BATCH_MAX * (8 + 10 + 8 + 5) + 64;

impl CardMessage {
    /// The message as bytes, less than 32 KB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Batch { number, asks, ends } => {
                out.push(0);
                put(&mut out, *number);
                put(&mut out, asks.len() as u64);
                asks.iter().for_each(|target| out.extend_from_slice(&target.0.to_le_bytes()));
                put(&mut out, ends.len() as u64);
                for Ends { term, node, count } in ends {
                    put(&mut out, *term);
                    out.extend_from_slice(&node.0.to_le_bytes());
                    put(&mut out, u64::from(*count));
                }
            }
            Self::Answers { number, term, nodes } => {
                out.push(1);
                put(&mut out, *number);
                put(&mut out, *term);
                put(&mut out, nodes.len() as u64);
                nodes.iter().for_each(|node| out.extend_from_slice(&node.0.to_le_bytes()));
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
            0 => {
                let number = wire.number("number of a batch")?;
                let asks = words(&mut wire, "number of requests")?.into_iter().map(TargetId).collect();
                let count = wire.count("number of ends", BATCH_MAX)?;
                let ends = |_| {
                    let (term, node) = (wire.number("term")?, NameKey(wire.word("name")?));
                    Ok(Ends { term, node, count: wire.small("number of requests")? })
                };
                Self::Batch { number, asks, ends: (0..count).map(ends).collect::<Result<_, WireError>>()? }
            }
            1 => {
                let (number, term) = (wire.number("number of a batch")?, wire.number("term")?);
                let nodes = words(&mut wire, "number of answers")?.into_iter().map(NameKey).collect();
                Self::Answers { number, term, nodes }
            }
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn words(wire: &mut Wire<'_>, what: &'static str) -> Result<Vec<u64>, WireError> {
    let count = wire.count(what, BATCH_MAX)?;
    (0..count).map(|_| wire.word("target or name")).collect()
}
