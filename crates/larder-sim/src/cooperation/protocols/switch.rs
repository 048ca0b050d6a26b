//! A switch in front of the nodes: one dispatcher that handles the arrival and end of every request.

use larder_core::dispatch::{Admission, Arrival, Dispatcher, Request, Settings};
use larder_core::nodes::NodeSpec;
use larder_core::{NodeId, Time};

use super::interface::{
    ClusterProtocol, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize, TARGET_BYTES,
    name_of, put, take,
};
use crate::SimError;
use crate::cooperation::cluster::CooperativeCluster;

#[derive(Debug)]
pub(super) struct SwitchFrontEnd {
    dispatcher: Dispatcher,
    /// The nodes of the requests, by task.
    at: Vec<Option<NodeId>>,
}

impl SwitchFrontEnd {
    pub(super) fn new(cluster: &CooperativeCluster) -> Result<Self, SimError> {
        let nodes: Vec<NodeSpec> = (0..cluster.nodes).map(|node| NodeSpec::named(name_of(node))).collect();
        let settings = Settings {
            admission: Admission::Unlimited,
            nodes_max: cluster.nodes,
            ..cluster.card.dispatcher.clone()
        };
        Ok(Self { dispatcher: Dispatcher::new(settings, &nodes)?, at: Vec::new() })
    }
}

impl ClusterProtocol for SwitchFrontEnd {
    fn reasons(&self) -> Vec<&'static str> {
        vec!["here"]
    }

    fn decide(
        &mut self,
        now: Time,
        task: u32,
        request: &PlacementRequest,
        _out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision {
        let node = match self.dispatcher.arrive(now, Request::new(request.target)) {
            Arrival::Start(decision) => decision.node,
            other => unreachable!("admission is unlimited, and no node is away: {other:?}"),
        };
        put(&mut self.at, task, node);
        PlacementDecision::Placement(Placement { node: node.0, why: 0, keep: true })
    }

    fn end_request(&mut self, now: Time, _node: u16, task: u32) -> bool {
        if let Some(node) = take(&mut self.at, task) {
            self.dispatcher.finish(now, node, &mut Vec::new());
        }
        false
    }

    fn state_sizes(&self) -> Vec<StateSize> {
        let targets = self.dispatcher.targets_known();
        vec![StateSize { bytes: TARGET_BYTES * targets, targets }]
    }
}
