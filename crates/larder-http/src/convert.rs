//! Conversion of heads to and from the types of the crate `http`.

use crate::h1::{Fault, Field, FieldName, Fields, ReplyHead, RequestHead, Version};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, response};

/// Converts the head of a request.
///
/// Returns `None` if a type of the crate `http` cannot express the head.
pub fn request(head: &RequestHead) -> Option<Request<()>> {
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(head.method()).ok()?;
    *request.uri_mut() = Uri::try_from(head.target()).ok()?;
    *request.version_mut() = match head.version() {
        Version::Http10 => http::Version::HTTP_10,
        Version::Http11 => http::Version::HTTP_11,
        Version::Http2 => http::Version::HTTP_2,
    };
    *request.headers_mut() = convert_fields(&head.fields, |_| true)?;
    Some(request)
}

/// Converts the head of a reply for HTTP/2.
///
/// The fields that concern one connection are left out (RFC 9113 section 8.2.2). Returns `None` if a type of
/// the crate `http` cannot express the head.
pub fn reply(head: &ReplyHead) -> Option<Response<()>> {
    let mut reply = Response::new(());
    *reply.status_mut() = StatusCode::from_u16(head.status()).ok()?;
    *reply.headers_mut() = convert_fields(&head.fields, |field| {
        !matches!(field.kind, FieldName::Connection | FieldName::TransferEncoding | FieldName::Upgrade)
    })?;
    Some(reply)
}

/// Converts the head of a reply from the crate `http`, with all its fields.
///
/// # Errors
/// [`Fault::TooLarge`] if the reply has more fields than a head may have.
pub fn reply_head(reply: &response::Parts) -> Result<ReplyHead, Fault> {
    let mut head = ReplyHead::with_status(reply.status.as_u16());
    for (name, value) in &reply.headers {
        append(&mut head, name, value)?;
    }
    Ok(head)
}

/// Appends a field to a reply. The name and the value are not checked, because their types guarantee that
/// they are valid.
///
/// # Errors
/// [`Fault::TooLarge`] if the head already has as many fields as it may have.
pub fn append(head: &mut ReplyHead, name: &HeaderName, value: &HeaderValue) -> Result<(), Fault> {
    head.fields.append_valid(name.as_str().as_bytes(), value.as_bytes())
}

/// Converts the fields for which `keep` returns true.
fn convert_fields(fields: &Fields, keep: impl Fn(Field<'_>) -> bool) -> Option<HeaderMap> {
    // All values share one allocation.
    let text = Bytes::copy_from_slice(fields.text());
    let mut map = HeaderMap::with_capacity(fields.len());
    for (field, range) in fields.value_ranges().filter(|(field, _)| keep(*field)) {
        let value = HeaderValue::from_maybe_shared(text.slice(range)).ok()?;
        map.append(HeaderName::from_bytes(field.name).ok()?, value);
    }
    Some(map)
}
