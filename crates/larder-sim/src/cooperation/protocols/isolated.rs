//! Nodes that serve all requests themselves.

use larder_core::peers::PressReason;
use larder_core::{Bytes, Time};

use super::interface::{ClusterProtocol, Placement, PlacementDecision, PlacementRequest, ProtocolAction};

/// Nodes that do not communicate.
#[derive(Debug)]
pub(super) struct IsolatedNodes {
    large_min: Bytes,
}

impl IsolatedNodes {
    /// Creates nodes that do not keep targets of `large_min` or more.
    pub(super) const fn new(large_min: Bytes) -> Self {
        Self { large_min }
    }
}

impl ClusterProtocol for IsolatedNodes {
    fn reasons(&self) -> Vec<&'static str> {
        PressReason::ALL.map(PressReason::name).to_vec()
    }

    fn decide(
        &mut self,
        _now: Time,
        _task: u32,
        request: &PlacementRequest,
        _out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision {
        let keep = request.size < self.large_min;
        let why = if keep { PressReason::Alone } else { PressReason::Large };
        PlacementDecision::Placement(Placement { node: request.node, why: why as usize, keep })
    }
}
