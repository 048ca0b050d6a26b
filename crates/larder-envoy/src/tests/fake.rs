//! Envoy's functions for tests of the hooks: a cluster, a request and a log of this thread.

#![expect(unsafe_code, reason = "stands in for foreign functions")]

use crate::abi::{Buffer, Field};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};

/// A host of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) address: String,
    pub(super) weight: u32,
    pub(super) healthy: bool,
}

/// The state of Envoy, on this thread.
#[derive(Debug, Default)]
pub(super) struct Envoy {
    pub(super) cluster: String,
    /// The hosts of each priority level.
    pub(super) hosts: Vec<Vec<Host>>,
    pub(super) request: Vec<(String, Vec<u8>)>,
    pub(super) reply: Vec<(String, Vec<u8>)>,
    /// The address of the host to which the attempt goes.
    pub(super) upstream: Option<String>,
    pub(super) body_bytes: usize,
    /// The pieces of the request's body that Envoy keeps, and the one that has just arrived.
    pub(super) kept: Vec<Vec<u8>>,
    pub(super) arrived: Vec<Vec<u8>>,
    pub(super) buffer_limit: u64,
    pub(super) selection_retries: u32,
    /// The addresses that the retry policy refuses.
    pub(super) refused: Vec<String>,
    pub(super) log: Vec<String>,
    /// The names of counters and gauges, and their values.
    pub(super) metrics: Vec<(String, u64)>,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) replies: Vec<(u32, String)>,
}

thread_local! {
    static ENVOY: RefCell<Envoy> = RefCell::new(Envoy::default());
}

/// Reads or changes what Envoy knows.
pub(super) fn envoy<T>(body: impl FnOnce(&mut Envoy) -> T) -> T {
    ENVOY.with_borrow_mut(body)
}

impl Envoy {
    /// Returns the pieces of a body; `None` for the reply's.
    fn body(&self, body: c_int) -> Option<&Vec<Vec<u8>>> {
        match body {
            crate::abi::RECEIVED_REQUEST_BODY => Some(&self.arrived),
            crate::abi::BUFFERED_REQUEST_BODY => Some(&self.kept),
            _ => None,
        }
    }

    pub(super) fn healthy(&self, priority: usize) -> Vec<Host> {
        let level = self.hosts.get(priority).map(Vec::as_slice).unwrap_or_default();
        level.iter().filter(|host| host.healthy).cloned().collect()
    }

    pub(super) fn metric(&self, name: &str) -> u64 {
        self.metrics.iter().find(|(known, _)| known == name).map(|(_, value)| *value).unwrap_or_default()
    }
}

/// Any pointer that is not null; the functions here do not follow it.
pub(super) fn pointer() -> *mut c_void {
    context(1)
}

/// The pointer to the context of a request.
pub(super) fn context(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// Returns the bytes that the module passes.
fn text(buffer: Buffer) -> Vec<u8> {
    // SAFETY: the module passes valid buffers.
    unsafe { buffer.bytes() }.to_vec()
}

/// Writes a text that lives until the process ends, as Envoy's texts live longer than a hook.
fn put(place: *mut Buffer, bytes: &[u8]) {
    let bytes: &'static [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
    // SAFETY: the module passes a place for the result.
    unsafe { place.write(Buffer { ptr: bytes.as_ptr().cast(), length: bytes.len() }) };
}

fn find<'a>(fields: &'a [(String, Vec<u8>)], key: &[u8], index: usize) -> Option<&'a [u8]> {
    let mut found = fields.iter().filter(|(name, _)| name.as_bytes() == key);
    found.nth(index).map(|(_, value)| value.as_slice())
}

fn give(place: *mut Buffer, found: Option<&[u8]>) -> bool {
    if let Some(bytes) = found {
        put(place, bytes);
    }
    found.is_some()
}

fn define(name: Buffer, id: *mut usize) -> c_int {
    let name = String::from_utf8(text(name)).expect("UTF-8");
    let next = envoy(|envoy| {
        envoy.metrics.push((name, 0));
        envoy.metrics.len() - 1
    });
    // SAFETY: the module passes a place for the id.
    unsafe { id.write(next) };
    0
}

