//! The commented default config and the JSON Schema, both generated from the types in [`super::raw`].

use std::fmt::Write as _;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{RawConfig, RawNode, RawSwitch};

/// Widest line of a comment.
const COLUMNS: usize = 100;

/// The JSON Schema of the config file.
pub(crate) fn schema() -> Value {
    schemars::schema_for!(RawConfig).to_value()
}

/// Every key with its meaning and its default, as a config file that loads. Keys without a default stand as
/// commented examples.
pub(crate) fn defaults() -> anyhow::Result<String> {
    let raw = RawConfig {
        switch: Some(RawSwitch::default()),
        node: Some(RawNode::default()),
        ..RawConfig::default()
    };
    let values = serde_json::to_value(raw)?;
    let schema = schema();
    let mut out = Writer { schema: &schema, text: String::new() };
    out.comment("", "larder: every key, what it means, and its default. Generated: larder check --defaults");
    out.comment(
        "",
        "Keep the keys you change and delete the rest. A line with a single # before a key is an example.",
    );
    out.table("", &schema, values.as_object(), false)?;
    Ok(out.text)
}

/// The schema, made once: a file with many faults asks for it often.
static SCHEMA: LazyLock<Value> = LazyLock::new(schema);

/// The key with the example or default of the reference, as one line of a config; `None` for a key that is not known.
pub(super) fn example(key: &str) -> Option<String> {
    let schema = &*SCHEMA;
    let writer = Writer { schema, text: String::new() };
    let (mut at, mut name) = (schema, "");
    for part in key.split('.') {
        let (bare, index) = part.split_once('[').map_or((part, false), |(bare, _)| (bare, true));
        let property = writer.properties(at)?.get(bare)?;
        at = if index { writer.resolve(property.get("items")?) } else { property };
        name = if index { "" } else { bare };
    }
    let value = writer.shown(at, 0)?;
    Some(if name.is_empty() { value } else { format!("{name} = {value}") })
}

/// The tables that have a key of this name.
pub(super) fn elsewhere(name: &str) -> Vec<String> {
    let of = |key: &String| {
        key.rsplit_once('.').filter(|(_, last)| *last == name).map(|(table, _)| table.to_owned())
    };
    let mut tables: Vec<String> = keys().iter().filter_map(of).collect();
    tables.truncate(3);
    tables
        .into_iter()
        .map(|table| match table.strip_suffix("[]") {
            Some(list) => format!("[[{list}]]"),
            None => format!("[{table}]"),
        })
        .collect()
}

/// Every key and table of the schema, dotted; `[]` follows the name of a list of tables.
pub(super) fn keys() -> Vec<String> {
    fn below(writer: &Writer<'_>, at: &Value, path: &str, depth: usize, keys: &mut Vec<String>) {
        // No table stands in itself; the limit is for a schema that says otherwise.
        let Some(properties) = writer.properties(at).filter(|_| depth < 8) else { return };
        for (name, property) in properties {
            let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            keys.push(key.clone());
            below(writer, property, &key, depth + 1, keys);
            if let Some(row) = property.get("items") {
                below(writer, row, &format!("{key}[]"), depth + 1, keys);
            }
        }
    }
    let schema = &*SCHEMA;
    let mut keys = Vec::new();
    below(&Writer { schema, text: String::new() }, schema, "", 0, &mut keys);
    keys
}

struct Writer<'a> {
    schema: &'a Value,
    text: String,
}

