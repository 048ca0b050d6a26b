//! The list of all metrics of a node.

use crate::cooperate::PeersView;
use crate::edge::TlsView;
use crate::handoff::PeerHandoffView;
use crate::report::{NodeStats, ReloadCounts};
use larder_edge::Metric;

/// Returns the definitions of all metrics of a node. All have the label `node`, and those of [`NodeStats`] also the
/// label `store`.
pub fn metrics() -> Vec<Metric> {
    let parts = [
        NodeStats::metrics(),
        ReloadCounts::metrics(),
        TlsView::metrics(),
        PeersView::metrics(),
        PeerHandoffView::metrics(),
    ];
    parts.concat()
}
