//! Warnings about reached admission limits. Each names the limit and the config key that sets it.

use crate::routing::Routing;
use larder_core::{Dispatcher, NodeId, Refusal, RouteId};
use larder_log::LogLimiter;

/// Warnings, each at most once every 10 s.
#[derive(Debug, Default)]
pub(crate) struct AdmissionLog {
    waits: LogLimiter,
    queue_full: LogLimiter,
    too_late: LogLimiter,
    long_lived_full: LogLimiter,
}

impl AdmissionLog {
    /// Logs that a request of this route waits for admission.
    pub(crate) fn waits(&self, dispatcher: &Dispatcher, routing: &Routing, route: RouteId) {
        let Some(times) = self.waits.due() else { return };
        let (limit, waiting) = (limit(dispatcher, route), waiting(dispatcher, route));
        tracing::warn!(
            route = &*routing.route(route).name,
            limit,
            waiting,
            times,
            key = "switch.admission.limit",
            "admission: limit reached, requests wait"
        );
    }

    /// Logs that a request of this route was refused.
    pub(crate) fn refused(
        &self,
        dispatcher: &Dispatcher,
        routing: &Routing,
        route: RouteId,
        refusal: Refusal,
    ) {
        let name = &*routing.route(route).name;
        let settings = dispatcher.settings();
        match refusal {
            Refusal::QueueFull => {
                let Some(times) = self.queue_full.due() else { return };
                tracing::warn!(
                    route = name,
                    limit = limit(dispatcher, route),
                    queue_max = settings.queue_max,
                    times,
                    keys = "switch.admission.limit, switch.admission.queue_max",
                    "admission: queue full, requests are answered with 503"
                );
            }
            Refusal::Deadline => {
                let Some(times) = self.too_late.due() else { return };
                tracing::warn!(
                    route = name,
                    limit = limit(dispatcher, route),
                    queue_timeout = ?settings.queue_timeout,
                    times,
                    keys = "switch.admission.limit, switch.admission.queue_timeout",
                    "admission: queue timeout, requests are answered with 503"
                );
            }
            // Changes of the nodes' states are logged elsewhere.
            Refusal::NoNode => {}
        }
    }

    /// Logs that a long-lived request still counts against the admission limit, because its node has as many as it
    /// may.
    pub(crate) fn long_lived_full(&self, dispatcher: &Dispatcher, node: NodeId) {
        let Some(times) = self.long_lived_full.due() else { return };
        tracing::warn!(
            node = &*dispatcher.nodes().name(node),
            limit = dispatcher.settings().long_lived_max,
            times,
            key = "switch.admission.long_lived.max_per_node",
            "admission: limit of long-lived requests reached, further ones count against switch.admission.limit"
        );
    }
}

fn limit(dispatcher: &Dispatcher, route: RouteId) -> u32 {
    dispatcher.admission_limit_in(dispatcher.group_of(route))
}

fn waiting(dispatcher: &Dispatcher, route: RouteId) -> usize {
    dispatcher.queued_in(dispatcher.group_of(route))
}
