//! Fills the cache after a range that missed.
//!
//! Some clients, such as SDKs of object stores, request ranges only, so no reply to them would ever be stored.
//! If the origin answers a range with 206, the node fetches the whole target too, while no client waits for it.
//! It does so under four conditions. The whole fits. A slot is free within the client's share. No fetch of the
//! target is in flight. The last reply to the target was storable. Ranges that arrive meanwhile are passed on.

use http::header::{self, HeaderMap};
use http::{Response, StatusCode};

/// Returns the length of the whole target, if the origin has sent a range of it.
pub(super) fn full_length<B>(part: &Response<B>) -> Option<u64> {
    if part.status() != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    whole_len(part.headers())
}

/// Returns the length of the whole from a 206 with one part.
fn whole_len(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.trim().parse().ok()
}
