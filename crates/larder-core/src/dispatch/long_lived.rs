//! Long-lived requests: they leave the admission limit and remain load of their node.

use super::{Change, DequeuedRequest, Dispatcher};
use crate::id::{NodeId, RouteId};
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::vec::Vec;

impl Dispatcher {
    /// Marks a request at `node` as long-lived: an upgraded connection, a stream or a slow download. The request
    /// leaves the admission limit, which admits a queued request, and continues to count as load of the node. It
    /// ends with [`Dispatcher::end_long_lived`].
    ///
    /// Returns false and changes nothing if the node already has [`crate::dispatch::Settings::long_lived_max`]
    /// long-lived requests.
    pub fn become_long_lived(
        &self,
        now: Time,
        route: RouteId,
        node: NodeId,
        started: &mut Vec<DequeuedRequest>,
    ) -> bool {
        let became = self.reclassify_request(now, node, true);
        if became {
            self.abandon_on(now, route, started);
        }
        became
    }

    /// Counts a long-lived request as admitted again, even above the limit, because it is about to be retried at
    /// another node. Returns false and changes nothing if the node has no long-lived request.
    pub fn become_short_lived(&self, now: Time, route: RouteId, node: NodeId) -> bool {
        let became = self.reclassify_request(now, node, false);
        if became {
            self.nodes.outstanding(self.route(route).group).force_acquire();
        }
        became
    }

    /// Ends a long-lived request at its node.
    pub fn end_long_lived(&self, now: Time, node: NodeId) {
        let act = |_: ReadSource<'_>| self.nodes.uncount_long_lived(node).then_some(node).ok_or(());
        let ended = self.change(now, || self.long_lived_at(node), act).is_ok();
        debug_assert!(ended, "a long-lived request ended at {node} that was not there");
    }

    fn reclassify_request(&self, now: Time, node: NodeId, long_lived: bool) -> bool {
        let most = self.settings().long_lived_max;
        let act = |_: ReadSource<'_>| {
            self.nodes.reclassify_request(node, long_lived, most).then_some(node).ok_or(())
        };
        self.change(now, || self.long_lived_at(node), act).is_ok()
    }

    fn long_lived_at(&self, node: NodeId) -> Change {
        Change::LongLived(node, self.nodes.long_lived(node))
    }
}
