//! The result of an attempt, as the dispatcher learns it.

use super::{bytes, sys};
use larder_core::CacheResult;
use larder_core::cache_status::members;
use larder_embed::{Feedback, STATUS_MAX};
use std::time::Duration;

/// The value of a time that nginx has not measured.
const NOT_MEASURED: usize = usize::MAX;

/// Returns the result of an attempt; `None` if there is none, because the client has gone.
///
/// # Safety
/// The request is valid.
pub(super) unsafe fn feedback(
    request: *mut sys::ngx_http_request_t,
    elapsed: Duration,
    has_failed: bool,
) -> Option<Feedback> {
    // SAFETY: as the caller promises.
    let upstream = unsafe { (*request).upstream.as_ref() }?;
    // SAFETY: nginx sets the state before it connects.
    let state = unsafe { upstream.state.as_ref() };
    let header_time = state.map_or(NOT_MEASURED, |state| state.header_time);
    let first_byte =
        (header_time != NOT_MEASURED).then(|| Duration::from_millis(header_time as u64).min(elapsed));
    let failed = Feedback { elapsed, first_byte, failed: true, ..Feedback::default() };
    if has_failed {
        return Some(failed);
    }
    let state = state.filter(|_| first_byte.is_some())?;
    match end(request, upstream) {
        End::Complete => Some(Feedback {
            elapsed,
            first_byte,
            bytes: u64::try_from(state.response_length).unwrap_or_default(),
            status: u16::try_from(state.status)
                .ok()
                .filter(|status| *status <= STATUS_MAX)
                .unwrap_or_default(),
            cache: found(upstream),
            failed: false,
        }),
        End::Truncated => Some(failed),
        End::Aborted => None,
    }
}

/// The end of a reply whose head has arrived.
enum End {
    Complete,
    /// The server has closed the connection before the end.
    Truncated,
    /// The client has gone.
    Aborted,
}

fn end(request: *mut sys::ngx_http_request_t, upstream: &sys::ngx_http_upstream_t) -> End {
    // SAFETY: nginx passes a valid request.
    let is_head_only = unsafe { (*request).header_only() } != 0;
    if is_head_only || upstream.length == 0 || upstream.upgrade() != 0 {
        return End::Complete;
    }
    // SAFETY: the pointer is null, or valid as long as the request.
    let Some(pipe) = (unsafe { upstream.pipe.as_ref() }).filter(|_| upstream.buffering() != 0) else {
        return if upstream.length < 0 { End::Complete } else { End::Aborted };
    };
    if pipe.upstream_done() != 0 || (pipe.upstream_eof() != 0 && pipe.length <= 0) {
        End::Complete
    } else if pipe.upstream_eof() != 0 || pipe.upstream_error() != 0 {
        End::Truncated
    } else {
        End::Aborted
    }
}

/// Returns what the server says about its cache: the last member of the last `Cache-Status` field (RFC 9211).
fn found(upstream: &sys::ngx_http_upstream_t) -> Option<CacheResult> {
    let mut last = None;
    let mut part: *const sys::ngx_list_part_t = &raw const upstream.headers_in.headers.part;
    // SAFETY: nginx's list is valid as long as the request.
    while let Some(list) = unsafe { part.as_ref() } {
        for index in 0..list.nelts {
            // SAFETY: the part has so many elements.
            let field = unsafe { &*list.elts.cast::<sys::ngx_table_elt_t>().add(index) };
            // SAFETY: the texts live as long as the request.
            if unsafe { bytes(field.key) }.eq_ignore_ascii_case(b"cache-status") {
                last = Some(field.value);
            }
        }
        part = list.next;
    }
    // SAFETY: as above.
    members(unsafe { bytes(last?) }).last()?.found()
}
