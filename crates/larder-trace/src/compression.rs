//! Compression formats of trace files.

use std::fmt;

use serde::Serialize;

/// The compression format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// The file is not compressed.
    None,
    /// gzip (RFC 1952), with any number of members.
    Gzip,
    /// Zstandard (RFC 8878), with any number of frames.
    Zstd,
    /// The .xz format, with any number of streams.
    Xz,
    /// bzip2, with any number of streams.
    Bzip2,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
        })
    }
}
