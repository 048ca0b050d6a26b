//! Heads as the types of crate `http`, and these as heads.

use crate::h1::{Fault, Field, FieldName, Fields, ReplyHead, RequestHead, Version};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, response};

/// A request without its body. `None` if a type of `http` cannot express it.
pub fn request(head: &RequestHead) -> Option<Request<()>> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(head.method()).ok()?;
    *request.uri_mut() = Uri::try_from(head.target()).ok()?;
    *request.version_mut() = match head.version() {
        Version::Http10 => http::Version::HTTP_10,
        Version::Http11 => http::Version::HTTP_11,
        Version::Http2 => http::Version::HTTP_2,
    };
    *request.headers_mut() = fields(&head.fields, |_| true)?;
    Some(request)
}

/// A reply in the form of HTTP/2: without the fields that concern a connection. `None` if `http` cannot express it.
pub fn reply(head: &ReplyHead) -> Option<Response<()>> {
    let mut reply = Response::new(());
    *reply.status_mut() = StatusCode::from_u16(head.status()).ok()?;
    *reply.headers_mut() = fields(&head.fields, |field| {
        !matches!(field.kind, FieldName::Connection | FieldName::TransferEncoding | FieldName::Upgrade)
    })?;
    Some(reply)
}

/// The head of a reply, with all its fields.
///
/// # Errors
/// There are more fields than a head may have.
pub fn reply_head(reply: &response::Parts) -> Result<ReplyHead, Fault> {
    let mut head = ReplyHead::with_status(reply.status.as_u16());
    for (name, value) in &reply.headers {
        append(&mut head, name, value)?;
    }
    Ok(head)
}

/// Adds a field to a reply, without the checks that its types have done.
///
/// # Errors
/// There are as many fields as a head may have.
pub fn append(head: &mut ReplyHead, name: &HeaderName, value: &HeaderValue) -> Result<(), Fault> {
    head.fields.append_valid(name.as_str().as_bytes(), value.as_bytes())
}

fn fields(fields: &Fields, keep: impl Fn(Field<'_>) -> bool) -> Option<HeaderMap> {
    // All values share one allocation.
    let text = Bytes::copy_from_slice(fields.text());
    let mut map = HeaderMap::with_capacity(fields.len());
    for (field, place) in fields.places().filter(|(field, _)| keep(*field)) {
        let value = HeaderValue::from_maybe_shared(text.slice(place)).ok()?;
        map.append(HeaderName::from_bytes(field.name).ok()?, value);
    }
    Some(map)
}
