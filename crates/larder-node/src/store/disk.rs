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
//! The disk lives on a virtual clock. A read starts when the one before it has ended, not when a timer has noticed,
//! so a busy disk's throughput is the model's to the nanosecond. When the disk was idle, the read that comes first
//! is dated back by as much as the last wake-up was late, since its request would have come that much earlier.

use crate::config::{ConfigError, ensure};
use std::time::Duration;
use tokio::time::Instant;

const BLOCK: u64 = 4 << 10;
const SEEK_EVERY: u64 = 44 << 10;

/// Most a late wake-up is made up for. A longer one is a stalled machine, not a coarse timer.
const LATE_MAX: Duration = Duration::from_millis(20);

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

/// One disk: when it is free, and how long it has worked.
#[derive(Debug)]
pub(super) struct Disk {
    free_at: Instant,
    late: Duration,
    busy: Duration,
}

impl Disk {
    pub(super) fn new(now: Instant) -> Self {
        Self { free_at: now, late: Duration::ZERO, busy: Duration::ZERO }
    }

    /// Queues a read of length `time` and returns when it ends.
    pub(super) fn enqueue(&mut self, now: Instant, time: Duration) -> Instant {
        let late = std::mem::take(&mut self.late);
        let asked_at = now.checked_sub(late).unwrap_or(now);
        let start = self.free_at.max(asked_at);
        // A time beyond the clock's range stands for a disk that never answers.
        let end = start.checked_add(time).unwrap_or(start + Duration::from_secs(1 << 32));
        self.free_at = end;
        end
    }

    /// Notes that the wait for the read of length `time` that ended at `end` was over at `now`.
    pub(super) fn woke(&mut self, end: Instant, time: Duration, now: Instant) {
        self.busy = self.busy.saturating_add(time);
        // With another read queued behind this one, the disk did not wait for the wake-up.
        if end == self.free_at {
            self.late = now.saturating_duration_since(end).min(LATE_MAX);
        }
    }

    /// Time of all reads that have ended.
    pub(super) fn busy(&self) -> Duration {
        self.busy
    }
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

        #[test]
        fn a_disk_does_one_read_at_a_time_in_order(jobs in prop::collection::vec((0..50_u64, 1..50_u64), 1..60)) {
            let origin = Instant::now();
            let mut disk = Disk::new(origin);
            let (mut now, mut last_end) = (origin, origin);
            for (gap, time) in jobs {
                now += Duration::from_millis(gap);
                let time = Duration::from_millis(time);
                let end = disk.enqueue(now, time);
                prop_assert_eq!(end, last_end.max(now) + time);
                last_end = end;
            }
        }
    }

    #[test]
    fn a_late_wake_up_is_made_up_for_once() {
        let origin = Instant::now();
        let ms = Duration::from_millis;
        let mut disk = Disk::new(origin);
        let end = disk.enqueue(origin, ms(10));
        disk.woke(end, ms(10), end + ms(1));
        // Asked for at 11.5 ms because the answer came 1 ms late: starts at 10.5 ms.
        let end = disk.enqueue(origin + ms(11) + Duration::from_micros(500), ms(10));
        assert_eq!(end, origin + ms(20) + Duration::from_micros(500));
        let end = disk.enqueue(origin + ms(100), ms(10));
        assert_eq!(end, origin + ms(110));
        assert_eq!(disk.busy(), ms(10), "only one read has ended");
    }

    #[test]
    fn a_reading_longer_than_time_itself_does_not_overflow() {
        let slow = DiskModel { speed: 0.001, ..DiskModel::default() };
        let now = Instant::now();
        let mut disk = Disk::new(now);
        assert!(disk.enqueue(now, slow.read_time(u64::MAX)) > now);
    }
}
