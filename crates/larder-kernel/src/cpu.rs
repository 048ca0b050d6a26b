//! Processor use of this machine, from `/proc/stat` (proc(5)).

use std::fs;

/// Processor time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
}

/// Measures processor use between two calls of [`CpuMeter::permille`].
#[derive(Debug, Default)]
pub struct CpuMeter {
    last: Option<Ticks>,
}

impl CpuMeter {
    /// Returns the use of all processors since the last call, in thousandths. `None` in the first call, or if the
    /// system does not provide it.
    pub fn permille(&mut self) -> Option<u16> {
        let now = fs::read_to_string("/proc/stat").ok().as_deref().and_then(ticks);
        self.advance(now)
    }

    fn advance(&mut self, now: Option<Ticks>) -> Option<u16> {
        let last = std::mem::replace(&mut self.last, now)?;
        let now = now?;
        let all = now.all.checked_sub(last.all).filter(|&all| all > 0)?;
        // The idle counter may decrease a little (proc(5), iowait).
        let idle = now.idle.saturating_sub(last.idle).min(all);
        u16::try_from((all - idle) * 1_000 / all).ok()
    }
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal. Later fields are included in these.
fn ticks(stat: &str) -> Option<Ticks> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    let fields: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = fields.get(3)?.saturating_add(fields.get(4).copied().unwrap_or(0));
    Some(Ticks { idle, all: fields.iter().fold(0, |sum: u64, &field| sum.saturating_add(field)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_covers_the_time_between_two_calls() {
        let mut meter = CpuMeter::default();
        let first = ticks("cpu  100 0 50 800 50 0 0 0 9 9\ncpu0 1 2 3 4\n");
        assert_eq!(first, Some(Ticks { idle: 850, all: 1_000 }));
        assert_eq!(meter.advance(first), None);
        assert_eq!(meter.advance(ticks("cpu 125 0 50 870 55 0 0 0")), Some(250));
        assert_eq!(meter.advance(ticks("cpu 125 0 50 870 55 0 0 0")), None, "no time has passed");
        assert_eq!(meter.advance(ticks("cpu 225 0 50 860 55 0 0 0")), Some(1_000), "idle time went back");
        assert_eq!(meter.advance(None), None);
    }

    #[test]
    fn invalid_text_gives_no_measurement() {
        for text in ["", "cpu", "cpu0 1 2 3 4", "cpu 1 2 3", "cpu a b c d", "intr 1 2 3 4 5"] {
            assert_eq!(ticks(text), None, "{text}");
        }
        let full = "cpu 18446744073709551615 1 1 1 1 1 1 1";
        assert_eq!(ticks(full).map(|ticks| ticks.all), Some(u64::MAX));
    }
}
