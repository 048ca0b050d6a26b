//! Content of the origin's files. Every byte is a function of its path and offset, so that a byte of another
//! reply, or of another offset, is detected.

use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::LazyLock;

use tempfile::TempDir;

/// A file to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path in the request line.
    pub path: String,
    /// Length of the content. Bytes.
    pub bytes: u64,
}

impl Target {
    /// Returns the `number`th target of this size.
    pub fn new(bytes: u64, number: usize) -> Self {
        Self { path: format!("/{bytes}/{number}"), bytes }
    }

    /// Writes its content from `offset` on.
    pub fn fill(&self, offset: u64, out: &mut [u8]) {
        let mut at = self.place(offset);
        let mut rest = out;
        while !rest.is_empty() {
            let length = (PERIOD - at).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&BYTES[at..at + length]);
            (at, rest) = (0, later);
        }
    }

    /// Returns the offset of the first wrong byte in `got`, which begins at `offset`.
    pub fn first_difference(&self, offset: u64, got: &[u8]) -> Option<u64> {
        let mut right = vec![0; got.len()];
        self.fill(offset, &mut right);
        if right == got {
            return None;
        }
        let at = right.iter().zip(got).position(|(a, b)| a != b)?;
        Some(offset + at as u64)
    }

    /// Returns the position of the byte at `offset` in the period.
    fn place(&self, offset: u64) -> usize {
        ((seed(&self.path) % PERIOD as u64 + offset) % PERIOD as u64) as usize
    }
}

/// Period of the content: a prime above a megabyte, so that no buffer or window is a multiple.
const PERIOD: usize = 1_048_583;

/// One period. Each path begins at its own position. Comparison needs no arithmetic, so a client is fast even
/// in a test build.
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (0..PERIOD.div_ceil(8)).map(|number| word(number as u64));
    words.flat_map(u64::to_le_bytes).take(PERIOD).collect()
});

/// FNV-1a.
fn seed(path: &str) -> u64 {
    path.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Output function of SplitMix64.
fn word(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A directory of targets, removed on drop.
pub struct Content {
    folder: TempDir,
    /// All targets, by size and number.
    pub targets: Vec<Target>,
}

impl Content {
    /// Writes `each` files of every size.
    pub fn new(sizes: &[u64], each: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // A server that runs as another user must be able to read it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let targets: Vec<Target> =
            sizes.iter().flat_map(|&bytes| (0..each).map(move |number| Target::new(bytes, number))).collect();
        for target in &targets {
            let path = folder.path().join(&target.path[1..]);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut file = BufWriter::new(fs::File::create(path).unwrap());
            let mut buffer = vec![0; 1 << 16];
            let mut at = 0;
            while at < target.bytes {
                let length = (target.bytes - at).min(buffer.len() as u64) as usize;
                target.fill(at, &mut buffer[..length]);
                file.write_all(&buffer[..length]).unwrap();
                at += length as u64;
            }
            file.flush().unwrap();
        }
        Self { folder, targets }
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }
}

#[test]
fn content_depends_on_path_and_offset_alone() {
    let target = Target::new(3 * PERIOD as u64, 3);
    let mut whole = vec![0; 3 * PERIOD];
    target.fill(0, &mut whole);
    for (from, to) in [(0, 1), (1, 2), (3, 29), (PERIOD - 5, PERIOD + 5), (7, 2 * PERIOD + 100)] {
        let mut part = vec![0; to - from];
        target.fill(from as u64, &mut part);
        assert_eq!(part, whole[from..to], "{from}..{to}");
        assert_eq!(target.first_difference(from as u64, &part), None);
        *part.last_mut().unwrap() ^= 1;
        assert_eq!(target.first_difference(from as u64, &part), Some(to as u64 - 1));
    }
    // Bytes of another target or of another offset are detected.
    let mut other = vec![0; 1000];
    Target::new(target.bytes, 4).fill(0, &mut other);
    assert!(target.first_difference(0, &other).is_some_and(|at| at < 8));
    assert!(target.first_difference(8, &whole[..64]).is_some_and(|at| at < 16));
}
