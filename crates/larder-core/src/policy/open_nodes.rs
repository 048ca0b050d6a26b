//! The open nodes, for policies that choose by the nodes' measurements.

use crate::id::NodeId;
use crate::nodes::ClusterView;

/// Returns the open nodes, by slot.
pub(super) fn open_nodes(nodes: ClusterView<'_>) -> impl Iterator<Item = NodeId> {
    let all = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    all.filter(move |node| nodes.is_open(*node))
}
