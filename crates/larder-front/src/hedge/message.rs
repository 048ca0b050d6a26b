//! What is said on both sides of a race: the request to nodes, and the answer on the pipe to the engine, in HTTP/1.1.

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
    let listed: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in listed.iter().chain([&CONNECTION, &TRANSFER_ENCODING, &TE, &UPGRADE]) {
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

/// The beginning of the answer, as the engine is told it.
fn head(method: &Method, status: StatusCode, mut fields: HeaderMap) -> (Vec<u8>, Ends) {
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
