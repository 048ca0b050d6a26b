//! Lines in nginx's error log.

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

/// Logs something that works, but not as it should.
pub(crate) fn warn(line: &str) {
    write(Level::Warn, line);
}

/// Logs something that does not work.
pub(crate) fn error(line: &str) {
    write(Level::Error, line);
}

fn write(level: Level, line: &str) {
    #[cfg(all(has_nginx, not(test)))]
    crate::nginx::log(level, line);
    #[cfg(not(all(has_nginx, not(test))))]
    eprintln!("{level:?}: {line}");
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
