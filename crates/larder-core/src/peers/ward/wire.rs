//! Messages between nodes with a routing table, and their bytes.
//!
//! Encoding: a kind (1 byte), then numbers as varints, targets and keys of names as 8 bytes each, and names as
//! length and bytes.

use super::super::card::NameKey;
use crate::id::TargetId;
use crate::policy::table::{Place, ROUTE_NODES_MAX};
use crate::unit::Bytes;
use crate::wire::{Wire, WireError, put, put_bytes};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

/// Largest number of owners in a table. Further nodes serve the core and the targets placed by hash. It is the limit
/// of ward-analysis.
pub const OWNERS_MAX: usize = 1_024;

/// Kinds of messages. Other policies use other kinds, so that no message is misread.
const NONE: u8 = 32;
const NEWEST: u8 = 33;
const TABLE_REQUEST: u8 = 34;
const TABLE: u8 = 35;
const COUNTS_REQUEST: u8 = 36;
const COUNTS: u8 = 37;
const FIRST_TABLE_REQUEST: u8 = 38;

/// Largest number of targets in one part of a node's counts.
pub const COUNTS_MAX: usize = 2_048;
/// Largest number of targets in one part of a table.
pub const PART_MAX: usize = 4_096;
/// Longest name of a table maker in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Largest message in bytes.
const BYTES_MAX: usize = 64 << 10;

/// Id of a table. The greater of two ids is valid: the one with the higher number, then the lower name, then the
/// higher epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableId {
    /// Number that increases over all known makers.
    pub number: u64,
    /// Name of the table maker.
    pub maker: Arc<str>,
    /// Epoch of the maker.
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

/// Number of requests for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Target.
    pub target: TargetId,
    /// Number of requests.
    pub requests: u64,
    /// Largest reply: the known size of the target.
    pub size: Bytes,
}

/// Message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WardMessage {
    /// Id of the sender's table; `None` if it has none.
    Newest {
        /// Id.
        id: Option<TableId>,
    },
    /// Request for the part of the receiver's table that begins with a row.
    TableRequest {
        /// Table.
        id: TableId,
        /// First row, from 0.
        from: u32,
    },
    /// Part of a table.
    Table {
        /// Table.
        id: TableId,
        /// First row.
        from: u32,
        /// Number of rows in the table.
        total: u32,
        /// Owners by their numbers, only with the first part; at most [`OWNERS_MAX`].
        owners: Vec<NameKey>,
        /// Rows, at most [`PART_MAX`].
        rows: Vec<(TargetId, Place)>,
    },
    /// Request for the part of the receiver's counts that begins with a row.
    CountsRequest {
        /// Round of the sender, which is given back.
        round: u64,
        /// Number of the counts; 0 for the latest ones, or a new census.
        snapshot: u64,
        /// First row, from 0.
        from: u32,
    },
    /// Part of the sender's counts, most requested first.
    Counts {
        /// Round of the receiver.
        round: u64,
        /// Number of the counts.
        snapshot: u64,
        /// First row.
        from: u32,
        /// Number of rows in the counts.
        total: u32,
        /// Memory of the sender's cache.
        memory: Bytes,
        /// Rows, at most [`COUNTS_MAX`]; an empty part is the last one.
        rows: Vec<Count>,
    },
    /// The sender has counted enough for a first table.
    FirstTableRequest,
}

impl WardMessage {
    /// Encodes the message, in at most 64 KiB.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Self::Newest { id: None } => out.push(NONE),
            Self::Newest { id: Some(id) } => {
                out.push(NEWEST);
                put_id(&mut out, id);
            }
            Self::TableRequest { id, from } => {
                out.push(TABLE_REQUEST);
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
            Self::CountsRequest { round, snapshot, from } => {
                out.push(COUNTS_REQUEST);
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
            Self::FirstTableRequest => out.push(FIRST_TABLE_REQUEST),
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
            NONE => Self::Newest { id: None },
            NEWEST => Self::Newest { id: Some(read_id(&mut wire)?) },
            TABLE_REQUEST => {
                Self::TableRequest { id: read_id(&mut wire)?, from: wire.small("number of a row")? }
            }
            TABLE => Self::Table {
                id: read_id(&mut wire)?,
                from: wire.small("number of a row")?,
                total: wire.small("number of rows")?,
                owners: read_owners(&mut wire)?,
                rows: read_rows(&mut wire)?,
            },
            COUNTS_REQUEST => Self::CountsRequest {
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
                rows: read_counts(&mut wire)?,
            },
            FIRST_TABLE_REQUEST => Self::FirstTableRequest,
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

fn read_id(wire: &mut Wire<'_>) -> Result<TableId, WireError> {
    let number = wire.number("number of a table")?;
    let maker = wire.text("name")?;
    if maker.len() > NAME_BYTES_MAX {
        return Err(WireError::TooLong(maker.len() as u64));
    }
    Ok(TableId { number, maker: maker.into(), epoch: wire.number("epoch")? })
}

fn read_owners(wire: &mut Wire<'_>) -> Result<Vec<NameKey>, WireError> {
    let count = wire.count("number of owners", OWNERS_MAX)?;
    (0..count).map(|_| wire.word("name").map(NameKey)).collect()
}

fn read_rows(wire: &mut Wire<'_>) -> Result<Vec<(TargetId, Place)>, WireError> {
    let count = wire.count("number of rows", PART_MAX)?;
    let row = |_| Ok((TargetId(wire.word("target")?), read_place(wire.small("place")?)?));
    (0..count).map(row).collect()
}

/// Decodes a place: 0 is the core, other numbers are owners.
fn read_place(code: u16) -> Result<Place, WireError> {
    match code.checked_sub(1) {
        None => Ok(Place::Core),
        Some(owner) if owner < ROUTE_NODES_MAX => Ok(Place::Node(owner)),
        Some(_) => Err(WireError::Value { what: "place", value: code.into() }),
    }
}

fn read_counts(wire: &mut Wire<'_>) -> Result<Vec<Count>, WireError> {
    let count = wire.count("number of rows", COUNTS_MAX)?;
    let row = |_| {
        let target = TargetId(wire.word("target")?);
        let requests = wire.number("number of requests")?;
        Ok(Count { target, requests, size: Bytes(wire.number("size")?) })
    };
    (0..count).map(row).collect()
}
