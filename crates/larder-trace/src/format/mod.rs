//! The known formats: their names, their detection and their parsers.
//!
//! A format is a file with a [`LogFormat`], and a row of the table `formats!` below.

mod alb;
mod caddy;
mod clf;
mod detect;
mod envoy;
mod from_text;
mod haproxy;
mod json;
pub(crate) mod json_fields;
mod keys;
mod larder;
mod log_format;
pub(crate) mod mooncake;
mod nginx;
mod oracle;
mod s3;
mod sdsc;
pub(crate) mod timestamp;
mod traefik;
mod w3c;
mod words;
mod worldcup;

use std::fmt;
use std::ops::ControlFlow;

use serde::{Serialize, Serializer};

pub(crate) use detect::DETECT_BYTES;

use json_fields::JsonFields;
use log_format::LogFormat;

use crate::record::{Reason, Record, TokenSums};
use crate::size_unit::SizeUnit;

/// Defines [`Format`] and [`FormatParser`] from a table. A row has the documentation, the name and the
/// parser of a format.
macro_rules! formats {
    ($($(#[$documentation:meta])+ $format:ident = $module:ident::$parser:ident,)+) => {
        /// A trace file format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$documentation])+ $format,)+
        }

        impl Format {
            /// All formats.
            pub const ALL: [Self; [$(Self::$format),+].len()] = [$(Self::$format),+];

            /// Returns the name on command lines and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::NAME,)+
                }
            }

            /// Returns whether the targets of the format are numbers.
            pub const fn has_numbered_targets(self) -> bool {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::NUMBERED_TARGETS,)+
                }
            }

            /// Returns the unit of the sizes of the format.
            const fn unit(self) -> SizeUnit {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::SIZE_UNIT,)+
                }
            }

            /// Returns the size of a record in bytes; `None` for a format of lines.
            pub(crate) const fn record_bytes(self) -> Option<usize> {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::RECORD_BYTES,)+
                }
            }

            /// Returns the file name extension that implies the format, if there is one.
            const fn file_extension(self) -> Option<&'static str> {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::FILE_EXTENSION,)+
                }
            }

            /// Returns whether the first bytes of a binary file are records of the format.
            fn fits(self, head: &[u8]) -> bool {
                match self {
                    $(Self::$format => <$module::$parser as LogFormat>::fits(head),)+
                }
            }
        }

        /// The parser of a format, with its state from line to line.
        pub(crate) enum FormatParser {
            $($format($module::$parser),)+
        }

        impl FormatParser {
            /// Creates the parser of a format. Only [`Format::Json`] uses the fields, and without them no
            /// line fits.
            pub(crate) fn new(format: Format, fields: Option<&JsonFields>) -> Self {
                match format {
                    $(Format::$format => Self::$format(LogFormat::new(fields)),)+
                }
            }

            /// Parses one record, or one line without its line end, as [`LogFormat::parse`] does.
            pub(crate) fn parse(
                &mut self,
                bytes: &[u8],
                take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
            ) -> ControlFlow<()> {
                match self {
                    $(Self::$format(parser) => parser.parse(bytes, take),)+
                }
            }

            /// Returns the token sums of all parsed lines, if the format has tokens and a line was valid.
            pub(crate) fn tokens(&self) -> Option<TokenSums> {
                match self {
                    $(Self::$format(parser) => parser.tokens(),)+
                }
            }
        }
    };
}

formats! {
    /// Common and Combined Log Format of Apache and nginx, and the unmodified files of this family in the
    /// Internet Traffic Archive: EPA, NASA, ClarkNet, Calgary and Saskatchewan.
    Clf = clf::ClfParser,
    /// The HTTP log of HAProxy (`option httplog` and `option httpslog`), with or without a syslog header.
    Haproxy = haproxy::HaproxyParser,
    /// The extended log file format of the W3C, as written by IIS and CloudFront.
    W3c = w3c::W3cParser,
    /// Access logs of the Application and Classic Load Balancers of AWS.
    Alb = alb::AlbParser,
    /// Server access logs of Amazon S3.
    S3 = s3::S3Parser,
    /// The access log of `larder switch` or `larder node` with `access_log.format = "json"`.
    Larder = larder::LarderParser,
    /// The access log of Caddy.
    Caddy = caddy::CaddyParser,
    /// The access log of Envoy: its default text or that of Istio, or JSON with the keys of its documentation, of
    /// Istio or of Envoy Gateway.
    Envoy = envoy::EnvoyParser,
    /// The access log of nginx in JSON, with the names of its variables as keys.
    Nginx = nginx::NginxParser,
    /// The access log of Traefik in JSON.
    Traefik = traefik::TraefikParser,
    /// JSON lines with the keys of [`ReadOptions::json_fields`](crate::ReadOptions::json_fields).
    Json = json::JsonParser,
    /// SDSC-HTTP of the Internet Traffic Archive: the log of a GN server, without sizes.
    Sdsc = sdsc::SdscParser,
    /// The logs of WorldCup98: big-endian records of 20 bytes.
    WorldCup98 = worldcup::WorldCupParser,
    /// The format oracleGeneral of libCacheSim: little-endian records of 24 bytes.
    OracleGeneral = oracle::OracleParser,
    /// Bare 64-bit big-endian keys, without times and sizes. Only the file name shows this format, because
    /// any bytes could be keys. It ends in `.u64be`, before the extension of a compression.
    Keys64 = keys::KeysParser,
    /// JSON lines of LLM requests of Mooncake. Each prefix block id is a target of 512 tokens.
    Mooncake = mooncake::MooncakeParser,
}

impl Format {
    /// Returns the unit of the sizes of a file. In some formats it depends on the server whether sizes are
    /// logged.
    pub(crate) const fn size_unit(self, has_sizes: bool) -> SizeUnit {
        match self.unit() {
            SizeUnit::Bytes if !has_sizes => SizeUnit::Unknown,
            unit => unit,
        }
    }

    /// Returns all names for a message.
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
