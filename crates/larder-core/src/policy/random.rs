//! `random`: any node, by lot.
//!
//! The lot is SplitMix64 of the seed and a counter, so a run repeats. Nodes with larger caches are drawn more often,
//! like everywhere else where load is not looked at. Parameter: the seed. State: one counter.

use super::{Choice, Policy, Reason};
use crate::dispatch::Request;
use crate::nodes::{Sight, mix};
use crate::tape::Lane;
use crate::time::Time;
use core::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Random {
    seed: u64,
    drawn: AtomicU64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), drawn: AtomicU64::new(0) }
    }

    fn draw(&self, lot: u64, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let hash = mix(self.seed ^ mix(lot));
        let node = nodes.hashed(hash, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Random) })
    }
}

impl Policy for Random {
    fn pick(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let lot = self.drawn.fetch_add(1, Ordering::Relaxed);
        nodes.counted(Lane::Lots, lot, lot + 1);
        self.draw(lot, request, nodes).map(|choice| choice.counted(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        self.draw(self.drawn.load(Ordering::Relaxed), request, nodes)
    }
}
