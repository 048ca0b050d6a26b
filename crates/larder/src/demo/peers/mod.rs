//! `larder demo --peers`: clusters without a front-end (PRESS, CARD, WARD), beside nodes that work alone and beside a switch.
//!
//! As in the plain demo, every run starts a cluster of its own from this executable, with cold memories, joined over
//! loopback; the same requests go to each. Disks are modelled, since real ones would hide behind the page cache. Processors
//! are real, since what a reply's way through a second node costs is the price of having no front-end.

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
pub(crate) use run::{Demo, Memory, Setup};
pub(crate) use system::System;
