//! What of a request that has ended is shown to whoever watches: the list of hot targets and the shadow.

use super::{Context, Relay, headers};
use crate::cache_status::CacheOutcome;
use crate::shadow::Feed;
use http::Method;
use larder_core::shadow::Seen;
use larder_core::{Bytes, Found, TargetId, Time};
use pingora_error::Error;
use pingora_proxy::Session;

impl Relay {
    /// Shows a request that ended at `now`.
    pub(super) fn watch(&self, session: &Session, error: Option<&Error>, context: &Context, now: Time) {
        // What was refused before its target was known asks for none.
        if context.request.target == TargetId(0) {
            return;
        }
        let header = session.req_header();
        self.shared.hottest.note(now, &context.request, headers::host(header), header.raw_path());
        if let Some(feed) = self.shared.shadow.as_ref().filter(|feed| feed.draws(context.request.target, now))
        {
            show(feed, session, error, context, now);
        }
    }
}

fn show(feed: &Feed, session: &Session, error: Option<&Error>, context: &Context, now: Time) {
    let status = session.response_written().map_or(0, |reply| reply.status.as_u16());
    let Some(decision) = context.decision.filter(|_| error.is_none() && context.resume.is_none()) else {
        return;
    };
    if status < 200 {
        return;
    }
    let useful = matches!(status, 200 | 206 | 304);
    let whole = status == 200 && session.req_header().method == Method::GET;
    feed.show(Seen {
        at: now,
        request: context.request,
        node: decision.node,
        elapsed: now - context.tried,
        first_byte: context.first_byte.map(|after| (context.arrived + after) - context.tried),
        bytes: whole.then(|| Bytes(session.downstream_session.body_bytes_sent() as u64)),
        found: context.cache.filter(|_| useful).map(|outcome| match outcome {
            CacheOutcome::Hit => Found::Hit,
            CacheOutcome::Miss => Found::Miss,
        }),
        keeps: useful && context.keeps,
    });
}
