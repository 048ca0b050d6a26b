//! The interface of a policy.

use super::choice::Choice;
use super::explain::Known;
use super::feedback::{CacheEvent, Served};
use super::memory::Memory;
use super::request::Request;
use super::table::RouteTable;
use super::targets::Targets;
use crate::id::{NodeId, TargetId};
use crate::nodes::{LoadReport, Sight};
use crate::time::Time;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// The interface of every policy.
pub(crate) trait Policy: Send + Sync + fmt::Debug {
    /// Chooses a node, counts the request there ([`Sight::start`]) and remembers the choice where the policy has a
    /// memory. `None`, and nothing is counted, if no node can be used.
    ///
    /// A policy that looks at the load of the node it is about to choose counts first and looks at what was there
    /// before: the load's cache line then travels between processors once, not twice.
    fn pick(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice>;

    /// The answer that [`Policy::pick`] would give; counts and remembers nothing.
    fn peek(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice>;

    /// The policy's knowledge of a target. `None` for a policy without a memory of targets, or a target it does not know.
    fn known(&self, _target: TargetId, _nodes: Sight<'_>) -> Option<Known> {
        None
    }

    /// The cache of a node that takes requests has changed. False if the policy does not mirror caches.
    fn cache_event(
        &self,
        _now: Time,
        _node: NodeId,
        _target: TargetId,
        _event: CacheEvent,
        _nodes: Sight<'_>,
    ) -> bool {
        false
    }

    /// A request that was sent to `node` has been answered. What is learned from it must be read through
    /// [`Sight::learned`], so that a decision can be made anew.
    fn served(&self, _now: Time, _request: &Request, _node: NodeId, _served: &Served, _nodes: Sight<'_>) {}

    /// A try at `node` has ended without a whole reply: a reply would have taken longer than `waited`. Learned, as in
    /// [`Policy::served`].
    fn unserved(&self, _now: Time, _request: &Request, _node: NodeId, _waited: Duration, _nodes: Sight<'_>) {}

    /// A node that takes requests has reported. Told of every report, in the order of changes, and again where a record is
    /// played; so what follows from reports alone may be read by decisions as it stands. What follows from loads too is
    /// learned, as in [`Policy::served`].
    fn reported(&self, _now: Time, _node: NodeId, _report: &LoadReport, _nodes: Sight<'_>) {}

    /// T_low and T_high in connections, where the policy goes by them; they may change. Not for decisions: the admission
    /// limit follows them.
    fn thresholds(&self) -> Option<(u32, u32)> {
        None
    }

    /// The map of targets by which it goes, for switches side by side, which tell each other its changes. `None` for a policy
    /// that places by nothing it remembers, or by what nodes themselves say.
    fn sets(&self) -> Option<&Targets> {
        None
    }

    /// Takes another routing table. False if the policy uses none.
    fn set_table(&self, _table: Arc<RouteTable>) -> bool {
        false
    }

    /// Number of targets remembered.
    fn targets(&self) -> usize {
        0
    }

    /// The things it has learned, for another of its kind, which then decides as this one would.
    fn memory(&self, _nodes: Sight<'_>) -> Memory {
        Memory::default()
    }

    /// Takes over what another has learned, before the first decision. Numbers may be another version's: what makes no
    /// sense is left out. The nodes are those of this dispatcher.
    fn remember(&self, _memory: &Memory, _nodes: Sight<'_>) {}
}
