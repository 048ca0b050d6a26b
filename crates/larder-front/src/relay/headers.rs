//! Header fields that a gateway owes: `X-Forwarded-For` and `Via`; and what the switch reads and adds itself.
//!
//! Hop-by-hop fields are the relay engine's business.

use crate::conn::Security;
use http::HeaderValue;
use http::header::{COOKIE, HOST, HeaderName, VIA};
use larder_core::TargetId;
use larder_core::framing::is_host;
use larder_core::rules::Headers;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};

static LARDER_TARGET: HeaderName = HeaderName::from_static("larder-target");
static CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
static CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The fields of a request, as rules and key templates read them.
#[derive(Debug)]
pub(super) struct Fields<'a>(pub(super) &'a RequestHeader);

impl Headers for Fields<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.headers.get(name).map(HeaderValue::as_bytes)
    }
}

/// Whether a request announces no body (RFC 9112 section 6.3).
pub(super) fn is_bodyless(request: &RequestHeader) -> bool {
    let length = request.headers.get(http::header::CONTENT_LENGTH);
    let upgrade = request.headers.contains_key(http::header::UPGRADE);
    !upgrade
        && !request.headers.contains_key(http::header::TRANSFER_ENCODING)
        && length.is_none_or(|length| length.as_bytes() == b"0")
}

/// Appends the client's address. Earlier values, in however many fields, become one list.
pub(super) fn forwarded_for(request: &mut RequestHeader, client: &HeaderValue) -> Result<()> {
    if !request.headers.contains_key(&X_FORWARDED_FOR) {
        return request.insert_header(X_FORWARDED_FOR.clone(), client.clone());
    }
    let mut list = Vec::new();
    for value in request.headers.get_all(&X_FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(client.as_bytes());
    // Values that were valid one by one are valid as a list.
    let list = HeaderValue::from_maybe_shared(bytes::Bytes::from(list)).unwrap_or_else(|_| client.clone());
    request.insert_header(X_FORWARDED_FOR.clone(), list)
}

/// Appends the switch to the request's `Via` (RFC 9110 section 7.6.3).
pub(super) fn via(request: &mut RequestHeader, via: &HeaderValue) -> Result<()> {
    request.append_header(VIA, via.clone()).map(|_| ())
}

/// Tells the node by which id the switch knows the target, in 16 hexadecimal digits, so that the node can speak of its
/// cache in the switch's terms whatever the key template. What a client has put there goes.
pub(super) fn target(request: &mut RequestHeader, target: TargetId) -> Result<()> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits: [u8; 16] = std::array::from_fn(|at| DIGITS[(target.0 >> (60 - 4 * at) & 15) as usize]);
    let value = HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static(""));
    request.insert_header(LARDER_TARGET.clone(), value)
}

/// Appends the switch to the reply's `Via`.
pub(super) fn via_reply(reply: &mut ResponseHeader, via: &HeaderValue) -> Result<()> {
    reply.append_header(VIA, via.clone()).map(|_| ())
}

/// Tells the node whether the request came by TLS, and whose certificate the client has shown (RFC 9440). What a client has put
/// there goes.
pub(super) fn security(request: &mut RequestHeader, security: Option<&Security>) -> Result<()> {
    let scheme = HeaderValue::from_static(if security.is_some() { "https" } else { "http" });
    request.insert_header(X_FORWARDED_PROTO.clone(), scheme)?;
    for name in [&CLIENT_CERT, &CLIENT_CERT_CHAIN] {
        request.remove_header(name);
    }
    match security.and_then(|security| security.client_cert.as_ref()) {
        Some(certificate) => request.insert_header(CLIENT_CERT.clone(), certificate.clone()),
        None => Ok(()),
    }
}

/// The host a request is for: its `Host`, or in HTTP/2 the `:authority` that stands for it (RFC 9113 section 8.3.1). Empty if
/// there is neither.
pub(super) fn host(request: &RequestHeader) -> &[u8] {
    let named = request.headers.get(HOST).map(HeaderValue::as_bytes);
    let authority = || request.uri.authority().map(|authority| authority.as_str().as_bytes());
    match request.version {
        http::Version::HTTP_2 => authority().or(named),
        _ => named,
    }
    .unwrap_or(b"")
}

/// The request's target under `https` at this port; none if it names no host.
pub(super) fn under_https(request: &RequestHeader, port: u16) -> Option<HeaderValue> {
    larder_edge::under_https(host(request), request.raw_path(), port)
}

/// Makes one field of the cookies that a client of HTTP/2 has sent in several (RFC 9113 section 8.2.3), for nodes and rules that
/// know but one.
pub(super) fn join_cookies(request: &mut RequestHeader) -> Result<()> {
    if request.version != http::Version::HTTP_2 {
        return Ok(());
    }
    let mut cookies = request.headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return Ok(()) };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    // Values that were valid one by one are valid as a list.
    let joined = HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).unwrap_or_else(|_| first.clone());
    request.insert_header(COOKIE, joined)
}

/// Whether the request names its host as RFC 9112 section 3.2 asks: one field; HTTP/1.0 may leave it out.
pub(super) fn has_one_host(request: &RequestHeader) -> bool {
    if !is_host(host(request)) {
        return false;
    }
    let hosts = request.headers.get_all(HOST).iter().count();
    if request.version == http::Version::HTTP_2 {
        return hosts <= 1 && !host(request).is_empty();
    }
    hosts == 1 || hosts == 0 && request.version < http::Version::HTTP_11
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(forwarded: &[&'static str]) -> RequestHeader {
        let mut request = RequestHeader::build("GET", b"/", None).expect("a header");
        for value in forwarded {
            request.append_header("X-Forwarded-For", *value).expect("appends");
        }
        request
    }

    #[test]
    fn the_client_is_appended_to_one_list() {
        let client = HeaderValue::from_static("192.0.2.1");
        for (before, after) in [
            (&[][..], "192.0.2.1"),
            (&["198.51.100.2"][..], "198.51.100.2, 192.0.2.1"),
            (
                &["198.51.100.2, 203.0.113.3", "10.0.0.1"][..],
                "198.51.100.2, 203.0.113.3, 10.0.0.1, 192.0.2.1",
            ),
        ] {
            let mut request = request(before);
            forwarded_for(&mut request, &client).expect("sets");
            let values: Vec<_> = request.headers.get_all(&X_FORWARDED_FOR).iter().collect();
            assert_eq!(values, [after]);
        }
    }

    #[test]
    fn a_target_is_told_in_place_of_what_the_client_said() {
        let mut request = request(&[]);
        request.append_header("Larder-Target", "x").expect("appends");
        for id in [0, 0x0123_4567_89ab_cdef, u64::MAX] {
            target(&mut request, TargetId(id)).expect("sets");
            let values: Vec<_> = request.headers.get_all(&LARDER_TARGET).iter().collect();
            assert_eq!(values, [&TargetId(id).to_string()]);
        }
    }

    #[test]
    fn a_host_is_asked_for() {
        let mut request = request(&[]);
        assert!(!has_one_host(&request));
        request.append_header("Host", "a").expect("appends");
        assert!(has_one_host(&request));
        request.append_header("Host", "b").expect("appends");
        assert!(!has_one_host(&request));
        let mut old = self::request(&[]);
        old.set_version(http::Version::HTTP_10);
        assert!(has_one_host(&old));
    }
}
