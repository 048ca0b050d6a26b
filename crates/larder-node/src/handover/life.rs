//! Counts the requests of clients' connections, from which the node learns how many requests a connection
//! carries ([`larder_core::kept`]).
//!
//! When a connection is handed off to a peer, its number of requests goes with it, in a field of the request.
//! So the peer, which sees the end of the connection, learns the total. A peer of an earlier version ignores
//! the field. A peer that gets no field takes the request for the connection's first. From any other sender the
//! field is worthless, and it is removed wherever a request enters.

use super::{Handover, lock};
use crate::http::cache_control::Items;
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{HeaderValue, Version};
use larder_core::kept::Kept;
use std::sync::Arc;

/// Largest number that is used. Beyond it, no further requests are expected ([`larder_core::kept`]).
const TOLD_MAX: u32 = 1 << 15;

/// The decision about a connection's next request, if it has been made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bound {
    /// There is no decision yet.
    #[default]
    Free,
    /// The handoff of the connection failed, and it stays. If a peer serves the request, it is relayed.
    Stays,
    /// A peer has handed the connection off with this request. This node serves it.
    Taken,
}

/// The request counter of a connection that can be handed off or came from a peer. Dropping it records the end
/// of the connection.
#[derive(Debug)]
pub(crate) struct Life {
    handover: Arc<Handover>,
    /// Number of requests, at this and at earlier nodes; 0 if the connection is not counted.
    requests: u32,
}

impl Life {
    pub(crate) fn new(handover: &Arc<Handover>) -> Self {
        Self { handover: Arc::clone(handover), requests: 0 }
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Counts a request. `told` is the number that a peer may have sent.
    pub(crate) fn brings(&mut self, bound: Bound, parts: &Parts, told: Option<&HeaderValue>) {
        let requests = after(self.requests, bound, told, is_last(parts));
        if bound == Bound::Free && Kept::counts(requests) {
            lock(&self.handover.kept).came(requests);
        }
        self.requests = requests;
    }

    /// Drops the counter of a connection that continues at another node.
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

/// Returns the number of requests after another request, from the number `before` it. `last` says that the
/// request announces the end of the connection. If the first request is also the last, the result is 0: nothing
/// is learned from such a connection, at any node.
fn after(before: u32, bound: Bound, told: Option<&HeaderValue>, last: bool) -> u32 {
    let requests = match bound {
        Bound::Free => before.saturating_add(1),
        // The request was counted at the node that the connection came from.
        Bound::Taken => told.and_then(read).unwrap_or(1),
        // The request was counted before the handoff was attempted.
        Bound::Stays => return before,
    };
    if requests == 1 && last { 0 } else { requests }
}

fn read(value: &HeaderValue) -> Option<u32> {
    let requests: u32 = value.to_str().ok()?.parse().ok()?;
    (requests > 0).then_some(requests.min(TOLD_MAX))
}

/// Returns whether a request announces the end of its connection (RFC 9112 section 9.6).
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

    /// The node that sees the end of a connection counts it, with all earlier requests.
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
