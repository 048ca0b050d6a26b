//! Hooks of the HTTP filters: `larder` in the upstream chain of a cluster, `larder_prompts` in a listener for requests, and
//! `larder_admin` in a listener of its own.

#![expect(unsafe_code, reason = "functions that Envoy calls")]

use super::{destroy, exclusive, guard, shared};
use crate::abi::{Buffer, CONTINUE, STOP_AND_BUFFER, STOP_ITERATION, STOP_NO_BUFFER};
use crate::admin;
use crate::attempt::{Attempt, Counters};
use crate::host::{Filter, Map, Reply, define_filter_counter};
use crate::log;
use crate::prompt;
use crate::prompt::reader::{Reader, ReaderCounters, Step};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of configs of the filter `larder`.
static CONFIGURED: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a cluster has the filter `larder`.
pub(crate) fn is_configured() -> bool {
    CONFIGURED.load(Ordering::Acquire) > 0
}

/// The config of a filter.
enum Config {
    Attempts(Counters),
    Prompts(ReaderCounters),
    Admin,
}

/// The filter of a request.
enum State {
    Attempt(Attempt),
    /// The host was not chosen by the policy.
    Bypassed(Counters),
    Prompt(Reader),
    Admin,
}

/// Reads the config of a filter. Returns null if there is no filter of this name; the log has the reason.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: *mut c_void,
    name: Buffer,
    _text: Buffer,
) -> *const c_void {
    guard("on_http_filter_config_new", ptr::null(), || {
        // SAFETY: Envoy passes a valid text.
        let parsed = match unsafe { name.bytes() } {
            b"larder" => {
                // SAFETY: Envoy is creating this config.
                let define = |name| unsafe { define_filter_counter(config, name) };
                CONFIGURED.fetch_add(1, Ordering::AcqRel);
                Config::Attempts(Counters {
                    replies: define("larder.replies"),
                    hits: define("larder.hits"),
                    misses: define("larder.misses"),
                    bytes: define("larder.bytes"),
                    bypassed: define("larder.bypassed"),
                })
            }
            b"larder_prompts" => {
                // SAFETY: as above.
                let define = |name| unsafe { define_filter_counter(config, name) };
                Config::Prompts(ReaderCounters {
                    read: define("larder.prompts_read"),
                    too_large: define("larder.prompts_too_large"),
                    timed_out: define("larder.prompts_timed_out"),
                    no_memory: define("larder.prompts_no_memory"),
                    no_prompt: define("larder.prompts_none"),
                })
            }
            b"larder_admin" => Config::Admin,
            other => {
                let name = String::from_utf8_lossy(other);
                log::error(&format!(
                    "filter_name is '{}': write larder, larder_prompts or larder_admin",
                    name.escape_debug()
                ));
                return ptr::null();
            }
        };
        Box::into_raw(Box::new(parsed)).cast_const().cast()
    })
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: *const c_void) {
    guard("on_http_filter_config_destroy", (), || {
        // SAFETY: Envoy passes the pointer that on_http_filter_config_new has returned.
        if matches!(unsafe { shared::<Config>(config) }, Some(Config::Attempts(_))) {
            CONFIGURED.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: Envoy gives the config up.
        unsafe { destroy::<Config>(config) };
    });
}

/// Filters have no config per route.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    _name: Buffer,
    _text: Buffer,
) -> *const c_void {
    guard("on_http_filter_per_route_config_new", ptr::null(), || {
        log::error("the filters of larder have no config per route: remove it");
        ptr::null()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(
    _config: *const c_void,
) {
}

/// Creates the filter of a request.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: *const c_void,
    _filter: *mut c_void,
) -> *const c_void {
    guard("on_http_filter_new", ptr::null(), || {
        // SAFETY: Envoy passes the pointer that on_http_filter_config_new has returned.
        let Some(config) = (unsafe { shared::<Config>(config) }) else { return ptr::null() };
        let state = match config {
            Config::Admin => State::Admin,
            Config::Prompts(counters) => State::Prompt(Reader::new(*counters)),
            Config::Attempts(counters) => {
                Attempt::take(*counters).map_or(State::Bypassed(*counters), State::Attempt)
            }
        };
        Box::into_raw(Box::new(state)).cast_const().cast()
    })
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(state: *const c_void) {
    // SAFETY: Envoy gives the filter up.
    guard("on_http_filter_destroy", (), || unsafe { destroy::<State>(state) });
}

/// Runs a hook of a filter.
///
/// # Safety
/// The pointers are as Envoy's interface describes them.
unsafe fn with<T>(
    hook: &str,
    fallback: T,
    (filter, state): (*mut c_void, *const c_void),
    body: impl FnOnce(Filter<'_>, &mut State) -> T,
) -> T {
    guard(hook, None, || {
        // SAFETY: Envoy passes the pointer that on_http_filter_new has returned, on the thread of the request.
        let state = unsafe { exclusive::<State>(state) }?;
        // SAFETY: Envoy passes a valid pointer.
        let filter = unsafe { Filter::new(filter) };
        Some(body(filter, state))
    })
    .unwrap_or(fallback)
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    filter: *mut c_void,
    state: *const c_void,
    is_end: bool,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| match state {
        State::Attempt(attempt) if attempt.is_of(filter) => {
            attempt.note_request(filter);
            Step::Continue
        }
        State::Attempt(attempt) => {
            let bypassed = State::Bypassed(attempt.counters());
            if let State::Attempt(other) = std::mem::replace(state, bypassed) {
                other.abandon();
            }
            note_bypassed(filter, state);
            Step::Continue
        }
        State::Bypassed(_) => {
            note_bypassed(filter, state);
            Step::Continue
        }
        State::Admin => {
            let path = filter.header(Map::Request, ":path", 0).unwrap_or_default();
            let (status, body) = admin::reply(&String::from_utf8_lossy(path));
            Step::Reply(Reply { status, body, details: "larder_admin".to_owned() })
        }
        State::Prompt(reader) => reader.note_head(filter, is_end),
    };
    // SAFETY: as this function's.
    let step = unsafe { with("on_http_filter_request_headers", Step::Continue, (filter, state), body) };
    // SAFETY: as above.
    unsafe { finish(filter, step, [STOP_ITERATION; 2]) }
}

/// Performs the step of a filter and returns the result of the hook: one of `stop` if the request waits, or has a reply.
///
/// A reply may end the request, and Envoy then calls other hooks of the filter before it returns. So no hook uses the filter here.
///
/// # Safety
/// `filter` is Envoy's pointer to a filter, and is valid.
unsafe fn finish(filter: *mut c_void, step: Step, [wait, replied]: [c_int; 2]) -> c_int {
    match step {
        Step::Continue => CONTINUE,
        Step::Wait => wait,
        Step::Reply(reply) => {
            // SAFETY: as the caller promises.
            guard("reply", (), || unsafe { Filter::new(filter) }.reply(&reply));
            replied
        }
    }
}

/// Counts a request whose host was not chosen by the policy.
fn note_bypassed(filter: Filter<'_>, state: &State) {
    if let State::Bypassed(Counters { bypassed: Some(counter), .. }) = state {
        filter.add(*counter, 1);
    }
    filter.remove_field(prompt::FIELD);
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    filter: *mut c_void,
    state: *const c_void,
    is_end: bool,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| {
        match state {
            State::Attempt(attempt) => attempt.note_head(filter, is_end),
            State::Prompt(reader) => reader.note_reply(),
            State::Bypassed(_) | State::Admin => {}
        }
        CONTINUE
    };
    // SAFETY: as this function's.
    unsafe { with("on_http_filter_response_headers", CONTINUE, (filter, state), body) }
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    filter: *mut c_void,
    state: *const c_void,
    is_end: bool,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| {
        if let State::Attempt(attempt) = state {
            attempt.note_body(filter, is_end);
        }
        CONTINUE
    };
    // SAFETY: as this function's.
    unsafe { with("on_http_filter_response_body", CONTINUE, (filter, state), body) }
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    filter: *mut c_void,
    state: *const c_void,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| {
        if let State::Attempt(attempt) = state {
            attempt.complete(filter);
        }
        CONTINUE
    };
    // SAFETY: as this function's.
    unsafe { with("on_http_filter_response_trailers", CONTINUE, (filter, state), body) }
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    filter: *mut c_void,
    state: *const c_void,
    is_end: bool,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| match state {
        State::Prompt(reader) => reader.note_body(filter, is_end),
        State::Attempt(_) | State::Bypassed(_) | State::Admin => Step::Continue,
    };
    // SAFETY: as this function's.
    let step = unsafe { with("on_http_filter_request_body", Step::Continue, (filter, state), body) };
    // SAFETY: as above.
    unsafe { finish(filter, step, [STOP_AND_BUFFER, STOP_NO_BUFFER]) }
}

/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(
    filter: *mut c_void,
    state: *const c_void,
) -> c_int {
    let body = |filter: Filter<'_>, state: &mut State| match state {
        State::Prompt(reader) => reader.note_trailers(filter),
        State::Attempt(_) | State::Bypassed(_) | State::Admin => Step::Continue,
    };
    // SAFETY: as this function's.
    let step = unsafe { with("on_http_filter_request_trailers", Step::Continue, (filter, state), body) };
    // SAFETY: as above.
    unsafe { finish(filter, step, [STOP_ITERATION; 2]) }
}

/// Envoy replies itself. `details` tell access logs why.
///
/// # Safety
/// The arguments are as Envoy's interface describes them.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_http_filter_local_reply(
    filter: *mut c_void,
    state: *const c_void,
    _status: u32,
    details: Buffer,
    _is_reset: bool,
) -> c_int {
    let body = |_: Filter<'_>, state: &mut State| {
        if let State::Prompt(reader) = state {
            // SAFETY: Envoy passes a valid text.
            reader.note_local_reply(unsafe { details.bytes() });
        }
        CONTINUE
    };
    // SAFETY: as this function's.
    unsafe { with("on_http_filter_local_reply", CONTINUE, (filter, state), body) }
}

/// Defines hooks that Envoy requires, and that have nothing to do here.
macro_rules! unused_hooks {
    ($(fn $name:ident($($type:ty),*) $(-> $result:ident)?;)+) => {
        $(
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($(_: $type),*) $(-> unused_hooks!(@type $result))? {
                $(unused_hooks!(@value $result))?
            }
        )+
    };
    (@type proceed) => { c_int };
    (@value proceed) => { CONTINUE };
}

unused_hooks! {
    fn envoy_dynamic_module_on_http_filter_stream_complete(*mut c_void, *const c_void);
    fn envoy_dynamic_module_on_http_filter_scheduled(*mut c_void, *const c_void, u64);
    fn envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(*mut c_void, *const c_void);
    fn envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(*mut c_void, *const c_void);
    fn envoy_dynamic_module_on_http_filter_http_callout_done(
        *mut c_void, *const c_void, u64, c_int, *mut c_void, usize, *mut c_void, usize
    );
    fn envoy_dynamic_module_on_http_filter_http_stream_headers(
        *mut c_void, *const c_void, u64, *mut c_void, usize, bool
    );
    fn envoy_dynamic_module_on_http_filter_http_stream_data(
        *mut c_void, *const c_void, u64, *const c_void, usize, bool
    );
    fn envoy_dynamic_module_on_http_filter_http_stream_trailers(
        *mut c_void, *const c_void, u64, *mut c_void, usize
    );
    fn envoy_dynamic_module_on_http_filter_http_stream_complete(*mut c_void, *const c_void, u64);
    fn envoy_dynamic_module_on_http_filter_http_stream_reset(*mut c_void, *const c_void, u64, c_int);
}
