//! Header fields between this node and the next switch, peer or origin.

use http::header::{self, HeaderMap, HeaderName};
use larder_core::TargetId;

/// Request header in which a switch sends the target's id.
pub(crate) const LARDER_TARGET: HeaderName = HeaderName::from_static("larder-target");

/// Request header with the number of requests on the connection, including this one. It counts only in the
/// request with which a peer hands the connection off.
pub(crate) const LARDER_REQUESTS: HeaderName = HeaderName::from_static("larder-requests");
/// Hop-by-hop fields. `Upgrade` is among them, because a node switches protocols only for tunnels, which set it
/// again.
pub(crate) const HOP_BY_HOP: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Returns the target's id from the switch; `None` if it is missing or invalid.
pub(crate) fn target_id(headers: &HeaderMap) -> Option<TargetId> {
    let digits = headers.get(LARDER_TARGET)?.to_str().ok()?;
    let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok().map(TargetId)).flatten()
}

/// Returns whether a gateway has relayed the request.
pub(crate) fn is_relayed(headers: &HeaderMap) -> bool {
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    [header::VIA, header::FORWARDED, FORWARDED_FOR].iter().any(|name| headers.contains_key(name))
}

/// Returns the header of an admitted request without the remaining hop-by-hop fields.
pub(crate) fn without_hop_fields(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    headers.remove(header::CONNECTION);
    headers.remove(header::TRANSFER_ENCODING);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn an_id_is_sixteen_digits() {
        for (value, id) in [
            ("00000000000000ff", Some(TargetId(255))),
            ("FFFFFFFFFFFFFFFF", Some(TargetId(u64::MAX))),
            ("ff", None),
            ("+0000000000000ff", None),
            ("000000000000000ff", None),
            ("000000000000000g", None),
            ("", None),
        ] {
            assert_eq!(target_id(&headers("larder-target", value)), id, "{value}");
        }
        assert_eq!(target_id(&HeaderMap::new()), None);
    }

    #[test]
    fn requests_of_a_gateway_are_recognized() {
        assert!(is_relayed(&headers("via", "1.1 larder")));
        assert!(is_relayed(&headers("x-forwarded-for", "192.0.2.1")));
        assert!(is_relayed(&headers("forwarded", "for=192.0.2.1")));
        assert!(!is_relayed(&headers("host", "a")));
    }
}
