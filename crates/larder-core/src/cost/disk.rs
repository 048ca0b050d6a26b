//! A modelled disk: the time of a read.
//!
//! The disk of the LARD simulation (Pai et al., ASPLOS 1998, section 3.1): a first access of 28 ms (two seeks and a rotation),
//! 410 us for every 4 KB, and 14 ms for every 44 KB beyond the first 44 KB, which is the mean transfer between seeks. Lengths are
//! rounded up to whole units:
//!
//! ```text
//! time(n) = 28 ms + 410 us * ceil(n / 4 KB) + 14 ms * ceil(max(0, n - 44 KB) / 44 KB)
//! ```
//!
//! A file read in pieces, in file order, takes the time of the whole: the piece after `before` bytes takes
//! `time(before + n) - time(before)`. `speed` divides every time.

use super::{CostError, TIME_MAX, ensure, faster, nanos};
use core::time::Duration;

/// The size of a block, in bytes.
const BLOCK: u64 = 4 << 10;
/// The times of a disk of speed 1, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskTimes {
    /// The time to the first block.
    pub first_access_ns: u64,
    /// The time for each 4 KiB, rounded up.
    pub block_ns: u64,
    /// The time for each `seek_every` bytes, rounded up, beyond the first.
    pub seek_ns: u64,
    /// The number of bytes between two seeks; at least 1.
    pub seek_every: u64,
}

impl DiskTimes {
    /// The number of bytes that the paper's disk transfers between two seeks.
    pub const SEEK_EVERY: u64 = 44 << 10;

    /// Returns the time in ns to read `len` bytes when the `before` bytes before them have just been read. With
    /// `before` = 0, this includes the first access.
    pub const fn piece_ns(&self, before: u64, len: u64) -> u64 {
        let end = before.saturating_add(len);
        let blocks = end.div_ceil(BLOCK) - before.div_ceil(BLOCK);
        let first = if before == 0 { self.first_access_ns } else { 0 };
        let time = first.saturating_add(self.block_ns.saturating_mul(blocks));
        if end <= self.seek_every {
            return time;
        }
        let seeks = self.seeks(end) - self.seeks(before);
        time.saturating_add(self.seek_ns.saturating_mul(seeks))
    }

    const fn seeks(&self, len: u64) -> u64 {
        len.saturating_sub(self.seek_every).div_ceil(self.seek_every)
    }
}

/// A node's disks. The default is one disk of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskModel {
    /// The time to the first block. Default 28 ms, at most 10 s.
    pub first_access: Duration,
    /// The time for each 4 KiB, rounded up. Default 410 us, at most 10 s.
    pub block: Duration,
    /// The time for each 44 KiB, rounded up, beyond the first 44 KiB. Default 14 ms, at most 10 s.
    pub seek: Duration,
    /// The factor by which all times are divided. 0.001 to 1,000,000, default 1.
    pub speed: f64,
    /// The number of disks of the node; targets are spread over them. 1 to 64, default 1.
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
    /// Returns the times at speed 1.
    pub fn times(&self) -> DiskTimes {
        DiskTimes {
            first_access_ns: nanos(self.first_access),
            block_ns: nanos(self.block),
            seek_ns: nanos(self.seek),
            seek_every: DiskTimes::SEEK_EVERY,
        }
    }

    /// Returns the time to read a whole object of `len` bytes from an idle disk.
    pub fn read_time(&self, len: u64) -> Duration {
        self.continue_time(0, len)
    }

    /// Returns the time to read `len` bytes when the `before` bytes before them have just been read. With `before` =
    /// 0, this includes the first access.
    pub fn continue_time(&self, before: u64, len: u64) -> Duration {
        faster(self.times().piece_ns(before, len), self.speed)
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// The first value that is not.
    pub fn check(&self) -> Result<(), CostError> {
        ensure(self.first_access <= TIME_MAX, "disk.first_access", "at most 10 s")?;
        ensure(self.block <= TIME_MAX, "disk.block", "at most 10 s")?;
        ensure(self.seek <= TIME_MAX, "disk.seek", "at most 10 s")?;
        ensure((0.001..=1e6).contains(&self.speed), "disk.speed", "0.001 to 1,000,000")?;
        ensure((1..=64).contains(&self.disks), "disk.disks", "1 to 64")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn model_matches_the_paper() {
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

    #[test]
    fn error_names_the_invalid_disk_value() {
        let cases = [
            (DiskModel { speed: 0.0, ..DiskModel::default() }, "disk.speed"),
            (DiskModel { disks: 65, ..DiskModel::default() }, "disk.disks"),
            (DiskModel { seek: Duration::from_secs(11), ..DiskModel::default() }, "disk.seek"),
        ];
        for (model, field) in cases {
            assert_eq!(model.check().map_err(|error| error.field), Err(field));
        }
        assert_eq!(DiskModel::default().check(), Ok(()));
    }

    proptest! {
        #[test]
        fn pieces_in_file_order_take_the_time_of_the_whole(pieces in prop::collection::vec(1..300_000_u64, 1..20)) {
            let times = DiskModel::default().times();
            let (mut before, mut sum) = (0, 0);
            for piece in pieces {
                sum += times.piece_ns(before, piece);
                before += piece;
            }
            prop_assert_eq!(sum, times.piece_ns(0, before));
        }
    }
}
