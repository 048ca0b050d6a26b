//! Choosing by what nodes have measured, for the policies that do.

use crate::id::NodeId;
use crate::nodes::Sight;

/// The open nodes, by slot.
pub(super) fn open(nodes: Sight<'_>) -> impl Iterator<Item = NodeId> {
    let all = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    all.filter(move |node| nodes.is_open(*node))
}
