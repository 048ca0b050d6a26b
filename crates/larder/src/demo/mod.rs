//! `larder demo`: a whole cluster on this machine, the same requests under each policy in turn.
//!
//! Every run starts a cluster of its own, so that each policy begins with cold caches: one process for each node,
//! one for the switch, joined over loopback exactly as they would be over a network. Only disks and processors are modelled,
//! since real ones would hide behind the page cache of the operating system. The load comes from this process.

pub mod cluster;
pub mod cpu;
pub(crate) mod handoff;
pub(crate) mod peers;
pub mod plan;
pub mod result;
mod run;
mod sample;
mod signals;
mod spent;
pub(crate) mod table;

pub use run::{Demo, HOST, Setup, spinner};
