//! What a request that was served tells the dispatcher, and the census of its route.
//!
//! The dispatcher is told of every reply that came whole from one node, whatever its status: a policy whose idea of a node
//! fades with time must go on hearing of one that answers errors, or it would come to think the best of it. An error that
//! comes quickly does look quick; that it is wrong is for health checks to find. Whether the node had the target is told
//! for a status of 200 to 299 or 304 only, and only such replies enter the census: others say nothing about what serving
//! the target costs. A reply that broke off, or that two nodes had a part in, has no time of its own; a tunnel lasts as
//! long as its users like.

use super::{Context, Relay};
use crate::cache_status::CacheOutcome;
use larder_core::dispatch::{Found, Served};
use larder_core::{Bytes, Time};
use pingora_error::Error;
use pingora_proxy::Session;

impl Relay {
    /// Tells what a request that ended at `now` has shown; to be called while it still holds its load.
    pub(super) fn tell(&self, session: &Session, error: Option<&Error>, context: &Context, now: Time) {
        let status = session.response_written().map_or(0, |reply| reply.status.as_u16());
        let (Some(decision), None, None) = (context.decision, error, &context.resume) else { return };
        if status < 200 {
            return;
        }
        let useful = matches!(status, 200..=299 | 304);
        let began = context.tried;
        let served = Served {
            elapsed: now - began,
            first_byte: context.first_byte.map(|after| (context.arrived + after) - began),
            found: context.cache.filter(|_| useful).map(|outcome| match outcome {
                CacheOutcome::Hit => Found::Hit,
                CacheOutcome::Miss => Found::Miss,
            }),
        };
        self.shared.dispatcher.served(now, &context.request, decision.node, &served);
        let census = self.shared.routing.of(context.request.route).census.as_ref();
        if let Some(census) = census.filter(|_| useful) {
            let bytes = session.downstream_session.body_bytes_sent() as u64;
            census.count(context.request.target, Bytes(bytes));
        }
    }
}
