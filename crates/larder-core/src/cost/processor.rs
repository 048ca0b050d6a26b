//! A modelled processor: the time of a reply.
//!
//! The processor of the LARD simulation (Pai et al., ASPLOS 1998, section 3.1): 145 us to set a connection up, 145 us to close it,
//! and 40 us for every 512 bytes sent, rounded up. There every request has its own connection, so both count for each reply here,
//! regardless of its connection:
//!
//! ```text
//! time(n) = 290 us + 40 us * ceil(n / 512)
//! ```
//!
//! Eight real nodes have eight processors, and eight modelled ones on one machine share its few processors. Without this model a
//! node could serve far more than its share without slowing down. `speed` divides every time.

use super::{CostError, TIME_MAX, ensure, faster, nanos};
use core::time::Duration;

const UNIT: u64 = 512;

/// The times of a processor of speed 1, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTimes {
    /// The time for a reply without contents.
    pub reply_ns: u64,
    /// The time for each 512 bytes sent, rounded up.
    pub unit_ns: u64,
}

impl ProcessorTimes {
    /// Returns the time in ns to send `len` bytes.
    pub const fn send_ns(&self, len: u64) -> u64 {
        self.unit_ns.saturating_mul(len.div_ceil(UNIT))
    }

    /// Returns the time in ns for a reply with `len` bytes of contents.
    pub const fn whole_ns(&self, len: u64) -> u64 {
        self.reply_ns.saturating_add(self.send_ns(len))
    }
}

/// The times of replies. The default is the paper's processor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorModel {
    /// The time for a reply without contents. Default 290 us, at most 10 s.
    pub reply: Duration,
    /// The time for each 512 bytes sent, rounded up. Default 40 us, at most 10 s.
    pub unit: Duration,
    /// The factor by which all times are divided. 0.001 to 1,000,000, default 1.
    pub speed: f64,
}

impl Default for ProcessorModel {
    fn default() -> Self {
        Self { reply: Duration::from_micros(290), unit: Duration::from_micros(40), speed: 1.0 }
    }
}

impl ProcessorModel {
    /// Returns the times at speed 1.
    pub fn times(&self) -> ProcessorTimes {
        ProcessorTimes { reply_ns: nanos(self.reply), unit_ns: nanos(self.unit) }
    }

    /// Returns the time for a reply with `len` bytes of contents.
    pub fn reply_time(&self, len: u64) -> Duration {
        faster(self.times().whole_ns(len), self.speed)
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// The first value that is not.
    pub fn check(&self) -> Result<(), CostError> {
        ensure(self.reply <= TIME_MAX, "processor.reply", "at most 10 s")?;
        ensure(self.unit <= TIME_MAX, "processor.unit", "at most 10 s")?;
        ensure((0.001..=1e6).contains(&self.speed), "processor.speed", "0.001 to 1,000,000")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_matches_the_paper() {
        // KB and microseconds; 8 KB is the paper's check: 1e6 / 930 = 1,075 requests/s.
        for (kib, us) in
            [(1, 370), (8, 930), (16, 1_570), (44, 3_810), (64, 5_410), (100, 8_290), (500, 40_290)]
        {
            let time = ProcessorModel::default().reply_time(kib << 10);
            assert!(
                time.abs_diff(Duration::from_micros(us)) < Duration::from_nanos(10),
                "{kib} KB: {time:?}"
            );
        }
        let fast = ProcessorModel { speed: 10.0, ..ProcessorModel::default() };
        assert_eq!(fast.reply_time(0), Duration::from_micros(29));
        assert_eq!(
            ProcessorModel { speed: f64::NAN, ..fast }.check().map_err(|error| error.field),
            Err("processor.speed")
        );
    }
}
