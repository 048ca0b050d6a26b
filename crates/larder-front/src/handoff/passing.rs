//! The table of connections that move from one node to another.

use crate::lease::Lease;
use larder_core::{Decision, NodeId, Time};
use larder_handoff::FlowKey;
use std::collections::HashMap;

/// A connection on its way.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) from: NodeId,
    pub(super) to: Decision,
    /// What it holds at the other node.
    pub(super) lease: Lease,
    pub(super) since: Time,
    /// Its state has come.
    pub(super) sent: bool,
}

pub(super) type AllPassing = HashMap<FlowKey, Passing>;
