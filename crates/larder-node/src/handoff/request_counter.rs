//! Counts the requests of clients' connections, from which the node learns how many requests a connection
//! carries ([`larder_core::life_table`]).
//!
//! When a connection is handed off to a peer, its number of requests goes with it, in a field of the request.
//! So the peer, which sees the end of the connection, learns the total. A peer of an earlier version ignores
//! the field. A peer that gets no field takes the request for the connection's first. From any other sender the
//! field is worthless, and it is removed wherever a request enters.

use super::{PeerHandoff, lock};
use crate::http::cache_control::ListMembers;
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{HeaderValue, Version};
use larder_core::life_table::ConnectionLifeTable;
use std::sync::Arc;

/// Largest number that is used. Beyond it, no further requests are expected ([`larder_core::life_table`]).
const REQUESTS_MAX: u32 = 1 << 15;

/// The decision about a connection's next request, if it has been made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HandoffDecision {
    /// There is no decision yet.
    #[default]
    Pending,
    /// The handoff of the connection failed, and it stays. If a peer serves the request, it is relayed.
    Declined,
    /// A peer has handed the connection off with this request. This node serves it.
    Accepted,
}

/// The request counter of a connection that can be handed off or came from a peer. Dropping it records the end
/// of the connection.
#[derive(Debug)]
pub(crate) struct RequestCounter {
    peer_handoff: Arc<PeerHandoff>,
    /// Number of requests, at this and at earlier nodes; 0 if the connection is not counted.
    requests: u32,
}

impl RequestCounter {
    pub(crate) fn new(peer_handoff: &Arc<PeerHandoff>) -> Self {
        Self { peer_handoff: Arc::clone(peer_handoff), requests: 0 }
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Counts a request. `count_field` is the number that a peer may have sent.
    pub(crate) fn count_request(
        &mut self,
        decision: HandoffDecision,
        parts: &Parts,
        count_field: Option<&HeaderValue>,
    ) {
        let requests = next_count(self.requests, decision, count_field, announces_close(parts));
        if decision == HandoffDecision::Pending && ConnectionLifeTable::is_informative(requests) {
            lock(&self.peer_handoff.kept).record_request(requests);
        }
        self.requests = requests;
    }

    /// Drops the counter of a connection that continues at another node.
    pub(crate) fn discard(mut self) {
        self.requests = 0;
    }
}

impl Drop for RequestCounter {
    fn drop(&mut self) {
        if self.requests > 0 {
            lock(&self.peer_handoff.kept).record_end(self.requests);
        }
    }
}

/// Returns the number of requests after another request, from the number `before` it. `last` says that the
/// request announces the end of the connection. If the first request is also the last, the result is 0: nothing
/// is learned from such a connection, at any node.
fn next_count(before: u32, decision: HandoffDecision, count_field: Option<&HeaderValue>, last: bool) -> u32 {
    let requests = match decision {
        HandoffDecision::Pending => before.saturating_add(1),
        // The request was counted at the node that the connection came from.
        HandoffDecision::Accepted => count_field.and_then(parse_count).unwrap_or(1),
        // The request was counted before the handoff was attempted.
        HandoffDecision::Declined => return before,
    };
    if requests == 1 && last { 0 } else { requests }
}

fn parse_count(value: &HeaderValue) -> Option<u32> {
    let requests: u32 = value.to_str().ok()?.parse().ok()?;
    (requests > 0).then_some(requests.min(REQUESTS_MAX))
}

/// Returns whether a request announces the end of its connection (RFC 9112 section 9.6).
pub(super) fn announces_close(parts: &Parts) -> bool {
    parts.version < Version::HTTP_11 || has_close_option(&parts.headers)
}

fn has_close_option(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION);
    values
        .iter()
        .flat_map(|value| ListMembers(value.as_bytes()))
        .any(|item| item.eq_ignore_ascii_case(b"close"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn is_last(request: http::request::Builder) -> bool {
        announces_close(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn a_request_can_be_the_last_of_its_connection() {
        assert!(!is_last(Request::get("/")));
        assert!(!is_last(Request::get("/").header("connection", "keep-alive, closed")));
        assert!(is_last(Request::get("/").header("connection", "TE, Close")));
        assert!(is_last(Request::get("/").header("connection", "te").header("connection", "close")));
        assert!(is_last(Request::get("/").version(Version::HTTP_10)));
    }

    /// The node that sees the end of a connection counts it, with all earlier requests.
    #[test]
    fn a_connection_ended_by_its_handed_off_bytes_stays_ended() {
        let four = HeaderValue::from_static("4");
        assert_eq!(next_count(0, HandoffDecision::Accepted, Some(&four), true), 4);
        assert_eq!(next_count(0, HandoffDecision::Accepted, Some(&four), false), 4);
        assert_eq!(next_count(3, HandoffDecision::Pending, None, true), 4);
        assert_eq!(next_count(4, HandoffDecision::Declined, None, true), 4, "counted already");
        for decision in [HandoffDecision::Pending, HandoffDecision::Accepted] {
            assert_eq!(
                (next_count(0, decision, None, false), next_count(0, decision, None, true)),
                (1, 0),
                "{decision:?}"
            );
        }
        assert_eq!(
            next_count(1, HandoffDecision::Pending, Some(&four), false),
            2,
            "what a client says is not heard"
        );
    }

    #[test]
    fn a_count_is_parsed_or_rejected() {
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
            assert_eq!(parse_count(&HeaderValue::from_static(text)), number, "{text}");
        }
    }
}
