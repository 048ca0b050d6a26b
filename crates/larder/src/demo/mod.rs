//! `larder demo`: runs a cluster on this machine, with the same requests under each policy.
//!
//! Every run starts a new cluster, so that each policy begins with cold caches. Each node and the switch are
//! processes, connected over loopback as over a network. Only disks and processors are modelled, because the
//! page cache would hide real disks. This process generates the load.

pub mod cluster;
pub mod cpu;
pub(crate) mod handoff;
pub(crate) mod peers;
pub mod plan;
mod policy_config;
mod process_time;
pub(crate) mod prompts;
pub mod result;
mod run;
mod sample;
pub(crate) mod table;

pub use run::{Demo, HOST, Setup, spinner};
