//! Rewrites a config file with the current spellings. Comments and order are kept as far as tables allow.
//!
//! A key that moves into a table goes below that table's heading, with its comments. A table that moves keeps its place and gets
//! another heading. Keys of inline tables become dotted keys there.

use serde::Deserialize as _;
use toml::de::Deserializer;
use toml_edit::{Decor, DocumentMut, InlineTable, Item, Key, Table, Value};

use super::error::ConfigError;
use super::moved::{Row, rows};
use super::sections::Sections;
use super::source::Source;

/// Replaces all old spellings in a text. Returns the text and their number. `origin` names the text in errors.
///
/// # Errors
/// The text is no TOML, or has both spellings of a key.
pub(crate) fn migrate(origin: &str, text: &str) -> Result<(String, usize), ConfigError> {
    let source = Source::new(origin, text);
    let (_, moved) = source.table().map_err(|error| source.refused(&error))?;
    if let Some(error) = moved.iter().find_map(|moved| source.twice(moved)) {
        return Err(error);
    }
    if moved.is_empty() {
        return Ok((text.to_owned(), 0));
    }
    let failed = |why: &str| ConfigError::of_file(origin, format!("cannot be rewritten: {why}"));
    // The editor writes neither a byte order mark nor CRLF.
    let (mark, body) = text.split_at(if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 });
    let crlf = body.split_once('\n').is_some_and(|(first, _)| first.ends_with('\r'));
    let mut document: DocumentMut =
        body.replace("\r\n", "\n").parse().map_err(|error: toml_edit::TomlError| failed(error.message()))?;
    for row in rows() {
        each(Place::Table(document.as_table_mut()), &row.above, &mut |parent| shift(parent, row));
    }
    let rewritten = document.to_string().replace('\n', if crlf { "\r\n" } else { "\n" });
    let rewritten = format!("{mark}{rewritten}");
    if rewritten.matches('#').count() < text.matches('#').count() {
        return Err(failed(
            "a comment would be lost; write the new spellings by hand, as `larder check` names them",
        ));
    }
    // A file that means something else afterwards would be worse than the old spellings.
    if meaning(source) == meaning(Source::new(origin, &rewritten)) {
        Ok((rewritten, moved.len()))
    } else {
        Err(failed("write the new spellings by hand, as `larder check` names them"))
    }
}

/// Returns the config that a text means; `None` if it has an error.
fn meaning(source: Source<'_>) -> Option<serde_json::Value> {
    let (table, _) = source.table().ok()?;
    let raw = Sections::deserialize(Deserializer::from(table)).ok()?;
    serde_json::to_value(raw).ok()
}

/// A table in one of its two forms.
enum Place<'a> {
    /// A table with a heading or dotted keys.
    Table(&'a mut Table),
    /// An inline table, or dotted keys in one.
    Inline(&'a mut InlineTable),
}

impl<'a> Place<'a> {
    fn of(item: &'a mut Item) -> Option<Self> {
        match item {
            Item::Table(table) => Some(Self::Table(table)),
            Item::Value(Value::InlineTable(table)) => Some(Self::Inline(table)),
            _ => None,
        }
    }

    /// Reborrows the table.
    fn again(&mut self) -> Place<'_> {
        match self {
            Self::Table(table) => Place::Table(table),
            Self::Inline(table) => Place::Inline(table),
        }
    }

    /// Returns the table of a key.
    fn inner(self, name: &str) -> Option<Place<'a>> {
        match self {
            Self::Table(table) => Self::of(table.get_mut(name)?),
            Self::Inline(table) => match table.get_mut(name)? {
                Value::InlineTable(inner) => Some(Self::Inline(inner)),
                _ => None,
            },
        }
    }

    /// Returns the table of a key, and creates it if it is missing.
    fn inner_or_new(self, name: &str) -> Option<Place<'a>> {
        match self {
            Self::Table(table) => {
                if !table.contains_key(name) {
                    let mut new = Table::new();
                    new.set_implicit(true);
                    new.set_dotted(table.is_dotted());
                    // The heading comes right after the keys of this table.
                    new.set_position(table.position());
                    table.insert(name, Item::Table(new));
                }
                Self::of(table.get_mut(name)?)
            }
            Self::Inline(table) => {
                if !table.contains_key(name) {
                    let mut new = InlineTable::new();
                    new.set_dotted(true);
                    table.insert(name, Value::InlineTable(new));
                }
                match table.get_mut(name)? {
                    Value::InlineTable(inner) => Some(Self::Inline(inner)),
                    _ => None,
                }
            }
        }
    }

    /// Takes a key out, unless it is a table and `but_tables`.
    fn take(self, name: &str, but_tables: bool) -> Option<(Key, Item)> {
        match self {
            Self::Table(table) => {
                let stays = but_tables && table.get(name)?.is_table_like();
                if stays { None } else { table.remove_entry(name) }
            }
            Self::Inline(table) => {
                let stays = but_tables && table.get(name)?.is_inline_table();
                let (key, value) = if stays { None } else { table.remove_entry(name) }?;
                Some((key, Item::Value(value)))
            }
        }
    }

    /// Sets a key to a value. Tables are merged; an existing key is kept.
    fn put(self, name: &str, key: &Key, item: Item) {
        match self {
            Self::Table(table) => {
                if let Some(there) = table.get_mut(name) {
                    merge(Place::of(there), key, item);
                    return;
                }
                let mut new = Key::new(name).with_leaf_decor(key.leaf_decor().clone());
                let first = !table.iter().any(|(_, item)| item.is_value());
                if first && item.is_value() && !table.is_dotted() {
                    // Blank lines stood between this key and the ones before it.
                    let comment =
                        key.leaf_decor().prefix().and_then(|text| text.as_str()).unwrap_or_default();
                    new.leaf_decor_mut().set_prefix(comment.trim_start_matches(['\n', '\r']));
                }
                table.insert_formatted(&new, item);
            }
            Self::Inline(table) => {
                if let Some(there) = table.get_mut(name) {
                    if let Value::InlineTable(there) = there {
                        merge(Some(Place::Inline(there)), key, item);
                    }
                    return;
                }
                if let Ok(mut value) = item.into_value() {
                    // The spaces around it are those of its old place.
                    value.decor_mut().clear();
                    table.insert_formatted(&Key::new(name), value);
                }
            }
        }
    }
}

