//! Utilization of the machine, from `/proc/stat`. On a saturated machine a demo would measure the machine.

/// Processor time in ticks: of all cores since boot, and of some processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    total: u64,
    own: u64,
}

/// Utilization of the cores over a period, as shares of all cores from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuBusy {
    /// Utilization by all processes.
    pub all: f64,
    /// Utilization by the given processes.
    pub own: f64,
}

impl CpuTime {
    /// Reads the current times, including those of `processes`. Returns `None` if `/proc/stat` is missing.
    /// Processes that ended count as 0.
    pub fn now(processes: &[u32]) -> Option<Self> {
        let read = |path: String| std::fs::read_to_string(path).ok();
        let own = processes.iter().filter_map(|id| process_ticks(&read(format!("/proc/{id}/stat"))?)).sum();
        Some(Self { own, ..Self::parse(&read("/proc/stat".to_owned())?)? })
    }

    /// The columns are user, nice, system, idle, iowait, irq, softirq and steal. User and nice contain the
    /// two guest columns.
    fn parse(text: &str) -> Option<Self> {
        let columns = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let ticks: Vec<u64> = columns.take(8).map_while(|column| column.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        let total = ticks.iter().fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
        Some(Self { busy: total.saturating_sub(idle), total, own: 0 })
    }

    /// Returns the utilization since `earlier`; `None` if no tick has passed.
    pub fn busy_since(self, earlier: Self) -> Option<CpuBusy> {
        let total = self.total.checked_sub(earlier.total).filter(|ticks| *ticks > 0)?;
        let share = |now: u64, then: u64| (now.saturating_sub(then) as f64 / total as f64).min(1.0);
        Some(CpuBusy { all: share(self.busy, earlier.busy), own: share(self.own, earlier.own) })
    }
}

/// Parses the user and system time of a process: the 12th and 13th field after its name. The name may contain
/// spaces and brackets.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_time_that_is_not_idle() {
        let before = CpuTime::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3").unwrap();
        let after = CpuTime::parse("cpu  140 0 80 820 60 0 0 0 0 0\n").unwrap();
        let after = CpuTime { own: 30, ..after };
        assert_eq!(after.busy_since(before), Some(CpuBusy { all: 0.7, own: 0.3 }));
        assert_eq!(before.busy_since(before), None);
        for broken in ["", "cpu", "cpu  1 2 3", "cpux 1 2 3 4 5 6 7 8"] {
            assert_eq!(CpuTime::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn process_times_follow_the_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 700 30 1 1";
        assert_eq!(process_ticks(stat), Some(730));
        for broken in ["", "42 (a", "42 (a) S 1 2 3"] {
            assert_eq!(process_ticks(broken), None, "{broken}");
        }
        assert!(CpuTime::now(&[std::process::id()]).is_some_and(|time| time.own <= time.busy));
    }
}
