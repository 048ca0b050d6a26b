//! Creating and destroying a dispatcher, versions, and error messages.

#![expect(unsafe_code, reason = "functions of a C interface")]

use crate::arguments::{Argument, buffer, output, text};
use crate::convert::reason_name;
use crate::fault::{LARDER_OK, guard, last_message, remember};
use crate::handle::Handle;
use crate::types::LARDER_ABI_VERSION;
use larder_embed::{EmbedError, Embedded};
use std::ffi::c_char;
use std::ptr;

/// Returns the version of the library's interface. It must equal the LARDER_ABI_VERSION of the header.
#[unsafe(no_mangle)]
pub extern "C" fn larder_abi_version() -> u32 {
    LARDER_ABI_VERSION
}

/// Creates a dispatcher from a config: the policy part of larder.toml, in TOML or as a JSON object. An empty config has the
/// defaults. The text needs no final 0. Destroy the dispatcher with larder_destroy.
///
/// # Safety
/// `config` is valid for `config_len` bytes, and `dispatcher` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_create(
    config: *const c_char,
    config_len: usize,
    dispatcher: *mut *mut Handle,
) -> i32 {
    guard(|| {
        let arguments = (text("config", config, config_len), output("dispatcher", dispatcher));
        // SAFETY: the host passes pointers as this function's documentation demands.
        let (config, mut place) = unsafe { arguments.read() }?;
        place.set(ptr::null_mut());
        let config = config.parse().map_err(EmbedError::Config)?;
        place.set(Box::into_raw(Box::new(Handle(Embedded::new(config)?))));
        Ok(LARDER_OK)
    })
}

/// Destroys a dispatcher. Does nothing if it is null.
///
/// # Safety
/// `dispatcher` comes from larder_create, was not destroyed before, and no other call uses it now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_destroy(dispatcher: *mut Handle) {
    guard(|| {
        if !dispatcher.is_null() {
            // SAFETY: larder_create has made the pointer from a box, and the host gives it up.
            drop(unsafe { Box::from_raw(dispatcher) });
        }
        Ok(LARDER_OK)
    });
}

/// Writes the message of this thread's last error, with a final 0. The message is empty if there was no error. `needed` receives
/// the size of the message with its final 0, and may be null. A buffer of size 0 asks for this size alone.
///
/// # Safety
/// `message` is valid for `size` bytes, and `needed` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_last_error(message: *mut c_char, size: usize, needed: *mut usize) -> i32 {
    let last = last_message();
    let code = guard(|| {
        // SAFETY: the host passes pointers as this function's documentation demands.
        let mut room = unsafe { buffer(message, size, needed).read() }?;
        room.fill_text(&last)?;
        Ok(LARDER_OK)
    });
    if code != LARDER_OK {
        // The message is still wanted.
        remember(&last);
    }
    code
}

/// Returns the name of a reason, as in larder's logs; null for a number that is no reason.
#[unsafe(no_mangle)]
pub extern "C" fn larder_reason_name(reason: u8) -> *const c_char {
    reason_name(reason).map_or(ptr::null(), std::ffi::CStr::as_ptr)
}
