//! The settings of peer switches.

use crate::dispatch::SettingsError;
use crate::range::in_range;
use core::time::Duration;

/// The settings of peer switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchesSettings {
    /// The shortest time between two messages to the others: the period of
    /// [`Switches::tick`](super::Switches::tick). 1 ms to 1 s; default 20 ms.
    pub period: Duration,
    /// The difference from the last sent load at which a node's load is sent again, in requests. 1 to 10,000;
    /// default 2.
    pub step: u32,
    /// The period at which all loads are sent. `period` to `unknown_after`; default 1 s.
    pub all_every: Duration,
    /// The time without a load message after which a switch's load is unknown. 100 ms to 1 min; default 3 s.
    pub unknown_after: Duration,
    /// The largest number of changed sets sent per period and route, and of sets in an answer. 1 to 60,000; default
    /// 1,000.
    pub sets_max: usize,
}

impl Default for SwitchesSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(20),
            step: 2,
            all_every: Duration::from_secs(1),
            unknown_after: Duration::from_secs(3),
            sets_max: 1_000,
        }
    }
}

impl SwitchesSettings {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (period, unknown) = (self.period, self.unknown_after);
        let within = |span: Duration, least, most| {
            (Duration::from_millis(least)..=Duration::from_millis(most)).contains(&span)
        };
        in_range("period", ms(period), within(period, 1, 1_000), "1 ms to 1 s")?;
        in_range("step", self.step.into(), (1..=10_000).contains(&self.step), "1 to 10000")?;
        let every_ok = (period..=unknown).contains(&self.all_every);
        in_range("unknown_after", ms(unknown), within(unknown, 100, 60_000), "100 ms to 1 min")?;
        in_range("all_every", ms(self.all_every), every_ok, "period to unknown_after")?;
        let sets_ok = (1..=60_000).contains(&self.sets_max);
        in_range("sets_max", self.sets_max as u64, sets_ok, "1 to 60000")
    }
}
