//! Long-lived requests, which have a limit of their own instead of the admission limit.
//!
//! The reply decides and not the request, because a client could escape admission with a header field. Long-lived are
//! upgraded connections (101), CONNECT tunnels, streams by their media type, and replies that take long to send.

use larder_core::rules::Headers;
use larder_edge::Lookup;
use std::time::Duration;

/// Rules that classify requests as long-lived. [`larder_core::Settings::long_lived_max`] limits their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongLivedConfig {
    /// Whether upgraded connections (101, WebSocket) and CONNECT tunnels are long-lived, from the reply's header on.
    /// Default true.
    pub upgrades: bool,
    /// Whether replies of `text/event-stream` are long-lived, from the header on. Default true.
    pub event_streams: bool,
    /// Whether replies of `application/grpc` and its subtypes are long-lived, from the header on. Default true.
    pub grpc: bool,
    /// Time after which any other reply is long-lived, counted from the start of the attempt at the node; `None` for
    /// never. 1 s to 1 h. Default never.
    pub after: Option<Duration>,
}

impl Default for LongLivedConfig {
    fn default() -> Self {
        Self { upgrades: true, event_streams: true, grpc: true, after: None }
    }
}

impl LongLivedConfig {
    /// Whether a request with this reply is long-lived.
    pub(crate) fn applies_to(&self, method: &[u8], status: u16, reply: &impl Lookup) -> bool {
        if status == 101 || method == b"CONNECT" {
            return self.upgrades && status < 300;
        }
        let Some(kind) = reply.first("Content-Type") else { return false };
        self.event_streams && has_media_type(kind, b"text/event-stream")
            || self.grpc && has_media_type(kind, b"application/grpc")
    }
}

/// Whether a value has this media type, ignoring parameters and suffix (`+proto`).
fn has_media_type(value: &[u8], media_type: &[u8]) -> bool {
    let Some((start, rest)) = value.split_at_checked(media_type.len()) else { return false };
    start.eq_ignore_ascii_case(media_type) && rest.first().is_none_or(|next| b";+ \t".contains(next))
}

/// Whether a request asks for a long-lived connection. It is only a hint for the placement.
pub(crate) fn wants_long_lived(method: &[u8], fields: &dyn Headers) -> bool {
    // Clients that prefer HTTP/2 offer `h2c` with every request.
    let upgrades = || fields.get("upgrade").is_some_and(|value| !value.eq_ignore_ascii_case(b"h2c"));
    let accepts_events =
        || fields.get("accept").is_some_and(|value| has_media_type(value, b"text/event-stream"));
    method == b"CONNECT" || upgrades() || accepts_events()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_edge::Fields as _;

    fn reply(kind: &str) -> http::HeaderMap {
        let mut reply = http::HeaderMap::new();
        if !kind.is_empty() {
            reply.set("Content-Type", kind.as_bytes());
        }
        reply
    }

    #[test]
    fn long_lived_replies_have_a_status_or_media_type() {
        let all = LongLivedConfig::default();
        for (method, status, kind, lasts) in [
            (&b"GET"[..], 101, "", true),
            (&b"CONNECT"[..], 200, "", true),
            (&b"CONNECT"[..], 502, "", false),
            (&b"GET"[..], 200, "", false),
            (&b"GET"[..], 200, "text/html", false),
            (&b"GET"[..], 200, "Text/Event-Stream; charset=utf-8", true),
            (&b"GET"[..], 200, "text/event-streams", false),
            (&b"POST"[..], 200, "application/grpc", true),
            (&b"POST"[..], 200, "application/grpc+proto", true),
            (&b"POST"[..], 200, "application/grpc-web", false),
        ] {
            assert_eq!(all.applies_to(method, status, &reply(kind)), lasts, "{method:?} {status} {kind}");
        }
        // With all kinds turned off.
        let none = LongLivedConfig { upgrades: false, event_streams: false, grpc: false, after: None };
        for (method, status, kind) in [
            (&b"GET"[..], 101, ""),
            (&b"GET"[..], 200, "text/event-stream"),
            (&b"POST"[..], 200, "application/grpc"),
        ] {
            assert!(!none.applies_to(method, status, &reply(kind)), "{method:?} {status} {kind}");
        }
    }

    #[test]
    fn requests_for_long_lived_connections_are_recognized() {
        let asks = |method: &[u8], fields: Vec<(&str, &str)>| wants_long_lived(method, &fields);
        assert!(asks(b"CONNECT", vec![]));
        assert!(asks(b"GET", vec![("Upgrade", "websocket")]));
        assert!(asks(b"GET", vec![("accept", "text/event-stream")]));
        assert!(!asks(b"GET", vec![("upgrade", "h2c"), ("accept", "*/*")]));
    }
}
