//! The module: its directives, and its hooks in the life of nginx.

use super::directive::{ANOTHER_METHOD, set_larder, set_status};
use super::upstream::{MainConf, ServerConf, Upstream, of_context, of_cycle};
use super::{ERROR, OK, config_error, guard, name, ngx_int_t, pool_box, sys, upgrade, variables};
use crate::log;
use std::ffi::{c_char, c_void};
use std::ptr;

/// A table that nginx reads.
#[repr(transparent)]
pub(crate) struct Table<T>(T);

// SAFETY: nginx only reads the tables, and they have pointers only to what never changes.
unsafe impl<T> Sync for Table<T> {}

static CONTEXT: Table<sys::ngx_http_module_t> = Table(sys::ngx_http_module_t {
    preconfiguration: Some(preconfiguration),
    postconfiguration: Some(postconfiguration),
    create_main_conf: Some(create_main_conf),
    init_main_conf: None,
    create_srv_conf: Some(create_server_conf),
    merge_srv_conf: None,
    create_loc_conf: None,
    merge_loc_conf: None,
});

static COMMANDS: Table<[sys::ngx_command_t; 3]> = Table([
    sys::ngx_command_t {
        name: name(c"larder"),
        type_: (sys::NGX_HTTP_UPS_CONF | sys::NGX_CONF_ANY) as usize,
        set: Some(set_larder),
        conf: std::mem::offset_of!(sys::ngx_http_conf_ctx_t, srv_conf),
        offset: 0,
        post: ptr::null_mut(),
    },
    sys::ngx_command_t {
        name: name(c"larder_status"),
        type_: (sys::NGX_HTTP_LOC_CONF | sys::NGX_CONF_NOARGS) as usize,
        set: Some(set_status),
        conf: std::mem::offset_of!(sys::ngx_http_conf_ctx_t, loc_conf),
        offset: 0,
        post: ptr::null_mut(),
    },
    sys::ngx_command_t {
        name: sys::ngx_str_t { len: 0, data: ptr::null_mut() },
        type_: 0,
        set: None,
        conf: 0,
        offset: 0,
        post: ptr::null_mut(),
    },
]);

/// The module. nginx writes its numbers into it.
#[unsafe(no_mangle)]
pub(crate) static mut ngx_http_larder_module: sys::ngx_module_t = sys::ngx_module_t {
    ctx_index: usize::MAX,
    index: usize::MAX,
    name: ptr::null_mut(),
    spare0: 0,
    spare1: 0,
    version: sys::nginx_version as usize,
    signature: sys::LARDER_SIGNATURE.as_ptr().cast(),
    ctx: (&raw const CONTEXT).cast_mut().cast(),
    commands: (&raw const COMMANDS).cast_mut().cast(),
    type_: sys::NGX_HTTP_MODULE as usize,
    init_master: None,
    init_module: None,
    init_process: Some(init_process),
    init_thread: None,
    exit_thread: None,
    exit_process: Some(exit_process),
    exit_master: None,
    spare_hook0: 0,
    spare_hook1: 0,
    spare_hook2: 0,
    spare_hook3: 0,
    spare_hook4: 0,
    spare_hook5: 0,
    spare_hook6: 0,
    spare_hook7: 0,
};

/// The modules of this library, which `load_module` reads.
#[unsafe(no_mangle)]
pub(crate) static ngx_modules: Table<[*const sys::ngx_module_t; 2]> =
    Table([&raw const ngx_http_larder_module, ptr::null()]);

/// Names of the modules.
#[unsafe(no_mangle)]
pub(crate) static ngx_module_names: Table<[*const c_char; 2]> =
    Table([c"ngx_http_larder_module".as_ptr(), ptr::null()]);

/// Positions of the modules in nginx's order; none is given.
#[unsafe(no_mangle)]
pub(crate) static ngx_module_order: Table<[*const c_char; 1]> = Table([ptr::null()]);

unsafe extern "C" fn preconfiguration(cf: *mut sys::ngx_conf_t) -> ngx_int_t {
    guard("preconfiguration", ERROR, || {
        log::set_writer(super::log);
        if variables::add(cf) { OK } else { ERROR }
    })
}

unsafe extern "C" fn postconfiguration(cf: *mut sys::ngx_conf_t) -> ngx_int_t {
    guard("postconfiguration", ERROR, || {
        // SAFETY: nginx passes a valid config, whose context is that of HTTP.
        let context = unsafe { &*(*cf).ctx.cast::<sys::ngx_http_conf_ctx_t>() };
        // SAFETY: the context has a list with a place for each module of HTTP.
        let upstreams = unsafe { of_context(context) };
        for upstream in &upstreams {
            // nginx calls only the method that a block has named last.
            if !upstream.has_servers() {
                config_error(cf, &format!("upstream \"{}\": {ANOTHER_METHOD}", upstream.name()));
                return ERROR;
            }
        }
        if !upstreams.is_empty() {
            upgrade::install();
        }
        OK
    })
}

unsafe extern "C" fn create_main_conf(cf: *mut sys::ngx_conf_t) -> *mut c_void {
    guard("create_main_conf", ptr::null_mut(), || {
        // SAFETY: nginx passes a valid config.
        let pool = unsafe { (*cf).pool };
        pool_box(pool, MainConf::default()).map_or(ptr::null_mut(), |conf| conf.as_ptr().cast())
    })
}

unsafe extern "C" fn create_server_conf(cf: *mut sys::ngx_conf_t) -> *mut c_void {
    guard("create_server_conf", ptr::null_mut(), || {
        // SAFETY: nginx passes a valid config.
        let pool = unsafe { (*cf).pool };
        pool_box(pool, ServerConf::default()).map_or(ptr::null_mut(), |conf| conf.as_ptr().cast())
    })
}

/// Runs `run` for each upstream of a cycle that has larder's policies.
fn for_each(cycle: *mut sys::ngx_cycle_t, run: impl Fn(&Upstream)) {
    // SAFETY: nginx passes a valid cycle.
    unsafe { of_cycle(cycle) }.iter().for_each(|upstream| run(upstream));
}

unsafe extern "C" fn init_process(cycle: *mut sys::ngx_cycle_t) -> ngx_int_t {
    guard("init_process", OK, || {
        // SAFETY: nginx sets the variable before it starts processes.
        let process = unsafe { sys::ngx_process };
        // Processes for the disk cache are no workers.
        if process != sys::NGX_PROCESS_HELPER as usize {
            for_each(cycle, Upstream::start);
        }
        OK
    })
}

unsafe extern "C" fn exit_process(cycle: *mut sys::ngx_cycle_t) {
    guard("exit_process", (), || {
        for_each(cycle, |upstream| {
            if let Some(Err(error)) = upstream.shared().map(crate::shared::Shared::leave) {
                log::error(&format!("upstream {}: {error}", upstream.name()));
            }
        });
    });
}
