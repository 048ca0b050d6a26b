//! The variables `$larder_reason` and `$larder_node`, for access logs.

use super::balance::Balancing;
use super::context::context_index;
use super::{OK, guard, ngx_int_t, sys, text};

/// Adds the variables. Returns false if nginx does not take them.
pub(super) fn add(cf: *mut sys::ngx_conf_t) -> bool {
    let variables: [(_, sys::ngx_http_get_variable_pt); 2] =
        [(text("larder_reason"), Some(reason)), (text("larder_node"), Some(node))];
    variables.into_iter().all(|(mut name, handler)| {
        let flags = sys::NGX_HTTP_VAR_NOCACHEABLE as usize;
        // SAFETY: nginx passes a valid config, and copies the name.
        let variable = unsafe { sys::ngx_http_add_variable(cf, &raw mut name, flags).as_mut() };
        variable.is_some_and(|variable| {
            variable.get_handler = handler;
            true
        })
    })
}

/// The reason of the last decision.
unsafe extern "C" fn reason(
    request: *mut sys::ngx_http_request_t,
    value: *mut sys::ngx_http_variable_value_t,
    _data: usize,
) -> ngx_int_t {
    set(request, value, |balancing| match (balancing.reason, balancing.is_fallback) {
        (Some(reason), _) => Some(text(reason.name())),
        (None, true) => Some(text("fallback")),
        (None, false) => None,
    })
}

/// The server of the last decision.
unsafe extern "C" fn node(
    request: *mut sys::ngx_http_request_t,
    value: *mut sys::ngx_http_variable_value_t,
    _data: usize,
) -> ngx_int_t {
    set(request, value, |balancing| Some(balancing.node).filter(|node| !node.data.is_null()))
}

fn set(
    request: *mut sys::ngx_http_request_t,
    value: *mut sys::ngx_http_variable_value_t,
    get: impl Fn(&Balancing) -> Option<sys::ngx_str_t>,
) -> ngx_int_t {
    guard("variable", OK, || {
        // SAFETY: nginx passes a valid value.
        let value = unsafe { &mut *value };
        // SAFETY: a request has a place for each module of HTTP.
        let balancing = unsafe { *(*request).ctx.add(context_index()) }.cast::<Balancing>();
        // SAFETY: `init_peer` has stored it there, or no one.
        let found = unsafe { balancing.as_ref() }.and_then(get);
        value.set_not_found(found.is_none().into());
        value.set_valid(found.is_some().into());
        value.set_no_cacheable(1);
        if let Some(text) = found {
            value.set_len(u32::try_from(text.len).unwrap_or_default());
            value.data = text.data;
        }
        OK
    })
}