fn change(id: usize, body: impl FnOnce(&mut u64)) -> c_int {
    // Threads other than the one that has defined the metrics have none.
    envoy(|envoy| envoy.metrics.get_mut(id).map(|(_, value)| body(value)).map_or(1, |()| 0))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_log(_level: c_int, message: Buffer) {
    let line = String::from_utf8_lossy(&text(message)).into_owned();
    envoy(|envoy| envoy.log.push(line));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_log_enabled(_level: c_int) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_cluster_name(_lb: *mut c_void, name: *mut Buffer) {
    envoy(|envoy| put(name, envoy.cluster.as_bytes()));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_priority_set_size(_lb: *mut c_void) -> usize {
    envoy(|envoy| envoy.hosts.len())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_hosts_count(_lb: *mut c_void, priority: u32) -> usize {
    envoy(|envoy| envoy.hosts.get(priority as usize).map_or(0, Vec::len))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_healthy_hosts_count(
    _lb: *mut c_void,
    priority: u32,
) -> usize {
    envoy(|envoy| envoy.healthy(priority as usize).len())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_host_address(
    _lb: *mut c_void,
    priority: u32,
    index: usize,
    address: *mut Buffer,
) -> bool {
    envoy(|envoy| {
        let host = envoy.hosts.get(priority as usize).and_then(|level| level.get(index));
        give(address, host.map(|host| host.address.as_bytes()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_healthy_host_address(
    _lb: *mut c_void,
    priority: u32,
    index: usize,
    address: *mut Buffer,
) -> bool {
    envoy(|envoy| {
        give(address, envoy.healthy(priority as usize).get(index).map(|host| host.address.as_bytes()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_get_host_weight(
    _lb: *mut c_void,
    priority: u32,
    index: usize,
) -> u32 {
    envoy(|envoy| {
        let host = envoy.hosts.get(priority as usize).and_then(|level| level.get(index));
        host.map_or(0, |host| host.weight)
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_context_get_downstream_header(
    _context: *mut c_void,
    key: Buffer,
    value: *mut Buffer,
    index: usize,
    _count: *mut usize,
) -> bool {
    envoy(|envoy| give(value, find(&envoy.request, &text(key), index)))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_context_get_host_selection_retry_count(
    _context: *mut c_void,
) -> u32 {
    envoy(|envoy| envoy.selection_retries)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_context_should_select_another_host(
    _lb: *mut c_void,
    _context: *mut c_void,
    priority: u32,
    index: usize,
) -> bool {
    envoy(|envoy| {
        let host = envoy.hosts.get(priority as usize).and_then(|level| level.get(index));
        host.is_some_and(|host| envoy.refused.contains(&host.address))
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_config_define_counter(
    _config: *mut c_void,
    name: Buffer,
    _labels: *mut Buffer,
    _labels_count: usize,
    id: *mut usize,
) -> c_int {
    define(name, id)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_config_increment_counter(
    _config: *mut c_void,
    id: usize,
    _labels: *mut Buffer,
    _labels_count: usize,
    value: u64,
) -> c_int {
    change(id, |known| *known += value)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_config_define_gauge(
    _config: *mut c_void,
    name: Buffer,
    _labels: *mut Buffer,
    _labels_count: usize,
    id: *mut usize,
) -> c_int {
    define(name, id)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_lb_config_set_gauge(
    _config: *mut c_void,
    id: usize,
    _labels: *mut Buffer,
    _labels_count: usize,
    value: u64,
) -> c_int {
    change(id, |known| *known = value)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_config_define_counter(
    _config: *mut c_void,
    name: Buffer,
    _labels: *mut Buffer,
    _labels_count: usize,
    id: *mut usize,
) -> c_int {
    define(name, id)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_increment_counter(
    _filter: *mut c_void,
    id: usize,
    _labels: *mut Buffer,
    _labels_count: usize,
    value: u64,
) -> c_int {
    change(id, |known| *known += value)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_header(
    _filter: *mut c_void,
    map: c_int,
    key: Buffer,
    value: *mut Buffer,
    index: usize,
    _count: *mut usize,
) -> bool {
    envoy(|envoy| {
        let fields = if map == crate::abi::REQUEST_HEADERS { &envoy.request } else { &envoy.reply };
        give(value, find(fields, &text(key), index))
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
    _filter: *mut c_void,
    attribute: c_int,
    value: *mut Buffer,
) -> bool {
    assert_eq!(attribute, crate::abi::UPSTREAM_ADDRESS);
    envoy(|envoy| give(value, envoy.upstream.as_deref().map(str::as_bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_size(_filter: *mut c_void, body: c_int) -> usize {
    envoy(|envoy| match envoy.body(body) {
        Some(pieces) => pieces.iter().map(Vec::len).sum(),
        None => envoy.body_bytes,
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks_size(
    _filter: *mut c_void,
    body: c_int,
) -> usize {
    envoy(|envoy| envoy.body(body).map_or(0, Vec::len))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_body_chunks(
    _filter: *mut c_void,
    body: c_int,
    chunks: *mut Buffer,
) -> bool {
    let pieces = envoy(|envoy| envoy.body(body).cloned()).unwrap_or_default();
    for (at, piece) in pieces.iter().enumerate() {
        // SAFETY: the module passes room for as many pieces as there are.
        put(unsafe { chunks.add(at) }, piece);
    }
    !pieces.is_empty()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_received_buffered_request_body(
    _filter: *mut c_void,
) -> bool {
    envoy(|envoy| envoy.arrived.is_empty())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_cluster_name(
    _filter: *mut c_void,
    name: *mut Buffer,
) -> bool {
    envoy(|envoy| put(name, envoy.cluster.as_bytes()));
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_get_buffer_limit(_filter: *mut c_void) -> u64 {
    envoy(|envoy| envoy.buffer_limit)
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_buffer_limit(_filter: *mut c_void, limit: u64) {
    envoy(|envoy| envoy.buffer_limit = limit);
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_header(
    _filter: *mut c_void,
    map: c_int,
    key: Buffer,
    value: Buffer,
) -> bool {
    assert_eq!(map, crate::abi::REQUEST_HEADERS);
    let key = String::from_utf8(text(key)).expect("UTF-8");
    envoy(|envoy| {
        envoy.request.retain(|(name, _)| *name != key);
        if !value.ptr.is_null() {
            envoy.request.push((key, text(value)));
        }
    });
    true
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_set_dynamic_metadata_string(
    _filter: *mut c_void,
    _namespace: Buffer,
    key: Buffer,
    value: Buffer,
) {
    let shown = |buffer| String::from_utf8_lossy(&text(buffer)).into_owned();
    envoy(|envoy| envoy.metadata.push((shown(key), shown(value))));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_callback_http_send_response(
    _filter: *mut c_void,
    status: u32,
    _fields: *mut Field,
    _fields_count: usize,
    body: Buffer,
    _details: Buffer,
) {
    let body = String::from_utf8_lossy(&text(body)).into_owned();
    envoy(|envoy| envoy.replies.push((status, body)));
}
