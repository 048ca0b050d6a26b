//! Replays recorded changes.

use super::{Change, Dispatcher};
use crate::id::NodeId;
use crate::read_source::ReadSource;
use crate::time::Time;

impl Dispatcher {
    /// Applies a recorded change and returns the node that changed; `None` if the change has no effect. The
    /// admission limits are not updated, because a record contains the answers of the admission queues.
    pub(crate) fn apply(&self, at: Time, change: &Change, source: ReadSource<'_>) -> Option<NodeId> {
        match change {
            Change::Join(spec) => self.nodes.join(at, spec.clone(), false, source, |_| {}).ok(),
            Change::State(node, state) => self.nodes.set_state(*node, *state).then_some(*node),
            Change::Reweigh(node, weight) => self.nodes.set_weight(*node, *weight).then_some(*node),
            Change::Backup(node, backup) => self.nodes.set_backup(*node, *backup).then_some(*node),
            Change::LongLived(node, requests) => self.nodes.set_long_lived(*node, *requests).then_some(*node),
            Change::Report(node, report) => self.take_report(at, *node, *report).then_some(*node),
            Change::Cache(node, target, event) => {
                self.mirror(at, *node, *target, *event, source).then_some(*node)
            }
            Change::Table(route, table) => self.place_table(*route, table).then_some(Change::NO_NODE),
            Change::PeerSwitches(peer_switches) => {
                self.apply_peer_switches(peer_switches);
                Some(Change::NO_NODE)
            }
            Change::Sets(route, sets) => (self.adopt(at, *route, sets).taken > 0).then_some(Change::NO_NODE),
        }
    }
}
