//! The reference of all keys, generated from their declarations: as a commented config, and as a page of the
//! documentation.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::schema::{Part, keys};
use super::sections::Sections;
use super::sections::node::NodeSection;
use super::sections::switch::section::SwitchSection;

/// Largest width of a line with a comment.
const COLUMNS: usize = 100;

/// Returns every key with its meaning and default, as a valid config file. Keys without a default are commented examples.
pub(crate) fn defaults() -> anyhow::Result<String> {
    let values = standard()?;
    let mut out = Writer::default();
    out.comment("Reference of larder's config: every key with its meaning and default, as `larder check --defaults` prints it.");
    out.comment(
        "Keep the keys that you change and delete the rest. A line such as #key = value is an example.",
    );
    out.comment("A reload of a switch applies all keys; a reload of a node applies those marked \"A reload applies it.\"");
    out.table("", Part::root(), values.as_object(), false)?;
    Ok(out.text)
}

/// Returns the defaults of a switch and a node.
pub(super) fn standard() -> anyhow::Result<Value> {
    let raw = Sections {
        switch: Some(SwitchSection::default()),
        node: Some(NodeSection::default()),
        ..Sections::default()
    };
    Ok(serde_json::to_value(raw)?)
}

/// Returns the key with its example or default, as one line of a config; `None` for an unknown key.
pub(super) fn example(key: &str) -> Option<String> {
    let value = shown(Part::find(key)?, 0)?;
    let name = key.rsplit('.').next().filter(|name| !name.contains('['));
    Some(name.map_or_else(|| value.clone(), |name| format!("{name} = {value}")))
}

/// Returns the tables that have a key of this name.
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

/// Returns an example of a value in TOML, on one line.
fn shown(at: Part, depth: usize) -> Option<String> {
    let default = at.get("default").filter(|value| !is_empty(value) && !value.is_object());
    if let Some(value) = at.example().or(default) {
        return toml::Value::try_from(value).ok().map(|value| value.to_string());
    }
    if depth == 2 {
        return None;
    }
    let shown = |wanted: fn(&str) -> bool| {
        at.keys().find_map(|(name, part)| {
            let value =
                wanted(part.description().unwrap_or_default()).then(|| shown(part, depth + 1)).flatten();
            value.map(|value| format!("{{ {name} = {value} }}"))
        })
    };
    shown(|text| text.contains("Required.")).or_else(|| shown(|_| true))
}

#[derive(Default)]
struct Writer {
    text: String,
}

impl Writer {
    /// Writes the keys of a table, and then its sub-tables, in the order that TOML requires.
    fn table(
        &mut self,
        path: &str,
        at: Part,
        values: Option<&Map<String, Value>>,
        as_example: bool,
    ) -> anyhow::Result<()> {
        let told = at.resolve().keys().filter(|(_, part)| !part.is_elsewhere());
        let (tables, keys): (Vec<_>, Vec<_>) =
            told.partition(|(_, part)| part.is_table() || rows(*part).is_some());
        for (key, part) in keys {
            let default = values.and_then(|values| values.get(key)).filter(|value| !is_empty(value));
            self.key((path, key), part, default, as_example)?;
        }
        for (key, part) in tables {
            let inner = values.and_then(|values| values.get(key)).and_then(Value::as_object);
            let as_example = as_example || inner.is_none();
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.text.push('\n');
            self.describe(part);
            if let Some(row) = rows(part) {
                writeln!(self.text, "#[[{path}]]")?;
                self.table(&path, row, None, true)?;
                continue;
            }
            writeln!(self.text, "{}[{path}]", if as_example { "#" } else { "" })?;
            self.table(&path, part, inner, as_example)?;
        }
        Ok(())
    }

    fn key(
        &mut self,
        (path, key): (&str, &str),
        part: Part,
        default: Option<&Value>,
        as_example: bool,
    ) -> anyhow::Result<()> {
        self.describe(part);
        let example = part.example().or_else(|| part.get("default").filter(|value| !value.is_null()));
        let (value, mark) = match (default, example) {
            (Some(value), _) => (value, if as_example { "#" } else { "" }),
            (None, Some(value)) if required(path, key) && !as_example => (value, ""),
            (None, Some(value)) => (value, "#"),
            (None, None) => anyhow::bail!("the config key '{key}' has neither a default nor an example"),
        };
        writeln!(self.text, "{mark}{key} = {}", toml::Value::try_from(value)?)?;
        Ok(())
    }

    /// Writes the meaning of a key, and the sentences that follow from its declaration.
    fn describe(&mut self, part: Part) {
        let described = part.description().or_else(|| part.resolve().description());
        let sentences = described.map(str::to_owned).into_iter().chain(part.bounds());
        self.comment(&sentences.collect::<Vec<_>>().join(" "));
    }

    fn comment(&mut self, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.len() + word.len() + 3 > COLUMNS {
                self.text.push_str(&format!("# {line}\n"));
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            self.text.push_str(&format!("# {line}\n"));
        }
    }
}

/// Returns the schema of the tables of a list; `None` for other values, and for lists with an example.
pub(super) fn rows(part: Part) -> Option<Part> {
    part.entry().filter(|row| part.example().is_none() && row.is_table())
}

/// Whether a section requires the key. The reference shows such keys with an active example.
fn required(path: &str, key: &str) -> bool {
    matches!((path, key), ("switch", "listen" | "nodes") | ("node", "listen" | "root"))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}
