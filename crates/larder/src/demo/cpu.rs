//! How busy the machine was, from `/proc/stat`: a demo on a saturated machine measures the machine.

/// Processor time up to now, in ticks: all cores since boot, and what some processes have used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    busy: u64,
    total: u64,
    own: u64,
}

/// How busy the cores were over some time, as shares of all cores, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuBusy {
    /// Whatever ran.
    pub all: f64,
    /// The processes asked about.
    pub own: f64,
}

impl CpuTime {
    /// Reads it now, with what `processes` have used; none where the system has no such file. Ended processes count 0.
    pub fn now(processes: &[u32]) -> Option<Self> {
        let read = |path: String| std::fs::read_to_string(path).ok();
        let own = processes.iter().filter_map(|id| process_ticks(&read(format!("/proc/{id}/stat"))?)).sum();
        Some(Self { own, ..Self::parse(&read("/proc/stat".to_owned())?)? })
    }

    /// Columns: user nice system idle iowait irq softirq steal. The two guest columns are within user and nice.
    fn parse(text: &str) -> Option<Self> {
        let columns = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let ticks: Vec<u64> = columns.take(8).map_while(|column| column.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        let total = ticks.iter().fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
        Some(Self { busy: total.saturating_sub(idle), total, own: 0 })
    }

    /// Shares of all cores since `earlier`; none if no tick has passed.
    pub fn busy_since(self, earlier: Self) -> Option<CpuBusy> {
        let total = self.total.checked_sub(earlier.total).filter(|ticks| *ticks > 0)?;
        let share = |now: u64, then: u64| (now.saturating_sub(then) as f64 / total as f64).min(1.0);
        Some(CpuBusy { all: share(self.busy, earlier.busy), own: share(self.own, earlier.own) })
    }
}

/// User and system time of a process: the 12th and 13th field after its name, which may hold spaces and brackets.
fn process_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
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
    fn a_process_is_told_by_the_fields_behind_its_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 700 30 1 1";
        assert_eq!(process_ticks(stat), Some(730));
        for broken in ["", "42 (a", "42 (a) S 1 2 3"] {
            assert_eq!(process_ticks(broken), None, "{broken}");
        }
        assert!(CpuTime::now(&[std::process::id()]).is_some_and(|time| time.own <= time.busy));
    }
}
