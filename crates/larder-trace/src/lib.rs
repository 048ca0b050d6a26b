//! Requests as data: access logs and trace files in, statistics out, synthetic traces by recipe.
//!
//! * [`read()`]: one pass over a file of any known [`Format`], gzip, zstd, xz and bzip2 unpacked on the way, each request
//!   handed over as a borrowed [`Record`]; bad lines are counted, never fatal.
//! * [`Trace`]: the replayable requests of a file in memory, for the load generator and the simulator.
//! * [`stats`]: how much a trace asks for, how unevenly, and what memory would hold it.
//! * [`synth`]: seeded traces with the published figures of traces that cannot be passed on.
//! * [`ward`]: which targets every node should serve and which node should own the others, and the table of it.
//! * [`write_clf`], [`save_clf`]: a trace as an access log.
//!
//! Everything here is bounded: lines, tables and traces have limits in [`Limits`], and what happens at each limit has
//! a name in the [`ReadReport`]. Nothing here reads a clock or draws from a generator it was not given.

mod compression;
mod days;
mod error;
mod format;
mod intern;
mod line;
mod read;
mod record;
mod report;
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
pub use read::{Limits, Progress, ReadOptions, read, read_from};
pub use record::{Client, Key, Method, Reason, Record};
pub use report::{Ended, MalformedLine, ReadReport, TokenSums};
pub use stats::Stats;
pub use trace::{LoadOptions, Request, SizeUnit, Target, Trace};
pub use write::{save_clf, write_clf};
