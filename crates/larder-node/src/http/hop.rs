//! Header fields between this node and the switch, peer or origin next to it.

use http::header::{self, HeaderMap, HeaderName};
use larder_core::TargetId;

/// The request header in which a switch tells the target's id.
pub(crate) const TARGET: HeaderName = HeaderName::from_static("larder-target");

/// How many requests the connection has brought, this one included; good only in the request by which a peer hands it over.
pub(crate) const REQUESTS: HeaderName = HeaderName::from_static("larder-requests");
/// Fields of one connection. `Upgrade` is among them, because a node switches no protocols.
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

/// Returns the target's id as a switch told it; `None` if it told none, or none that can be read.
pub(crate) fn told(headers: &HeaderMap) -> Option<TargetId> {
    let digits = headers.get(TARGET)?.to_str().ok()?;
    let plain = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok().map(TargetId)).flatten()
}

/// Whether a gateway has relayed the request.
pub(crate) fn is_relayed(headers: &HeaderMap) -> bool {
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    [header::VIA, header::FORWARDED, FORWARDED_FOR].iter().any(|name| headers.contains_key(name))
}

/// The header of a request that has entered, as it leaves this node.
pub(crate) fn hop_fields_removed(headers: &HeaderMap) -> HeaderMap {
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
            assert_eq!(told(&headers("larder-target", value)), id, "{value}");
        }
        assert_eq!(told(&HeaderMap::new()), None);
    }

    #[test]
    fn what_a_gateway_sends_is_told_apart() {
        assert!(is_relayed(&headers("via", "1.1 larder")));
        assert!(is_relayed(&headers("x-forwarded-for", "192.0.2.1")));
        assert!(is_relayed(&headers("forwarded", "for=192.0.2.1")));
        assert!(!is_relayed(&headers("host", "a")));
    }
}
