//! Values of a config with their paths, so that an error can name the key.

use larder_sim::text::printable;
use serde_json::Value;

/// The longest text of a config that a message shows, in characters.
const SHOWN_CHARACTERS: usize = 100;

/// The largest number of names in a message.
const SHOWN_NAMES: usize = 20;

/// A part of a config that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem} ({remedy})")]
pub(crate) struct KeyError {
    key: String,
    problem: String,
    remedy: String,
}

impl KeyError {
    /// Creates an error for a key.
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// Returns a text of a config for a message: short, and without control characters.
pub(super) fn shown(text: &str) -> String {
    printable(&text.chars().take(SHOWN_CHARACTERS).collect::<String>())
}

/// Returns names of a config as a list for a message.
pub(super) fn names<'n>(all: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = all.len().saturating_sub(SHOWN_NAMES);
    let mut names: Vec<String> = all.take(SHOWN_NAMES).map(shown).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

/// A value of a config, with its path.
#[derive(Clone, Debug)]
pub(super) struct Field<'v> {
    value: &'v Value,
    path: String,
}

impl<'v> Field<'v> {
    /// Creates the root of a config.
    pub(super) const fn root(value: &'v Value) -> Self {
        Self { value, path: String::new() }
    }

    /// Returns an error for this key.
    pub(super) fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> KeyError {
        let key = if self.path.is_empty() { "the config" } else { &self.path };
        KeyError::new(key, problem, remedy)
    }

    /// Returns the path of a key in this object, such as `static_resources.clusters[0].name`.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Returns the value of a key, which may be written in snake case or in camel case. `null` means that the
    /// key is absent.
    pub(super) fn get(&self, name: &str) -> Result<Option<Self>, KeyError> {
        let object = match self.value {
            Value::Object(object) => object,
            Value::Null => return Ok(None),
            _ => return Err(self.error("the value is not a mapping", "write keys with values")),
        };
        let value = object.get(name).or_else(|| object.get(&camel_case(name)));
        let value = value.filter(|value| !value.is_null());
        Ok(value.map(|value| Self { value, path: self.path_of(name) }))
    }

    /// Returns the value at the end of a path of keys.
    pub(super) fn find(&self, names: &[&str]) -> Result<Option<Self>, KeyError> {
        let mut field = Some(self.clone());
        for name in names {
            field = match field {
                Some(field) => field.get(name)?,
                None => None,
            };
        }
        Ok(field)
    }

    /// Returns the items of a list in this object. An absent list has none.
    pub(super) fn list(&self, name: &str) -> Result<Vec<Self>, KeyError> {
        let Some(field) = self.get(name)? else { return Ok(Vec::new()) };
        let Value::Array(items) = field.value else {
            return Err(field.error("the value is not a list", "write each item after a dash"));
        };
        let item = |(at, value)| Self { value, path: format!("{}[{at}]", field.path) };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// Returns the text of a key in this object.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'v str>, KeyError> {
        let Some(field) = self.get(name)? else { return Ok(None) };
        match field.value {
            Value::String(text) => Ok(Some(text)),
            _ => Err(field.error("the value is not a text", "write it in quotes")),
        }
    }

    /// Returns the number of a key in this object. It may be a text with digits.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, KeyError> {
        let Some(field) = self.get(name)? else { return Ok(None) };
        let number = match field.value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let wrong = || field.error("the value is not a whole number", "write digits only");
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns the names of the keys in this object.
    pub(super) fn names(&self) -> Vec<&'v str> {
        let object = self.value.as_object();
        object.map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Returns the value, or the value of its JSON text.
    pub(super) fn parsed(&self) -> Result<Value, KeyError> {
        let Value::String(text) = self.value else { return Ok(self.value.clone()) };
        serde_json::from_str(text)
            .map_err(|error| self.error(format!("the text is not JSON: {error}"), "write a JSON object"))
    }

    /// Returns the parsed value of this key with its path.
    pub(super) fn with_value<'p>(&self, value: &'p Value) -> Field<'p> {
        Field { value, path: self.path.clone() }
    }

    /// Returns the switch of a key in this object.
    pub(super) fn flag(&self, name: &str) -> Result<bool, KeyError> {
        Ok(self.get(name)?.is_some_and(|field| field.value.as_bool() == Some(true)))
    }

    /// Returns the name of an enum's value, in upper case. A config may have its number instead. `names` are the
    /// names with their numbers.
    pub(super) fn choice(&self, name: &str, names: &[(u64, &str)]) -> Result<Option<String>, KeyError> {
        let Some(field) = self.get(name)? else { return Ok(None) };
        match field.value {
            Value::String(text) => Ok(Some(text.to_ascii_uppercase())),
            Value::Number(number) => {
                let known = names.iter().find(|(value, _)| number.as_u64() == Some(*value));
                let list = || names.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
                let unknown = || {
                    field.error(format!("{number} is not a known value"), format!("write one of {}", list()))
                };
                known.map(|(_, name)| Some((*name).to_owned())).ok_or_else(unknown)
            }
            _ => Err(field.error("the value is not a name", "write it as a word")),
        }
    }
}

/// Returns `lbPolicy` for `lb_policy`.
fn camel_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut is_first = false;
    for c in name.chars() {
        if c == '_' {
            is_first = true;
        } else {
            text.push(if is_first { c.to_ascii_uppercase() } else { c });
            is_first = false;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_found_in_both_spellings() {
        let value = json!({"lbPolicy": "maglev", "load_assignment": {"a": [{"b": "7"}]}, "none": null});
        let root = Field::root(&value);
        assert_eq!(root.choice("lb_policy", &[]), Ok(Some("MAGLEV".to_owned())));
        assert_eq!(root.text("none"), Ok(None));
        let items = root.find(&["load_assignment"]).unwrap().unwrap().list("a").unwrap();
        assert_eq!(items[0].number("b"), Ok(Some(7)));
        assert_eq!(items[0].path_of("c"), "load_assignment.a[0].c");
        assert!(root.find(&["absent", "b"]).unwrap().is_none());
    }

    #[test]
    fn a_wrong_type_names_the_key_and_the_remedy() {
        let value = json!({"a": {"b": [1]}, "c": 9});
        let root = Field::root(&value);
        let a = root.get("a").unwrap().unwrap();
        assert_eq!(a.text("b").unwrap_err().to_string(), "a.b: the value is not a text (write it in quotes)");
        assert!(a.number("b").unwrap_err().to_string().starts_with("a.b: the value is not a whole number"));
        assert!(root.list("c").unwrap_err().to_string().starts_with("c: the value is not a list"));
        let error = root.choice("c", &[(0, "STATIC"), (3, "EDS")]).unwrap_err().to_string();
        assert_eq!(error, "c: 9 is not a known value (write one of STATIC, EDS)");
        let number = root.get("c").unwrap().unwrap();
        assert!(number.get("d").unwrap_err().to_string().starts_with("c: the value is not a mapping"));
    }

    #[test]
    fn texts_in_messages_are_short_and_printable() {
        assert_eq!(shown("a\u{1b}[31m"), "a?[31m");
        assert_eq!(shown(&"x".repeat(500)).len(), SHOWN_CHARACTERS);
    }
}
