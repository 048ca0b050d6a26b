//! Envoy's callbacks as safe methods.
//!
//! Values of these types exist only during the hook to which Envoy passes the pointer. Texts that they return are valid as long.

#![expect(unsafe_code, reason = "calls of foreign functions")]

use crate::abi::{self, Buffer, Field};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

impl Buffer {
    /// No text.
    pub(crate) const EMPTY: Self = Self { ptr: ptr::null(), length: 0 };

    /// Returns the buffer of a text, which must live until Envoy has returned.
    fn of(text: &[u8]) -> Self {
        Self { ptr: text.as_ptr().cast(), length: text.len() }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The pointer is null, or valid for the length during `'a`.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.ptr.is_null() {
            return b"";
        }
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.length) }
    }
}

/// Writes a line to Envoy's log.
pub(crate) fn log(level: c_int, line: &str) {
    if !RESOLVED.load(Ordering::Acquire) {
        eprintln!("larder: {line}");
        return;
    }
    // SAFETY: the function takes any level.
    if !unsafe { abi::envoy_dynamic_module_callback_log_enabled(level) } {
        return;
    }
    let line = format!("larder: {line}");
    // SAFETY: the text is valid during the call.
    unsafe { abi::envoy_dynamic_module_callback_log(level, Buffer::of(line.as_bytes())) }
}

/// A pointer of Envoy, valid during a hook.
#[derive(Clone, Copy, Debug)]
struct Pointer<'hook> {
    raw: *mut c_void,
    lifetime: PhantomData<&'hook c_void>,
}

impl Pointer<'_> {
    const fn new(raw: *mut c_void) -> Self {
        Self { raw, lifetime: PhantomData }
    }
}

/// A worker's load balancer of a cluster, as Envoy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosts<'hook>(Pointer<'hook>);

impl<'hook> Hosts<'hook> {
    /// # Safety
    /// `lb` is Envoy's pointer to a load balancer, and is valid during `'hook`.
    pub(crate) const unsafe fn new(lb: *mut c_void) -> Self {
        Self(Pointer::new(lb))
    }

    /// Returns the name of the cluster.
    pub(crate) fn cluster_name(self) -> String {
        let mut name = Buffer::EMPTY;
        // SAFETY: the pointer is valid, and `name` for writing.
        unsafe { abi::envoy_dynamic_module_callback_lb_get_cluster_name(self.0.raw, &raw mut name) }
        // SAFETY: Envoy has set the buffer to a text of the cluster.
        String::from_utf8_lossy(unsafe { name.bytes() }).into_owned()
    }

    /// Returns the number of priority levels.
    pub(crate) fn priorities(self) -> u32 {
        // SAFETY: the pointer is valid.
        let count = unsafe { abi::envoy_dynamic_module_callback_lb_get_priority_set_size(self.0.raw) };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the number of hosts of a priority level.
    pub(crate) fn count(self, priority: u32) -> usize {
        // SAFETY: the pointer is valid.
        unsafe { abi::envoy_dynamic_module_callback_lb_get_hosts_count(self.0.raw, priority) }
    }

    /// Returns the number of healthy hosts of a priority level.
    pub(crate) fn healthy_count(self, priority: u32) -> usize {
        // SAFETY: the pointer is valid.
        unsafe { abi::envoy_dynamic_module_callback_lb_get_healthy_hosts_count(self.0.raw, priority) }
    }

    /// Returns the address of a host; `None` if there is no such host.
    pub(crate) fn address(self, priority: u32, index: usize) -> Option<&'hook [u8]> {
        let mut address = Buffer::EMPTY;
        // SAFETY: the pointer is valid, and `address` for writing.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_lb_get_host_address(
                self.0.raw,
                priority,
                index,
                &raw mut address,
            )
        };
        // SAFETY: Envoy has set the buffer to a text of the host, which lives as long as the list of hosts.
        found.then(|| unsafe { address.bytes() })
    }

    /// Returns the address of a healthy host; `None` if there is no such host.
    pub(crate) fn healthy_address(self, priority: u32, index: usize) -> Option<&'hook [u8]> {
        let mut address = Buffer::EMPTY;
        // SAFETY: the pointer is valid, and `address` for writing.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_lb_get_healthy_host_address(
                self.0.raw,
                priority,
                index,
                &raw mut address,
            )
        };
        // SAFETY: as in `address`.
        found.then(|| unsafe { address.bytes() })
    }

    /// Returns the weight of a host, at least 1.
    pub(crate) fn weight(self, priority: u32, index: usize) -> u32 {
        // SAFETY: the pointer is valid.
        unsafe { abi::envoy_dynamic_module_callback_lb_get_host_weight(self.0.raw, priority, index) }.max(1)
    }
}

