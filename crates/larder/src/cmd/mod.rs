//! The subcommands. Each converts its arguments to settings of the library crates.

pub(crate) mod agent;
pub(crate) mod check;
pub(crate) mod command_docs;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod handoff;
pub(crate) mod keys;
pub(crate) mod load;
pub mod logging;
pub(crate) mod node;
pub(crate) mod picker;
pub(crate) mod plan;
pub mod policies;
mod prompt_source;
pub(crate) mod purge;
pub(crate) mod reloads;
pub(crate) mod renamed_commands;
pub mod serve;
pub(crate) mod sim;
pub(crate) mod switch;
pub(crate) mod top;
pub(crate) mod trace;
