//! The manifest: the list of targets of a modelled store, with one line `size<TAB>target` for each.
//!
//! Targets are written as requested (`path?query`), byte by byte. Empty lines and lines that begin with `#` are
//! skipped. A list in another form is refused as a whole, with the number of the line. A model that silently
//! misses targets would answer 404 where the trace has a reply.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A target of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManifestEntry {
    /// Length of the target's reply in bytes.
    pub(super) size: u64,
    /// Index of the target in the list, from 0.
    pub(super) index: u32,
}

/// The targets by name.
pub(super) type Manifest = HashMap<Box<[u8]>, ManifestEntry>;

/// The reason why a list of targets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("cannot read the manifest")]
    Read(#[from] std::io::Error),
    /// A line is not `size<TAB>target`, or its target is listed twice.
    #[error("manifest line {line}: {problem}")]
    Line {
        /// The number of the line, from 1.
        line: u64,
        /// The problem with the line.
        problem: &'static str,
    },
}

/// Reads the list in the file at `path`.
pub(super) fn load(path: &Path) -> Result<Manifest, ManifestError> {
    read(BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// Reads a list.
pub(super) fn read(mut source: impl BufRead) -> Result<Manifest, ManifestError> {
    let mut manifest = Manifest::new();
    let mut text = Vec::new();
    let mut line = 0;
    loop {
        text.clear();
        if source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
            return Ok(manifest);
        }
        line += 1;
        let problem = |problem| ManifestError::Line { line, problem };
        if text.len() as u64 == LINE_BYTES_MAX {
            return Err(problem("longer than 64 KiB"));
        }
        let text = text.trim_ascii_end();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let (size, target) = split(text).map_err(problem)?;
        let index = u32::try_from(manifest.len()).map_err(|_| problem("more than 4,294,967,296 targets"))?;
        if manifest.insert(target.into(), ManifestEntry { size, index }).is_some() {
            return Err(problem("the target is listed twice"));
        }
    }
}

fn split(text: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    let tab = text.iter().position(|&b| b == b'\t').ok_or("no tab between size and target")?;
    let size = &text[..tab];
    let target = &text[tab + 1..];
    let digits = std::str::from_utf8(size).ok().filter(|size| size.bytes().all(|b| b.is_ascii_digit()));
    let size = digits.and_then(|size| size.parse().ok()).ok_or("the size is not a number of bytes")?;
    if !target.starts_with(b"/") {
        return Err("the target does not start with '/'");
    }
    Ok((size, target))
}

/// Entry point for the fuzz target: any bytes are read or refused.
#[doc(hidden)]
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Ok(manifest) = read(bytes) {
        assert!(manifest.keys().all(|target| target.starts_with(b"/")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_offsets_are_parsed() {
        let manifest = read(&b"# size target\n12\t/a?b=c\n\n0\t/empty\r\n7\t/last"[..]).unwrap();
        assert_eq!(manifest[&b"/a?b=c"[..]], ManifestEntry { size: 12, index: 0 });
        assert_eq!(manifest[&b"/empty"[..]], ManifestEntry { size: 0, index: 1 });
        assert_eq!(manifest[&b"/last"[..]], ManifestEntry { size: 7, index: 2 });
        assert_eq!(manifest.len(), 3);
    }

    #[test]
    fn a_bad_line_is_refused_with_its_number() {
        let long = [b"1\t/".to_vec(), vec![b'x'; 70_000]].concat();
        for (text, number) in [
            (&b"1\t/a\n1 /b\n"[..], 2),
            (b"-1\t/a\n", 1),
            (b"+1\t/a\n", 1),
            (b"99999999999999999999\t/a\n", 1),
            (b"1\t/a\n2\t/b\n3\t/a\n", 3),
            (b"1\ta\n", 1),
            (&long, 1),
            (b"\xff\xfe\x00\t/a", 1),
        ] {
            match read(text) {
                Err(ManifestError::Line { line, .. }) => assert_eq!(line, number),
                other => panic!("{other:?}"),
            }
        }
    }
}
