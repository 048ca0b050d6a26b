//! The functions that Envoy calls.

pub(crate) mod balancing;
pub(crate) mod filters;
#[cfg(not(test))]
mod program;

use crate::log;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a hook. A panic ends here: it is logged, and the hook returns `fallback`.
pub(crate) fn guard<T>(hook: &str, fallback: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().copied();
            let text =
                text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic");
            // A second panic in the logger must not reach Envoy either.
            let _ = catch_unwind(|| log::error(&format!("bug in larder, in {hook}: {text}")));
            // The payload's destructor might panic too.
            std::mem::forget(payload);
            fallback
        }
    }
}

/// Returns the module's object behind a pointer that a hook receives.
///
/// # Safety
/// `pointer` is null, or was made by `Box::into_raw` from a `T` that lives during `'a`. No one else uses the object during `'a`, or
/// everyone only reads it.
#[expect(unsafe_code, reason = "reads a pointer of a foreign interface")]
unsafe fn shared<'a, T>(pointer: *const std::ffi::c_void) -> Option<&'a T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.cast::<T>().as_ref() }
}

/// As [`shared`], for an object that only one thread uses.
///
/// # Safety
/// As for [`shared`], and no one else uses the object during `'a`.
#[expect(unsafe_code, reason = "reads a pointer of a foreign interface")]
unsafe fn exclusive<'a, T>(pointer: *const std::ffi::c_void) -> Option<&'a mut T> {
    // SAFETY: as the caller promises.
    unsafe { pointer.cast_mut().cast::<T>().as_mut() }
}

/// Destroys the module's object behind a pointer.
///
/// # Safety
/// `pointer` is null, or was made by `Box::into_raw` from a `T`, and no one uses it any more.
#[expect(unsafe_code, reason = "frees a pointer of a foreign interface")]
unsafe fn destroy<T>(pointer: *const std::ffi::c_void) {
    if !pointer.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(pointer.cast_mut().cast::<T>()) });
    }
}
