//! Configuration of outlier ejection.

use crate::config_error::{ConfigError, range, span};
use std::time::Duration;

/// Outlier ejection: conditions and durations.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierConfig {
    /// Consecutive replies with status 500 to 599 after which a node is ejected. 1 to 10,000; 0 turns this off.
    /// Default 0.
    pub consecutive: u32,
    /// Excess of a node's share of failed requests (500 to 599, or no reply) over that of all other nodes, above
    /// which the node is ejected. 0.01 to 1; 0 turns this off. Default 0.
    pub failures_above: f64,
    /// Minimum requests of a node within the interval for its share to count. 1 to 1,000,000; default 50.
    pub requests_min: u32,
    /// Interval of the comparison. 100 ms to 1 h; default 5 s.
    pub interval: Duration,
    /// Duration of the first ejection. 100 ms to 1 h; default 30 s.
    pub time: Duration,
    /// The longest duration of an ejection. `time` to 24 h; default 5 min.
    pub time_max: Duration,
    /// Maximum share of ejected nodes; if there are other nodes, one may always be ejected. 0 to 1; default 0.2.
    pub ejected_max: f64,
}

impl Default for OutlierConfig {
    fn default() -> Self {
        Self {
            consecutive: 0,
            failures_above: 0.0,
            requests_min: 50,
            interval: Duration::from_secs(5),
            time: Duration::from_secs(30),
            time_max: Duration::from_secs(300),
            ejected_max: 0.2,
        }
    }
}

impl OutlierConfig {
    /// Whether nodes can be ejected.
    pub fn is_on(&self) -> bool {
        self.consecutive > 0 || self.failures_above > 0.0
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        range("outliers.consecutive", self.consecutive as usize, 0, 10_000)?;
        range("outliers.requests_min", self.requests_min as usize, 1, 1_000_000)?;
        span("outliers.interval", self.interval, 100, 3_600_000)?;
        span("outliers.time", self.time, 100, 3_600_000)?;
        let time_ms = u64::try_from(self.time.as_millis()).unwrap_or(u64::MAX);
        span("outliers.time_max", self.time_max, time_ms, 86_400_000)?;
        for (name, share) in
            [("outliers.failures_above", self.failures_above), ("outliers.ejected_max", self.ejected_max)]
        {
            if !(0.0..=1.0).contains(&share) {
                return Err(ConfigError::Share(name, share.to_string()));
            }
        }
        Ok(())
    }
}
