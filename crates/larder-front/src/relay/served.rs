//! What a request that was served tells the dispatcher, and the census of its route.
//!
//! The dispatcher is told of every reply that came whole from one node, whatever its status: a policy whose idea of a node
//! fades with time must go on hearing of one that answers errors, or it would come to think the best of it. An error that
//! comes quickly does look quick; that it is wrong is for health checks to find. Whether the node had the target is told
//! for a status of 200 to 299 or 304 only, and only such replies enter the census: others say nothing about what serving
//! the target costs. A reply that broke off, or that two nodes had a part in, has no time of its own; a tunnel lasts as
//! long as its users like.
//!
//! Of every other try that a node was asked for it is told how long it was waited for, up to the header of the reply if that
//! came: of one that failed and goes elsewhere, one that took too long, one whose client left. Otherwise a node that hangs
//! would not be heard of at all.

use super::{Context, Relay};
use crate::cache_status::CacheOutcome;
use larder_core::dispatch::{Found, Served};
use larder_core::{Bytes, Time};
use pingora_error::Error;
use pingora_proxy::Session;

impl Relay {
    /// Tells that the present try has ended at `now` without a whole reply, unless that was told; to be called while it still
    /// holds its load.
    pub(super) fn tell_unserved(&self, context: &mut Context, now: Time) {
        let answered = context.answered.take();
        if !std::mem::take(&mut context.untold) {
            return;
        }
        if let Some(decision) = context.decision {
            let waited = answered.unwrap_or(now) - context.tried;
            self.shared.dispatcher.unserved(now, &context.request, decision.node, waited);
        }
    }

    /// Tells what a request that ended at `now` has shown; to be called while it still holds its load.
    pub(super) fn tell(&self, session: &Session, error: Option<&Error>, context: &mut Context, now: Time) {
        let status = session.response_written().map_or(0, |reply| reply.status.as_u16());
        let whole = error.is_none() && context.resume.is_none() && status >= 200;
        let Some(decision) = context.decision.filter(|_| whole) else {
            return self.tell_unserved(context, now);
        };
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
