//! Cost models as TOML files: `model = "NAME"` and the model's fields. Missing fields keep the model's
//! defaults.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Costs;
use crate::SimError;

/// An error in a cost model's file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}{}{key}: {message}", if key.is_empty() { "" } else { ": " })]
pub struct CostsFileError {
    /// The line, from 1.
    pub line: usize,
    /// The dotted key, such as `storage.total_mb_s`; empty if the text is not valid TOML.
    pub key: String,
    /// The cause, and the valid values.
    pub message: String,
}

impl Costs {
    /// Reads a cost model from TOML and checks its values.
    ///
    /// # Errors
    /// Returns the line and the key if the text is not TOML, if a model or key is unknown, or if a value has
    /// the wrong type or is out of range.
    pub fn from_toml(text: &str) -> Result<Self, CostsFileError> {
        let refused = |error: toml::de::Error| refusal(text, &error);
        let mut table = DeTable::parse(text).map_err(refused)?;
        let name = match table.get_ref().get("model").map(|value| (value.span(), value.get_ref())) {
            Some((_, DeValue::String(name))) => name.to_string(),
            Some((span, _)) => return Err(error(text, span.start, "model", "must be a name in quotes")),
            None => return Err(error(text, 0, "model", &format!("is missing: {}", names()))),
        };
        let at = table.get_ref().get("model").map_or(0, |value| value.span().start);
        let Some(base) = Self::by_name(&name) else {
            return Err(error(text, at, "model", &format!("unknown model '{name}': {}", names())));
        };
        table.get_mut().remove("model");
        let costs = base.read(table).map_err(refused)?;
        costs.check().map_err(|wrong| match wrong {
            SimError::OutOfRange { key, range } => {
                let key = key.strip_prefix("costs.").unwrap_or(key);
                let offset = DeTable::parse(text).ok().and_then(|table| offset_of(table.get_ref(), key));
                error(text, offset.unwrap_or(0), key, &format!("must be {range}"))
            }
            other => error(text, 0, "", &other.to_string()),
        })?;
        Ok(costs)
    }

    /// Reads the fields of the table into a model of the same kind.
    fn read(self, table: Spanned<DeTable<'_>>) -> Result<Self, toml::de::Error> {
        let reader = toml::de::Deserializer::from(table);
        Ok(match self {
            Self::Lard98(_) => Self::Lard98(Deserialize::deserialize(reader)?),
            Self::Ward01(_) => Self::Ward01(Deserialize::deserialize(reader)?),
            Self::Cap01(_) => Self::Cap01(Deserialize::deserialize(reader)?),
            Self::Hacc99(_) => Self::Hacc99(Deserialize::deserialize(reader)?),
            Self::Modelled(_) => Self::Modelled(Deserialize::deserialize(reader)?),
            Self::Modern(_) => Self::Modern(Deserialize::deserialize(reader)?),
        })
    }
}

fn names() -> String {
    let names = Costs::NAMES.iter().filter(|name| **name != "modern-object-store");
    format!("use one of {}", names.copied().collect::<Vec<_>>().join(", "))
}

fn error(text: &str, offset: usize, key: &str, message: &str) -> CostsFileError {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    CostsFileError {
        line: 1 + before.matches('\n').count(),
        key: key.to_owned(),
        message: message.to_owned(),
    }
}

fn refusal(text: &str, refused: &toml::de::Error) -> CostsFileError {
    let offset = refused.span().map_or(0, |span| span.start);
    let key = DeTable::parse(text).ok().and_then(|table| key_at(table.get_ref(), offset));
    error(text, offset, &key.unwrap_or_default(), refused.message().trim())
}

/// Returns the offset at which the value of a dotted key begins.
fn offset_of(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = table.get(first)?;
    match (rest, value.get_ref()) {
        (None, _) => Some(value.span().start),
        (Some(rest), DeValue::Table(inner)) => offset_of(inner, rest),
        _ => None,
    }
}

/// Returns the dotted key whose name or value covers an offset.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref().to_string();
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(inner) = key_at(inner, offset)
        {
            return Some(format!("{name}.{inner}"));
        }
        let here = key.span().contains(&offset) || value.span().contains(&offset);
        here.then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Lard98, Modern};
    use super::*;

    #[test]
    fn a_file_names_its_model_and_changes_what_it_names() {
        let costs = Costs::from_toml("model = \"lard98\"\nseek_us = 7000.0\n");
        assert_eq!(costs, Ok(Costs::Lard98(Lard98 { seek_us: 7_000.0, ..Lard98::default() })));
        let text = "model = \"modern\"\n\n[node]\ncores = 16\n\n[storage]\nfirst_byte_us = 12.5\n";
        let Ok(Costs::Modern(modern)) = Costs::from_toml(text) else { unreachable!("{text} is a model") };
        assert_eq!((modern.node.cores, modern.storage.first_byte_us), (16, 12.5));
        assert_eq!(modern.switch, Modern::default().switch);
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        let cases = [
            ("", 1, "model", "is missing"),
            ("\nmodel = \"lard99\"\n", 2, "model", "unknown model 'lard99'"),
            ("model = 7\n", 1, "model", "a name in quotes"),
            ("model = \"lard98\"\nseek_us = = 1\n", 2, "", ""),
            ("model = \"lard98\"\n\nseek_ms = 1.0\n", 3, "seek_ms", "unknown field"),
            ("model = \"lard98\"\nseek_us = \"x\"\n", 2, "seek_us", "invalid type"),
            ("model = \"lard98\"\nseek_us = -1.0\n", 2, "seek_us", "must be 0 to"),
            ("model = \"modern\"\n[node]\ncores = 0\n", 3, "node.cores", "must be 1 to 1,024"),
            ("model = \"modern\"\n[network]\ngbit = 1.0\n", 3, "network.gbit", "unknown field"),
            (
                "model = \"modelled\"\n[machine]\nrequest_us = nan\nkib_us = 0.0\n",
                3,
                "machine.request_us",
                "0 to",
            ),
        ];
        for (text, line, key, message) in cases {
            let error = Costs::from_toml(text).expect_err(text);
            assert_eq!((error.line, error.key.as_str()), (line, key), "{text}: {error}");
            assert!(error.message.contains(message), "{text}: {error}");
        }
    }
}
