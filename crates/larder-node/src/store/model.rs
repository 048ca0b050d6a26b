//! A modelled store: the sizes of a manifest, synthetic contents, and the time of a modelled disk.
//!
//! This is for demonstrations and tests, where the trace has sizes and no contents. The contents depend on the
//! target alone, so every node sends the same bytes and a client can check them. Byte `i` of a target is
//! `PATTERN[(XXH3(target) + i) mod 65,521]`, a fixed text of printable characters in lines of 64.

use super::manifest::{self, Manifest, ManifestEntry, ManifestError};
use super::{Meta, Piece, StoreError, StoreStats};
use crate::machine::Disks;
use bytes::Bytes;
use larder_core::TargetId;
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Length of the pattern in bytes: a prime, so that no power of two in a size hides a shift.
const PATTERN_LEN: usize = 65_521;

static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    const ALPHABET: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    let mut state = 1_u64;
    (0..PATTERN_LEN)
        .map(|place| {
            // Knuth's MMIX generator. Its upper bits are the good ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if place % 64 == 63 { b'\n' } else { ALPHABET[(state >> 58) as usize] }
        })
        .collect()
});

/// Modification time of all modelled contents: 1998-10-02 00:00:00 UTC.
const MODIFIED: (i64, u32) = (907_286_400, 0);

/// A modelled store.
#[derive(Debug)]
pub(crate) struct Model {
    targets: Manifest,
    disks: Arc<Disks>,
}

impl Model {
    pub(crate) fn load(path: &Path, disks: Arc<Disks>) -> Result<Self, ManifestError> {
        Ok(Self::new(manifest::load(path)?, disks))
    }

    fn new(targets: Manifest, disks: Arc<Disks>) -> Self {
        Self { targets, disks }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "kind=model targets={} disks={} first_4KiB={:?}",
            self.targets.len(),
            self.disks.count(),
            self.disks.model().read_time(1),
        )
    }

    /// Returns all targets with their metadata, in the manifest's order.
    pub(crate) fn targets(&self) -> Vec<(&[u8], Meta)> {
        let mut targets: Vec<_> = self.targets.iter().collect();
        targets.sort_unstable_by_key(|(_, entry)| entry.index);
        targets.into_iter().map(|(name, entry)| (&**name, Self::meta(name, *entry))).collect()
    }

    pub(super) fn stat(&self, name: &[u8]) -> Result<Meta, StoreError> {
        self.entry(name).map(|entry| Self::meta(name, entry))
    }

    pub(super) async fn open_short(
        &self,
        name: &[u8],
        most: u64,
    ) -> Result<(Meta, Option<Bytes>), StoreError> {
        let entry = self.entry(name)?;
        let meta = Self::meta(name, entry);
        if entry.size > most {
            return Ok((meta, None));
        }
        let body = self.read_entry(name, entry, Piece { offset: 0, len: entry.size, before: 0 }).await;
        Ok((meta, Some(body)))
    }

    pub(super) async fn read(&self, name: &[u8], piece: Piece) -> Result<Bytes, StoreError> {
        let entry = self.entry(name)?;
        Ok(self.read_entry(name, entry, piece).await)
    }

    pub(super) fn stats(&self) -> StoreStats {
        let (reads, bytes) = self.disks.totals();
        StoreStats { reads, bytes, busy: self.disks.busy() }
    }

    fn entry(&self, name: &[u8]) -> Result<ManifestEntry, StoreError> {
        self.targets.get(name).copied().ok_or(StoreError::NotFound)
    }

    fn meta(name: &[u8], entry: ManifestEntry) -> Meta {
        Meta { size: entry.size, modified: MODIFIED, fresh: false, tag: TargetId::of(name).0 }
    }

    async fn read_entry(&self, name: &[u8], entry: ManifestEntry, piece: Piece) -> Bytes {
        self.disks.read(u64::from(entry.index), piece.before, piece.len).await;
        contents(name, piece.offset, piece.len)
    }
}

/// Returns `len` bytes of a target's synthetic contents from `offset`.
pub(crate) fn contents(name: &[u8], offset: u64, len: u64) -> Bytes {
    let modulus = PATTERN_LEN as u64;
    let mut start = ((TargetId::of(name).0 % modulus + offset % modulus) % modulus) as usize;
    let mut remaining = len as usize;
    let mut out = Vec::with_capacity(remaining);
    while remaining > 0 {
        let take = remaining.min(PATTERN_LEN - start);
        out.extend_from_slice(&PATTERN[start..start + take]);
        remaining -= take;
        start = 0;
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::cost::DiskModel;
    use std::time::Duration;
    use tokio::time::Instant;

    fn model(text: &str, disk: DiskModel) -> Model {
        Model::new(manifest::read(text.as_bytes()).unwrap(), Arc::new(Disks::new(disk)))
    }

    #[test]
    fn chunks_of_contents_join_to_the_whole() {
        let whole = contents(b"/a", 0, 200_000);
        for (offset, len) in [(0, 1), (65_520, 3), (1, 199_999), (131_000, 69_000), (200_000, 0)] {
            let piece = contents(b"/a", offset, len);
            assert_eq!(piece, whole.slice(offset as usize..(offset + len) as usize), "{offset} {len}");
        }
        assert_ne!(whole.slice(..100), contents(b"/b", 0, 100));
    }

    #[tokio::test(start_paused = true)]
    async fn one_disk_serves_one_read_at_a_time() {
        let model = model("4096\t/a\n4096\t/b\n4096\t/c\n", DiskModel::default());
        let start = Instant::now();
        let (a, b, c) = tokio::join!(
            model.open_short(b"/a", 1 << 20),
            model.open_short(b"/b", 1 << 20),
            model.open_short(b"/c", 1 << 20)
        );
        for read in [a, b, c] {
            assert_eq!(read.unwrap().1.unwrap().len(), 4_096);
        }
        // 3 * 28.41 ms, and a timer that rounds up to 1 ms.
        let elapsed = start.elapsed();
        assert!((85_230..=86_300).contains(&elapsed.as_micros()), "{elapsed:?}");
        assert_eq!(model.stats().busy, Duration::from_micros(3 * 28_410));
    }

    #[tokio::test(start_paused = true)]
    async fn two_disks_serve_two_at_a_time() {
        let model = model("1\t/a\n1\t/b\n", DiskModel { disks: 2, ..DiskModel::default() });
        let start = Instant::now();
        let (a, b) = tokio::join!(model.open_short(b"/a", 1), model.open_short(b"/b", 1));
        assert!(a.is_ok() && b.is_ok());
        assert!(start.elapsed() < Duration::from_millis(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_loop_gets_the_modelled_throughput_with_any_timer() {
        // 100 reads of 2.841 ms one after another; each wake-up is rounded up to a whole millisecond.
        let model = model("1\t/a\n", DiskModel { speed: 10.0, ..DiskModel::default() });
        let start = Instant::now();
        for _ in 0..100 {
            model.open_short(b"/a", 1).await.unwrap();
        }
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_micros(284_100 + 1_100), "{elapsed:?}");
        assert!(elapsed >= Duration::from_micros(284_100), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_target_takes_no_time() {
        let model = model("1\t/a\n", DiskModel::default());
        let start = Instant::now();
        assert!(matches!(model.open_short(b"/x", 1).await, Err(StoreError::NotFound)));
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(model.stats().reads, 0);
    }
}
