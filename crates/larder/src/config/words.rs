//! Keys with a fixed set of words as values.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use larder_core::policy::UtilBy;
use larder_edge::{Forwarded, TlsVersion};
use larder_node::{ClientNoCache, CpuScope, HostHeader};
use larder_switch::{AcmeChallenge, Handshake, MechanismSetting, ProxyVersion, SignalSource};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A type of another crate with words as values in the config.
pub(crate) trait Words: Copy + PartialEq + 'static {
    /// Returns the words with their values.
    fn words() -> Vec<(&'static str, Self)>;
}

macro_rules! words {
    ($($type:ty { $($word:literal => $value:expr),+ })+) => {
        $(impl Words for $type {
            fn words() -> Vec<(&'static str, Self)> {
                vec![$(($word, $value)),+]
            }
        })+
    };
    ($($type:ty),+) => {
        $(impl Words for $type {
            fn words() -> Vec<(&'static str, Self)> {
                Self::ALL.map(|value| (value.name(), value)).to_vec()
            }
        })+
    };
}

words! { Forwarded, MechanismSetting, Handshake, SignalSource, CpuScope }
words! {
    Option<ProxyVersion> { "off" => None, "v1" => Some(ProxyVersion::V1), "v2" => Some(ProxyVersion::V2) }
    TlsVersion { "1.2" => Self::Tls12, "1.3" => Self::Tls13 }
    AcmeChallenge { "http-01" => Self::Http01, "tls-alpn-01" => Self::TlsAlpn01 }
    HostHeader { "client" => Self::Client, "origin" => Self::Origin }
    ClientNoCache { "honour" => Self::Honour, "ignore" => Self::Ignore }
    UtilBy { "utilisation" => Self::Utilisation, "connections" => Self::Connections }
}

/// A value that is written as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<T>(pub(crate) T);

impl<T: Words> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let words = T::words();
        let word = words.iter().find(|(_, value)| *value == self.0).map_or("", |(word, _)| word);
        out.serialize_str(word)
    }
}

impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OneOf<T>(PhantomData<T>);
        impl<T: Words> Visitor<'_> for OneOf<T> {
            type Value = Word<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Word<T>, E> {
                let words = T::words();
                let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| Word(*value));
                // In the words of serde, which the message is made of.
                let known =
                    || words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
                found.ok_or_else(|| {
                    E::custom(format!("unknown variant `{text}`, expected one of {}", known()))
                })
            }
        }
        from.deserialize_str(OneOf(PhantomData))
    }
}

impl<T: Words> JsonSchema for Word<T> {
    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<&str> = T::words().iter().map(|(word, _)| *word).collect();
        json_schema!({"type": "string", "enum": words})
    }
}

/// Declares the words of a key that have no other type.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($word:ident),+ }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema,
        )]
        #[serde(rename_all = "kebab-case")]
        #[schemars(inline)]
        pub(crate) enum $name {
            $($word),+
        }
    };
}
pub(super) use choice;
