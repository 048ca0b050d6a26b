//! What clients' connections tell this node of how many requests connections bring ([`larder_core::kept`]).
//!
//! A connection that goes to a peer goes with the number of requests that it has brought, in a field of the request that it
//! goes with, so that the peer, which sees how it ends, learns of a whole life. A peer of an earlier version passes the field
//! over, and one that gets none takes the request for the connection's first.

use super::{Handover, lock};
use crate::connection::Bound;
use crate::http::cache_control::Items;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Version};
use std::sync::Arc;

/// How many requests the connection has brought, this one included; good only in the request by which a peer hands it over.
pub(super) const REQUESTS: HeaderName = HeaderName::from_static("larder-requests");

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

    /// It brings a request. If that is the first and says that it is the last, there was nothing to expect: such a connection
    /// is not learned from.
    pub(crate) fn brings(&mut self, bound: Bound, parts: &mut Parts) {
        let told = parts.headers.remove(REQUESTS);
        if self.requests == 0 && is_last(parts) {
            return;
        }
        match bound {
            Bound::Free => {
                self.requests = self.requests.saturating_add(1);
                lock(&self.handover.kept).came(self.requests);
            }
            // Counted where it came from.
            Bound::Taken => self.requests = told.as_ref().and_then(read).unwrap_or(1),
            // Counted before it was to be handed over.
            Bound::Stays => {}
        }
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

fn read(value: &HeaderValue) -> Option<u32> {
    value.to_str().ok()?.parse().ok().filter(|requests| *requests > 0)
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

    #[test]
    fn a_number_is_read_or_is_none() {
        for (text, number) in [
            ("7", Some(7)),
            ("4294967295", Some(u32::MAX)),
            ("0", None),
            ("-1", None),
            ("4294967296", None),
            ("", None),
        ] {
            assert_eq!(read(&HeaderValue::from_static(text)), number, "{text}");
        }
    }
}
