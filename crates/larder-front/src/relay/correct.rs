//! What HTTP asks of a gateway and the relay engine does not do: targets without a host, requests that go no further, fields of
//! one hop in replies, replies that an old client would not understand.

use super::{Context, Relay, headers};
use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, MAX_FORWARDS, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use pingora_core::ErrorType;
use pingora_error::{Error, ErrorSource, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

/// What the switch answers to requests that end here.
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// The path and query of a target in absolute-form, which is how a node is asked (RFC 9112 section 3.2.1); none for others.
fn origin_form(target: &[u8], method: &Method) -> Option<Vec<u8>> {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    })?;
    Some(match rest.iter().position(|byte| matches!(byte, b'/' | b'?')) {
        Some(at) if rest[at] == b'/' => rest[at..].to_vec(),
        Some(at) => [b"/", &rest[at..]].concat(),
        // RFC 9112 section 3.2.4.
        None if *method == Method::OPTIONS => b"*".to_vec(),
        None => b"/".to_vec(),
    })
}

/// Gives the target the form that rules, keys and nodes expect.
pub(super) fn target(request: &mut RequestHeader) -> Result<()> {
    match origin_form(request.raw_path(), &request.method) {
        Some(path) => request.set_raw_path(&path),
        None => Ok(()),
    }
}

/// A stream of HTTP/2 that says it has no body and goes on all the same is not over: what it brings must not become another
/// request, nor may this one be served before it turns out to be malformed (RFC 9113 section 8.1.1).
pub(super) fn body(session: &mut Session) -> Result<()> {
    let request = session.req_header();
    if request.version != Version::HTTP_2
        || request.headers.get(CONTENT_LENGTH).is_none_or(|length| length != "0")
    {
        return Ok(());
    }
    session.req_header_mut().remove_header(&CONTENT_LENGTH);
    if session.is_body_empty() { session.req_header_mut().insert_header(CONTENT_LENGTH, 0) } else { Ok(()) }
}

/// Counts a hop of a request that has only so many (RFC 9110 section 7.6.2). Whether it may go on.
fn hop(request: &mut RequestHeader) -> Result<bool> {
    if !matches!(request.method, Method::OPTIONS | Method::TRACE) {
        return Ok(true);
    }
    let hops = request.headers.get(MAX_FORWARDS).and_then(|hops| hops.to_str().ok()?.parse::<u32>().ok());
    match hops {
        None => Ok(true),
        Some(0) => Ok(false),
        Some(hops) => request.insert_header(MAX_FORWARDS, hops - 1).map(|()| true),
    }
}

/// What a request of HTTP/1.0 may lack as one of HTTP/1.1: its host (RFC 9112 section 3.2).
pub(super) fn as_http1(request: &mut RequestHeader) -> Result<()> {
    if headers::host(request).is_empty() && !request.headers.contains_key(HOST) {
        request.insert_header(HOST, HeaderValue::from_static(""))?;
    }
    Ok(())
}

/// Holds the header of a node's final reply against the request, and makes it one for the client.
pub(super) fn reply(session: &mut Session, reply: &mut ResponseHeader) -> Result<()> {
    let request = session.req_header();
    let upgrade = request.headers.contains_key(UPGRADE);
    if reply.status == StatusCode::SWITCHING_PROTOCOLS {
        // Nobody has asked for another protocol (RFC 9110 section 15.2.2).
        return if upgrade {
            Ok(())
        } else {
            Err(Error::create(ErrorType::InvalidHTTPHeader, ErrorSource::Upstream, None, None))
        };
    }
    if reply.headers.contains_key(CONNECTION) {
        for name in named(reply) {
            reply.remove_header(&name);
        }
    }
    Ok(())
}

/// The fields that `Connection` says are of this hop alone (RFC 9110 section 7.6.1).
pub(crate) fn listed(fields: &HeaderMap) -> Vec<HeaderName> {
    let values = fields.get_all(CONNECTION).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect()
}

/// The same of a reply, but for those that say where it ends.
fn named(reply: &ResponseHeader) -> Vec<HeaderName> {
    let mut names = listed(&reply.headers);
    names.retain(|name| *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING && *name != CONNECTION);
    names
}

impl Relay {
    /// Answers a request that may go no further; false if it may.
    pub(super) async fn ends_here(&self, session: &mut Session, context: &Context) -> Result<bool> {
        if hop(session.req_header_mut())? {
            return Ok(false);
        }
        let options = session.req_header().method == Method::OPTIONS;
        let status = if options { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        let mut reply = ResponseHeader::build(status, Some(4))?;
        reply.insert_header(ALLOW, ALLOWED)?;
        reply.insert_header(CONTENT_LENGTH, 0)?;
        self.write_own(session, context, reply, Bytes::new()).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, fields: &[(&'static str, &'static str)]) -> RequestHeader {
        let mut request = RequestHeader::build(method, b"/", None).expect("a header");
        for (name, value) in fields {
            request.append_header(*name, *value).expect("appends");
        }
        request
    }

    #[test]
    fn a_target_loses_its_host() {
        for (method, given, path) in [
            ("GET", "http://a/b?c", Some("/b?c")),
            ("GET", "HTTPS://a:1?c", Some("/?c")),
            ("GET", "http://a", Some("/")),
            ("OPTIONS", "http://a", Some("*")),
            ("GET", "/http://a/b", None),
            ("OPTIONS", "*", None),
        ] {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(origin_form(given.as_bytes(), &method).as_deref(), path.map(str::as_bytes), "{given}");
        }
    }

    #[test]
    fn hops_are_counted_where_they_count() {
        let mut last = request("OPTIONS", &[("Max-Forwards", "0")]);
        assert!(!hop(&mut last).expect("counts"));
        let mut more = request("TRACE", &[("Max-Forwards", "7")]);
        assert!(hop(&mut more).expect("counts"));
        assert_eq!(more.headers[MAX_FORWARDS], "6");
        for fields in [("GET", "0"), ("TRACE", "many"), ("TRACE", "-1")] {
            let mut other = request(fields.0, &[("Max-Forwards", fields.1)]);
            assert!(hop(&mut other).expect("counts"));
            assert_eq!(other.headers[MAX_FORWARDS], fields.1);
        }
    }

    #[test]
    fn a_host_is_never_missing() {
        for (fields, host) in [(&[][..], ""), (&[("Host", "h")][..], "h")] {
            let mut old = request("GET", fields);
            as_http1(&mut old).expect("sets");
            assert_eq!(old.headers[HOST], host);
        }
    }

    #[test]
    fn fields_of_one_hop_are_found_but_for_those_that_end_the_reply() {
        let mut reply = ResponseHeader::build(200, None).expect("a header");
        reply.append_header(CONNECTION, "X-Hop , content-length").expect("appends");
        reply.append_header(CONNECTION, "x-other").expect("appends");
        assert_eq!(named(&reply), ["x-hop", "x-other"]);
    }
}