/// Puts the keys of a table into another one. Comments at its heading, or at its `key`, go to the first of them.
fn merge(into: Option<Place<'_>>, key: &Key, from: Item) {
    let mut comments = comments_at(key, &from);
    let (Some(mut into), Ok(from)) = (into, from.into_table()) else { return };
    let keys: Vec<Key> = from.iter().filter_map(|(name, _)| from.key(name).cloned()).collect();
    for (mut key, (name, mut item)) in keys.into_iter().zip(from) {
        precede(&std::mem::take(&mut comments), &mut key, &mut item);
        into.again().put(&name, &key, item);
    }
    // A table without keys.
    if let Place::Table(table) = into
        && !comments.is_empty()
    {
        let own = prefix(table.decor()).to_owned();
        table.decor_mut().set_prefix(format!("{own}{comments}"));
    }
}

/// Returns the comments at the heading of a table, or before and after an inline table, as whole lines.
fn comments_at(key: &Key, item: &Item) -> String {
    let texts = match item {
        Item::Table(table) if !table.is_dotted() => [table.decor().prefix(), table.decor().suffix()],
        Item::Value(value) => [key.leaf_decor().prefix(), value.decor().suffix()],
        _ => [None, None],
    };
    let lines = texts.into_iter().flatten().filter_map(|text| text.as_str()).flat_map(str::lines);
    lines.map(str::trim).filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Puts comments before a key or a heading.
fn precede(comments: &str, key: &mut Key, item: &mut Item) {
    if comments.is_empty() {
        return;
    }
    match item {
        Item::Table(table) if !table.is_dotted() => {
            let own = prefix(table.decor()).trim_start_matches('\n').to_owned();
            table.decor_mut().set_prefix(format!("\n{comments}{own}"));
        }
        _ => {
            let own = prefix(key.leaf_decor()).to_owned();
            key.leaf_decor_mut().set_prefix(format!("{comments}{own}"));
        }
    }
}

fn prefix(decor: &Decor) -> &str {
    decor.prefix().and_then(|text| text.as_str()).unwrap_or_default()
}

/// Calls `act` for each table at the path `above`.
fn each(at: Place<'_>, above: &[&str], act: &mut impl FnMut(Place<'_>)) {
    let Some((name, rest)) = above.split_first() else { return act(at) };
    let bare = name.trim_end_matches("[]");
    if bare == *name {
        if let Some(inner) = at.inner(name) {
            each(inner, rest, act);
        }
        return;
    }
    let list = match at {
        Place::Table(table) => match table.get_mut(bare) {
            Some(Item::ArrayOfTables(tables)) => {
                tables.iter_mut().for_each(|table| each(Place::Table(table), rest, act));
                None
            }
            Some(Item::Value(Value::Array(list))) => Some(list),
            _ => None,
        },
        Place::Inline(table) => table.get_mut(bare).and_then(Value::as_array_mut),
    };
    for value in list.into_iter().flat_map(|list| list.iter_mut()) {
        if let Value::InlineTable(table) = value {
            each(Place::Inline(table), rest, act);
        }
    }
}

/// Moves the key of a row, if `parent` has it.
fn shift(mut parent: Place<'_>, row: &Row) {
    let Some((key, item)) = take(parent.again(), row) else { return };
    let Some((last, tables)) = row.new.split_last() else { return };
    if let Some(target) = tables.iter().try_fold(parent.again(), |at, name| at.inner_or_new(name)) {
        target.put(last, &key, item);
    }
    // The spaces of an inline table belong to its first and last key.
    if let Place::Inline(table) = parent
        && !table.to_string().contains('#')
    {
        table.fmt();
    }
}

/// Takes the key of a row out of its table.
fn take(mut parent: Place<'_>, row: &Row) -> Option<(Key, Item)> {
    let (last, tables) = row.old.split_last()?;
    let place = tables.iter().try_fold(parent.again(), |at, name| at.inner(name))?;
    let found = place.take(last, row.is_table_now())?;
    // A heading that has lost its last key says nothing, unless it has a comment.
    if let ([name], Place::Table(table)) = (tables, parent) {
        let comment = |text: Option<&toml_edit::RawString>| {
            text.and_then(|text| text.as_str()).is_some_and(|text| text.contains('#'))
        };
        let says_nothing = |left: &Table| {
            left.is_empty() && !comment(left.decor().prefix()) && !comment(left.decor().suffix())
        };
        if table.get(name).and_then(Item::as_table).is_some_and(says_nothing) {
            table.remove(name);
        }
    }
    Some(found)
}