/// The request for which a host is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'hook>(Pointer<'hook>);

impl<'hook> Context<'hook> {
    /// Returns the context; `None` if the pointer is null.
    ///
    /// # Safety
    /// `context` is null, or Envoy's pointer to a context that is valid during `'hook`.
    pub(crate) unsafe fn new(context: *mut c_void) -> Option<Self> {
        (!context.is_null()).then(|| Self(Pointer::new(context)))
    }

    /// Returns the first value of a field with this lower-case name.
    pub(crate) fn header(self, name: &str) -> Option<&'hook [u8]> {
        let (key, mut value) = (Buffer::of(name.as_bytes()), Buffer::EMPTY);
        // SAFETY: the pointer is valid, `key` is read and `value` is written during the call. The count may be null.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_lb_context_get_downstream_header(
                self.0.raw,
                key,
                &raw mut value,
                0,
                ptr::null_mut(),
            )
        };
        // SAFETY: Envoy has set the buffer to a value of the request, which lives longer than the hook.
        found.then(|| unsafe { value.bytes() })
    }

    /// Returns the address of Envoy's object, which is the same for all attempts of a request.
    pub(crate) fn address(self) -> usize {
        self.0.raw.addr()
    }

    /// Returns how often another host may be chosen because the request has been to the first choice before.
    pub(crate) fn selection_retries(self) -> u32 {
        // SAFETY: the pointer is valid.
        unsafe { abi::envoy_dynamic_module_callback_lb_context_get_host_selection_retry_count(self.0.raw) }
    }

    /// Returns whether the request's retry policy refuses the host. `index` counts all hosts of the priority level.
    pub(crate) fn refuses(self, hosts: Hosts<'_>, priority: u32, index: usize) -> bool {
        // SAFETY: both pointers are valid.
        unsafe {
            abi::envoy_dynamic_module_callback_lb_context_should_select_another_host(
                hosts.0.raw,
                self.0.raw,
                priority,
                index,
            )
        }
    }
}

impl larder_core::rules::Headers for Context<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.header(name)
    }
}

/// Envoy's object of the config of a policy. Metrics belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyMetrics(*mut c_void);

impl PolicyMetrics {
    /// # Safety
    /// `config` is Envoy's pointer to the config of a policy. It is valid while the value is used, which a load balancer of this
    /// config ensures.
    pub(crate) const unsafe fn new(config: *mut c_void) -> Self {
        Self(config)
    }

    /// Defines a counter and returns its id. Only while the config is being created.
    pub(crate) fn define_counter(self, name: &str) -> Option<usize> {
        let mut id = 0;
        // SAFETY: the pointer is valid, the name is read and the id is written during the call. There are no labels.
        let result = unsafe {
            abi::envoy_dynamic_module_callback_lb_config_define_counter(
                self.0,
                Buffer::of(name.as_bytes()),
                ptr::null_mut(),
                0,
                &raw mut id,
            )
        };
        (result == abi::METRIC_SUCCESS).then_some(id)
    }

    /// Defines a gauge and returns its id. Only while the config is being created.
    pub(crate) fn define_gauge(self, name: &str) -> Option<usize> {
        let mut id = 0;
        // SAFETY: as in `define_counter`.
        let result = unsafe {
            abi::envoy_dynamic_module_callback_lb_config_define_gauge(
                self.0,
                Buffer::of(name.as_bytes()),
                ptr::null_mut(),
                0,
                &raw mut id,
            )
        };
        (result == abi::METRIC_SUCCESS).then_some(id)
    }

    /// Adds to a counter.
    pub(crate) fn add(self, counter: usize, value: u64) {
        // SAFETY: the pointer is valid, and there are no labels. Counters are atomic, so any worker may call this.
        unsafe {
            abi::envoy_dynamic_module_callback_lb_config_increment_counter(
                self.0,
                counter,
                ptr::null_mut(),
                0,
                value,
            );
        }
    }

    /// Sets a gauge.
    pub(crate) fn set(self, gauge: usize, value: u64) {
        // SAFETY: as in `add`.
        unsafe {
            abi::envoy_dynamic_module_callback_lb_config_set_gauge(self.0, gauge, ptr::null_mut(), 0, value);
        }
    }
}

