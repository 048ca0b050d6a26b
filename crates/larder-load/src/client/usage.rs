//! What a thread of clients has used of the machine: when the clients are the bottleneck, the run measures them.

use std::time::{Duration, Instant};

/// Processor time of one thread up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    /// Time it ran.
    running: Duration,
    /// Time it was ready to run but another had the processor; `None` if the system does not say.
    waiting: Option<Duration>,
}

/// What a thread used between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    pub(crate) running: Duration,
    pub(crate) waiting: Option<Duration>,
}

impl Usage {
    pub(crate) fn of_this_thread() -> Self {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Self {
            at: Instant::now(),
            running: Duration::try_from(clock).unwrap_or_default(),
            waiting: std::fs::read_to_string("/proc/thread-self/schedstat")
                .ok()
                .and_then(|text| waiting(&text)),
        }
    }

    pub(crate) fn since(&self, earlier: &Self) -> Spent {
        Spent {
            wall: self.at.saturating_duration_since(earlier.at),
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.zip(earlier.waiting).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// The second of schedstat's three numbers: nanoseconds on the run queue.
fn waiting(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_the_second_number() {
        assert_eq!(waiting("26800000 1800 12\n"), Some(Duration::from_nanos(1_800)));
        assert_eq!(waiting(""), None);
        assert_eq!(waiting("1 x 3"), None);
    }

    #[test]
    fn busy_work_counts_as_running() {
        let before = Usage::of_this_thread();
        let mut sum = 0u64;
        while Usage::of_this_thread().since(&before).running < Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(Usage::of_this_thread().since(&before).wall >= Duration::from_millis(1));
    }
}
