//! Processor time of processes.

use std::fs;
use std::time::Duration;

/// Returns the processor time of all threads of a process, from the first number of `schedstat` in
/// nanoseconds.
pub(crate) fn cpu_time(id: u32) -> Duration {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return Duration::ZERO };
    let times = tasks
        .flatten()
        .filter_map(|task| parse_schedstat(&fs::read_to_string(task.path().join("schedstat")).ok()?));
    times.sum()
}

fn parse_schedstat(schedstat: &str) -> Option<Duration> {
    schedstat.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_time() {
        assert_eq!(parse_schedstat("1500 20 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse_schedstat(""), None);
        assert_eq!(parse_schedstat("x 1 2"), None);
    }
}
