//! Nodes that serve all requests themselves.

use larder_core::Time;
use larder_core::peers::PressReason;

use super::interface::{ClusterProtocol, Placement, PlacementDecision, PlacementRequest, ProtocolAction};

/// Nodes that do not communicate. They keep targets of every size: the rule for large targets is a part of
/// PRESS's distribution algorithm, which they do not run.
#[derive(Debug)]
pub(super) struct IsolatedNodes;

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
        let why = PressReason::Alone as usize;
        PlacementDecision::Placement(Placement { node: request.node, why, keep: true })
    }
}
