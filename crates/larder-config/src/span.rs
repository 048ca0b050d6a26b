//! Times and sizes as the config writes them.

use larder_core::Bytes;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::fmt;
use std::time::Duration;

/// A span of time, written `250ms`, `10s`, `2m` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic())?;
        let number: f64 = trimmed[..split].trim().parse().ok()?;
        let unit_s = match &trimmed[split..] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let span = Duration::try_from_secs_f64(number * unit_s).ok()?;
        // Less than a microsecond is written as 0s, which has another meaning.
        (span.is_zero() || span >= Duration::from_micros(1)).then_some(Self(span))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| {
            let what = format!(
                "'{}' is not a span of time: write \"250ms\", \"10s\", \"2m\" or \"1h\"",
                text.escape_debug()
            );
            de::Error::custom(what)
        })
    }
}

/// A number of bytes, written `16MB`, `1.5GiB` or as a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) Bytes);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"16MB\", \"1.5GiB\" or a number of bytes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map(Size).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(Bytes(bytes)))
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                let unsigned = u64::try_from(bytes);
                unsigned
                    .map(|bytes| Size(Bytes(bytes)))
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }
        from.deserialize_any(SizeVisitor)
    }
}
