//! The shared parts of a node.

use crate::counters::Counters;
use crate::machine::Machine;
use crate::memory::Memory;
use crate::reply::Replies;
use crate::settings::CurrentSettings;
use crate::uptime::Uptime;
use std::sync::Arc;

/// The shared parts of a node: memory, machine, settings, replies and counters. Constructors clone the parts
/// that they need.
#[derive(Debug)]
pub(crate) struct CommonParts {
    pub(crate) memory: Arc<Memory>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) settings: Arc<CurrentSettings>,
    pub(crate) replies: Arc<Replies>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) uptime: Uptime,
}
