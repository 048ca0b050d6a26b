//! The goals of a plan, and the test whether a cell meets them.

use core::fmt;
use core::str::FromStr;

use larder_core::Bytes;

use super::result::Cell;

/// The goal that the recommended cluster must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The least throughput at saturation, in requests per second.
    Throughput(f64),
    /// The largest 99th percentile of the delay at the stated load, in seconds. No request may be refused.
    P99(f64),
    /// The least share of the requests that cause no read of their own, 0 to 1.
    Hit(f64),
    /// The largest rate of bytes read from disk or origin at the stated load, in bytes per second.
    Origin(f64),
    /// The lowest price per request of the clusters that carry the stated load. Needs [`Prices`].
    Cost,
}

/// The prices of nodes, in any currency.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Prices {
    /// Price of a node per hour, without its memory for contents.
    pub node_hour: f64,
    /// Price of 10^9 bytes of memory for contents per hour.
    pub gb_hour: f64,
}

impl Prices {
    /// Returns the price of a cluster per hour.
    pub fn hour(&self, nodes: u16, memory: u64) -> f64 {
        f64::from(nodes) * (self.node_hour + memory as f64 / 1e9 * self.gb_hour)
    }

    /// Returns the price of a million requests at a cell's throughput.
    pub fn per_million(&self, cell: &Cell) -> f64 {
        let rate = cell.throughput.low().max(f64::MIN_POSITIVE);
        self.hour(cell.nodes, cell.memory_bytes) / (rate * 3_600.0) * 1e6
    }
}

impl Goal {
    /// Returns whether the goal refers to a load, which must then be known.
    pub const fn needs_load(self) -> bool {
        matches!(self, Self::P99(_) | Self::Origin(_))
    }

    /// Returns whether a cell meets the goal even at the unfavourable end of its error. `load` is in requests
    /// per second.
    pub fn is_met_by(self, cell: &Cell, load: f64) -> bool {
        match self {
            Self::Throughput(rate) => cell.throughput.low() >= rate,
            Self::Hit(share) => cell.hit_ratio.low() >= share,
            Self::Origin(rate) => cell.origin_bytes.high() * load <= rate && cell.throughput.low() >= load,
            Self::P99(seconds) => {
                cell.at_load.is_some_and(|at| at.refused_share == 0.0 && at.p99_s.high() <= seconds)
            }
            Self::Cost => cell.throughput.low() >= load,
        }
    }
}

/// A text that is not a goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a goal: write throughput=5000/s, p99=50ms, hit=95%, origin=20MB/s or cost")]
pub struct GoalError(String);

impl FromStr for Goal {
    type Err = GoalError;

    fn from_str(text: &str) -> Result<Self, GoalError> {
        let bad = || GoalError(text.chars().take(60).collect());
        let (name, value) = text.split_once('=').map_or((text, ""), |(name, value)| (name, value.trim()));
        let goal = match (name.trim(), value) {
            ("cost", "") => Some(Self::Cost),
            ("throughput", value) => number(value.trim_end_matches("/s")).map(Self::Throughput),
            ("hit", value) => match value.strip_suffix('%') {
                Some(percent) => number(percent).map(|percent| percent / 100.0),
                None => number(value),
            }
            .filter(|share| *share <= 1.0)
            .map(Self::Hit),
            ("p99", value) => seconds(value).map(Self::P99),
            ("origin", value) => value
                .trim_end_matches("/s")
                .parse::<Bytes>()
                .ok()
                .map(|bytes| Self::Origin(bytes.get() as f64)),
            _ => None,
        };
        goal.ok_or_else(bad)
    }
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0)
}

/// Parses a time with its unit, in s: `5s`, `200ms`, `50us`. `None` unless it is finite and above 0.
pub(crate) fn seconds(text: &str) -> Option<f64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit_s = match &text[unit_at..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    number(&text[..unit_at]).map(|value| value * unit_s)
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throughput(rate) => write!(f, "throughput={rate}/s"),
            Self::P99(seconds) => write!(f, "p99={}ms", significant(seconds * 1e3)),
            Self::Hit(share) => write!(f, "hit={}%", (share * 1e6).round() / 1e4),
            Self::Origin(rate) => write!(f, "origin={}/s", Bytes(*rate as u64)),
            Self::Cost => f.write_str("cost"),
        }
    }
}

/// Formats a number with six significant digits, without trailing zeros.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (5 - libm::floor(libm::log10(value.abs())) as i32).clamp(0, 15) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_significant_digits() {
        for (value, text) in
            [(0.0, "0"), (0.1 * 0.1, "0.01"), (50.0, "50"), (1.0 / 3.0, "0.333333"), (93_650.4, "93650.4")]
        {
            assert_eq!(significant(value), text);
        }
        assert_eq!(Goal::P99(1e-5).to_string(), "p99=0.01ms");
    }

    #[test]
    fn goals_are_parsed() {
        for (text, goal) in [
            ("throughput=5000/s", Goal::Throughput(5_000.0)),
            ("throughput=5e3", Goal::Throughput(5_000.0)),
            ("p99=50ms", Goal::P99(0.05)),
            ("p99=1.5s", Goal::P99(1.5)),
            ("hit=95%", Goal::Hit(0.95)),
            ("hit=0.5", Goal::Hit(0.5)),
            ("origin=20MB/s", Goal::Origin(2e7)),
            ("cost", Goal::Cost),
        ] {
            assert_eq!(text.parse(), Ok(goal), "{text}");
            assert_eq!(goal.to_string().parse(), Ok(goal), "{goal}");
        }
        for text in [
            "",
            "speed=1",
            "hit=101%",
            "hit=",
            "p99=50",
            "p99=é",
            "throughput=-1",
            "cost=1",
            "throughput=nan",
        ] {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
    }
}
