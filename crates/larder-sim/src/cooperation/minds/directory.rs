//! A separate dispatcher with exact knowledge.

use larder_core::peers::{PressSettings, Why};
use larder_core::{Bytes, Time};

use super::mind::{Asked, Decision, Minds, Place, State, Wish};
use crate::cooperation::cluster::Cooperation;
use crate::cooperation::draw::draw;

/// The dispatcher's exact state: the nodes that have each item in memory or will have it, and each node's
/// load.
#[derive(Debug)]
pub(super) struct Directory {
    servers: Vec<Vec<u16>>,
    loads: Vec<u32>,
    overload: u32,
    large_min: Bytes,
}

impl Directory {
    pub(super) fn new(items: usize, cluster: &Cooperation) -> Self {
        let PressSettings { overload, large_min, .. } = cluster.protocol;
        let loads = vec![0; usize::from(cluster.nodes)];
        Self { servers: vec![Vec::new(); items], loads, overload, large_min }
    }

    /// Assigns an item by the rule of PRESS with exact knowledge. A node is a server of an item from the
    /// decision on.
    fn assign(&mut self, initial: u16, item: u32) -> (u16, Why) {
        let servers = &self.servers[item as usize];
        if servers.contains(&initial) {
            return (initial, Why::Here);
        }
        let Some(least) = self.least(item, servers.iter().copied()) else {
            return (self.made(item, initial), Why::First);
        };
        if self.loads[usize::from(least)] <= self.overload {
            return (least, Why::Peer);
        }
        if self.loads[usize::from(initial)] < self.overload {
            return (self.made(item, initial), Why::Relief);
        }
        match self.least(item, 0..self.loads.len() as u16) {
            Some(other) if self.loads[usize::from(other)] < self.overload => {
                (self.made(item, other), Why::Spread)
            }
            _ => (least, Why::Crowded),
        }
    }

    /// Removes a node from the servers of an item.
    fn evicted(&mut self, node: u16, item: u32) {
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

    fn made(&mut self, item: u32, node: u16) -> u16 {
        let servers = &mut self.servers[item as usize];
        if !servers.contains(&node) {
            servers.push(node);
        }
        node
    }

    fn least(&self, item: u32, among: impl Iterator<Item = u16>) -> Option<u16> {
        among.min_by_key(|node| {
            (self.loads[usize::from(*node)], draw(u64::from(item) << 16 | u64::from(*node)))
        })
    }
}

impl Minds for Directory {
    fn reasons(&self) -> Vec<&'static str> {
        Why::ALL.map(Why::name).to_vec()
    }

    fn decide(&mut self, _now: Time, _task: u32, asked: &Asked, _out: &mut Vec<Wish>) -> Decision {
        if asked.size < self.large_min {
            return Decision::Ask;
        }
        Decision::Place(Place { node: asked.node, why: Why::Large as usize, keep: false })
    }

    fn answer(&mut self, asked: &Asked) -> Place {
        let (node, why) = self.assign(asked.node, asked.item);
        Place { node, why: why as usize, keep: true }
    }

    fn begun(&mut self, _now: Time, node: u16, _out: &mut Vec<Wish>) {
        self.load(node, 1);
    }

    fn ended(&mut self, _now: Time, node: u16, out: &mut Vec<Wish>) {
        self.load(node, -1);
        out.push(Wish::Report);
    }

    fn noted(&mut self, _now: Time, change: &Asked, cached: bool, out: &mut Vec<Wish>) -> bool {
        if !cached {
            self.evicted(change.node, change.item);
        }
        out.push(Wish::Report);
        false
    }

    /// Counts 34 bytes per known target.
    fn states(&self) -> Vec<State> {
        let targets = self.len();
        vec![State { bytes: 34 * targets, targets }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cooperation::Server;

    #[test]
    fn the_dispatcher_follows_the_rule_of_press() {
        let mut cluster = Cooperation::new(Server::Dispatcher, 3, Bytes::mib(1));
        cluster.protocol.overload = 3;
        let mut directory = Directory::new(2, &cluster);
        assert_eq!(directory.assign(0, 0), (0, Why::First));
        assert_eq!(directory.assign(0, 0), (0, Why::Here));
        assert_eq!(directory.assign(1, 0), (0, Why::Peer));
        directory.load(0, 4);
        assert_eq!(directory.assign(1, 0), (1, Why::Relief));
        directory.load(1, 4);
        directory.load(2, 2);
        directory.evicted(1, 0);
        assert_eq!(directory.assign(1, 0), (2, Why::Spread));
        directory.load(2, 2);
        assert_eq!(directory.assign(1, 0).1, Why::Crowded);
        assert_eq!(directory.len(), 1);
        directory.evicted(0, 0);
        directory.evicted(2, 0);
        assert_eq!(directory.len(), 0);
    }
}
