//! Filling of the cache after a range that missed.
//!
//! Clients such as SDKs of object stores ask for ranges alone, so nothing would ever be stored for them. If the origin answers a
//! range with 206, the node asks for the whole of the target too, without a client waiting for it. It does so only if the whole
//! fits, if there is a free slot within the client's share, if nobody asks for the target already, and if the last reply to the target was one
//! that may be stored. Ranges that come meanwhile are passed on.

use http::header::{self, HeaderMap};
use http::{Response, StatusCode};

/// The length of the whole of a target, if the origin has sent a range of it.
pub(super) fn whole_after<B>(part: &Response<B>) -> Option<u64> {
    if part.status() != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    whole_len(part.headers())
}

/// The length of the whole that a 206 with one part tells.
fn whole_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.trim().parse().ok()
}
