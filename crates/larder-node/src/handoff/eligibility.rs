//! The decision whether a request for a peer is handed off with its connection or relayed, with the reason.

use super::relay_reason::RelayReason;
use super::request_counter::announces_close;
use super::{PeerHandoff, lock};
use crate::config::Limits;
use crate::http::hop::{LARDER_REQUESTS, LARDER_TARGET};
use crate::http::range::{self, Range};
use http::header::{self, HeaderName};
use http::request::Parts;
use http::{Method, Version};
use larder_core::{Bytes, TargetId, life_table};
use larder_kernel::FlowKey;
use larder_peers::Name;

/// The facts about the connection that carried a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionStatus {
    /// The flow key; `None` if the connection cannot be handed off.
    pub(crate) flow: Option<FlowKey>,
    /// Number of requests on the connection, including this one; 0 if the number is unknown.
    pub(crate) requests: u32,
}

impl PeerHandoff {
    /// Returns the flow key and the head of the request if the connection is handed off; otherwise the reason,
    /// which is counted.
    pub(crate) fn decide(
        &self,
        to: &Name,
        parts: &Parts,
        target: TargetId,
        status: ConnectionStatus,
        limits: &Limits,
    ) -> Result<(FlowKey, Vec<u8>), RelayReason> {
        let checked = self.check(to, parts, target, status);
        let chosen = checked.and_then(|flow| {
            let head = serialize_head(parts, status.requests, limits).ok_or(RelayReason::Request)?;
            Ok((flow, head))
        });
        if let Err(reason) = &chosen {
            self.counts.add(*reason);
        }
        chosen
    }

    fn check(
        &self,
        to: &Name,
        parts: &Parts,
        target: TargetId,
        status: ConnectionStatus,
    ) -> Result<FlowKey, RelayReason> {
        let whole = lock(&self.sizes).get(target).ok_or(RelayReason::SizeUnknown)?;
        if whole < self.min {
            return Err(RelayReason::Small);
        }
        let flow = status.flow.ok_or(RelayReason::Elsewhere)?;
        let requested_len = requested_bytes(parts, whole).ok_or(RelayReason::Request)?;
        if requested_len < self.min {
            return Err(RelayReason::Small);
        }
        let state = self.state();
        if state.find_place(self.now(), to, flow.service).is_none() {
            return Err(RelayReason::Peer);
        }
        if state.handoff.is_full() {
            return Err(RelayReason::Full);
        }
        drop(state);
        if !life_table::is_handoff_worthwhile(
            requested_len,
            self.min,
            self.expected_requests(parts, status.requests),
        ) {
            return Err(RelayReason::Kept);
        }
        Ok(flow)
    }

    /// Returns the expected number of requests after this one, which is the `requests`th of its connection.
    fn expected_requests(&self, parts: &Parts, requests: u32) -> f64 {
        if announces_close(parts) { 0.0 } else { lock(&self.kept).expected_requests(requests) }
    }

    /// Counts a connection that was to be handed off and stays.
    pub(super) fn count_relay(&self, reason: RelayReason) {
        self.counts.add(reason);
    }
}

/// Returns the bytes that a plain GET asks of a target of this size; `None` if the request is not plain or the
/// number is unknown. If the target has changed since, the number may be wrong.
fn requested_bytes(parts: &Parts, whole: Bytes) -> Option<Bytes> {
    const EXCLUDED_FIELDS: [HeaderName; 8] = [
        header::EXPECT,
        header::UPGRADE,
        header::TRANSFER_ENCODING,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
        header::IF_RANGE,
    ];
    let plain = parts.method == Method::GET && parts.version == Version::HTTP_11;
    if !plain || EXCLUDED_FIELDS.iter().any(|name| parts.headers.contains_key(name)) {
        return None;
    }
    let mut ranges = parts.headers.get_all(header::RANGE).iter();
    match (ranges.next(), ranges.next()) {
        (None, _) => Some(whole),
        (Some(one), None) => match range::parse(one.as_bytes(), whole.0) {
            Range::Part { first, last } => Some(Bytes(last - first + 1)),
            Range::Whole | Range::Unsatisfiable => None,
        },
        (Some(_), Some(_)) => None,
    }
}

