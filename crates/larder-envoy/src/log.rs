//! Log lines, which appear in Envoy's log under the name `dynamic_modules`.

use crate::host;

/// Logs an event that an operator may want to know.
pub(crate) fn info(line: &str) {
    host::log(crate::abi::LOG_INFO, line);
}

/// Logs a degraded operation.
pub(crate) fn warn(line: &str) {
    host::log(crate::abi::LOG_WARN, line);
}

/// Logs a failed operation.
pub(crate) fn error(line: &str) {
    host::log(crate::abi::LOG_ERROR, line);
}

/// Logs an error at most every 10 s from each place in the code. The line says how often the event has happened since the last one.
macro_rules! limited_error {
    ($($argument:tt)*) => { $crate::log::limited!(error, $($argument)*) };
}
pub(crate) use limited_error;

/// As [`limited_error`], for a degraded operation.
macro_rules! limited_warn {
    ($($argument:tt)*) => { $crate::log::limited!(warn, $($argument)*) };
}
pub(crate) use limited_warn;

macro_rules! limited {
    ($level:ident, $($argument:tt)*) => {{
        static LIMITER: larder_log::LogLimiter = larder_log::LogLimiter::new();
        if let Some(times) = LIMITER.due() {
            $crate::log::$level(&format!("{} (times={times})", format_args!($($argument)*)));
        }
    }};
}
pub(crate) use limited;