impl<'a> Writer<'a> {
    /// Writes the keys of a table and then its sub-tables, as TOML wants them ordered.
    fn table(
        &mut self,
        path: &str,
        schema: &'a Value,
        values: Option<&Map<String, Value>>,
        as_example: bool,
    ) -> anyhow::Result<()> {
        let Some(properties) = self.resolve(schema).get("properties").and_then(Value::as_object) else {
            return Ok(());
        };
        let told = properties.iter().filter(|(_, property)| property.get("x-reference").is_none());
        let (tables, keys): (Vec<_>, Vec<_>) = told.partition(|(_, property)| {
            self.resolve(property).get("properties").is_some() || self.rows(property).is_some()
        });
        for (key, property) in keys {
            let default = values.and_then(|values| values.get(key)).filter(|value| !is_empty(value));
            self.key((path, key), property, default, as_example)?;
        }
        for (key, property) in tables {
            let inner = values.and_then(|values| values.get(key)).and_then(Value::as_object);
            let as_example = as_example || inner.is_none();
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.text.push('\n');
            self.comment("", description(property).unwrap_or_default());
            if let Some(row) = self.rows(property) {
                writeln!(self.text, "#[[{path}]]")?;
                self.table(&path, row, None, true)?;
                continue;
            }
            writeln!(self.text, "{}[{path}]", if as_example { "#" } else { "" })?;
            self.table(&path, property, inner, as_example)?;
        }
        Ok(())
    }

    fn key(
        &mut self,
        (path, key): (&str, &str),
        property: &Value,
        default: Option<&Value>,
        as_example: bool,
    ) -> anyhow::Result<()> {
        self.comment("", description(property).or_else(|| description(self.resolve(property))).unwrap_or(""));
        let example = property.get("examples").and_then(|examples| examples.get(0));
        let (value, mark) = match (default, example.or_else(|| property.get("default"))) {
            (Some(value), _) => (value, if as_example { "#" } else { "" }),
            (None, Some(value)) if required(path, key) && !as_example => (value, ""),
            (None, Some(value)) => (value, "#"),
            (None, None) => anyhow::bail!("the config key '{key}' has neither a default nor an example"),
        };
        writeln!(self.text, "{mark}{key} = {}", toml::Value::try_from(value)?)?;
        Ok(())
    }

    /// The schema of a list's tables; none for what is no list, or has an example of its own.
    fn rows(&self, property: &'a Value) -> Option<&'a Value> {
        let row = property.get("items").filter(|_| property.get("examples").is_none())?;
        self.resolve(row).get("properties").map(|_| row)
    }

    /// The keys of a table; `None` for what is no table. A value of several kinds has those of its table form.
    fn properties(&self, at: &'a Value) -> Option<&'a Map<String, Value>> {
        let at = self.resolve(at);
        let forms = at.get("anyOf").and_then(Value::as_array).into_iter().flatten();
        std::iter::once(at).chain(forms).find_map(|form| self.resolve(form).get("properties")?.as_object())
    }

    /// An example of a value in TOML, on one line.
    fn shown(&self, at: &Value, depth: usize) -> Option<String> {
        let given = at.get("examples").and_then(|examples| examples.get(0));
        let default = at.get("default").filter(|value| !is_empty(value) && !value.is_object());
        if let Some(value) = given.or(default) {
            return toml::Value::try_from(value).ok().map(|value| value.to_string());
        }
        let properties = self.properties(at).filter(|_| depth < 2)?;
        let shown = |wanted: fn(&str) -> bool| {
            properties.iter().find_map(|(name, property)| {
                wanted(description(property).unwrap_or_default())
                    .then(|| self.shown(property, depth + 1))
                    .flatten()
                    .map(|value| format!("{{ {name} = {value} }}"))
            })
        };
        shown(|text| text.contains("Required.")).or_else(|| shown(|_| true))
    }

    /// Follows a reference, also within the "this or null" of an optional value.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let first = schema.get("anyOf").and_then(|any| any.get(0));
        let reference = schema.get("$ref").or_else(|| first.and_then(|first| first.get("$ref")));
        let name = reference.and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
        name.and_then(|name| self.schema.get("$defs")?.get(name)).unwrap_or(schema)
    }

    fn comment(&mut self, indent: &str, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.len() + word.len() + 3 > COLUMNS {
                self.text.push_str(&format!("{indent}# {line}\n"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            self.text.push_str(&format!("{indent}# {line}\n"));
        }
    }
}

/// The keys a section cannot do without: the reference shows them with an example in force.
fn required(path: &str, key: &str) -> bool {
    matches!((path, key), ("switch", "listen" | "nodes") | ("node", "listen" | "root"))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn description(schema: &Value) -> Option<&str> {
    schema.get("description").and_then(Value::as_str)
}
