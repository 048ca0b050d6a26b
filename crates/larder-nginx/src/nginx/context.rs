//! The module as its own functions need it: its place in nginx's lists.

use super::sys;
use std::ffi::c_void;

unsafe extern "C" {
    /// The module, which `module` defines.
    static mut ngx_http_larder_module: sys::ngx_module_t;
}

/// Returns the address of the module, by which nginx knows its shared memory.
pub(super) fn tag() -> *mut c_void {
    (&raw mut ngx_http_larder_module).cast()
}

/// Returns the module's place in the lists of configs and of requests.
pub(super) fn context_index() -> usize {
    // SAFETY: nginx writes the number before it reads a config, and only then.
    unsafe { ngx_http_larder_module.ctx_index }
}
