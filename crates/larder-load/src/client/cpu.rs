//! CPU time of client threads. It shows whether the clients, rather than the server, are the bottleneck.

use std::time::{Duration, Instant};

/// CPU times of one thread at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuSample {
    at: Instant,
    /// Time spent running.
    running: Duration,
    /// Time spent runnable but waiting for a CPU; `None` if the system does not report it.
    waiting: Option<Duration>,
}

/// CPU usage of a thread between two samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuUsage {
    pub(crate) wall: Duration,
    pub(crate) running: Duration,
    pub(crate) waiting: Option<Duration>,
}

impl CpuSample {
    pub(crate) fn current_thread() -> Self {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Self {
            at: Instant::now(),
            running: Duration::try_from(clock).unwrap_or_default(),
            waiting: std::fs::read_to_string("/proc/thread-self/schedstat")
                .ok()
                .and_then(|text| run_queue_time(&text)),
        }
    }

    pub(crate) fn since(&self, earlier: &Self) -> CpuUsage {
        CpuUsage {
            wall: self.at.saturating_duration_since(earlier.at),
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.zip(earlier.waiting).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// Parses the second of schedstat's three numbers: nanoseconds on the run queue.
fn run_queue_time(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_queue_time_is_the_second_number() {
        assert_eq!(run_queue_time("26800000 1800 12\n"), Some(Duration::from_nanos(1_800)));
        assert_eq!(run_queue_time(""), None);
        assert_eq!(run_queue_time("1 x 3"), None);
    }

    #[test]
    fn busy_work_counts_as_running() {
        let before = CpuSample::current_thread();
        let mut sum = 0u64;
        while CpuSample::current_thread().since(&before).running < Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(CpuSample::current_thread().since(&before).wall >= Duration::from_millis(1));
    }
}
