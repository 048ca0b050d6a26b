//! How busy the machine was, from `/proc/stat`: a demo on a saturated machine measures the machine.

/// Processor time since boot, in ticks, over all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTime {
    busy: u64,
    total: u64,
}

impl CpuTime {
    /// Reads it now; none where the system has no such file.
    pub(crate) fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Columns: user nice system idle iowait irq softirq steal. The two guest columns are within user and nice.
    fn parse(text: &str) -> Option<Self> {
        let columns = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let ticks: Vec<u64> = columns.take(8).map_while(|column| column.parse().ok()).collect();
        let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
        let total = ticks.iter().fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
        Some(Self { busy: total.saturating_sub(idle), total })
    }

    /// Share of all cores that was busy since `earlier`, 0 to 1; none if no tick has passed.
    pub(crate) fn busy_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|ticks| *ticks > 0)?;
        Some((self.busy.saturating_sub(earlier.busy) as f64 / total as f64).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        let before = CpuTime::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3").unwrap();
        let after = CpuTime::parse("cpu  140 0 80 820 60 0 0 0 0 0\n").unwrap();
        assert_eq!(after.busy_since(before), Some(0.7));
        assert_eq!(before.busy_since(before), None);
        for broken in ["", "cpu", "cpu  1 2 3", "cpux 1 2 3 4 5 6 7 8"] {
            assert_eq!(CpuTime::parse(broken), None, "{broken}");
        }
    }
}
