//! The commented default config and the JSON Schema, both generated from the types in [`super::raw`].

use std::fmt::Write as _;

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
