//! Choosing by what nodes have measured, for the policies that do.

use crate::id::NodeId;
use crate::nodes::Sight;

/// The open node with the least `load`, for which `skip` is false; among equals the one with the fewest requests in
/// flight by its weight, then the first at or after `start`. Reports are as old as their period, so many requests see
/// the same loads; the second rule keeps those that find equal ones from all going one way. O(n).
pub(super) fn least_by<L: Ord>(
    nodes: Sight<'_>,
    start: usize,
    skip: impl Fn(NodeId) -> bool,
    load: impl Fn(NodeId) -> L,
) -> Option<NodeId> {
    let slots = nodes.slots();
    let from = if start < slots { start } else { 0 };
    let order = (from..slots).chain(0..from).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    let usable = order.filter(|node| nodes.is_open(*node) && !skip(*node));
    usable.min_by_key(|node| (load(*node), nodes.key(*node)))
}

/// The open nodes, by slot.
pub(super) fn open(nodes: Sight<'_>) -> impl Iterator<Item = NodeId> {
    let all = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    all.filter(move |node| nodes.is_open(*node))
}
