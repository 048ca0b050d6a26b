//! A switch in front of the nodes: one dispatcher that handles the arrival and end of every request.

use larder_core::dispatch::{Admission, Arrival, Dispatcher, Request, Settings};
use larder_core::nodes::NodeSpec;
use larder_core::{NodeId, Time};

use super::mind::{Asked, Decision, Minds, Place, State, TARGET_BYTES, Wish, name_of, put, take};
use crate::SimError;
use crate::cooperation::cluster::Cooperation;

#[derive(Debug)]
pub(super) struct Switch {
    dispatcher: Dispatcher,
    /// The nodes of the requests, by task.
    at: Vec<Option<NodeId>>,
}

impl Switch {
    pub(super) fn new(cluster: &Cooperation) -> Result<Self, SimError> {
        let nodes: Vec<NodeSpec> = (0..cluster.nodes).map(|node| NodeSpec::named(name_of(node))).collect();
        let settings = Settings {
            admission: Admission::Unlimited,
            nodes_max: cluster.nodes,
            ..cluster.card.dispatcher.clone()
        };
        Ok(Self { dispatcher: Dispatcher::new(settings, &nodes)?, at: Vec::new() })
    }
}

impl Minds for Switch {
    fn reasons(&self) -> Vec<&'static str> {
        vec!["here"]
    }

    fn decide(&mut self, now: Time, task: u32, asked: &Asked, _out: &mut Vec<Wish>) -> Decision {
        let node = match self.dispatcher.arrive(now, Request::new(asked.target)) {
            Arrival::Start(decision) => decision.node,
            other => unreachable!("admission is unlimited, and no node is away: {other:?}"),
        };
        put(&mut self.at, task, node);
        Decision::Place(Place { node: node.0, why: 0, keep: true })
    }

    fn over(&mut self, now: Time, _node: u16, task: u32) -> bool {
        if let Some(node) = take(&mut self.at, task) {
            self.dispatcher.finish(now, node, &mut Vec::new());
        }
        false
    }

    fn states(&self) -> Vec<State> {
        let targets = self.dispatcher.targets_known();
        vec![State { bytes: TARGET_BYTES * targets, targets }]
    }
}
