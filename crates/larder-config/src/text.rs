//! Values with a text form in the config and on the command line: sizes and spans of time.

use larder_core::Bytes;
#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
#[cfg(feature = "schema")]
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes, written `16MB`, `1.5GiB` or as a plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub Bytes);

impl fmt::Display for Size {
    /// Writes the shortest exact text that parses to the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0.exact())
    }
}

impl FromStr for Size {
    type Err = larder_core::unit::ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// Reads a value from a string through [`FromStr`], or from a non-negative integer through `from_int`.
struct TextVisitor<T> {
    expecting: &'static str,
    from_int: fn(u64) -> Option<T>,
}

impl<T> Visitor<'_> for TextVisitor<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        (self.from_int)(number).ok_or_else(|| E::invalid_type(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expecting = "a size such as \"16MB\", \"1.5GiB\" or a number of bytes";
        from.deserialize_any(TextVisitor { expecting, from_int: |n| Some(Self(Bytes(n))) })
    }
}

#[cfg(feature = "schema")]
impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes: \"16MB\" (powers of 1000), \"16MiB\" (powers of 1024) or a plain number.",
            "type": ["string", "integer"], "minimum": 0, "pattern": r"^[0-9.]+ *([kKmMgGtT]([iI]?[bB])?|[bB])?$",
        })
    }
}

/// A span of time, written `250ms`, `10s`, `2m` or `1h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Error: the text is no span of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is not a span of time: write a number with a unit, such as \"250ms\", \"10s\", \"2m\" or \"1h\"",
    .0.escape_debug()
)]
pub struct ParseSpanError(String);

impl FromStr for Span {
    type Err = ParseSpanError;

    fn from_str(text: &str) -> Result<Self, ParseSpanError> {
        let bad = || ParseSpanError(text.chars().take(40).collect());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let number: f64 = trimmed[..split].trim().parse().map_err(|_| bad())?;
        let unit_s = match &trimmed[split..] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        let span = Duration::try_from_secs_f64(number * unit_s).map_err(|_| bad())?;
        // Less than a microsecond is written as 0s, which means something else.
        if span.is_zero() || span >= Duration::from_micros(1) { Ok(Self(span)) } else { Err(bad()) }
    }
}

impl fmt::Display for Span {
    /// Writes the span with the largest unit that divides it, at least whole microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 5] =
            [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];
        let us = self.0.as_micros();
        if us == 0 {
            return f.write_str("0s");
        }
        let found = UNITS.iter().find(|(unit, _)| us.is_multiple_of(*unit));
        let (unit, name) = found.copied().unwrap_or((1, "us"));
        write!(f, "{}{name}", us / unit)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expecting = "a span of time with a unit, such as \"250ms\", \"10s\" or \"2m\"";
        from.deserialize_any(TextVisitor { expecting, from_int: |_| None })
    }
}

#[cfg(feature = "schema")]
impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A span of time: \"250ms\", \"10s\", \"2m\", \"1h\".",
            "type": "string", "pattern": r"^[0-9.]+ *(us|ms|s|m|min|h|d)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for bytes in [0, 1, 999, 1_000, 1_024, 16_000_000, 1 << 30, 1_500_000, u64::from(u32::MAX)] {
            let size = Size(Bytes(bytes));
            assert_eq!(size.to_string().parse(), Ok(size), "{size}");
        }
        for us in [0, 1, 250_000, 10_000_000, 90_000_000, 7_200_000_000] {
            let span = Span(Duration::from_micros(us));
            assert_eq!(span.to_string().parse(), Ok(span), "{span}");
        }
    }

    #[test]
    fn a_span_needs_a_unit() {
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        assert_eq!("1.5 s".parse(), Ok(Span(Duration::from_millis(1_500))));
        for text in ["10", "", "s", "-1s", "1e99s", "10 parsecs", "nans"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
