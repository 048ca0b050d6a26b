//! The known formats: their names, how a file's first bytes tell them apart, one parser a file.

mod alb;
mod clf;
mod haproxy;
mod json;
pub(crate) mod json_fields;
mod keys;
mod mooncake;
mod oracle;
pub(crate) mod parser;
mod s3;
mod sdsc;
pub(crate) mod timestamp;
mod w3c;
mod words;
mod worldcup;

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::TraceError;
use parser::Parser;

/// How many unpacked bytes the format is told from.
pub(crate) const DETECT_BYTES: usize = 64 << 10;

/// How much of a line that fits no format is shown.
const SAMPLE_BYTES: usize = 80;

/// A trace file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Common and Combined Log Format of Apache and nginx, and the Internet Traffic Archive's files of that family
    /// as they are: EPA (own timestamps, no identity fields), NASA, ClarkNet, Calgary, Saskatchewan.
    Clf,
    /// The Internet Traffic Archive's SDSC-HTTP (log of the GN server; no sizes).
    Sdsc,
    /// WorldCup98: 20-byte big-endian records.
    WorldCup98,
    /// libCacheSim's oracleGeneral: 24-byte little-endian records.
    OracleGeneral,
    /// Bare 64-bit big-endian keys; no times, no sizes. Told by the file name only (`.u64be`, packed or not): any
    /// bytes could be keys.
    Keys64,
    /// Mooncake's JSON lines of LLM requests: each prefix block id is a target of 512 tokens.
    Mooncake,
    /// HAProxy's `option httplog` and `option httpslog`, with or without a syslog header.
    Haproxy,
    /// Access logs of AWS's Application and Classic Load Balancers.
    Alb,
    /// Server access logs of Amazon S3.
    S3,
    /// The W3C's extended log file format: IIS, CloudFront.
    W3c,
    /// The access log of `larder switch` or `larder node` with `access_log_format = "json"`.
    Larder,
    /// Caddy's access log.
    Caddy,
    /// Envoy's access log in JSON, with the keys of its documentation, of Istio or of Envoy Gateway.
    Envoy,
    /// nginx's access log in JSON, with the names of its variables as keys.
    Nginx,
    /// Traefik's access log in JSON.
    Traefik,
    /// JSON lines with the keys of [`ReadOptions::json_fields`](crate::ReadOptions::json_fields).
    Json,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 16] = [
        Self::Clf,
        Self::Haproxy,
        Self::W3c,
        Self::Alb,
        Self::S3,
        Self::Larder,
        Self::Caddy,
        Self::Envoy,
        Self::Nginx,
        Self::Traefik,
        Self::Json,
        Self::Sdsc,
        Self::WorldCup98,
        Self::OracleGeneral,
        Self::Keys64,
        Self::Mooncake,
    ];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clf => "clf",
            Self::Sdsc => "sdsc",
            Self::WorldCup98 => "worldcup98",
            Self::OracleGeneral => "oracle-general",
            Self::Keys64 => "u64be",
            Self::Mooncake => "mooncake",
            Self::Haproxy => "haproxy",
            Self::Alb => "alb",
            Self::S3 => "s3",
            Self::W3c => "w3c",
            Self::Larder => "larder",
            Self::Caddy => "caddy",
            Self::Envoy => "envoy",
            Self::Nginx => "nginx",
            Self::Traefik => "traefik",
            Self::Json => "json",
        }
    }

    /// Whether the format's targets are numbers.
    pub const fn has_numbered_targets(self) -> bool {
        matches!(self, Self::WorldCup98 | Self::OracleGeneral | Self::Keys64 | Self::Mooncake)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The format a file name claims: only [`Format::Keys64`], which the bytes cannot claim.
    pub(crate) fn of_file_name(name: &str) -> Option<Self> {
        let name =
            [".gz", ".zst", ".xz", ".bz2"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        name.ends_with(".u64be").then_some(Self::Keys64)
    }

    /// The format the first bytes of a file show. `whole` says that there are no more bytes.
    pub(crate) fn detect(head: &[u8], whole: bool) -> Result<Self, TraceError> {
        if head.is_empty() {
            return Err(TraceError::Empty);
        }
        if looks_like_text(head) {
            return detect_text(head, whole).ok_or_else(|| unknown(head, "text"));
        }
        if oracle::fits(head) {
            Ok(Self::OracleGeneral)
        } else if worldcup::fits(head) {
            Ok(Self::WorldCup98)
        } else if let Some(format) = detect_text(head, whole) {
            // A log with some binary garbage in its first lines is still a log.
            Ok(format)
        } else {
            Err(unknown(head, "binary"))
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        let known = Self::ALL.into_iter().find(|format| format.name() == name);
        known.ok_or_else(|| TraceError::NoSuchFormat(name.chars().take(40).collect()))
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

fn looks_like_text(head: &[u8]) -> bool {
    let odd = head.iter().filter(|&&b| b < b' ' && !matches!(b, b'\n' | b'\r' | b'\t')).count();
    odd * 100 <= head.len()
}

/// The text format of most lines that fit any; of equals the first. The last line may be cut off by the sample, so it
/// counts only if it is the file's last.
fn detect_text(head: &[u8], whole: bool) -> Option<Format> {
    let mut lines: Vec<&[u8]> = head.split(|&b| b == b'\n').collect();
    if !whole && lines.len() > 1 {
        lines.pop();
    }
    let count = |format: &Format| {
        let mut parser = Parser::new(*format, None);
        let fits = |line: &&&[u8]| {
            let mut fits = false;
            // Only the first request of a line is looked at.
            let _ = parser.parse(line.strip_suffix(b"\r").unwrap_or(line), |parsed| {
                fits = parsed.is_ok();
                ControlFlow::Break(())
            });
            fits
        };
        lines.iter().filter(fits).count()
    };
    let texts = Format::ALL.into_iter().filter(|format| Parser::new(*format, None).record_bytes().is_none());
    let counted = texts.rev().map(|format| (count(&format), format));
    counted.filter(|(n, _)| *n > 0).max_by_key(|(n, _)| *n).map(|(_, format)| format)
}

fn unknown(head: &[u8], what: &'static str) -> TraceError {
    let lines = (1_u64..).zip(head.split(|&b| b == b'\n'));
    let (number, line) = lines.clone().find(|(_, line)| !line.trim_ascii().is_empty()).unwrap_or((1, head));
    let what = if line.first() == Some(&b'{') { "JSON" } else { what };
    let sample = line[..line.len().min(SAMPLE_BYTES)].escape_ascii().to_string();
    TraceError::UnknownFormat { what, line: number, sample }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for format in Format::ALL {
            assert_eq!(format.name().parse::<Format>().expect("its own name"), format);
        }
        assert!(matches!("csv".parse::<Format>(), Err(TraceError::NoSuchFormat(_))));
    }

    #[test]
    fn rubbish_is_named_and_shown() {
        let rubbish: Vec<u8> =
            (0..10_000_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let error = Format::detect(&rubbish, true).expect_err("no format");
        assert!(matches!(error, TraceError::UnknownFormat { what: "binary", .. }), "{error}");
        let error = Format::detect(b"hello\nworld\n", true).expect_err("no format");
        assert!(error.to_string().contains("\"hello\""), "{error}");
        let error = Format::detect(b"\n{\"level\": 1}\n", true).expect_err("no format");
        let TraceError::UnknownFormat { what: "JSON", line: 2, sample } = error else { panic!("{error}") };
        assert_eq!(sample, r#"{\"level\": 1}"#);
        assert!(matches!(Format::detect(b"", true), Err(TraceError::Empty)));
    }

    #[test]
    fn only_the_name_claims_bare_keys() {
        assert_eq!(Format::of_file_name("a.u64be.zst"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.u64be.xz"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.u64be"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.clf.zst"), None);
    }

    #[test]
    fn a_log_with_a_bad_start_is_a_log() {
        let log = b"# comment\n\x00\x01\nh - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.1\" 200 1\n";
        assert_eq!(Format::detect(log, true).expect("one good line"), Format::Clf);
    }
}
