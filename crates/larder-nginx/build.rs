//! Makes the declarations of nginx's functions and types from the headers of the package `nginx-dev`.
//!
//! The headers lack those that nginx's `configure` writes. It is therefore run here, as Debian runs it for the packages of its modules:
//! with the options of Debian's nginx. Another nginx is used with `NGINX_SOURCE_DIR`, and with `NGINX_BUILD_DIR` if it is configured.

use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the package `nginx-dev`.
const DEBIAN: &str = "/usr/share/nginx/src";

/// The first version, as nginx writes it in numbers, whose lists of servers the module does not know.
const TOO_NEW: u32 = 1_027_000;

/// Remedy for missing headers.
const REMEDY: &str = "the module needs the headers of nginx and libclang: run `apt install nginx-dev libclang-dev`, or set \
    NGINX_SOURCE_DIR to the source of an nginx";

const FUNCTIONS: &str = "ngx_(http_(upstream_(init_round_robin(_peer)?|(get|free)_round_robin_peer)|compile_complex_value|complex_value|\
    add_variable|send_header|output_filter|discard_request_body)|conf_(log_error|full_name)|log_error_core|shared_memory_add|\
    slab_alloc|pn?alloc|pcalloc|create_temp_buf|array_push|parse_size|rwlock_[rw]lock|rwlock_unlock|pool_cleanup_add)";
const TYPES: &str = "ngx_(module_t|command_t|http_(module_t|request_t|upstream_(srv_conf_t|rr_peer_data_t|t|state_t)|conf_ctx_t|\
    core_loc_conf_t|compile_complex_value_t|variable_t)|cycle_t|conf_t|shm_zone_t|slab_pool_t|peer_connection_t|event_pipe_t|\
    table_elt_t|list_part_t|pool_cleanup_t)";
const VARIABLES: &str = "LARDER_SIGNATURE|nginx_version|NGX_(OK|ERROR|DECLINED|BUSY|DONE|HTTP_MODULE|LOG_(EMERG|ERR|WARN|NOTICE)|\
    CONF_(NOARGS|ANY)|HTTP_(UPS|LOC)_CONF|HTTP_UPSTREAM_(CREATE|WEIGHT|MAX_CONNS|MAX_FAILS|FAIL_TIMEOUT|DOWN|BACKUP)|PEER_(FAILED|NEXT)|\
    PROCESS_(SINGLE|MASTER|WORKER|HELPER)|HTTP_(NOT_ALLOWED|INTERNAL_SERVER_ERROR|GET|HEAD)|HTTP_VAR_NOCACHEABLE)|\
    ngx_(cycle|process|http_module|http_core_module|http_upstream_module|cached_time|http_top_header_filter)";

fn main() -> Result<(), Box<dyn Error>> {
    for variable in ["NGINX_SOURCE_DIR", "NGINX_BUILD_DIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rustc-check-cfg=cfg(has_nginx)");
    let own = env::var_os("NGINX_SOURCE_DIR").map(PathBuf::from);
    let source = own.clone().unwrap_or_else(|| PathBuf::from(DEBIAN));
    if !source.join("src/core/nginx.h").is_file() {
        let message = format!("there is no nginx in {}: {REMEDY}", source.display());
        if own.is_some() {
            return Err(message.into());
        }
        // The workspace builds on machines that have no use for the module. nginx refuses to load what is built then.
        println!("cargo::rerun-if-changed={DEBIAN}");
        println!("cargo::warning=the module for nginx is not built: {message}");
        return Ok(());
    }
    println!("cargo::rerun-if-changed={}", source.join("src/core/nginx.h").display());
    let version = version(&source)?;
    if version >= TOO_NEW {
        return Err(
            format!("the nginx in {} has the version {version}: at most 1.26", source.display()).into()
        );
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let build = match env::var_os("NGINX_BUILD_DIR") {
        Some(build) => PathBuf::from(build),
        None => configure(&source, &out)?,
    };
    let folders = [
        "src/core",
        "src/event",
        "src/event/modules",
        "src/os/unix",
        "src/http",
        "src/http/modules",
        "src/http/v2",
    ];
    let includes = folders.iter().map(|folder| source.join(folder)).chain([build]);
    let bindings = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(includes.map(|folder| format!("-I{}", folder.display())))
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var(VARIABLES)
        .derive_debug(false)
        .layout_tests(false);
    // Without libclang, bindgen panics.
    let Ok(bindings) = catch_unwind(AssertUnwindSafe(|| bindings.generate())) else {
        println!("cargo::warning=the module for nginx is not built: libclang cannot be loaded: {REMEDY}");
        return Ok(());
    };
    let bindings = bindings.map_err(|error| format!("cannot read nginx's headers: {error}. {REMEDY}"))?;
    bindings.write_to_file(out.join("nginx.rs"))?;
    println!("cargo::rustc-cfg=has_nginx");
    Ok(())
}

/// Returns the version of a source, such as 1022001 for 1.22.1.
fn version(source: &Path) -> Result<u32, Box<dyn Error>> {
    let text = fs::read_to_string(source.join("src/core/nginx.h"))?;
    let number =
        text.lines().find_map(|line| line.strip_prefix("#define nginx_version")?.trim().parse().ok());
    number.ok_or_else(|| format!("{} has no version", source.join("src/core/nginx.h").display()).into())
}

/// Runs nginx's `configure` in a folder of links to the source. Returns the folder with the headers that it has written.
fn configure(source: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let folder = out.join("nginx");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for name in ["auto", "configure", "src"] {
        symlink(source.join(name), folder.join(name))?;
    }
    // A source without this file is configured with what decides the layout of nginx's types.
    let flags = fs::read_to_string(source.join("conf_flags")).unwrap_or_default();
    let options = flags
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'))
        .map_or("--with-compat --with-threads", |(own, _)| own);
    let output =
        Command::new("sh").arg("configure").args(options.split_whitespace()).current_dir(&folder).output()?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return Err(format!("nginx's configure has failed:\n{out}{err}\n{REMEDY}").into());
    }
    Ok(folder.join("objs"))
}
