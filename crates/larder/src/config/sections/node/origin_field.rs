//! A field of `[node.origin.headers]`, as written.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// The value of a header field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum OriginField {
    /// A value in the config.
    Text(String),
    /// A value in a file.
    File(InFile),
}

/// A file with a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InFile {
    pub(crate) file: String,
}

impl<'de> Deserialize<'de> for OriginField {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = OriginField;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value in quotes, or a table { file = \"FILE\" }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OriginField, E> {
                Ok(OriginField::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OriginField, A::Error> {
                InFile::deserialize(de::value::MapAccessDeserializer::new(map)).map(OriginField::File)
            }
        }
        from.deserialize_any(TextOrTable)
    }
}

impl JsonSchema for OriginField {
    fn schema_name() -> Cow<'static, str> {
        "OriginField".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": false},
        ]})
    }
}
