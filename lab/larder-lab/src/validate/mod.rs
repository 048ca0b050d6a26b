//! The simulator held against the live cluster, and the processor times it needs for that.
//!
//! [`calibration`] measures what a request takes of this machine's processors, by node, switch and client; [`rows`]
//! runs the same requests live (with the demo's own code) and simulated, and compares.

pub(crate) mod calibration;
mod fit;
pub(crate) use fit::Line;
pub(crate) mod rows;
pub(crate) mod text;
