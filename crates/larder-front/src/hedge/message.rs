//! What is said on both sides of a race: the request to nodes, and the answer on the pipe to the engine, in HTTP/1.1.

use crate::relay::listed;
use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use pingora_http::RequestHeader;
use std::io;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Who is asked does not matter: each node has a client of its own.
const ANYBODY: &str = "http://node";

/// The fields that are for one connection (RFC 9110 section 7.6.1), those that `Connection` lists among them.
fn strip(fields: &mut HeaderMap) {
    for name in listed(fields).iter().chain([&CONNECTION, &TRANSFER_ENCODING, &TE, &UPGRADE]) {
        fields.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        fields.remove(name);
    }
}

/// The target as the client of HTTP takes it; `None` for one that it would refuse, or write otherwise.
pub(super) fn uri(path: &[u8]) -> Option<Uri> {
    let path = std::str::from_utf8(path).ok().filter(|path| path.starts_with('/'))?;
    let uri: Uri = format!("{ANYBODY}{path}").parse().ok()?;
    (uri.path_and_query().map(http::uri::PathAndQuery::as_str) == Some(path)).then_some(uri)
}

/// The request to a node, without a body.
pub(super) fn request(header: &RequestHeader) -> Option<Request<Empty<Bytes>>> {
    let mut fields = header.headers.clone();
    strip(&mut fields);
    let mut request = Request::new(Empty::new());
    *request.method_mut() = header.method.clone();
    *request.uri_mut() = uri(header.raw_path())?;
    *request.headers_mut() = fields;
    Some(request)
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// There is none.
    AtOnce,
    /// By its length.
    ByLength,
    /// By an empty chunk.
    Chunked,
}

/// Whether the end of a reply is where its header says: with codings other than `chunked` the engine refuses it too.
pub(super) fn is_framed(fields: &HeaderMap) -> bool {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    let chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    codings.next().is_none_or(|first| chunked(first) && codings.next().is_none())
}

/// The beginning of the answer, as the engine is told it.
fn head(method: &Method, status: StatusCode, mut fields: HeaderMap) -> (Vec<u8>, Ends) {
    if fields.contains_key(TRANSFER_ENCODING) {
        // Which counts for nothing beside chunks (RFC 9112 section 6.3).
        fields.remove(CONTENT_LENGTH);
    }
    strip(&mut fields);
    let bodyless = method == Method::HEAD || matches!(status.as_u16(), 204 | 304);
    let ends = match (bodyless, fields.contains_key(CONTENT_LENGTH)) {
        (true, _) => Ends::AtOnce,
        (false, true) => Ends::ByLength,
        (false, false) => Ends::Chunked,
    };
    if ends == Ends::Chunked {
        fields.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    } else {
        fields.remove(TRAILER);
    }
    // The pipe is for one request.
    fields.insert(CONNECTION, HeaderValue::from_static("close"));
    let mut head =
        format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or("")).into_bytes();
    for (name, value) in &fields {
        field(&mut head, name, value);
    }
    head.extend_from_slice(b"\r\n");
    (head, ends)
}

fn field(to: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    to.extend_from_slice(name.as_str().as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value.as_bytes());
    to.extend_from_slice(b"\r\n");
}

/// Tells the engine a node's answer. What breaks off does so on the pipe too: its end is not written.
pub(super) async fn tell(
    method: &Method,
    reply: http::Response<Incoming>,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let (parts, mut body) = reply.into_parts();
    let (head, ends) = head(method, parts.status, parts.headers);
    to.write_all(&head).await?;
    if ends == Ends::AtOnce {
        return to.flush().await;
    }
    let mut trailers = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame.map_err(io::Error::other)?.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if ends == Ends::ByLength => to.write_all(&data).await?,
            Ok(data) => {
                to.write_all(format!("{:x}\r\n", data.len()).as_bytes()).await?;
                to.write_all(&data).await?;
                to.write_all(b"\r\n").await?;
            }
            Err(frame) => {
                let fields = frame.into_trailers().unwrap_or_default();
                fields.iter().for_each(|(name, value)| field(&mut trailers, name, value));
            }
        }
    }
    if ends == Ends::Chunked {
        to.write_all(&[b"0\r\n", &*trailers, b"\r\n"].concat()).await?;
    }
    to.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(method: &Method, status: u16, fields: &[(&'static str, &'static str)]) -> (String, Ends) {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let status = StatusCode::from_u16(status).expect("a status");
        let (head, ends) = head(method, status, fields.collect());
        (String::from_utf8(head).expect("text"), ends)
    }

    #[test]
    fn the_end_of_a_body_is_told_as_it_is() {
        let (text, ends) = told(&Method::GET, 200, &[("content-length", "3"), ("etag", "\"1\"")]);
        let expected = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\netag: \"1\"\r\nconnection: close\r\n\r\n";
        assert_eq!((&*text, ends), (expected, Ends::ByLength));
        // A length beside chunks counts for nothing.
        let both = [("content-length", "3"), ("transfer-encoding", "chunked"), ("trailer", "x-end")];
        let (text, ends) = told(&Method::GET, 200, &both);
        assert_eq!(ends, Ends::Chunked);
        assert!(
            !text.contains("content-length") && text.contains("transfer-encoding: chunked\r\n"),
            "{text}"
        );
        assert!(text.contains("trailer: x-end\r\n"), "{text}");
        for (method, status) in [(Method::HEAD, 200), (Method::GET, 204), (Method::GET, 304)] {
            let (text, ends) = told(&method, status, &[("etag", "\"1\"")]);
            assert_eq!(ends, Ends::AtOnce);
            assert!(!text.contains("transfer-encoding"), "{text}");
        }
        assert_eq!(told(&Method::GET, 200, &[]).1, Ends::Chunked, "until the node closes");
    }

    #[test]
    fn what_is_for_one_connection_stays_there() {
        let fields =
            [("connection", "keep-alive, X-Own"), ("x-own", "1"), ("keep-alive", "timeout=5"), ("x-a", "2")];
        let (text, _) = told(&Method::GET, 200, &fields);
        assert!(
            !text.contains("own") && !text.contains("keep-alive") && text.contains("x-a: 2\r\n"),
            "{text}"
        );
    }

    #[test]
    fn only_chunks_are_framing() {
        for (codings, framed) in [
            (&[][..], true),
            (&["chunked"], true),
            (&[" Chunked "], true),
            (&["gzip, chunked"], false),
            (&["gzip"], false),
            (&["chunked", "chunked"], false),
        ] {
            let fields = codings.iter().map(|coding| (TRANSFER_ENCODING, HeaderValue::from_static(coding)));
            let mut map = HeaderMap::new();
            fields.for_each(|(name, value)| _ = map.append(name, value));
            assert_eq!(is_framed(&map), framed, "{codings:?}");
        }
    }

    #[test]
    fn targets_that_would_be_written_otherwise_are_none() {
        for path in ["/", "/a/b?c=d&e", "//a", "/%2e/.."] {
            assert_eq!(
                uri(path.as_bytes()).expect(path).path_and_query().map(ToString::to_string).as_deref(),
                Some(path)
            );
        }
        for path in [&b"*"[..], b"a", b"/\xff", b"/a#b", b"http://h/", b""] {
            assert_eq!(uri(path), None, "{path:?}");
        }
    }
}
