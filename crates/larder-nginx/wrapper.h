/* The parts of nginx that the module uses; build.rs makes Rust declarations of them. */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

/* nginx compares this text with its own when it loads the module. */
const char *LARDER_SIGNATURE = NGX_MODULE_SIGNATURE;
