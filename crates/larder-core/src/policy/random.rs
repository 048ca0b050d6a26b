//! `random`: any node, by lot.
//!
//! The lot is SplitMix64 of the seed and a counter, so a run repeats. Nodes with larger caches are drawn more often,
//! like everywhere else where load is not looked at. Parameter: the seed. State: one counter.

use super::about::About;
use super::lots::Lots;
use super::{Choice, Memory, Policy, Reason, Request};
use crate::nodes::Sight;
use crate::time::Time;

/// The description of `random`.
pub(super) const ABOUT: About = About::by_request("random", "any node, by lot");

#[derive(Debug)]
pub(super) struct Random {
    lots: Lots,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { lots: Lots::new(seed) }
    }
}

fn choose(lot: u64, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
    let node = nodes.hashed(lot, |node| request.exclude.contains(node))?;
    Some(Choice { node, reason: request.reason_or(Reason::Random) })
}

impl Policy for Random {
    fn pick(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        choose(self.lots.take(nodes), request, nodes).map(|choice| choice.counted(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        choose(self.lots.next(), request, nodes)
    }

    fn memory(&self, _nodes: Sight<'_>) -> Memory {
        Memory { numbers: vec![self.lots.drawn()], ..Memory::default() }
    }

    fn remember(&self, memory: &Memory, _nodes: Sight<'_>) {
        memory.numbers.iter().take(1).for_each(|drawn| self.lots.go_on(*drawn));
    }
}
