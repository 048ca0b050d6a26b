//! Records of runs as bytes, which a switch writes and the simulator reads.
//!
//! ```text
//! file    = "LARDEREC" version header frame*
//! header  = length (settings route* node*)   settings as text, one `name value` per line, and a routing table
//! route   = group settings
//! frame   = length (0 decided | 1 changed | 2 end)
//! decided = generation at cause request tape outcome
//! changed = generation at change tape node
//! end     = why frames                       the last frame; frames counts those before it
//! ```
//!
//! Numbers are varints (LEB128, at most ten bytes) unless stated otherwise; targets are eight bytes, the lowest first;
//! times are nanoseconds. *tape* (the name in the format) is the read log. Frames are in the order in which they were
//! recorded: every change comes after all decisions of the generations before it ([`RecordSink`]).
//!
//! A record can be read only by a program with the same version, because it documents the behaviour of one release. Invalid bytes
//! cause a [`RecordError`]. No length above [`FRAME_BYTES_MAX`] is accepted.

mod frame;
mod header;
mod line;
mod recorder;
mod replay;
mod settings;
mod sink;

pub use frame::{EndReason, Frame};
pub use header::Header;
pub use line::{first_visit, write_change_line, write_decision_line};
pub use replay::ReplayStepError;
pub use sink::{ChangeRecord, DecisionRecord, RecordSink};

use crate::wire::WireError;

/// The first bytes of a record.
pub const MAGIC: [u8; 8] = *b"LARDEREC";
/// The version, one byte after the magic.
pub const VERSION: u8 = 5;
/// The largest size of a header or frame, in bytes. It has room for a routing table of about seven million targets.
/// Longer headers and frames cannot be recorded.
pub const FRAME_BYTES_MAX: usize = 1 << 26;

/// The reason why bytes are not a record. The record was written wrongly or damaged; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are invalid.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The settings have a policy or value that a record cannot contain.
    #[error("these settings cannot be recorded: {0}")]
    Settings(&'static str),
}

#[cfg(test)]
mod tests;
