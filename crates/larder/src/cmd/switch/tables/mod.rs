//! Routing tables of `ward` and `part` in a running switch: from a file, from the switch's own traffic, or
//! both.
//!
//! ```text
//! larder trace ward -> file --(start, change of the file, SIGHUP, admin)--> file::read --\
//!                                                                                         > TableManager -> SwitchHandle::set_table
//! requests -> census --(every `refresh`, admin)--> build::build_table (ward-analysis) ----/
//! ```
//! A table is replaced as a whole, and requests in flight are not affected. Invalid tables are reported, and
//! the previous table stays in force.

mod build;
mod file;
mod manager;

pub(crate) use build::build_table;
pub(crate) use manager::{FileVersion, TableManager, TableStatus};
