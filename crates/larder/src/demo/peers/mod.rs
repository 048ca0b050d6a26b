//! `larder demo --peers`: compares clusters without a switch (PRESS, CARD, WARD) with independent nodes and
//! with a switch.
//!
//! As in the plain demo, each run starts a new cluster of this executable with cold memories, connected over
//! loopback. All clusters get the same requests. Disks are modelled, because the page cache would hide real
//! disks. Processors are real, because the processor time of forwarding is the cost of having no switch.

mod bench;
mod cluster;
pub(crate) mod notes;
mod predict;
pub(crate) mod published;
mod rates;
pub(crate) mod result;
mod run;
mod system;
pub(crate) mod table;
mod ward;
mod watch;

pub(crate) use predict::published_ratios;
pub(crate) use run::{MemorySize, PeersDemo, PeersSetup};
pub(crate) use system::System;
