//! The JSON Schema of the config file, made from the declarations of its keys, and what the other modules ask of it.
//!
//! Beside the words of JSON Schema a key may have `x-range`, `x-entries`, `x-when`, `x-elsewhere` and `x-reload`, see
//! [`super::keys`].

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::range::Range;
use super::sections::Sections;

/// The schema, made once: a file with many faults asks for it often.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| schemars::schema_for!(Sections).to_value());

/// A part of the schema: a table, or a key with all that is declared of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(&'static Value);

impl Part {
    /// The whole file.
    pub(super) fn root() -> Self {
        Self(&SCHEMA)
    }

    /// The part at a dotted key, with or without indices; `None` for a key that is not known.
    pub(super) fn find(key: &str) -> Option<Self> {
        key.split('.').try_fold(Self::root(), |at, part| {
            let (bare, index) = part.split_once('[').map_or((part, false), |(bare, _)| (bare, true));
            let found = at.key(bare)?;
            if index { found.entry() } else { Some(found) }
        })
    }

    /// Follows a reference, also within the "this or null" of an optional value.
    pub(super) fn resolve(self) -> Self {
        let first = self.0.get("anyOf").and_then(|any| any.get(0));
        let reference = self.0.get("$ref").or_else(|| first.and_then(|first| first.get("$ref")));
        let name = reference.and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
        name.and_then(|name| SCHEMA.get("$defs")?.get(name)).map_or(self, Self)
    }

    fn properties(self) -> Option<&'static Map<String, Value>> {
        let at = self.resolve().0;
        let forms = at.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        std::iter::once(at)
            .chain(forms)
            .find_map(|form| Self(form).resolve().0.get("properties")?.as_object())
    }

    /// Whether this is a table and nothing else.
    pub(super) fn is_table(self) -> bool {
        self.resolve().0.get("properties").is_some()
    }

    /// Whether this is a table or may be written as one.
    pub(super) fn has_keys(self) -> bool {
        self.properties().is_some()
    }

    /// The keys of a table; none for what is no table. A value of several kinds has those of its table form.
    pub(super) fn keys(self) -> impl Iterator<Item = (&'static String, Self)> {
        self.properties().into_iter().flatten().map(|(name, property)| (name, Self(property)))
    }

    /// A key of a table.
    pub(super) fn key(self, name: &str) -> Option<Self> {
        self.properties()?.get(name).map(Self)
    }

    /// An entry of a list.
    pub(super) fn entry(self) -> Option<Self> {
        self.0.get("items").map(Self).map(Self::resolve)
    }

    /// The value of a word of the schema.
    pub(super) fn get(self, word: &str) -> Option<&'static Value> {
        self.0.get(word)
    }

    fn text(self, word: &str) -> Option<&'static str> {
        self.get(word).and_then(Value::as_str)
    }

    /// The example that is declared.
    pub(super) fn example(self) -> Option<&'static Value> {
        self.get("examples").and_then(|examples| examples.get(0))
    }

    pub(super) fn description(self) -> Option<&'static str> {
        self.text("description")
    }

    /// Whether the key is described at another place.
    pub(super) fn is_elsewhere(self) -> bool {
        self.0.get("x-elsewhere").is_some()
    }

    /// The values that the key may have, as a text.
    pub(super) fn range_text(self) -> Option<&'static str> {
        self.text("x-range")
    }

    /// The number of entries that the list may have.
    pub(super) fn entries(self) -> Option<u64> {
        self.0.get("x-entries").and_then(Value::as_u64)
    }

    /// The condition without which the key is not checked.
    pub(super) fn when(self) -> Option<&'static str> {
        self.text("x-when")
    }

    /// Whether a reload applies the key at a running node.
    pub(super) fn is_reloadable(self) -> bool {
        self.0.get("x-reload").is_some()
    }

    /// The words that the key may have; empty if it may have any.
    pub(super) fn words(self) -> Vec<&'static str> {
        let own = self.0.get("enum").or_else(|| self.resolve().0.get("enum"));
        own.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The sentences about the value that follow from the data of the key.
    pub(super) fn bounds(self) -> Vec<String> {
        let described = self.description().unwrap_or_default();
        let words = self.words();
        let unnamed = words.iter().any(|word| !described.contains(&format!("\"{word}\"")));
        let listed = || format!("One of \"{}\".", words.join("\", \""));
        let range = self.range_text().map(|range| format!("Range: {range}."));
        let entries = self.entries().map(|most| format!("At most {most} entries."));
        let reload = self.is_reloadable().then(|| "A reload applies it.".to_owned());
        let words = unnamed.then(listed);
        words.into_iter().chain(range).chain(entries).chain(reload).collect()
    }
}

/// Every key and table, dotted; `[]` follows the name of a list of tables.
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

/// The JSON Schema for editors and other readers: ranges stand in its descriptions, and as its own words where it has some.
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
