//! The subcommands.

pub(crate) mod paper;
pub(crate) mod run;
