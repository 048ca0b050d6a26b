//! The part of Envoy's interface for dynamic modules that this module uses, declared by hand.
//!
//! The interface is `source/extensions/dynamic_modules/abi/abi.h` of Envoy. The functions here have the same signatures in Envoy 1.38,
//! 1.39 and 1.40. Envoy 1.37 lacks the functions for load balancing.

#![expect(unsafe_code, reason = "declarations of foreign functions")]

#[cfg(not(test))]
use std::ffi::CStr;
use std::ffi::{c_char, c_int, c_void};

/// A text of Envoy or of the module. It is valid during the call that passes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) ptr: *const c_char,
    pub(crate) length: usize,
}

/// A header field of the module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) key: Buffer,
    pub(crate) value: Buffer,
}

/// Levels of log lines.
pub(crate) const LOG_INFO: c_int = 2;
pub(crate) const LOG_WARN: c_int = 3;
pub(crate) const LOG_ERROR: c_int = 4;

/// Header maps of a request.
pub(crate) const REQUEST_HEADERS: c_int = 0;
pub(crate) const RESPONSE_HEADERS: c_int = 2;

/// The part of a body that has just arrived, and the part that Envoy has kept because a filter waits for more.
pub(crate) const RECEIVED_REQUEST_BODY: c_int = 0;
pub(crate) const BUFFERED_REQUEST_BODY: c_int = 1;
pub(crate) const RECEIVED_RESPONSE_BODY: c_int = 2;

/// The attribute `upstream.address`.
pub(crate) const UPSTREAM_ADDRESS: c_int = 41;

/// The results of a filter: to go on, and to stop because it has replied itself or waits for the body.
pub(crate) const CONTINUE: c_int = 0;
pub(crate) const STOP_ITERATION: c_int = 1;

/// The results of a filter for a piece of a body: to stop and keep it, and to stop and drop it.
pub(crate) const STOP_AND_BUFFER: c_int = 1;
pub(crate) const STOP_NO_BUFFER: c_int = 3;

/// The success of a function for metrics.
pub(crate) const METRIC_SUCCESS: c_int = 0;

/// Defines a function for each function of Envoy. The module does not link them, because a program that lacks one could not load the
/// module then, and would not say why. [`resolve`] finds them when the module is loaded.
macro_rules! callbacks {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)+) => {
        // Tests link the functions that stand in for Envoy's.
        #[cfg(test)]
        unsafe extern "C" {
            $(pub(crate) fn $name($($argument: $type),*) $(-> $result)?;)+
        }

        #[cfg(not(test))]
        #[expect(non_upper_case_globals, reason = "named like the functions")]
        mod addresses {
            use std::ffi::c_void;
            use std::ptr;
            use std::sync::atomic::AtomicPtr;

            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());)+
        }

        $(
            #[cfg(not(test))]
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                let address = addresses::$name.load(std::sync::atomic::Ordering::Relaxed);
                // SAFETY: `resolve` has stored the address of Envoy's function, which has this signature.
                let function = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(address)
                };
                // SAFETY: as the caller promises.
                unsafe { function($($argument),*) }
            }
        )+

        /// Finds all functions. Returns the name of the first one that this program lacks.
        #[cfg(not(test))]
        pub(crate) fn resolve(find: impl Fn(&CStr) -> *mut c_void) -> Result<(), &'static str> {
            $(
                let name = concat!(stringify!($name), "\0");
                let address = CStr::from_bytes_with_nul(name.as_bytes()).map_or(std::ptr::null_mut(), &find);
                if address.is_null() {
                    return Err(stringify!($name));
                }
                addresses::$name.store(address, std::sync::atomic::Ordering::Relaxed);
            )+
            Ok(())
        }
    };
}

