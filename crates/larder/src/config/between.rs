//! An amount written as one value or as the least and the most: `5ms`, `500ms..2s`, `1KB..8KB`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A range of amounts. `least` and `most` are equal if one value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Between<T> {
    pub(crate) least: T,
    pub(crate) most: T,
}

impl<T: Copy> Between<T> {
    /// Creates a range of one value.
    pub(crate) fn always(value: T) -> Self {
        Self { least: value, most: value }
    }
}

impl<T: FromStr + Copy> FromStr for Between<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text.split_once("..") {
            Some((least, most)) => Ok(Self { least: least.trim().parse()?, most: most.trim().parse()? }),
            None => text.parse().map(Self::always),
        }
    }
}

impl<T: fmt::Display + PartialEq> fmt::Display for Between<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => self.least.fmt(f),
            false => write!(f, "{}..{}", self.least, self.most),
        }
    }
}

impl<T: fmt::Display + PartialEq> Serialize for Between<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

impl<'de, T> Deserialize<'de> for Between<T>
where
    T: FromStr + Copy,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text<T>(PhantomData<T>);
        impl<T> Visitor<'_> for Text<T>
        where
            T: FromStr + Copy,
            T::Err: fmt::Display,
        {
            type Value = Between<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount, or the least and the most as \"least..most\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                self.visit_str(&number.to_string())
            }
        }
        from.deserialize_any(Text(PhantomData))
    }
}

impl<T> JsonSchema for Between<T> {
    fn schema_name() -> Cow<'static, str> {
        "Between".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "integer"], "minimum": 0})
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{Size, Span};
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for text in ["5ms", "500ms..2s", "0s"] {
            assert_eq!(text.parse::<Between<Span>>().unwrap().to_string(), text);
        }
        assert_eq!("1KB .. 8KB".parse::<Between<Size>>().unwrap().to_string(), "1KB..8KB");
        for text in ["", "..", "5ms..", "..2s", "5", "1ms..2ms..3ms"] {
            assert!(text.parse::<Between<Span>>().is_err(), "{text}");
        }
    }
}