/// Defines a counter of a filter's config and returns its id.
///
/// # Safety
/// `config` is Envoy's pointer to a filter's config that is being created.
pub(crate) unsafe fn define_filter_counter(config: *mut c_void, name: &str) -> Option<usize> {
    let mut id = 0;
    // SAFETY: as the caller promises; the name is read and the id is written during the call.
    let result = unsafe {
        abi::envoy_dynamic_module_callback_http_filter_config_define_counter(
            config,
            Buffer::of(name.as_bytes()),
            ptr::null_mut(),
            0,
            &raw mut id,
        )
    };
    (result == abi::METRIC_SUCCESS).then_some(id)
}

/// The header maps that filters read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Map {
    Request,
    Response,
}

/// The bodies that filters read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// The piece of the request's body that has just arrived.
    ReceivedRequest,
    /// The part of the request's body that has arrived before, and that Envoy keeps.
    BufferedRequest,
    /// The piece of the reply's body that has just arrived.
    ReceivedResponse,
}

impl Body {
    const fn raw(self) -> c_int {
        match self {
            Self::ReceivedRequest => abi::RECEIVED_REQUEST_BODY,
            Self::BufferedRequest => abi::BUFFERED_REQUEST_BODY,
            Self::ReceivedResponse => abi::RECEIVED_RESPONSE_BODY,
        }
    }
}

/// A reply of a filter, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u32,
    pub(crate) body: String,
    /// The explanation for access logs.
    pub(crate) details: String,
}

/// A filter of a request, as Envoy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter<'hook>(Pointer<'hook>);

impl<'hook> Filter<'hook> {
    /// # Safety
    /// `filter` is Envoy's pointer to a filter, and is valid during `'hook`.
    pub(crate) const unsafe fn new(filter: *mut c_void) -> Self {
        Self(Pointer::new(filter))
    }

