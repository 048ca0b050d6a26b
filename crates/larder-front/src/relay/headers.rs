//! Header fields that the switch reads, and those that it adds for nodes. What happens to a client's fields stands in `enter`.

use http::HeaderValue;
use http::header::{COOKIE, HOST, HeaderName, VIA};
use larder_core::TargetId;
use larder_core::rules::Headers;
use larder_edge::Lookup;
use larder_http::h1::is_host;
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};

static LARDER_TARGET: HeaderName = HeaderName::from_static("larder-target");

/// A header of the engine as fields that can be changed. The engine keeps the spelling of names beside it.
#[derive(Debug)]
pub(super) struct Engine<'a, H>(pub(super) &'a mut H);

macro_rules! engine_fields {
    ($header:ty) => {
        impl Lookup for Engine<'_, $header> {
            fn first(&self, name: &str) -> Option<&[u8]> {
                self.0.headers.first(name)
            }
        }

        impl larder_edge::Fields for Engine<'_, $header> {
            fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
                self.0.headers.each(name)
            }

            fn remove(&mut self, name: &str) {
                self.0.remove_header(name);
            }

            fn remove_if(&mut self, is_unwanted: impl Fn(&[u8]) -> bool) -> u64 {
                let names = self.0.headers.keys().filter(|name| is_unwanted(name.as_str().as_bytes()));
                let (names, before): (Vec<_>, _) = (names.cloned().collect(), self.0.headers.len());
                for name in &names {
                    self.0.remove_header(name);
                }
                (before - self.0.headers.len()) as u64
            }

            fn set(&mut self, name: &str, value: &[u8]) {
                if self.0.insert_header(name.to_owned(), value).is_err() {
                    self.0.remove_header(name);
                }
            }

            fn add(&mut self, name: &str, value: &[u8]) {
                // Fails for what is no field.
                let _ = self.0.append_header(name.to_owned(), value);
            }
        }
    };
}

engine_fields!(RequestHeader);
engine_fields!(ResponseHeader);

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

    fn request() -> RequestHeader {
        RequestHeader::build("GET", b"/", None).expect("a header")
    }

    #[test]
    fn a_target_is_told_in_place_of_what_the_client_said() {
        let mut request = request();
        request.append_header("Larder-Target", "x").expect("appends");
        for id in [0, 0x0123_4567_89ab_cdef, u64::MAX] {
            target(&mut request, TargetId(id)).expect("sets");
            let values: Vec<_> = request.headers.get_all(&LARDER_TARGET).iter().collect();
            assert_eq!(values, [&TargetId(id).to_string()]);
        }
    }

    #[test]
    fn a_host_is_asked_for() {
        let mut request = request();
        assert!(!has_one_host(&request));
        request.append_header("Host", "a").expect("appends");
        assert!(has_one_host(&request));
        request.append_header("Host", "b").expect("appends");
        assert!(!has_one_host(&request));
        let mut old = self::request();
        old.set_version(http::Version::HTTP_10);
        assert!(has_one_host(&old));
    }
}
