//! The subcommands: each turns its arguments into work for the library crates.

pub(crate) mod check;
