//! Lines in nginx's error log.

use std::sync::OnceLock;

/// The importance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
}

/// Logs an event that an operator may want to know.
pub(crate) fn info(line: &str) {
    write(Level::Info, line);
}

/// Logs a degraded operation.
pub(crate) fn warn(line: &str) {
    write(Level::Warn, line);
}

/// Logs a failed operation.
pub(crate) fn error(line: &str) {
    write(Level::Error, line);
}

/// The function that writes a line.
static WRITER: OnceLock<fn(Level, &str)> = OnceLock::new();

/// Sets the function that writes lines from now on. Without one, they go to the standard error stream.
pub(crate) fn set_writer(writer: fn(Level, &str)) {
    let _ = WRITER.set(writer);
}

fn write(level: Level, line: &str) {
    match WRITER.get() {
        Some(writer) => writer(level, line),
        None => eprintln!("{level:?}: {line}"),
    }
}

/// Logs an error at most every 10 s from each place in the code. The line says how often the event has happened since the last one.
macro_rules! limited_error {
    ($($argument:tt)*) => {{
        static LIMITER: larder_log::LogLimiter = larder_log::LogLimiter::new();
        if let Some(times) = LIMITER.due() {
            $crate::log::error(&format!("{} (times={times})", format_args!($($argument)*)));
        }
    }};
}
pub(crate) use limited_error;
