//! The JSON Schema of the config file, which the declarations of keys generate, and queries on it.
//!
//! In addition to the words of JSON Schema, a key may have `x-range`, `x-entries`, `x-when`, `x-elsewhere` and
//! `x-reload`, see [`super::keys`].

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::range::Range;
use super::sections::Sections;
use super::sections::policy::PoliciesSection;

/// The schema. It is cached, because a file with many faults uses it often.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = schemars::schema_for!(Sections).to_value();
    // Keys that may be inherited are optional, so that their types have no defaults.
    if let (Some(defs), Ok(standard)) =
        (schema.get_mut("$defs"), serde_json::to_value(PoliciesSection::standard()))
    {
        set_defaults(defs, "PoliciesSection", &standard);
    }
    schema
});

/// Sets the defaults of the keys of a section, and of its sub-tables, to `values`.
fn set_defaults(defs: &mut Value, section: &str, values: &Value) {
    for (key, value) in values.as_object().into_iter().flatten() {
        let Some(property) = defs.pointer_mut(&format!("/{section}/properties/{key}")) else { continue };
        let inner = property.pointer("/anyOf/0/$ref").or_else(|| property.get("$ref"));
        let inner = inner.and_then(Value::as_str).and_then(|path| path.strip_prefix(DEFS)).map(str::to_owned);
        match inner.filter(|_| value.is_object()) {
            Some(inner) => set_defaults(defs, &inner, value),
            None if value.is_null() => {}
            None => property["default"] = value.clone(),
        }
    }
}

/// Prefix of a reference to another part of the schema.
const DEFS: &str = "#/$defs/";

/// A part of the schema: a table, or a key with its declaration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(&'static Value);

impl Part {
    /// Returns the whole file.
    pub(super) fn root() -> Self {
        Self(&SCHEMA)
    }

    /// Returns the part at a dotted key, with or without indices; `None` for an unknown key.
    pub(super) fn find(key: &str) -> Option<Self> {
        key.split('.').try_fold(Self::root(), |at, part| {
            let (bare, index) = part.split_once('[').map_or((part, false), |(bare, _)| (bare, true));
            let found = at.key(bare)?;
            if index { found.entry() } else { Some(found) }
        })
    }

    /// Follows a reference, also within the "value or null" of an optional key.
    pub(super) fn resolve(self) -> Self {
        let first = self.0.get("anyOf").and_then(|any| any.get(0));
        let reference = self.0.get("$ref").or_else(|| first.and_then(|first| first.get("$ref")));
        let name = reference.and_then(Value::as_str).and_then(|path| path.strip_prefix(DEFS));
        name.and_then(|name| SCHEMA.get("$defs")?.get(name)).map_or(self, Self)
    }

    fn properties(self) -> Option<&'static Map<String, Value>> {
        let at = self.resolve().0;
        let forms = at.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        std::iter::once(at)
            .chain(forms)
            .find_map(|form| Self(form).resolve().0.get("properties")?.as_object())
    }

    /// Whether the part is a table and nothing else.
    pub(super) fn is_table(self) -> bool {
        self.resolve().0.get("properties").is_some()
    }

    /// Whether the part is a table, or a value with a table form.
    pub(super) fn has_keys(self) -> bool {
        self.properties().is_some()
    }

    /// Returns the keys of a table, or of the table form of a value.
    pub(super) fn keys(self) -> impl Iterator<Item = (&'static String, Self)> {
        self.properties().into_iter().flatten().map(|(name, property)| (name, Self(property)))
    }

    /// Returns a key of a table.
    pub(super) fn key(self, name: &str) -> Option<Self> {
        self.properties()?.get(name).map(Self)
    }

    /// Returns the entry of a list.
    pub(super) fn entry(self) -> Option<Self> {
        self.0.get("items").map(Self).map(Self::resolve)
    }

    /// Returns the value of a word of the schema.
    pub(super) fn get(self, word: &str) -> Option<&'static Value> {
        self.0.get(word)
    }

    fn text(self, word: &str) -> Option<&'static str> {
        self.get(word).and_then(Value::as_str)
    }

    /// Returns the declared example.
    pub(super) fn example(self) -> Option<&'static Value> {
        self.get("examples").and_then(|examples| examples.get(0))
    }

    pub(super) fn description(self) -> Option<&'static str> {
        self.text("description")
    }

    /// Whether the key is described in another section.
    pub(super) fn is_elsewhere(self) -> bool {
        self.0.get("x-elsewhere").is_some()
    }

    /// Returns the range of the key, as text.
    pub(super) fn range_text(self) -> Option<&'static str> {
        self.text("x-range")
    }

    /// Returns the largest number of entries of the list.
    pub(super) fn entries(self) -> Option<u64> {
        self.0.get("x-entries").and_then(Value::as_u64)
    }

    /// Returns the condition without which the key is not checked.
    pub(super) fn when(self) -> Option<&'static str> {
        self.text("x-when")
    }

    /// Whether a reload of a running node applies the key.
    pub(super) fn is_reloadable(self) -> bool {
        self.0.get("x-reload").is_some()
    }

    /// Returns the words that the key may have; empty for any value.
    pub(super) fn words(self) -> Vec<&'static str> {
        let own = self.0.get("enum").or_else(|| self.resolve().0.get("enum"));
        own.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Returns the type of the key's values in words.
    #[cfg(test)]
    pub(super) fn type_name(self) -> &'static str {
        let at = self.resolve();
        let reference = self.0.to_string();
        for (name, shown) in [("\"#/$defs/Size\"", "size"), ("\"#/$defs/Span\"", "time")] {
            if reference.contains(name) {
                return shown;
            }
        }
        let kinds = match at.0.get("type") {
            Some(Value::Array(kinds)) => kinds.as_slice(),
            Some(kind) => std::slice::from_ref(kind),
            None => &[],
        };
        let has = |kind: &str| kinds.iter().any(|found| found == kind);
        if has("string") && has("array") {
            return "text or list";
        }
        let names = [
            ("boolean", "`true` or `false`"),
            ("integer", "whole number"),
            ("number", "number"),
            ("string", "text"),
            ("array", "list"),
            ("object", "table"),
        ];
        names.into_iter().find(|(kind, _)| has(kind)).map_or("several types", |(_, shown)| shown)
    }

    /// Whether the description contains every word that the key may have.
    pub(super) fn names_all_words(self) -> bool {
        let described = self.description().unwrap_or_default();
        self.words().iter().all(|word| described.contains(&format!("\"{word}\"")))
    }

    /// Returns the sentences that follow from the declaration of the key.
    pub(super) fn bounds(self) -> Vec<String> {
        let words = self.words();
        let listed = || format!("One of \"{}\".", words.join("\", \""));
        let range = self.range_text().map(|range| format!("Range: {range}."));
        let entries = self.entries().map(|most| format!("At most {most} entries."));
        let reload = self.is_reloadable().then(|| "A reload applies it.".to_owned());
        let words = (!self.names_all_words()).then(listed);
        words.into_iter().chain(range).chain(entries).chain(reload).collect()
    }
}

