//! What nodes with a routing table tell one another, and its bytes.
//!
//! Bytes: a kind (1 byte), then numbers as varints, targets and names' keys as 8 bytes each, names as length and bytes.

use super::super::card::NameKey;
use crate::id::TargetId;
use crate::policy::table::{Place, ROUTE_NODES_MAX};
use crate::unit::Bytes;
use crate::wire::{Wire, WireError, put, put_bytes};
use core::cmp::{Ordering, Reverse};
use std::sync::Arc;

/// Most owners that a table has; further nodes serve the core, and what goes by hash. As ward-analysis.
pub const OWNERS_MAX: usize = 1_024;

/// Kinds. Those of other policies are others, so that nothing is taken for what it is not.
const NONE: u8 = 32;
const NEWEST: u8 = 33;
const ASK_TABLE: u8 = 34;
const TABLE: u8 = 35;
const ASK_COUNTS: u8 = 36;
const COUNTS: u8 = 37;
const WANT: u8 = 38;

/// Most targets in one part of a node's counts.
pub const COUNTS_MAX: usize = 2_048;
/// Most targets in one part of a table.
pub const PART_MAX: usize = 4_096;
/// Longest name of a maker.
const NAME_BYTES_MAX: usize = 255;
/// No message has more bytes.
const BYTES_MAX: usize = 64 << 10;

/// Which table. Of two, the greater is gone by: the one with the higher number; of equals that of the lower name; of equals
/// again that of the later life of its maker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableId {
    /// Counts up, over all makers that hear of each other.
    pub number: u64,
    /// Who made it.
    pub maker: Arc<str>,
    /// In which life.
    pub epoch: u64,
}

impl Ord for TableId {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |id: &Self| (id.number, Reverse(Arc::clone(&id.maker)), id.epoch);
        rank(self).cmp(&rank(other))
    }
}

impl PartialOrd for TableId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How often a target was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The target.
    pub target: TargetId,
    /// Requests.
    pub requests: u64,
    /// The largest reply: the target's size as far as it is known.
    pub size: Bytes,
}

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WardMessage {
    /// Which table the sender has; None for none.
    Newest {
        /// It.
        id: Option<TableId>,
    },
    /// The receiver is asked for the part of its table that begins with a row.
    AskTable {
        /// The table.
        id: TableId,
        /// The row, from 0.
        from: u32,
    },
    /// A part of a table.
    Table {
        /// The table.
        id: TableId,
        /// The first row.
        from: u32,
        /// How many rows there are.
        total: u32,
        /// The owners by their numbers, with the first part; at most [`OWNERS_MAX`].
        owners: Vec<NameKey>,
        /// At most [`PART_MAX`] rows.
        rows: Vec<(TargetId, Place)>,
    },
    /// The receiver is asked for the part of its counts that begins with a row.
    AskCounts {
        /// The sender's round, which is given back.
        round: u64,
        /// Which counts; 0 for those that it has, or else takes now.
        snapshot: u64,
        /// The row, from 0.
        from: u32,
    },
    /// A part of the sender's counts, the most requested first.
    Counts {
        /// The receiver's round.
        round: u64,
        /// Which counts.
        snapshot: u64,
        /// The first row.
        from: u32,
        /// How many rows there are.
        total: u32,
        /// Memory of the sender's cache.
        memory: Bytes,
        /// At most [`COUNTS_MAX`] rows; none: there is no more.
        rows: Vec<Count>,
    },
    /// The sender has counted enough for a first table.
    Want,
}

