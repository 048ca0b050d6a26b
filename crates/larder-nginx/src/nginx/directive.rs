//! The directives `larder` and `larder_status`.

use super::balance::init_peer;
use super::context::{context_index, tag};
use super::upstream::{MainConf, ServerConf, Upstream, init_zone, upstream_of};
use super::{ERROR, OK, bytes, config_error, guard, ngx_int_t, page, pool_box, pool_text, sys, write_log};
use crate::config::{PolicyConfig, PolicyConfigError};
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr::{self, NonNull};

/// The results of a directive.
const CONF_OK: *mut c_char = ptr::null_mut();
const CONF_ERROR: *mut c_char = ptr::without_provenance_mut(usize::MAX);

/// The reason for refusing an upstream with several methods.
pub(super) const ANOTHER_METHOD: &str = "another directive has chosen the balancing method: larder must be the only method of its \
    upstream, and stand before keepalive";

/// Returns the size of a shared memory with room for nginx's slab allocator: some bytes for each page, and its head.
const fn with_slab(memory: usize) -> usize {
    memory + memory / 64 + (128 << 10)
}

/// Reads the directive `larder`.
pub(super) unsafe extern "C" fn set_larder(
    cf: *mut sys::ngx_conf_t,
    _command: *mut sys::ngx_command_t,
    conf: *mut c_void,
) -> *mut c_char {
    guard("larder", CONF_ERROR, || {
        // SAFETY: nginx passes what `create_server_conf` has made.
        let Some(conf) = (unsafe { conf.cast::<ServerConf>().as_mut() }) else { return CONF_ERROR };
        match add(cf, conf) {
            Ok(()) => CONF_OK,
            Err(error) => {
                config_error(cf, &error);
                CONF_ERROR
            }
        }
    })
}

/// Makes an upstream one with larder's policies. The text of an error names the remedy.
fn add(cf: *mut sys::ngx_conf_t, conf: &mut ServerConf) -> Result<(), String> {
    let no_memory = || "out of memory".to_owned();
    // SAFETY: nginx passes a valid config, whose context is that of an upstream.
    let context = unsafe { &*(*cf).ctx.cast::<sys::ngx_http_conf_ctx_t>() };
    // SAFETY: nginx writes the number of its module at its start.
    let index = unsafe { sys::ngx_http_upstream_module.ctx_index };
    // SAFETY: the list has a place for each module of HTTP.
    let own = unsafe { *context.srv_conf.add(index) }.cast::<sys::ngx_http_upstream_srv_conf_t>();
    let upstream_conf = NonNull::new(own).ok_or("there is no upstream")?;
    if conf.upstream.is_some() {
        return Err("the directive is duplicate".to_owned());
    }
    // SAFETY: the upstream's config is valid while nginx reads it.
    if unsafe { (*own).peer.init_upstream }.is_some() {
        return Err(ANOTHER_METHOD.to_owned());
    }
    let arguments = arguments(cf).ok_or("an argument is not UTF-8")?;
    let absolute = |parameter: &str, path: &str| full_name(cf, path, parameter == "config");
    let config = PolicyConfig::parse(&arguments[1..], absolute)
        .map_err(|error: PolicyConfigError| error.to_string())?;
    let key = compile(cf, &config.key).ok_or("key: see the message before")?;
    let memory = with_slab(config.plan.memory);
    let upstream = pool_box(pool(cf), Upstream::new(config, key, upstream_conf)).ok_or_else(no_memory)?;
    // SAFETY: the upstream was just made, and nginx uses it in this thread only.
    let name = format!("larder:{}", unsafe { upstream.as_ref() }.name());
    let mut name = pool_text(pool(cf), &name).ok_or_else(no_memory)?;
    // SAFETY: nginx copies the name's pointer, which lives as long as the cycle.
    let zone = unsafe { sys::ngx_shared_memory_add(cf, &raw mut name, memory, tag()).as_mut() };
    let zone = zone.ok_or("cannot add the shared memory")?;
    zone.init = Some(init_zone);
    zone.data = upstream.as_ptr().cast();
    conf.upstream = Some(upstream);
    // SAFETY: the list has a place for each module, and `create_main_conf` has filled this one.
    let main = unsafe { *context.main_conf.add(context_index()) }.cast::<MainConf>();
    // SAFETY: as above; nothing else uses it now.
    unsafe { main.as_mut() }.ok_or("there is no config")?.upstreams.push(upstream);
    let flags = sys::NGX_HTTP_UPSTREAM_CREATE
        | sys::NGX_HTTP_UPSTREAM_WEIGHT
        | sys::NGX_HTTP_UPSTREAM_MAX_CONNS
        | sys::NGX_HTTP_UPSTREAM_MAX_FAILS
        | sys::NGX_HTTP_UPSTREAM_FAIL_TIMEOUT
        | sys::NGX_HTTP_UPSTREAM_DOWN
        | sys::NGX_HTTP_UPSTREAM_BACKUP;
    // SAFETY: the upstream's config is valid while nginx reads it.
    let upstream_conf = unsafe { &mut *own };
    upstream_conf.flags = flags as usize;
    upstream_conf.peer.init_upstream = Some(init_upstream);
    Ok(())
}