/// Returns every key and table, dotted. `[]` follows the name of a list of tables.
pub(super) fn keys() -> Vec<String> {
    let mut keys = Vec::new();
    visit(Part::root(), "", 0, &mut |key, _| keys.push(key.to_owned()));
    keys
}

/// Returns the keys and tables that a reload applies at a running node, sorted by name. A table stands for all of its keys.
pub(super) fn reloadable_keys() -> Vec<String> {
    let mut keys = Vec::new();
    visit(Part::root(), "", 0, &mut |key, part| keys.extend(part.is_reloadable().then(|| key.to_owned())));
    keys.sort();
    keys
}

fn visit(at: Part, path: &str, depth: usize, each: &mut impl FnMut(&str, Part)) {
    // No table stands in itself; the limit is for a schema that says otherwise.
    if depth == 8 {
        return;
    }
    for (name, part) in at.keys() {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        each(&key, part);
        visit(part, &key, depth + 1, each);
        if let Some(entry) = part.entry() {
            visit(entry, &format!("{key}[]"), depth + 1, each);
        }
    }
}

/// Returns the JSON Schema for editors. Ranges are part of the descriptions, and words of JSON Schema if possible.
pub(crate) fn schema() -> Value {
    let mut schema = SCHEMA.clone();
    print_bounds(&mut schema);
    schema
}

fn print_bounds(at: &mut Value) {
    match at {
        Value::Array(entries) => entries.iter_mut().for_each(print_bounds),
        Value::Object(words) => {
            // An optional key has no default.
            words.retain(|word, value| word != "default" || !value.is_null());
            words.values_mut().for_each(print_bounds);
            let number = |value: f64| serde_json::Number::from_f64(value).map(Value::Number);
            let whole = |value: f64| {
                if value.fract() == 0.0 { Some(Value::from(value as u64)) } else { number(value) }
            };
            let range = words.get("x-range").and_then(Value::as_str).map(str::to_owned);
            let Some(range) = range else { return };
            if let Some((least, most)) =
                Range::parse(&range).filter(Range::is_plain).and_then(|range| range.numbers())
            {
                words.extend(whole(least).map(|least| ("minimum".to_owned(), least)));
                words.extend(most.and_then(whole).map(|most| ("maximum".to_owned(), most)));
            }
            if let Some(Value::String(description)) = words.get_mut("description") {
                *description = format!("{description} Range: {range}.");
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_policies_have_defaults() {
        let default = |key: &str| Part::find(key).and_then(|part| part.get("default")).cloned();
        assert_eq!(default("switch.policies.seed"), Some(1.into()));
        assert_eq!(default("switch.policies.hacc.preset"), Some("static-files".into()));
        assert_eq!(default("switch.policies.lard.training.length"), Some("10m".into()));
        assert_eq!(default("switch.policies.wrr.gather"), Some("10s".into()));
    }
}