impl WardMessage {
    /// The message as bytes, at most 64 KiB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Newest { id: None } => out.push(NONE),
            Self::Newest { id: Some(id) } => {
                out.push(NEWEST);
                put_id(&mut out, id);
            }
            Self::AskTable { id, from } => {
                out.push(ASK_TABLE);
                put_id(&mut out, id);
                put(&mut out, u64::from(*from));
            }
            Self::Table { id, from, total, owners, rows } => {
                out.push(TABLE);
                put_id(&mut out, id);
                put(&mut out, u64::from(*from));
                put(&mut out, u64::from(*total));
                put(&mut out, owners.len() as u64);
                owners.iter().for_each(|owner| out.extend_from_slice(&owner.0.to_le_bytes()));
                put(&mut out, rows.len() as u64);
                for (target, place) in rows {
                    out.extend_from_slice(&target.0.to_le_bytes());
                    put(&mut out, place.owner().map_or(0, |owner| u64::from(owner.0) + 1));
                }
            }
            Self::AskCounts { round, snapshot, from } => {
                out.push(ASK_COUNTS);
                put(&mut out, *round);
                put(&mut out, *snapshot);
                put(&mut out, u64::from(*from));
            }
            Self::Counts { round, snapshot, from, total, memory, rows } => {
                out.push(COUNTS);
                put(&mut out, *round);
                put(&mut out, *snapshot);
                put(&mut out, u64::from(*from));
                put(&mut out, u64::from(*total));
                put(&mut out, memory.get());
                put(&mut out, rows.len() as u64);
                for Count { target, requests, size } in rows {
                    out.extend_from_slice(&target.0.to_le_bytes());
                    put(&mut out, *requests);
                    put(&mut out, size.get());
                }
            }
            Self::Want => out.push(WANT),
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
            NONE => Self::Newest { id: None },
            NEWEST => Self::Newest { id: Some(id(&mut wire)?) },
            ASK_TABLE => Self::AskTable { id: id(&mut wire)?, from: wire.small("number of a row")? },
            TABLE => Self::Table {
                id: id(&mut wire)?,
                from: wire.small("number of a row")?,
                total: wire.small("number of rows")?,
                owners: owners(&mut wire)?,
                rows: rows(&mut wire)?,
            },
            ASK_COUNTS => Self::AskCounts {
                round: wire.number("number of a round")?,
                snapshot: wire.number("number of counts")?,
                from: wire.small("number of a row")?,
            },
            COUNTS => Self::Counts {
                round: wire.number("number of a round")?,
                snapshot: wire.number("number of counts")?,
                from: wire.small("number of a row")?,
                total: wire.small("number of rows")?,
                memory: Bytes(wire.number("size of a memory")?),
                rows: counts(&mut wire)?,
            },
            WANT => Self::Want,
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok(message)
    }
}

fn put_id(out: &mut Vec<u8>, id: &TableId) {
    put(out, id.number);
    put_bytes(out, id.maker.as_bytes());
    put(out, id.epoch);
}

fn id(wire: &mut Wire<'_>) -> Result<TableId, WireError> {
    let number = wire.number("number of a table")?;
    let maker = wire.text("name")?;
    if maker.len() > NAME_BYTES_MAX {
        return Err(WireError::TooLong(maker.len() as u64));
    }
    Ok(TableId { number, maker: maker.into(), epoch: wire.number("epoch")? })
}

fn owners(wire: &mut Wire<'_>) -> Result<Vec<NameKey>, WireError> {
    let count = wire.count("number of owners", OWNERS_MAX)?;
    (0..count).map(|_| wire.word("name").map(NameKey)).collect()
}

fn rows(wire: &mut Wire<'_>) -> Result<Vec<(TargetId, Place)>, WireError> {
    let count = wire.count("number of rows", PART_MAX)?;
    let row = |_| Ok((TargetId(wire.word("target")?), place(wire.small("place")?)?));
    (0..count).map(row).collect()
}

/// 0 stands for the core, other numbers for owners.
fn place(code: u16) -> Result<Place, WireError> {
    match code.checked_sub(1) {
        None => Ok(Place::Core),
        Some(owner) if owner < ROUTE_NODES_MAX => Ok(Place::Node(owner)),
        Some(_) => Err(WireError::Value { what: "place", value: code.into() }),
    }
}

fn counts(wire: &mut Wire<'_>) -> Result<Vec<Count>, WireError> {
    let count = wire.count("number of rows", COUNTS_MAX)?;
    let row = |_| {
        let target = TargetId(wire.word("target")?);
        let requests = wire.number("number of requests")?;
        Ok(Count { target, requests, size: Bytes(wire.number("size")?) })
    };
    (0..count).map(row).collect()
}
