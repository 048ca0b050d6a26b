//! The subcommands.

pub(crate) mod calibrate;
pub(crate) mod live;
pub(crate) mod paper;
pub(crate) mod run;
pub(crate) mod validate;
