//! The page of `larder_status`.

use super::upstream::of_cycle;
use super::{OK, bytes, guard, ngx_int_t, sys, text};
use crate::status;
use std::ptr;

/// Replies to a request.
pub(super) unsafe extern "C" fn handle(request: *mut sys::ngx_http_request_t) -> ngx_int_t {
    let error = sys::NGX_HTTP_INTERNAL_SERVER_ERROR as ngx_int_t;
    // SAFETY: nginx passes a valid request.
    guard("larder_status", error, || reply(unsafe { &mut *request }))
}

fn reply(request: &mut sys::ngx_http_request_t) -> ngx_int_t {
    if request.method & (sys::NGX_HTTP_GET | sys::NGX_HTTP_HEAD) as usize == 0 {
        return sys::NGX_HTTP_NOT_ALLOWED as ngx_int_t;
    }
    // SAFETY: the request is valid.
    let discarded = unsafe { sys::ngx_http_discard_request_body(request) };
    if discarded != OK {
        return discarded;
    }
    // SAFETY: nginx has a cycle while it serves requests.
    let upstreams = unsafe { of_cycle(sys::ngx_cycle) };
    let shown: Vec<_> =
        upstreams.iter().filter_map(|upstream| Some((upstream.name(), upstream.shared()?))).collect();
    // SAFETY: the texts live as long as the request.
    let (path, query) = unsafe { (bytes(request.uri), bytes(request.args)) };
    let (path, query) = (String::from_utf8_lossy(path), String::from_utf8_lossy(query));
    let (status, body) = status::reply(&shown, &path, &query);
    send(request, status, &body)
}

fn send(request: &mut sys::ngx_http_request_t, status: u16, body: &str) -> ngx_int_t {
    let content_type = text("application/json");
    let head = &mut request.headers_out;
    head.status = status.into();
    head.content_length_n = i64::try_from(body.len()).unwrap_or_default();
    head.content_type_len = content_type.len;
    head.content_type = content_type;
    // SAFETY: the request is valid.
    let sent = unsafe { sys::ngx_http_send_header(request) };
    if sent != OK || request.header_only() != 0 {
        return sent;
    }
    // SAFETY: as above.
    let buffer = unsafe { sys::ngx_create_temp_buf(request.pool, body.len()).as_mut() };
    let Some(buffer) = buffer else { return sys::NGX_ERROR as ngx_int_t };
    // SAFETY: the buffer has room for so many bytes.
    unsafe { buffer.pos.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
    // SAFETY: as above.
    buffer.last = unsafe { buffer.pos.add(body.len()) };
    buffer.set_last_buf((ptr::eq(request, request.main)).into());
    buffer.set_last_in_chain(1);
    let mut chain = sys::ngx_chain_t { buf: buffer, next: ptr::null_mut() };
    // SAFETY: nginx copies the chain before it returns.
    unsafe { sys::ngx_http_output_filter(request, &raw mut chain) }
}
