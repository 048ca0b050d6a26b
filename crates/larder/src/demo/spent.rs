//! Processor time of processes.

use std::fs;
use std::time::Duration;

/// Processor time of all threads that a process has: the first number of `schedstat`, nanoseconds on a processor.
pub(crate) fn process(id: u32) -> Duration {
    let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return Duration::ZERO };
    let times =
        tasks.flatten().filter_map(|task| ran(&fs::read_to_string(task.path().join("schedstat")).ok()?));
    times.sum()
}

fn ran(schedstat: &str) -> Option<Duration> {
    schedstat.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_first_number() {
        assert_eq!(ran("1500 20 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(ran(""), None);
        assert_eq!(ran("x 1 2"), None);
    }
}
