//! The known formats: their names, how a file shows which one it has, one parser a file.

mod alb;
mod clf;
mod detect;
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

use serde::{Serialize, Serializer};

pub(crate) use detect::DETECT_BYTES;

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
    /// The access log of `larder switch` or `larder node` with `access_log.format = "json"`.
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
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