    /// Returns the value of a field with this lower-case name: the `index`th, from 0.
    pub(crate) fn header(self, map: Map, name: &str, index: usize) -> Option<&'hook [u8]> {
        let map = match map {
            Map::Request => abi::REQUEST_HEADERS,
            Map::Response => abi::RESPONSE_HEADERS,
        };
        let (key, mut value) = (Buffer::of(name.as_bytes()), Buffer::EMPTY);
        // SAFETY: the pointer is valid, `key` is read and `value` is written during the call. The count may be null.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_http_get_header(
                self.0.raw,
                map,
                key,
                &raw mut value,
                index,
                ptr::null_mut(),
            )
        };
        // SAFETY: Envoy has set the buffer to a value of the map, which no one changes during the hook.
        found.then(|| unsafe { value.bytes() })
    }

    /// Returns the address of the host to which the request goes; `None` if there is none yet.
    pub(crate) fn upstream_address(self) -> Option<&'hook [u8]> {
        let mut value = Buffer::EMPTY;
        // SAFETY: the pointer is valid, and `value` for writing.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_http_filter_get_attribute_string(
                self.0.raw,
                abi::UPSTREAM_ADDRESS,
                &raw mut value,
            )
        };
        // SAFETY: Envoy has set the buffer to a text of the host.
        found.then(|| unsafe { value.bytes() })
    }

    /// Returns the size of a body, in bytes.
    pub(crate) fn body_bytes(self, body: Body) -> usize {
        // SAFETY: the pointer is valid.
        unsafe { abi::envoy_dynamic_module_callback_http_get_body_size(self.0.raw, body.raw()) }
    }

    /// Returns the parts of the request's body that have arrived, in order.
    pub(crate) fn request_bodies(self) -> &'static [Body] {
        // SAFETY: the pointer is valid.
        let is_one =
            unsafe { abi::envoy_dynamic_module_callback_http_received_buffered_request_body(self.0.raw) };
        // If another filter has kept the body, it arrives as one piece, which is the kept part too.
        if is_one { &[Body::BufferedRequest] } else { &[Body::BufferedRequest, Body::ReceivedRequest] }
    }

    /// Appends the bytes of a body.
    pub(crate) fn append_body(self, body: Body, content: &mut Vec<u8>) {
        // SAFETY: the pointer is valid.
        let count =
            unsafe { abi::envoy_dynamic_module_callback_http_get_body_chunks_size(self.0.raw, body.raw()) };
        let mut chunks = vec![Buffer::EMPTY; count];
        // SAFETY: the pointer is valid, and there is room for all chunks.
        let found = unsafe {
            abi::envoy_dynamic_module_callback_http_get_body_chunks(
                self.0.raw,
                body.raw(),
                chunks.as_mut_ptr(),
            )
        };
        for chunk in chunks.into_iter().filter(|_| found) {
            // SAFETY: Envoy has set the buffer to a piece of the body, which no one changes during the hook.
            content.extend_from_slice(unsafe { chunk.bytes() });
        }
    }

    /// Raises the number of bytes of a body that Envoy keeps at most. It replies 413 beyond, and it gives retries up if twice the body is
    /// beyond.
    pub(crate) fn raise_buffer_limit(self, bytes: u64) {
        // SAFETY: the pointer is valid.
        let limit = unsafe { abi::envoy_dynamic_module_callback_http_get_buffer_limit(self.0.raw) };
        if limit < bytes {
            // SAFETY: as above.
            unsafe { abi::envoy_dynamic_module_callback_http_set_buffer_limit(self.0.raw, bytes) };
        }
    }

    /// Returns the name of the cluster of the request's route; `None` if there is none.
    pub(crate) fn cluster_name(self) -> Option<String> {
        let mut name = Buffer::EMPTY;
        // SAFETY: the pointer is valid, and `name` for writing.
        let found =
            unsafe { abi::envoy_dynamic_module_callback_http_get_cluster_name(self.0.raw, &raw mut name) };
        // SAFETY: Envoy has set the buffer to a text of the cluster.
        found.then(|| String::from_utf8_lossy(unsafe { name.bytes() }).into_owned())
    }

    /// Sets a field of the request's head.
    pub(crate) fn set_field(self, name: &str, value: &str) {
        self.write_field(name, Buffer::of(value.as_bytes()));
    }

    /// Removes a field of the request's head, if it is there.
    pub(crate) fn remove_field(self, name: &str) {
        self.write_field(name, Buffer::EMPTY);
    }

    fn write_field(self, name: &str, value: Buffer) {
        let name = Buffer::of(name.as_bytes());
        // SAFETY: the pointer is valid, and Envoy copies the texts. No value removes the field.
        unsafe {
            abi::envoy_dynamic_module_callback_http_set_header(self.0.raw, abi::REQUEST_HEADERS, name, value);
        }
    }

    /// Sets a value of the request's dynamic metadata.
    pub(crate) fn set_metadata(self, namespace: &str, key: &str, value: &str) {
        let [namespace, key, value] = [namespace, key, value].map(|text| Buffer::of(text.as_bytes()));
        // SAFETY: the pointer is valid, and Envoy copies the texts.
        unsafe {
            abi::envoy_dynamic_module_callback_http_set_dynamic_metadata_string(
                self.0.raw, namespace, key, value,
            );
        }
    }

    /// Adds to a counter that this filter's config has defined.
    pub(crate) fn add(self, counter: usize, value: u64) {
        // SAFETY: the pointer is valid, and there are no labels.
        unsafe {
            abi::envoy_dynamic_module_callback_http_filter_increment_counter(
                self.0.raw,
                counter,
                ptr::null_mut(),
                0,
                value,
            );
        }
    }

    /// Replies to the request instead of a node.
    pub(crate) fn reply(self, reply: &Reply) {
        let Reply { status, body, details } = reply;
        let mut fields = [Field { key: Buffer::of(b"content-type"), value: Buffer::of(b"application/json") }];
        // SAFETY: the pointer is valid, and Envoy copies the texts.
        unsafe {
            abi::envoy_dynamic_module_callback_http_send_response(
                self.0.raw,
                *status,
                fields.as_mut_ptr(),
                fields.len(),
                Buffer::of(body.as_bytes()),
                Buffer::of(details.as_bytes()),
            );
        }
    }
}

impl larder_core::rules::Headers for Filter<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.header(Map::Request, name, 0)
    }
}

/// Whether the functions of Envoy have been found.
static RESOLVED: AtomicBool = AtomicBool::new(cfg!(test));

/// Finds the functions of Envoy. Returns the version of its interface, or the name of a function that this program lacks.
#[cfg(not(test))]
pub(crate) fn resolve() -> Result<&'static std::ffi::CStr, &'static str> {
    let find = |name: &std::ffi::CStr| {
        // SAFETY: the name ends with a zero byte.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    abi::resolve(find)?;
    RESOLVED.store(true, Ordering::Release);
    Ok(if find(abi::SINCE_1_40).is_null() { abi::VERSION_1_38 } else { abi::VERSION_1_40 })
}

/// Keeps the module loaded until the process ends. Envoy unloads a module with its last config, but threads of the module and
/// destructors of thread-local values may run later.
#[cfg(not(test))]
pub(crate) fn stay_loaded() {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let here: fn() = stay_loaded;
    // SAFETY: the function takes any address, and `info` is valid for writing.
    let found = unsafe { libc::dladdr(here as *const c_void, &raw mut info) };
    if found != 0 && !info.dli_fname.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: dladdr has set the name to a text of the dynamic linker.
        unsafe { libc::dlopen(info.dli_fname, flags) };
    }
}
