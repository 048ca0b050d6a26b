//! nginx's functions and types, and the functions that nginx calls.

#![expect(unsafe_code, reason = "calls of foreign functions, and functions that are called from there")]

mod balance;
mod context;
mod directive;
mod module;
mod page;
mod reply;
mod upgrade;
mod upstream;
mod variables;

use crate::log::Level;
use crate::zone::take_panic;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

/// Declarations that build.rs makes from nginx's headers.
#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnecessary_transmutes,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_lossless,
    clippy::too_many_lines,
    clippy::semicolon_if_nothing_returned,
    reason = "generated"
)]
mod sys {
    include!(concat!(env!("OUT_DIR"), "/nginx.rs"));
}

use sys::{ngx_int_t, ngx_str_t, ngx_uint_t};

/// Results of nginx's functions.
const OK: ngx_int_t = sys::NGX_OK as ngx_int_t;
const ERROR: ngx_int_t = sys::NGX_ERROR as ngx_int_t;
const BUSY: ngx_int_t = sys::NGX_BUSY as ngx_int_t;

/// Runs the body of a function that nginx calls. A panic ends here: it is logged, and the function returns `fallback`.
fn guard<T>(function: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            // A second panic in the logger must not reach nginx either.
            let _ = catch_unwind(|| {
                crate::log::error(&format!("bug in larder, in {function}: {}", take_panic()));
            });
            // The payload's destructor might panic too.
            std::mem::forget(payload);
            fallback
        }
    }
}

/// Writes a line to the error log of the present cycle.
fn log(level: Level, line: &str) {
    let level = match level {
        Level::Error => sys::NGX_LOG_ERR,
        Level::Warn => sys::NGX_LOG_WARN,
        Level::Info => sys::NGX_LOG_NOTICE,
    };
    // SAFETY: nginx sets the variable before it loads modules.
    let log = unsafe { sys::ngx_cycle.as_ref() }.map_or(std::ptr::null_mut(), |cycle| cycle.log);
    write_log(log, level, line);
}

/// Writes a line to a log of nginx.
fn write_log(log: *mut sys::ngx_log_t, level: u32, line: &str) {
    let level = level as ngx_uint_t;
    // SAFETY: the pointer is null, or a log of nginx.
    let Some(enabled) = (unsafe { log.as_ref() }).map(|log| log.log_level >= level) else { return };
    if enabled {
        // SAFETY: the format takes a length and as many bytes.
        unsafe { sys::ngx_log_error_core(level, log, 0, c"larder: %*s".as_ptr(), line.len(), line.as_ptr()) };
    }
}

/// Reports an error of the config at the line that nginx reads now.
fn config_error(cf: *mut sys::ngx_conf_t, line: &str) {
    // An error of a file has several lines.
    let line = line.split('\n').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let level = sys::NGX_LOG_EMERG as ngx_uint_t;
    // SAFETY: nginx has passed the config; the format takes a length and as many bytes.
    unsafe { sys::ngx_conf_log_error(level, cf, 0, c"larder: %*s".as_ptr(), line.len(), line.as_ptr()) };
}

/// Returns the bytes of a text of nginx.
///
/// # Safety
/// The text is valid during `'a`.
unsafe fn bytes<'a>(text: ngx_str_t) -> &'a [u8] {
    if text.data.is_null() {
        return b"";
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(text.data, text.len) }
}

/// Returns a text of nginx that lives as long as the module.
const fn text(text: &'static str) -> ngx_str_t {
    ngx_str_t { len: text.len(), data: text.as_ptr().cast_mut() }
}

/// Returns a text with a zero byte behind it, as nginx compares the names of directives.
const fn name(text: &'static CStr) -> ngx_str_t {
    ngx_str_t { len: text.to_bytes().len(), data: text.as_ptr().cast::<u8>().cast_mut() }
}

/// Copies a text into a pool, with a zero byte behind it.
fn pool_text(pool: *mut sys::ngx_pool_t, text: &str) -> Option<ngx_str_t> {
    // SAFETY: nginx has passed the pool.
    let data = NonNull::new(unsafe { sys::ngx_pnalloc(pool, text.len() + 1) }.cast::<u8>())?.as_ptr();
    // SAFETY: so many bytes were allocated.
    unsafe { data.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    // SAFETY: as above.
    unsafe { data.add(text.len()).write(0) };
    Some(ngx_str_t { len: text.len(), data })
}

/// Moves a value to an address of its own. It is dropped with the pool.
fn pool_box<T>(pool: *mut sys::ngx_pool_t, value: T) -> Option<NonNull<T>> {
    unsafe extern "C" fn drop_value<T>(value: *mut c_void) {
        guard("cleanup", (), || {
            // SAFETY: `pool_box` has made the pointer, and nginx calls a cleanup once.
            drop(unsafe { Box::from_raw(value.cast::<T>()) });
        });
    }
    // SAFETY: nginx has passed the pool.
    let cleanup = unsafe { sys::ngx_pool_cleanup_add(pool, 0).as_mut() }?;
    let value = NonNull::from(Box::leak(Box::new(value)));
    cleanup.handler = Some(drop_value::<T>);
    cleanup.data = value.as_ptr().cast();
    Some(value)
}