fn pool(cf: *mut sys::ngx_conf_t) -> *mut sys::ngx_pool_t {
    // SAFETY: nginx passes a valid config.
    unsafe { (*cf).pool }
}

/// Returns the words of the directive; `None` if one of them is not UTF-8.
fn arguments<'a>(cf: *mut sys::ngx_conf_t) -> Option<Vec<&'a str>> {
    // SAFETY: nginx passes a valid config with its words, which live as long as the cycle.
    let words = unsafe { &*(*cf).args };
    // SAFETY: the array has so many texts.
    let words = unsafe { std::slice::from_raw_parts(words.elts.cast::<sys::ngx_str_t>(), words.nelts) };
    // SAFETY: as above.
    words.iter().map(|word| std::str::from_utf8(unsafe { bytes(*word) }).ok()).collect()
}

/// Returns the absolute path of a file, relative to nginx's prefix or to the folder of its config.
fn full_name(cf: *mut sys::ngx_conf_t, path: &str, is_config: bool) -> PathBuf {
    let Some(mut name) = pool_text(pool(cf), path) else { return PathBuf::from(path) };
    // SAFETY: nginx passes a valid config, and changes only the text.
    unsafe { sys::ngx_conf_full_name((*cf).cycle, &raw mut name, is_config.into()) };
    // SAFETY: nginx has put a text of the pool there.
    PathBuf::from(String::from_utf8_lossy(unsafe { bytes(name) }).into_owned())
}

/// Compiles a text with variables. nginx reports errors.
fn compile(cf: *mut sys::ngx_conf_t, text: &str) -> Option<sys::ngx_http_complex_value_t> {
    let mut source = pool_text(pool(cf), text)?;
    // SAFETY: all zeros is a valid value of both types: nothing yet.
    let mut compiled: sys::ngx_http_complex_value_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut compile: sys::ngx_http_compile_complex_value_t = unsafe { std::mem::zeroed() };
    compile.cf = cf;
    compile.value = &raw mut source;
    compile.complex_value = &raw mut compiled;
    // SAFETY: all pointers are valid during the call.
    let result = unsafe { sys::ngx_http_compile_complex_value(&raw mut compile) };
    (result == OK).then_some(compiled)
}

/// Takes the servers of an upstream, when its block has been read.
unsafe extern "C" fn init_upstream(
    cf: *mut sys::ngx_conf_t,
    conf: *mut sys::ngx_http_upstream_srv_conf_t,
) -> ngx_int_t {
    guard("init_upstream", ERROR, || {
        // SAFETY: nginx passes valid configs.
        if unsafe { sys::ngx_http_upstream_init_round_robin(cf, conf) } != OK {
            return ERROR;
        }
        // SAFETY: as above.
        let upstream_conf = unsafe { &mut *conf };
        let Some(upstream) = upstream_of(upstream_conf) else { return ERROR };
        if let Err(error) = upstream.set_servers() {
            // SAFETY: nginx sets the name of the file for each upstream of a config, with a zero byte behind it.
            let file = unsafe { std::ffi::CStr::from_ptr(upstream_conf.file_name.cast()) };
            let place = format!("{}:{}", file.to_string_lossy(), upstream_conf.line);
            // SAFETY: nginx passes a valid config.
            let log = unsafe { (*cf).log };
            write_log(
                log,
                sys::NGX_LOG_EMERG,
                &format!("{error} in upstream \"{}\" in {place}", upstream.name()),
            );
            return ERROR;
        }
        upstream_conf.peer.init = Some(init_peer);
        OK
    })
}

/// Reads the directive `larder_status`.
pub(super) unsafe extern "C" fn set_status(
    cf: *mut sys::ngx_conf_t,
    _command: *mut sys::ngx_command_t,
    _conf: *mut c_void,
) -> *mut c_char {
    guard("larder_status", CONF_ERROR, || {
        // SAFETY: nginx passes a valid config, whose context is that of a location.
        let context = unsafe { &*(*cf).ctx.cast::<sys::ngx_http_conf_ctx_t>() };
        // SAFETY: nginx writes the number of its module at its start.
        let index = unsafe { sys::ngx_http_core_module.ctx_index };
        // SAFETY: the list has a place for each module of HTTP.
        let location = unsafe { *context.loc_conf.add(index) }.cast::<sys::ngx_http_core_loc_conf_t>();
        // SAFETY: nginx has filled this place.
        let Some(location) = (unsafe { location.as_mut() }) else { return CONF_ERROR };
        location.handler = Some(page::handle);
        CONF_OK
    })
}
