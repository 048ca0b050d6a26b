//! Requests that become connections of their own, such as WebSockets: a filter of replies sees their status 101.

use super::balance::Balancing;
use super::context::context_index;
use super::{guard, ngx_int_t, sys};
use std::sync::{PoisonError, RwLock};

/// The next filter.
static NEXT: RwLock<sys::ngx_http_output_header_filter_pt> = RwLock::new(None);

const SWITCHING_PROTOCOLS: usize = 101;

/// Adds the filter before those of nginx. nginx begins the list anew for each config.
pub(super) fn install() {
    // SAFETY: nginx reads and changes the variable in this thread only, while it reads a config.
    let next = unsafe { sys::ngx_http_top_header_filter };
    *NEXT.write().unwrap_or_else(PoisonError::into_inner) = next;
    // SAFETY: as above.
    unsafe { sys::ngx_http_top_header_filter = Some(filter) };
}

unsafe extern "C" fn filter(request: *mut sys::ngx_http_request_t) -> ngx_int_t {
    guard("header filter", (), || {
        // SAFETY: nginx passes a valid request.
        if unsafe { (*request).headers_out.status } == SWITCHING_PROTOCOLS {
            // SAFETY: a request has a place for each module of HTTP.
            let balancing = unsafe { *(*request).ctx.add(context_index()) }.cast::<Balancing>();
            // SAFETY: `init_peer` has stored it there, or no one, and no one else uses it now.
            if let Some(balancing) = unsafe { balancing.as_mut() } {
                balancing.become_long_lived();
            }
        }
    });
    let next = *NEXT.read().unwrap_or_else(PoisonError::into_inner);
    match next {
        // SAFETY: it is the filter that nginx had before.
        Some(next) => unsafe { next(request) },
        None => super::ERROR,
    }
}
