//! The reference of all keys as a page of the documentation, `docs/reference/config.md`.
//!
//! It is generated from the same declarations as [`super::reference`].

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::reference::{rows, standard};
use super::schema::Part;
use crate::reference::{cell, check};

/// Text before the first table.
const INTRODUCTION: &str = "\
# Config

Every key of the config file, table by table. A switch needs `switch.listen` and `switch.nodes`, a node `node.listen` and
`node.root`, and a picker `picker.listen` and endpoints. Everything else is optional.

- [examples/larder.toml](../../examples/larder.toml) is the same reference as a commented config. `larder check --defaults` prints it.
- `larder check FILE` checks a file, and `larder check --policies` describes the policies.
- `larder check --schema` prints a JSON Schema for editors.

**Values.** A time is a number with a unit: `us`, `ms`, `s`, `m`, `h` or `d`. A size is a number of bytes, also with a unit: `16MB`
uses powers of 1000, `16MiB` powers of 1024. Where a key takes a text or a list, one text means a list of one.

**Reload.** A reload of a switch applies all keys, except that `flows_max` and `targets_max` of `[switch.handoff]` do not resize existing
tables. A reload of a node applies the keys marked here, and refuses a file in which other keys have changed. A reload of an agent
applies `agent.switches`. A picker is restarted; its peers keep what it has learned. See [reload](../operate/reload.md).
";

/// Returns the page.
fn page() -> anyhow::Result<String> {
    let mut page = Page::default();
    page.table("", Part::root(), standard()?.as_object());
    let mut text = format!("{INTRODUCTION}\n");
    for role in page.headings.chunk_by(|a, b| root(a) == root(b)) {
        let links = role.iter().map(|heading| format!("[{}](#{})", bare(heading), anchor(heading)));
        let mut line = "-".to_owned();
        for link in links {
            if line.len() + link.len() > 125 {
                writeln!(text, "{line}")?;
                " ".clone_into(&mut line);
            }
            write!(line, " {link}")?;
        }
        writeln!(text, "{line}")?;
    }
    text.push_str(&page.text);
    Ok(text)
}

/// Removes the brackets of a heading.
fn bare(heading: &str) -> &str {
    heading.trim_matches(['[', ']'])
}

/// Returns the first part of a heading, which is a role or a table that all roles have.
fn root(heading: &str) -> &str {
    bare(heading).split('.').next().unwrap_or_default()
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    heading.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect()
}

#[derive(Default)]
struct Page {
    text: String,
    headings: Vec<String>,
}

impl Page {
    /// Writes the keys of a table, and then its sub-tables.
    fn table(&mut self, path: &str, at: Part, values: Option<&Map<String, Value>>) {
        let (tables, keys): (Vec<_>, Vec<_>) = at
            .resolve()
            .keys()
            .partition(|(_, part)| !part.is_elsewhere() && (part.is_table() || rows(*part).is_some()));
        if !keys.is_empty() {
            self.text.push_str("\n| key | default | values | meaning |\n|---|---|---|---|\n");
        }
        for (key, part) in &keys {
            let default = values.and_then(|values| values.get(*key)).filter(|value| !is_empty(value));
            self.key(key, *part, default);
        }
        for (key, part) in tables {
            let path = joined(path, key);
            let inner = values.and_then(|values| values.get(key)).and_then(Value::as_object);
            match rows(part) {
                Some(row) => self.section(format!("[[{path}]]"), part, row, None),
                None => self.section(format!("[{path}]"), part, part, inner),
            }
        }
        // Values with a table form, unless the description refers to another table.
        for (key, part) in keys {
            let (text, row) = (described(part), part.entry().filter(|row| row.has_keys()));
            let refers = text.contains("as [[") || text.contains("as [") && row.is_none();
            if part.is_elsewhere() || refers {
                continue;
            }
            let path = joined(path, key);
            match row {
                Some(row) => self.section(format!("[[{path}]]"), part, row, None),
                None if part.has_keys() => self.section(format!("[{path}]"), part, part, None),
                None => {}
            }
        }
    }

    /// Writes a table with its heading. `at` has its keys.
    fn section(&mut self, heading: String, part: Part, at: Part, values: Option<&Map<String, Value>>) {
        let reload = if part.is_reloadable() { " A reload applies it." } else { "" };
        // Writing to memory does not fail.
        let _ = write!(self.text, "\n## `{heading}`\n\n{}{reload}\n", marked(described(part)));
        let path = bare(&heading).to_owned();
        self.headings.push(heading);
        self.table(&path, at, values);
    }

    fn key(&mut self, key: &str, part: Part, default: Option<&Value>) {
        let text = described(part);
        let default = default.or_else(|| part.get("default").filter(|value| !is_empty(value)));
        let required = text.contains("Required.") || text.contains("Required, unless");
        let shown = match default.filter(|_| !required).and_then(code) {
            Some(value) => value,
            None if required => "required".to_owned(),
            None => "unset".to_owned(),
        };
        let mut values = vec![kind(part)];
        values.extend(part.entries().map(|most| format!("at most {most} entries")));
        if part.words().is_empty() && (required || default.is_none()) {
            values.extend(part.example().and_then(code).map(|example| format!("such as {example}")));
        }
        let reload = if part.is_reloadable() { " A reload applies it." } else { "" };
        let values = values.join(", ");
        let (shown, values, meaning) = (cell(&shown), cell(&values), cell(&marked(text)));
        let _ = writeln!(self.text, "| `{key}` | {shown} | {values} | {meaning}{reload} |");
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn described(part: Part) -> &'static str {
    part.description().or_else(|| part.resolve().description()).unwrap_or_default()
}

/// Returns a value in TOML between backticks.
fn code(value: &Value) -> Option<String> {
    toml::Value::try_from(value).ok().map(|value| format!("`{value}`"))
}

/// Returns the values that a key may have: its words, its range or its type.
fn kind(part: Part) -> String {
    let words = part.words();
    if !words.is_empty() {
        return words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(range) = part.range_text() {
        return marked(range);
    }
    part.type_name().to_owned()
}

/// Marks quoted texts, variables and names of tables as code, and escapes marks of Markdown.
fn marked(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '`' => rest[1..].find('`').map(|at| at + 2),
            '"' => rest[1..].find('"').map(|at| at + 2),
            '{' => rest.find('}').map(|at| at + 1),
            '[' => rest.find(']').map(|at| at + 1 + rest[at + 1..].chars().take_while(|c| *c == ']').count()),
            _ => None,
        };
        let (part, after) = rest.split_at(end.unwrap_or(first.len_utf8()));
        match (end, first) {
            (Some(_), '`') => out.push_str(part),
            (Some(_), _) => {
                let _ = write!(out, "`{part}`");
            }
            (None, '*' | '<') => {
                out.push('\\');
                out.push(first);
            }
            (None, _) => out.push_str(part),
        }
        rest = after;
    }
    out
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

#[test]
fn the_page_is_current() {
    check("docs/reference/config.md", &page().unwrap());
}

#[test]
fn texts_are_marked() {
    for (text, expected) in [
        ("a \"b*\" c", "a `\"b*\"` c"),
        ("as [switch.tls], [[a.b]]", "as `[switch.tls]`, `[[a.b]]`"),
        ("`x = \"y\"` * {z}", "`x = \"y\"` \\* `{z}`"),
    ] {
        assert_eq!(marked(text), expected);
    }
}
