//! A request of HTTP/2 in the form that HTTP/1 has it, or none if it could be read in two ways there.
//!
//! h2 has refused by then what breaks the rules of HTTP/2 itself: fields of the connection, control characters, lengths that are not
//! those of the body. What is left is held to what [`larder_http::h1`] asks of HTTP/1.

use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Uri};
use larder_http::h1::is_host;

/// Gives a request the path as its target, one `Host`, one `Cookie` and a plain length (RFC 9113 sections 8.2.3 and 8.3.1). `None` if it
/// has no host or no path, or one that could be taken for another; `empty`: whether it has no body.
pub(super) fn as_http1(parts: &mut Parts, empty: bool) -> Option<()> {
    let host = host(parts)?;
    let target = parts.uri.path_and_query().filter(|target| is_target(target, &parts.method))?.clone();
    if parts.method == Method::TRACE && !empty {
        return None;
    }
    let headers = &mut parts.headers;
    plain_length(headers)?;
    one_cookie(headers)?;
    headers.insert(header::HOST, host);
    parts.uri = Uri::from(target);
    Some(())
}

/// Whom it is for, said once, or twice alike.
fn host(parts: &Parts) -> Option<HeaderValue> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (host, further) = (hosts.next(), hosts.next());
    let host = match (parts.uri.authority(), host) {
        (Some(authority), host) => {
            let authority = authority.as_str().as_bytes();
            host.is_none_or(|host| host.as_bytes().eq_ignore_ascii_case(authority)).then_some(authority)?
        }
        (None, host) => host?.as_bytes(),
    };
    (further.is_none() && is_host(host)).then(|| HeaderValue::from_bytes(host).ok())?
}

fn is_target(target: &PathAndQuery, method: &Method) -> bool {
    let target = target.as_str().as_bytes();
    let begins = target.starts_with(b"/") || (target == b"*" && method == Method::OPTIONS);
    begins && target.iter().all(u8::is_ascii_graphic)
}

/// One length, in plain digits without sign or space.
fn plain_length(headers: &mut HeaderMap) -> Option<()> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(length), further) = (lengths.next(), lengths.next()) else { return Some(()) };
    let digits = length
        .to_str()
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))?;
    let length: u64 = digits.parse().ok().filter(|length| *length <= i64::MAX as u64)?;
    if further.is_some() {
        return None;
    }
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Some(())
}

/// Cookies come in several fields, so that they compress.
fn one_cookie(headers: &mut HeaderMap) -> Option<()> {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1 {
        let cookie = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])).ok()?;
        headers.insert(header::COOKIE, cookie);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn read(method: &str, uri: &str, fields: &[(&'static str, &str)]) -> Option<Parts> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).ok()?.into_parts().0;
        as_http1(&mut parts, true).map(|()| parts)
    }

    #[test]
    fn a_request_gets_its_form() {
        let fields = [("cookie", "a=1"), ("cookie", "b=2"), ("content-length", "007")];
        let parts = read("GET", "https://a.test:8443/x?y", &fields).unwrap();
        assert_eq!(parts.uri, "/x?y");
        let all = |name| parts.headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(all("host"), ["a.test:8443"]);
        assert_eq!(all("cookie"), ["a=1; b=2"]);
        assert_eq!(all("content-length"), ["7"]);
        assert_eq!(read("GET", "/x", &[("host", "a.test")]).unwrap().headers["host"], "a.test");
        assert!(read("GET", "https://A.test/", &[("host", "a.TEST")]).is_some());
        assert!(read("OPTIONS", "*", &[("host", "a.test")]).is_some());
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_none() {
        let a = "https://a.test/";
        for (what, method, uri, fields) in [
            ("no host", "GET", "/x", &[][..]),
            ("another host", "GET", a, &[("host", "b.test")]),
            ("two hosts", "GET", a, &[("host", "a.test"), ("host", "a.test")]),
            ("a list of hosts", "GET", "https://a.test,b.test/", &[]),
            ("a user", "GET", "https://u@a.test/", &[]),
            ("a host with a path", "GET", "/x", &[("host", "a.test/x")]),
            ("no path", "CONNECT", "a.test:443", &[]),
            ("an asterisk", "GET", "*", &[("host", "a.test")]),
            ("bytes above 127", "GET", "https://a.test/\u{fc}", &[]),
            ("an empty length", "GET", a, &[("content-length", "")]),
            ("a signed length", "GET", a, &[("content-length", "+5")]),
            ("a length twice", "GET", a, &[("content-length", "5"), ("content-length", "5")]),
            ("a length too large", "GET", a, &[("content-length", "9223372036854775808")]),
        ] {
            assert!(read(method, uri, fields).is_none(), "{what}");
        }
        let mut parts = Request::builder().method("TRACE").uri(a).body(()).unwrap().into_parts().0;
        assert!(as_http1(&mut parts.clone(), true).is_some() && as_http1(&mut parts, false).is_none());
    }
}
