//! A recorded run as bytes: what a switch writes and the simulator reads.
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
//! Numbers are varints (LEB128, at most ten bytes) unless said otherwise; targets are eight bytes, the lowest first;
//! times are nanoseconds. Frames are in the order in which they were told, which is one in which every change comes
//! after all decisions of the generations before it ([`Witness`]).
//!
//! A version is never read by another: a record is evidence about one release. Bytes that do not say what they should
//! end in a [`RecordError`]; no length is believed beyond [`FRAME_BYTES_MAX`].

mod frame;
mod header;
mod line;
mod recorder;
mod redo;
mod settings;
mod witness;

pub use frame::{End, Frame};
pub use header::Header;
pub use line::{changed_line, decided_line, first_visit};
pub use redo::RedoError;
pub use witness::{Changed, Decided, Witness};

use crate::wire::WireError;

/// The first bytes of a record.
pub const MAGIC: [u8; 8] = *b"LARDEREC";
/// The version that follows them, one byte.
pub const VERSION: u8 = 5;
/// The longest header or frame: room for a routing table of some seven million targets. What is longer cannot be recorded.
pub const FRAME_BYTES_MAX: usize = 1 << 26;

/// Why bytes are no record. Fault of whoever made or damaged them; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Bytes that mean nothing.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The settings are of a policy or kind that a record cannot hold.
    #[error("these settings cannot be recorded: {0}")]
    Settings(&'static str),
}

#[cfg(test)]
mod tests;
