//! A separate dispatcher with exact knowledge.

use larder_core::nodes::mix;
use larder_core::peers::{PressReason, PressSettings};
use larder_core::{Bytes, Time};

use super::interface::{
    ClusterProtocol, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize,
};
use crate::cooperation::cluster::CooperativeCluster;

/// The dispatcher's exact state: the nodes that have each item in memory or will have it, and each node's
/// load.
#[derive(Debug)]
pub(super) struct CentralDispatcher {
    servers: Vec<Vec<u16>>,
    loads: Vec<u32>,
    overload: u32,
    large_min: Bytes,
}

impl CentralDispatcher {
    pub(super) fn new(items: usize, cluster: &CooperativeCluster) -> Self {
        let PressSettings { overload, large_min, .. } = cluster.protocol;
        let loads = vec![0; usize::from(cluster.nodes)];
        Self { servers: vec![Vec::new(); items], loads, overload, large_min }
    }

    /// Assigns an item by the rule of PRESS with exact knowledge. A node is a server of an item from the
    /// decision on.
    fn assign(&mut self, initial: u16, item: u32) -> (u16, PressReason) {
        let servers = &self.servers[item as usize];
        if servers.contains(&initial) {
            return (initial, PressReason::Here);
        }
        let Some(least) = self.least(item, servers.iter().copied()) else {
            return (self.add_server(item, initial), PressReason::First);
        };
        if self.loads[usize::from(least)] <= self.overload {
            return (least, PressReason::Peer);
        }
        if self.loads[usize::from(initial)] < self.overload {
            return (self.add_server(item, initial), PressReason::Relief);
        }
        match self.least(item, 0..self.loads.len() as u16) {
            Some(other) if self.loads[usize::from(other)] < self.overload => {
                (self.add_server(item, other), PressReason::Spread)
            }
            _ => (least, PressReason::Crowded),
        }
    }

    /// Removes a node from the servers of an item.
    fn remove_server(&mut self, node: u16, item: u32) {
        self.servers[item as usize].retain(|server| *server != node);
    }

    fn load(&mut self, node: u16, by: i32) {
        let load = &mut self.loads[usize::from(node)];
        *load = load.saturating_add_signed(by);
    }

    /// Returns the number of items with a server.
    fn len(&self) -> usize {
        self.servers.iter().filter(|servers| !servers.is_empty()).count()
    }

    fn add_server(&mut self, item: u32, node: u16) -> u16 {
        let servers = &mut self.servers[item as usize];
        if !servers.contains(&node) {
            servers.push(node);
        }
        node
    }

    fn least(&self, item: u32, among: impl Iterator<Item = u16>) -> Option<u16> {
        among.min_by_key(|node| {
            (self.loads[usize::from(*node)], mix(u64::from(item) << 16 | u64::from(*node)))
        })
    }
}

impl ClusterProtocol for CentralDispatcher {
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
        if request.size < self.large_min {
            return PlacementDecision::Ask;
        }
        PlacementDecision::Placement(Placement {
            node: request.node,
            why: PressReason::Large as usize,
            keep: false,
        })
    }

    fn answer(&mut self, request: &PlacementRequest) -> Placement {
        let (node, why) = self.assign(request.node, request.item);
        Placement { node, why: why as usize, keep: true }
    }

    fn begin_connection(&mut self, _now: Time, node: u16, _out: &mut Vec<ProtocolAction>) {
        self.load(node, 1);
    }

    fn end_connection(&mut self, _now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.load(node, -1);
        out.push(ProtocolAction::Report);
    }

    fn update_cache(
        &mut self,
        _now: Time,
        change: &PlacementRequest,
        cached: bool,
        out: &mut Vec<ProtocolAction>,
    ) -> bool {
        if !cached {
            self.remove_server(change.node, change.item);
        }
        out.push(ProtocolAction::Report);
        false
    }

    /// Counts 34 bytes per known target.
    fn state_sizes(&self) -> Vec<StateSize> {
        let targets = self.len();
        vec![StateSize { bytes: 34 * targets, targets }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cooperation::ServerKind;

    #[test]
    fn the_dispatcher_follows_the_rule_of_press() {
        let mut cluster = CooperativeCluster::new(ServerKind::Dispatcher, 3, Bytes::mib(1));
        cluster.protocol.overload = 3;
        let mut dispatcher = CentralDispatcher::new(2, &cluster);
        assert_eq!(dispatcher.assign(0, 0), (0, PressReason::First));
        assert_eq!(dispatcher.assign(0, 0), (0, PressReason::Here));
        assert_eq!(dispatcher.assign(1, 0), (0, PressReason::Peer));
        dispatcher.load(0, 4);
        assert_eq!(dispatcher.assign(1, 0), (1, PressReason::Relief));
        dispatcher.load(1, 4);
        dispatcher.load(2, 2);
        dispatcher.remove_server(1, 0);
        assert_eq!(dispatcher.assign(1, 0), (2, PressReason::Spread));
        dispatcher.load(2, 2);
        assert_eq!(dispatcher.assign(1, 0).1, PressReason::Crowded);
        assert_eq!(dispatcher.len(), 1);
        dispatcher.remove_server(0, 0);
        dispatcher.remove_server(2, 0);
        assert_eq!(dispatcher.len(), 0);
    }
}
