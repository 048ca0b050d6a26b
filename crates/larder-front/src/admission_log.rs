//! Warnings when a limit of admission is reached, with the limit and the key that sets it.

use crate::routing::Routing;
use larder_core::{Dispatcher, NodeId, Refusal, RouteId};
use larder_edge::Seldom;

/// The lines, each at most once every 10 s.
#[derive(Debug, Default)]
pub(crate) struct AdmissionLog {
    waits: Seldom,
    queue_full: Seldom,
    too_late: Seldom,
    long_lived_full: Seldom,
}

impl AdmissionLog {
    /// A request of this route has to wait for admission.
    pub(crate) fn waits(&self, dispatcher: &Dispatcher, routing: &Routing, route: RouteId) {
        let Some(times) = self.waits.due() else { return };
        let (limit, waiting) = (limit(dispatcher, route), waiting(dispatcher, route));
        tracing::warn!(
            route = &*routing.of(route).name,
            limit,
            waiting,
            times,
            key = "switch.admission",
            "admission: the limit is reached, requests wait"
        );
    }

    /// A request of this route is not admitted.
    pub(crate) fn refused(
        &self,
        dispatcher: &Dispatcher,
        routing: &Routing,
        route: RouteId,
        refusal: Refusal,
    ) {
        let name = &*routing.of(route).name;
        let settings = dispatcher.settings();
        match refusal {
            Refusal::QueueFull => {
                let Some(times) = self.queue_full.due() else { return };
                tracing::warn!(
                    route = name,
                    limit = limit(dispatcher, route),
                    queue_max = settings.queue_max,
                    times,
                    keys = "switch.admission, switch.queue_max",
                    "admission: the queue is full, requests are answered with 503"
                );
            }
            Refusal::Deadline => {
                let Some(times) = self.too_late.due() else { return };
                tracing::warn!(
                    route = name,
                    limit = limit(dispatcher, route),
                    queue_timeout = ?settings.queue_timeout,
                    times,
                    keys = "switch.admission, switch.queue_timeout",
                    "admission: requests waited too long and are answered with 503"
                );
            }
            // Changes of a node's state are logged.
            Refusal::NoNode => {}
        }
    }

    /// A long-lived request stays among the admitted, since its node has as many of them as it may.
    pub(crate) fn long_lived_full(&self, dispatcher: &Dispatcher, node: NodeId) {
        let Some(times) = self.long_lived_full.due() else { return };
        tracing::warn!(
            node = &*dispatcher.nodes().name(node),
            limit = dispatcher.settings().long_lived_max,
            times,
            key = "switch.long_lived.max_per_node",
            "admission: the limit of long-lived requests is reached, further ones count against switch.admission"
        );
    }
}

fn limit(dispatcher: &Dispatcher, route: RouteId) -> u32 {
    dispatcher.admission_limit_in(dispatcher.group_of(route))
}

fn waiting(dispatcher: &Dispatcher, route: RouteId) -> usize {
    dispatcher.queued_in(dispatcher.group_of(route))
}
