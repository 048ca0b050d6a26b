//! Loading of the module.

#![expect(unsafe_code, reason = "functions that Envoy calls")]

use super::guard;
use crate::{host, log};
use std::ffi::c_char;
use std::ptr;

/// Checks that Envoy has all functions that the module calls. Returns the version of Envoy's interface; null if Envoy shall not use
/// the module.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    guard("on_program_init", ptr::null(), || match host::resolve() {
        Ok(version) => {
            host::stay_loaded();
            version.as_ptr()
        }
        Err(missing) => {
            log::error(&format!(
                "this Envoy cannot run the module larder_envoy: it lacks the function {missing}. Use Envoy 1.38, 1.39 or 1.40."
            ));
            ptr::null()
        }
    })
}
