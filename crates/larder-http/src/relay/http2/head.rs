//! Conversion of heads between HTTP/2 and the types of the relay.

use crate::h1::{Fault, RequestHead};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Reads the head of a request (RFC 9113 section 8.3.1). The h2 crate has already refused connection-specific
/// fields, missing or repeated pseudo-header fields, and names with upper-case letters.
///
/// `has_body` is true if the end of the stream has not arrived with the head.
pub(super) fn read_request(head: &mut RequestHead, request: &Parts, has_body: bool) -> Result<(), Fault> {
    let target = request.uri.path_and_query().map_or("", |target| target.as_str());
    head.begin(request.method.as_str().as_bytes(), target.as_bytes())?;
    let authority = request.uri.authority().map(|authority| authority.as_str().as_bytes());
    if let Some(authority) = authority {
        head.fields.append(b"Host", authority)?;
    }
    let (mut has_cookie, mut has_host) = (false, false);
    for (name, value) in &request.headers {
        let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
        match (name, authority) {
            // `Host` must be equal to `:authority`.
            (b"host", Some(authority)) if !has_host && value.eq_ignore_ascii_case(authority) => {
                has_host = true;
            }
            (b"host", Some(_)) => return Err(Fault::Host),
            // All cookies are joined into one field, because HTTP/1 servers expect one field (RFC 9113
            // section 8.2.3).
            (b"cookie", _) if std::mem::replace(&mut has_cookie, true) => {}
            (b"cookie", _) => append_cookies(head, &request.headers)?,
            _ => head.fields.append(name, value)?,
        }
    }
    head.end(has_body)
}

/// Appends one field with all cookies.
fn append_cookies(head: &mut RequestHead, fields: &HeaderMap) -> Result<(), Fault> {
    let mut cookies = fields.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
    match (cookies.next(), cookies.next()) {
        (Some(only), None) => head.fields.append(b"cookie", only),
        (Some(first), Some(second)) => {
            let all: Vec<&[u8]> = [first, second].into_iter().chain(cookies).collect();
            head.fields.append(b"cookie", &all.join(&b"; "[..]))
        }
        (None, _) => Ok(()),
    }
}

/// Converts trailer field lines. Lines that HTTP/2 cannot express are left out.
pub(super) fn trailers(lines: &[u8]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            fields.append(name, value);
        }
    }
    fields
}
