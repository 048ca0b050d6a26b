//! Requests that last: they leave the admission limit and stay load of their node.

use super::{Change, Dispatcher, Started};
use crate::id::{NodeId, RouteId};
use crate::source::Source;
use crate::time::Time;

impl Dispatcher {
    /// A request at `node` has turned out to be long-lived (an upgraded connection, a stream, a slow download): it gives its
    /// place among the admitted to one that waits, and goes on counting as load of its node. It ends with
    /// [`Dispatcher::end_long_lived`]. False, and nothing changes, if the node has
    /// [`crate::dispatch::Settings::long_lived_max`] of them already.
    pub fn become_long_lived(
        &self,
        now: Time,
        route: RouteId,
        node: NodeId,
        started: &mut Vec<Started>,
    ) -> bool {
        let became = self.shift(now, node, true);
        if became {
            self.abandon_on(now, route, started);
        }
        became
    }

    /// A long-lived request takes a place among the admitted again, whatever the limit says: it is about to be tried at
    /// another node. False, and nothing changes, if the node has none.
    pub fn become_short_lived(&self, now: Time, route: RouteId, node: NodeId) -> bool {
        let became = self.shift(now, node, false);
        if became {
            self.nodes.outstanding(self.route(route).group).enter_anyway();
        }
        became
    }

    /// A long-lived request ends at its node.
    pub fn end_long_lived(&self, now: Time, node: NodeId) {
        let act = |_: Source<'_>| self.nodes.uncount_long_lived(node).then_some(node).ok_or(());
        let ended = self.change(now, || self.long_lived_at(node), act).is_ok();
        debug_assert!(ended, "a long-lived request ended at {node} that was not there");
    }

    fn shift(&self, now: Time, node: NodeId, long_lived: bool) -> bool {
        let most = self.settings().long_lived_max;
        let act = |_: Source<'_>| self.nodes.shift(node, long_lived, most).then_some(node).ok_or(());
        self.change(now, || self.long_lived_at(node), act).is_ok()
    }

    fn long_lived_at(&self, node: NodeId) -> Change {
        Change::LongLived(node, self.nodes.long_lived(node))
    }
}
