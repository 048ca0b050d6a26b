//! What clients' connections tell this node of how many requests connections bring ([`larder_core::kept`]).
//!
//! A connection that goes to a peer goes with the number of requests that it has brought, in a field of the request that it
//! goes with, so that the peer, which sees how it ends, learns of a whole life. A peer of an earlier version passes the field
//! over, and one that gets none takes the request for the connection's first. From anybody else the field is worth nothing: it
//! is taken off wherever a request comes in.

use super::{Handover, lock};
use crate::http::cache_control::Items;
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{HeaderValue, Version};
use larder_core::kept::Kept;
use std::sync::Arc;

/// Of more than that nothing more is expected ([`larder_core::kept`]).
const TOLD_MAX: u32 = 1 << 15;

/// The decision about a connection's next request, if there is one already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bound {
    /// There is none.
    #[default]
    Free,
    /// The connection was to be handed over with it, and stays: it is relayed if a peer serves it.
    Stays,
    /// A peer has handed the connection over with it: this node serves it.
    Taken,
}

/// A connection that can be handed over, or was. When this goes, it has ended.
#[derive(Debug)]
pub(crate) struct Life {
    handover: Arc<Handover>,
    /// What it has brought, here and before; 0: nothing that says anything.
    requests: u32,
}

impl Life {
    pub(crate) fn new(handover: &Arc<Handover>) -> Self {
        Self { handover: Arc::clone(handover), requests: 0 }
    }

    /// What it has brought.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// It brings a request, with which a peer may have told something.
    pub(crate) fn brings(&mut self, bound: Bound, parts: &Parts, told: Option<&HeaderValue>) {
        let requests = after(self.requests, bound, told, is_last(parts));
        if bound == Bound::Free && Kept::counts(requests) {
            lock(&self.handover.kept).came(requests);
        }
        self.requests = requests;
    }

    /// It goes on elsewhere.
    pub(crate) fn leave(mut self) {
        self.requests = 0;
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if self.requests > 0 {
            lock(&self.handover.kept).ended(self.requests);
        }
    }
}

/// What a connection that had brought `before` has brought with a request; `last` if that says so. If it is the first too, there
/// was nothing to expect: such a connection is not learned from, here or at the node that it came from.
fn after(before: u32, bound: Bound, told: Option<&HeaderValue>, last: bool) -> u32 {
    let requests = match bound {
        Bound::Free => before.saturating_add(1),
        // Counted where it came from.
        Bound::Taken => told.and_then(read).unwrap_or(1),
        // Counted before it was to be handed over.
        Bound::Stays => return before,
    };
    if requests == 1 && last { 0 } else { requests }
}

fn read(value: &HeaderValue) -> Option<u32> {
    let requests: u32 = value.to_str().ok()?.parse().ok()?;
    (requests > 0).then_some(requests.min(TOLD_MAX))
}

/// Whether a request says that the connection ends after it.
pub(super) fn is_last(parts: &Parts) -> bool {
    parts.version < Version::HTTP_11 || says_close(&parts.headers)
}

fn says_close(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION);
    values.iter().flat_map(|value| Items(value.as_bytes())).any(|item| item.eq_ignore_ascii_case(b"close"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn says(request: http::request::Builder) -> bool {
        is_last(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn a_request_may_say_that_it_is_the_last() {
        assert!(!says(Request::get("/")));
        assert!(!says(Request::get("/").header("connection", "keep-alive, closed")));
        assert!(says(Request::get("/").header("connection", "TE, Close")));
        assert!(says(Request::get("/").header("connection", "te").header("connection", "close")));
        assert!(says(Request::get("/").version(Version::HTTP_10)));
    }

    /// Whoever sees the end counts it, with all that was before.
    #[test]
    fn a_connection_that_ends_with_what_it_is_handed_over_with_has_ended_there() {
        let four = HeaderValue::from_static("4");
        assert_eq!(after(0, Bound::Taken, Some(&four), true), 4);
        assert_eq!(after(0, Bound::Taken, Some(&four), false), 4);
        assert_eq!(after(3, Bound::Free, None, true), 4);
        assert_eq!(after(4, Bound::Stays, None, true), 4, "counted already");
        for bound in [Bound::Free, Bound::Taken] {
            assert_eq!((after(0, bound, None, false), after(0, bound, None, true)), (1, 0), "{bound:?}");
        }
        assert_eq!(after(1, Bound::Free, Some(&four), false), 2, "what a client says is not heard");
    }

    #[test]
    fn a_number_is_read_or_is_none() {
        for (text, number) in [
            ("7", Some(7)),
            ("32768", Some(32_768)),
            ("32769", Some(32_768)),
            ("4294967295", Some(32_768)),
            ("0", None),
            ("-1", None),
            ("4294967296", None),
            ("", None),
        ] {
            assert_eq!(read(&HeaderValue::from_static(text)), number, "{text}");
        }
    }
}