/// Serializes the head of a plain GET, with the number of requests on its connection. Returns `None` if a node
/// with these limits would refuse the head. Field names are in lower case, which is equivalent (RFC 9110
/// section 5.1). The number is left out if the client's head leaves no room for it.
fn serialize_head(parts: &Parts, requests: u32, limits: &Limits) -> Option<Vec<u8>> {
    let mut head = match parts.uri.authority() {
        None => format!("GET {} HTTP/1.1\r\n", parts.uri.path_and_query()?).into_bytes(),
        Some(_) => format!("GET {} HTTP/1.1\r\n", parts.uri).into_bytes(),
    };
    let mut fields = 0;
    for (name, value) in
        parts.headers.iter().filter(|(name, _)| ![LARDER_TARGET, LARDER_REQUESTS].contains(*name))
    {
        fields += 1;
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    let end = b"\r\n";
    let number = format!("{LARDER_REQUESTS}: {requests}\r\n");
    if requests > 0
        && fields < limits.headers_max
        && head.len() + number.len() + end.len() <= limits.head_bytes_max
    {
        head.extend_from_slice(number.as_bytes());
    }
    head.extend_from_slice(end);
    // This node may have added fields.
    (fields <= limits.headers_max && head.len() <= limits.head_bytes_max).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).expect("a request").into_parts().0
    }

    fn head(request: http::request::Builder) -> Option<String> {
        let bytes = serialize_head(&parts(request), 0, &Limits::default())?;
        Some(String::from_utf8(bytes).expect("text"))
    }

    fn requested(request: http::request::Builder) -> Option<u64> {
        requested_bytes(&parts(request), Bytes(1_000)).map(|bytes| bytes.0)
    }

    #[test]
    fn an_eligible_request_is_serialized_to_its_bytes() {
        let get = |uri| Request::get(uri).header("host", "h");
        let twice = get("/a%20b?c").header("accept", "x").header("accept", "y").header(LARDER_TARGET, "7");
        assert_eq!(
            head(twice).as_deref(),
            Some("GET /a%20b?c HTTP/1.1\r\nhost: h\r\naccept: x\r\naccept: y\r\n\r\n")
        );
        assert_eq!(
            head(get("http://h/a")).as_deref(),
            Some("GET http://h/a HTTP/1.1\r\nhost: h\r\n\r\n"),
            "in absolute form"
        );
    }

    #[test]
    fn only_a_node_sets_the_request_count() {
        let request = Request::get("/").header("host", "h").header("Larder-Requests", "9");
        let (parts, limits) = (parts(request), Limits::default());
        let head = |requests| {
            String::from_utf8(serialize_head(&parts, requests, &limits).expect("plain")).expect("text")
        };
        assert_eq!(head(3), "GET / HTTP/1.1\r\nhost: h\r\nlarder-requests: 3\r\n\r\n");
        assert_eq!(head(0), "GET / HTTP/1.1\r\nhost: h\r\n\r\n");
    }

    #[test]
    fn a_head_at_its_limits_gets_no_further_field() {
        let limits = Limits::default();
        let with = |fields: usize| {
            let request = Request::get("/").header("host", "h").header(LARDER_TARGET, "7");
            parts((1..fields).fold(request, |request, n| request.header(format!("f{n}"), "x")))
        };
        let fields = |request: &Parts, limits: &Limits| {
            let head = String::from_utf8(serialize_head(request, 3, limits).expect("a head")).expect("text");
            (head.lines().count() - 2, head.contains("larder-requests"))
        };
        assert_eq!(fields(&with(limits.headers_max - 1), &limits), (limits.headers_max, true));
        assert_eq!(fields(&with(limits.headers_max), &limits), (limits.headers_max, false));
        assert_eq!(
            serialize_head(&with(limits.headers_max + 1), 3, &limits),
            None,
            "the peer would refuse it"
        );

        let request = with(2);
        let bytes = serialize_head(&request, 3, &limits).expect("a head").len();
        let at = |head_bytes_max| Limits { head_bytes_max, ..limits };
        assert!(fields(&request, &at(bytes)).1 && !fields(&request, &at(bytes - 1)).1);
        let without = serialize_head(&request, 0, &limits).expect("a head").len();
        assert!(
            serialize_head(&request, 3, &at(without)).is_some()
                && serialize_head(&request, 3, &at(without - 1)).is_none()
        );
    }

    #[test]
    fn other_requests_are_not_eligible() {
        assert_eq!(requested(Request::get("/")), Some(1_000));
        assert_eq!(requested(Request::head("/")), None);
        assert_eq!(requested(Request::get("/").version(Version::HTTP_10)), None);
        for name in ["expect", "upgrade", "transfer-encoding"] {
            assert_eq!(requested(Request::get("/").header(name, "x")), None, "{name}");
        }
    }

    #[test]
    fn a_request_with_a_possibly_small_reply_is_not_handed_off() {
        for name in ["if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range"] {
            let request = Request::get("/").header(name, "\"x\"").header("range", "bytes=0-");
            assert_eq!(requested(request), None, "{name}");
        }
        let range = |value: &str| requested(Request::get("/").header("range", value));
        assert_eq!(range("bytes=0-0"), Some(1));
        assert_eq!(range("bytes=100-"), Some(900));
        assert_eq!(range("bytes=-10"), Some(10));
        assert_eq!(range("bytes=0-99999"), Some(1_000));
        for value in ["bytes=0-0,5-5", "lines=1-2", "bytes=2000-", "bytes"] {
            assert_eq!(range(value), None, "{value}");
        }
        let twice = Request::get("/").header("range", "bytes=0-").header("range", "bytes=1-");
        assert_eq!(requested(twice), None);
    }
}
