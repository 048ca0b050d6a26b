//! Requests as data: reading of access logs and trace files, statistics, and synthetic traces.
//!
//! - [`read()`] reads a file of any known [`Format`] in one pass, and decompresses gzip, zstd, xz and bzip2.
//!   Each request is passed on as a borrowed [`Record`]. Malformed lines are counted and are no errors.
//! - [`Trace`] holds the replayable requests of a file in memory, for the load generator and the simulator.
//! - [`Prompts`] holds the prompts of a trace of LLM requests, as chains of blocks.
//! - [`stats`] computes the number of requests, their distribution over targets, and the memory that would
//!   serve them.
//! - [`synth`] generates traces from a seed, with the published figures of traces that cannot be distributed.
//! - [`ward`] determines the targets that every node serves, the owners of the others, and the routing table.
//! - [`write_clf`] and [`save_clf`] write a trace as an access log.
//!
//! All memory is bounded: lines, tables and traces have limits in [`Limits`], and the [`ReadReport`] states
//! which limit was reached. The crate reads no clock, and draws random numbers only from a given seed.

mod compression;
mod days;
mod error;
mod format;
mod intern;
mod line;
mod prompts;
mod read;
mod read_ahead;
mod record;
mod report;
mod size_unit;
mod source;
pub mod stats;
pub mod synth;
mod trace;
pub mod ward;
mod write;

pub use compression::Compression;
pub use days::Day;
pub use error::{Fault, TraceError};
pub use format::Format;
pub use format::json_fields::JsonFields;
pub use prompts::{Prompt, Prompts};
pub use read::{Limits, Progress, ReadOptions, read, read_from};
pub use record::{Client, Key, Method, Reason, Record, TokenSums};
pub use report::{MalformedLine, ReadEnd, ReadReport};
pub use size_unit::SizeUnit;
pub use stats::Stats;
pub use trace::{LoadOptions, Request, Target, Trace};
pub use write::{save_clf, write_clf};
