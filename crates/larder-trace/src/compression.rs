//! The ways in which a file may be packed.

use std::fmt;

use serde::Serialize;

/// The way in which a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
    /// The .xz format, any number of streams.
    Xz,
    /// bzip2, any number of streams.
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
