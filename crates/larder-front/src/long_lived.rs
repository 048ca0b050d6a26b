//! Which requests are long-lived, and so leave the admission limit for one of their own.
//!
//! A client's request decides nothing, since it could escape admission with a header field. The node's reply decides: 101
//! and a tunnel of CONNECT, a stream by its media type, or any reply that takes long to send.

use larder_core::rules::Headers;
use larder_edge::Lookup;
use std::time::Duration;

/// Which requests count as long-lived. How many there may be is [`larder_core::Settings::long_lived_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongLivedConfig {
    /// Upgraded connections (101, WebSocket) and tunnels (CONNECT), from the reply's header on. Default true.
    pub upgrades: bool,
    /// Replies of `text/event-stream`, from the header on. Default true.
    pub event_streams: bool,
    /// Replies of `application/grpc` and its kinds, from the header on. Default true.
    pub grpc: bool,
    /// Any other reply once it has been under way for so long, from the request's start at the node; `None`: never. 1 s to
    /// 1 h. Never by default.
    pub after: Option<Duration>,
}

impl Default for LongLivedConfig {
    fn default() -> Self {
        Self { upgrades: true, event_streams: true, grpc: true, after: None }
    }
}

impl LongLivedConfig {
    /// Whether a request is long-lived once it has this reply.
    pub(crate) fn is_for(&self, method: &[u8], status: u16, reply: &impl Lookup) -> bool {
        if status == 101 || method == b"CONNECT" {
            return self.upgrades && status < 300;
        }
        let Some(kind) = reply.first("Content-Type") else { return false };
        self.event_streams && has_media_type(kind, b"text/event-stream")
            || self.grpc && has_media_type(kind, b"application/grpc")
    }
}

/// Whether a media type, without its parameters and its suffix (`+proto`), is this one.
fn has_media_type(value: &[u8], media_type: &[u8]) -> bool {
    let Some((start, rest)) = value.split_at_checked(media_type.len()) else { return false };
    start.eq_ignore_ascii_case(media_type) && rest.first().is_none_or(|next| b";+ \t".contains(next))
}

/// Whether a request asks for a connection that is likely to last. It is a hint for placing it, no more.
pub(crate) fn asks_to_last(method: &[u8], fields: &dyn Headers) -> bool {
    // Clients that would rather speak HTTP/2 offer that with every request.
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
    fn replies_that_last_are_told_by_status_and_media_type() {
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
            assert_eq!(all.is_for(method, status, &reply(kind)), lasts, "{method:?} {status} {kind}");
        }
        // By the list of the kinds that count.
        let none = LongLivedConfig { upgrades: false, event_streams: false, grpc: false, after: None };
        for (method, status, kind) in [
            (&b"GET"[..], 101, ""),
            (&b"GET"[..], 200, "text/event-stream"),
            (&b"POST"[..], 200, "application/grpc"),
        ] {
            assert!(!none.is_for(method, status, &reply(kind)), "{method:?} {status} {kind}");
        }
    }

    #[test]
    fn a_request_that_asks_for_a_connection_that_lasts_says_so() {
        let asks = |method: &[u8], fields: Vec<(&str, &str)>| asks_to_last(method, &fields);
        assert!(asks(b"CONNECT", vec![]));
        assert!(asks(b"GET", vec![("Upgrade", "websocket")]));
        assert!(asks(b"GET", vec![("accept", "text/event-stream")]));
        assert!(!asks(b"GET", vec![("upgrade", "h2c"), ("accept", "*/*")]));
    }
}