callbacks! {
    fn envoy_dynamic_module_callback_log(level: c_int, message: Buffer);
    fn envoy_dynamic_module_callback_log_enabled(level: c_int) -> bool;

    fn envoy_dynamic_module_callback_lb_get_cluster_name(lb: *mut c_void, name: *mut Buffer);
    fn envoy_dynamic_module_callback_lb_get_priority_set_size(lb: *mut c_void) -> usize;
    fn envoy_dynamic_module_callback_lb_get_hosts_count(lb: *mut c_void, priority: u32) -> usize;
    fn envoy_dynamic_module_callback_lb_get_healthy_hosts_count(lb: *mut c_void, priority: u32) -> usize;
    fn envoy_dynamic_module_callback_lb_get_host_address(
        lb: *mut c_void, priority: u32, index: usize, address: *mut Buffer
    ) -> bool;
    fn envoy_dynamic_module_callback_lb_get_healthy_host_address(
        lb: *mut c_void, priority: u32, index: usize, address: *mut Buffer
    ) -> bool;
    fn envoy_dynamic_module_callback_lb_get_host_weight(lb: *mut c_void, priority: u32, index: usize) -> u32;
    fn envoy_dynamic_module_callback_lb_context_get_downstream_header(
        context: *mut c_void, key: Buffer, value: *mut Buffer, index: usize, count: *mut usize
    ) -> bool;
    fn envoy_dynamic_module_callback_lb_context_get_host_selection_retry_count(context: *mut c_void) -> u32;
    fn envoy_dynamic_module_callback_lb_context_should_select_another_host(
        lb: *mut c_void, context: *mut c_void, priority: u32, index: usize
    ) -> bool;
    fn envoy_dynamic_module_callback_lb_config_define_counter(
        config: *mut c_void, name: Buffer, labels: *mut Buffer, labels_count: usize, id: *mut usize
    ) -> c_int;
    fn envoy_dynamic_module_callback_lb_config_increment_counter(
        config: *mut c_void, id: usize, labels: *mut Buffer, labels_count: usize, value: u64
    ) -> c_int;
    fn envoy_dynamic_module_callback_lb_config_define_gauge(
        config: *mut c_void, name: Buffer, labels: *mut Buffer, labels_count: usize, id: *mut usize
    ) -> c_int;
    fn envoy_dynamic_module_callback_lb_config_set_gauge(
        config: *mut c_void, id: usize, labels: *mut Buffer, labels_count: usize, value: u64
    ) -> c_int;

    fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: *mut c_void, name: Buffer, labels: *mut Buffer, labels_count: usize, id: *mut usize
    ) -> c_int;
    fn envoy_dynamic_module_callback_http_filter_increment_counter(
        filter: *mut c_void, id: usize, labels: *mut Buffer, labels_count: usize, value: u64
    ) -> c_int;
    fn envoy_dynamic_module_callback_http_get_header(
        filter: *mut c_void, map: c_int, key: Buffer, value: *mut Buffer, index: usize, count: *mut usize
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: *mut c_void, attribute: c_int, value: *mut Buffer
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_header(
        filter: *mut c_void, map: c_int, key: Buffer, value: Buffer
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_cluster_name(filter: *mut c_void, name: *mut Buffer) -> bool;
    fn envoy_dynamic_module_callback_http_get_buffer_limit(filter: *mut c_void) -> u64;
    fn envoy_dynamic_module_callback_http_set_buffer_limit(filter: *mut c_void, limit: u64);
    fn envoy_dynamic_module_callback_http_received_buffered_request_body(filter: *mut c_void) -> bool;
    fn envoy_dynamic_module_callback_http_get_body_chunks_size(filter: *mut c_void, body: c_int) -> usize;
    fn envoy_dynamic_module_callback_http_get_body_chunks(
        filter: *mut c_void, body: c_int, chunks: *mut Buffer
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_body_size(filter: *mut c_void, body: c_int) -> usize;
    fn envoy_dynamic_module_callback_http_set_dynamic_metadata_string(
        filter: *mut c_void, namespace: Buffer, key: Buffer, value: Buffer
    );
    fn envoy_dynamic_module_callback_http_send_response(
        filter: *mut c_void, status: u32, fields: *mut Field, fields_count: usize, body: Buffer, details: Buffer
    );
}

/// A function that only Envoy 1.40 and later have. Its presence tells which version of the interface Envoy has.
#[cfg(not(test))]
pub(crate) const SINCE_1_40: &CStr = c"envoy_dynamic_module_callback_cluster_lb_get_healthy_hosts";

/// The version of the interface before Envoy 1.40, and since then.
#[cfg(not(test))]
pub(crate) const VERSION_1_38: &CStr = c"v0.1.0";
#[cfg(not(test))]
pub(crate) const VERSION_1_40: &CStr = c"v0.2.0";
