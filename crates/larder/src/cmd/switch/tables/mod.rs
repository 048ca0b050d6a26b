//! The routing tables of `ward` and `part`, live: from a file, from the switch's own traffic, or both.
//!
//! ```text
//! larder trace ward -> file --(start, change of the file, SIGHUP, admin)--> file::read --\
//!                                                                                         > Keeper -> SwitchHandle::set_table
//! requests -> census --(every `refresh`, admin)--> fresh::table (ward-analysis) ----------/
//! ```
//! A table takes the place of the one before as a whole; requests under way are not touched. What cannot be used is
//! reported, and the table before stays.

mod file;
mod fresh;
mod keeper;

pub(crate) use fresh::table as table_of;
pub(crate) use keeper::{Keeper, Stamp, TableStatus};
