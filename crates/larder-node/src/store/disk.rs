//! A modelled disk: how long a read takes, and one read at a time.
//!
//! The disk of the LARD simulation (Pai et al., ASPLOS 1998, section 3.1): a first access of 28 ms (two seeks and a
//! rotation), 410 us for every 4 KB, and 14 ms for every 44 KB beyond the first 44 KB, 44 KB being the mean transfer
//! between seeks. Lengths round up to whole units:
//!
//! ```text
//! time(n) = 28 ms + 410 us * ceil(n / 4 KB) + 14 ms * ceil(max(0, n - 44 KB) / 44 KB)
//! ```
//!
//! A file read in pieces, in file order, takes the time of the whole: the piece after `before` bytes takes
//! `time(before + n) - time(before)`. `speed` divides every time.
//!
//! One disk does one read at a time; see [`super::serial`].

use crate::config::{ConfigError, ensure};
use std::time::Duration;

const BLOCK: u64 = 4 << 10;
const SEEK_EVERY: u64 = 44 << 10;

/// How long reads take. The default is the paper's disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskModel {
    /// Time to the first block. Default 28 ms, at most 10 s.
    pub first_access: Duration,
    /// Time for each 4 KiB, rounded up. Default 410 us, at most 10 s.
    pub block: Duration,
    /// Time for each 44 KiB, rounded up, beyond the first 44 KiB. Default 14 ms, at most 10 s.
    pub seek: Duration,
    /// How many times faster than all that. 0.001 to 1,000,000, default 1.
    pub speed: f64,
    /// Disks of the node; targets are spread over them in the manifest's order. 1 to 64, default 1.
    pub disks: u16,
}

impl Default for DiskModel {
    fn default() -> Self {
        Self {
            first_access: Duration::from_millis(28),
            block: Duration::from_micros(410),
            seek: Duration::from_millis(14),
            speed: 1.0,
            disks: 1,
        }
    }
}

impl DiskModel {
    /// Time to read a whole object of `len` bytes from an idle disk.
    pub fn read_time(&self, len: u64) -> Duration {
        self.continue_time(0, len)
    }

    /// Time to read `len` bytes when the `before` bytes in front of them have just been read. With `before` = 0,
    /// the first access is due.
    pub fn continue_time(&self, before: u64, len: u64) -> Duration {
        let end = before.saturating_add(len);
        let blocks = units(end, BLOCK) - units(before, BLOCK);
        let seeks = seeks(end) - seeks(before);
        let first = if before == 0 { self.first_access } else { Duration::ZERO };
        let time = first.as_secs_f64()
            + self.block.as_secs_f64() * blocks as f64
            + self.seek.as_secs_f64() * seeks as f64;
        Duration::try_from_secs_f64(time / self.speed).unwrap_or(Duration::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let most = Duration::from_secs(10);
        ensure(self.first_access <= most, "store.disk.first_access", "at most 10 s")?;
        ensure(self.block <= most, "store.disk.block", "at most 10 s")?;
        ensure(self.seek <= most, "store.disk.seek", "at most 10 s")?;
        ensure((0.001..=1e6).contains(&self.speed), "store.disk.speed", "0.001 to 1,000,000")?;
        ensure((1..=64).contains(&self.disks), "store.disk.disks", "1 to 64")
    }
}

fn units(len: u64, unit: u64) -> u64 {
    len.div_ceil(unit)
}

fn seeks(len: u64) -> u64 {
    units(len.saturating_sub(SEEK_EVERY), SEEK_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_model_is_the_papers() {
        // Derived from the formula: KB and the disk's time in microseconds.
        let cases = [
            (1, 28_410),
            (8, 28_820),
            (16, 29_640),
            (44, 32_510),
            (64, 48_560),
            (100, 66_250),
            (500, 233_250),
        ];
        for (kib, us) in cases {
            assert_eq!(DiskModel::default().read_time(kib << 10), Duration::from_micros(us), "{kib} KB");
        }
        let fast = DiskModel { speed: 10.0, ..DiskModel::default() };
        assert_eq!(fast.read_time(1 << 10), Duration::from_micros(2_841));
    }

    proptest! {
        #[test]
        fn pieces_in_file_order_take_the_time_of_the_whole(pieces in prop::collection::vec(1..300_000_u64, 1..20)) {
            let disk = DiskModel::default();
            let mut before = 0;
            let mut sum = Duration::ZERO;
            for piece in pieces {
                sum += disk.continue_time(before, piece);
                before += piece;
            }
            let whole = disk.read_time(before);
            prop_assert!(sum.abs_diff(whole) < Duration::from_micros(1), "{sum:?} {whole:?}");
        }
    }
}
