//! Filling of the cache after a range that missed.
//!
//! Clients such as SDKs of object stores ask for ranges alone, so nothing would ever be stored for them. If the origin answers a
//! range with 206, the node asks for the whole of the target too, without a client waiting for it. It does so only if the whole
//! fits, if there is a free slot within the client's share, if nobody asks for the target already, and if the last reply to the target was one
//! that may be stored. Ranges that come meanwhile are passed on.

use super::pull::Pull;
use crate::node::Node;
use http::header::{self, HeaderMap};
use http::{Response, StatusCode};
use std::sync::Arc;

impl Node {
    /// Has the whole of a target fetched, of which the origin has sent a range.
    pub(super) fn fill_after_range<B>(self: &Arc<Self>, pull: &Pull<'_>, part: &Response<B>) {
        let Pull { origin, parts, asked, .. } = pull;
        let wanted = origin.terms().config.range_fill && !asked.no_store;
        if !wanted || part.status() != StatusCode::PARTIAL_CONTENT {
            return;
        }
        let fits = |len| self.keeps(len) && self.memory.reservation().grow_to(len);
        if !whole_len(part.headers()).is_some_and(fits) || origin.passed.has(pull.passed(), self.now_ms()) {
            return;
        }
        let page = self.memory.page(pull.hash, &pull.name);
        // Another request may have brought it while this one was under way.
        let stored = page.as_ref().and_then(|page| page.select(&parts.headers));
        if stored.is_none() {
            self.refresh(pull, page.as_deref(), None);
        }
    }
}

/// The length of the whole that a 206 with one part tells.
fn whole_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.trim().parse().ok()
}
