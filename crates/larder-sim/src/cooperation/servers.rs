//! The servers, and what the dispatcher of one of them knows.

use larder_core::Bytes;
use larder_core::peers::{PressSettings, Why};
use serde::{Deserialize, Serialize};

use super::draw;

/// How a cluster serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Every node for itself; no messages.
    Trad,
    /// PRESS: nodes decide, forward, and relay what comes back.
    Press,
    /// Nodes decide as in PRESS and hand connections over.
    Distributed,
    /// One node more decides everything, with exact knowledge, and nodes hand connections over.
    Dispatcher,
}

impl Server {
    /// All.
    pub const ALL: [Self; 4] = [Self::Trad, Self::Press, Self::Distributed, Self::Dispatcher];

    /// The name in the paper's tables and here.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Press => "press",
            Self::Distributed => "distributed",
            Self::Dispatcher => "dispatcher",
        }
    }

    /// Whether its nodes speak the protocol.
    pub(super) const fn talks(self) -> bool {
        matches!(self, Self::Press | Self::Distributed)
    }

    /// Whether a forwarded request's reply comes back through the initial node.
    pub(super) const fn relays(self) -> bool {
        matches!(self, Self::Press)
    }
}

/// What the dispatcher knows, which is how it is: who has each item in memory or is about to, and each node's load.
#[derive(Debug)]
pub(super) struct Directory {
    servers: Vec<Vec<u16>>,
    loads: Vec<u32>,
    overload: u32,
    large_min: Bytes,
}

impl Directory {
    pub(super) fn new(items: usize, nodes: usize, settings: &PressSettings) -> Self {
        let PressSettings { overload, large_min, .. } = *settings;
        Self { servers: vec![Vec::new(); items], loads: vec![0; nodes], overload, large_min }
    }

    /// The rule of PRESS with exact knowledge. A server counts from the decision on.
    pub(super) fn decide(&mut self, initial: u16, item: u32, size: Bytes) -> (u16, Why) {
        if size >= self.large_min {
            return (initial, Why::Large);
        }
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

    /// A node has an item no longer.
    pub(super) fn evicted(&mut self, node: u16, item: u32) {
        self.servers[item as usize].retain(|server| *server != node);
    }

    pub(super) fn load(&mut self, node: u16, by: i32) {
        let load = &mut self.loads[usize::from(node)];
        *load = load.saturating_add_signed(by);
    }

    /// Sets that have a member.
    pub(super) fn len(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dispatcher_follows_the_rule_of_press() {
        let settings = PressSettings { overload: 3, ..PressSettings::default() };
        let mut directory = Directory::new(2, 3, &settings);
        let size = Bytes(1_000);
        assert_eq!(directory.decide(0, 0, Bytes::kib(128)), (0, Why::Large));
        assert_eq!(directory.decide(0, 0, size), (0, Why::First));
        assert_eq!(directory.decide(0, 0, size), (0, Why::Here));
        assert_eq!(directory.decide(1, 0, size), (0, Why::Peer));
        directory.load(0, 4);
        assert_eq!(directory.decide(1, 0, size), (1, Why::Relief));
        directory.load(1, 4);
        directory.load(2, 2);
        directory.evicted(1, 0);
        assert_eq!(directory.decide(1, 0, size), (2, Why::Spread));
        directory.load(2, 2);
        assert_eq!(directory.decide(1, 0, size).1, Why::Crowded);
        assert_eq!(directory.len(), 1);
        directory.evicted(0, 0);
        directory.evicted(2, 0);
        assert_eq!(directory.len(), 0);
    }
}
