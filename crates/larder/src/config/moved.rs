//! Old spellings of keys. They are moved to their new places in a parsed file before any other step.
//!
//! Names and values keep their places in the text, so that an error points at the line that the writer knows.

use std::borrow::Cow;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::sections::moves::MOVES;

/// A key that the file sets by its old spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    /// The key as the file has it.
    pub(super) old: String,
    /// The key in the current spelling.
    pub(super) new: String,
    /// Byte offset of the old spelling.
    pub(super) offset: usize,
    /// Byte offset of the new spelling, if the file contains it too.
    pub(super) twice: Option<usize>,
}

/// A row of the table of moves, split where the paths begin to differ.
pub(super) struct Row {
    /// Tables and lists of tables (`[]`) at the beginning of both paths.
    pub(super) above: Vec<&'static str>,
    /// The rest of the old path.
    pub(super) old: Vec<&'static str>,
    /// The rest of the new path.
    pub(super) new: Vec<&'static str>,
}

impl Row {
    fn new(old: &'static str, new: &'static str) -> Self {
        let (old, new): (Vec<_>, Vec<_>) = (old.split('.').collect(), new.split('.').collect());
        let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
        // A key that became a table of its name is not a part of the way to itself.
        let same = same.min(old.len() - 1);
        Self { above: old[..same].to_vec(), old: old[same..].to_vec(), new: new[same..].to_vec() }
    }

    /// Whether the old name is now the name of a table. A table is then the new spelling, and other values are the old
    /// one.
    pub(super) fn is_table_now(&self) -> bool {
        self.new.starts_with(&self.old)
    }
}

/// All rows. They are split once, because a file with many faults is parsed often.
static ROWS: LazyLock<Vec<Row>> =
    LazyLock::new(|| MOVES.iter().map(|(old, new)| Row::new(old, new)).collect());

/// Returns all rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter()
}

/// Returns the old names of the keys of a table, and their new paths within it. The table is dotted, with or without
/// indices. Keys that moved into the table from another one are included.
pub(super) fn names_in(table: &str) -> Vec<(&'static str, String)> {
    fn without_index(part: &str) -> &str {
        part.split('[').next().unwrap_or(part)
    }
    let here = |row: &&Row| {
        let above = row.above.iter().map(|part| without_index(part));
        row.old.len() == 1 && above.eq(table.split('.').map(without_index))
    };
    let came = rows().filter_map(|row| {
        let (old, (new, tables)) = (*row.old.last()?, row.new.split_last()?);
        let path = row.above.iter().chain(tables).map(|part| without_index(part));
        (old != *new && path.eq(table.split('.').map(without_index))).then(|| (old, (*new).to_owned()))
    });
    rows().filter(here).map(|row| (row.old[0], row.new.join("."))).chain(came).collect()
}

/// Returns the remedy for a line that sets a table which was a key of the same name before, or that key.
pub(super) fn became_table(line: &str) -> Option<String> {
    let has = |name: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name);
    let row = rows().find(|row| row.is_table_now() && has(row.old[0]))?;
    Some(format!("`{} = ...` is now `{}`: set it there", row.old[0], row.new.join(".")))
}

/// A key that a comment sets by its old spelling.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommentedKey {
    /// Line in the text, from 1.
    pub(crate) line: usize,
    /// The key as the comment has it.
    pub(crate) old: String,
    /// The key in the current spelling.
    pub(crate) new: String,
}

/// Returns the keys that comments of a text set by their old spellings, as in `#user = "www"`.
pub(crate) fn in_comments(text: &str) -> Vec<CommentedKey> {
    let (mut table, mut found) = (String::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let bare = line.trim().trim_start_matches('#').trim_start();
        let heading = bare.strip_prefix('[').and_then(|rest| rest.split(']').next());
        if let Some(heading) = heading.filter(|text| !text.contains(['"', ','])) {
            let (list, path) = heading.strip_prefix('[').map_or((false, heading), |path| (true, path));
            // Tables of a list are below its last entry.
            let path = path.trim().replace("switch.routes.", "switch.routes[].");
            table = if list { format!("{path}[]") } else { path };
            found.extend(commented(line, i, &table, true));
            continue;
        }
        let Some((name, value)) = bare.split_once('=') else { continue };
        let path = format!("{table}.{}", name.trim());
        found.extend(commented(line, i, path.trim_start_matches('.'), value.trim().starts_with('{')));
    }
    found
}

/// Returns the key at `path` if the line is a comment and the path begins with an old one.
fn commented(line: &str, i: usize, path: &str, is_table: bool) -> Option<CommentedKey> {
    let (old, new) = MOVES.iter().find(|(old, _)| {
        path.strip_prefix(old).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })?;
    let rest = &path[old.len()..];
    let is_new = new.starts_with(&format!("{old}.")) && (is_table || !rest.is_empty());
    (line.trim_start().starts_with('#') && !is_new).then(|| CommentedKey {
        line: i + 1,
        old: path.to_owned(),
        new: format!("{new}{rest}"),
    })
}

/// Moves all keys with old spellings to their new places. Returns them in the order of the text. If the file has both
/// spellings of a key, the new one is kept.
pub(super) fn apply(table: &mut DeTable<'_>) -> Vec<Moved> {
    let mut moved = Vec::new();
    for row in rows() {
        each(table, &row.above, None, &mut |parent, index| shift(parent, row, index, &mut moved));
    }
    moved.sort_by_key(|moved: &Moved| moved.offset);
    moved
}

/// Calls `act` for each table at the path `above`, with the index of its entry if the path has a list.
fn each<'a>(
    table: &mut DeTable<'a>,
    above: &[&str],
    index: Option<usize>,
    act: &mut impl FnMut(&mut DeTable<'a>, Option<usize>),
) {
    let Some((name, rest)) = above.split_first() else { return act(table, index) };
    let bare = name.trim_end_matches("[]");
    let Some(value) = table.get_mut(bare) else { return };
    match value.get_mut() {
        DeValue::Table(inner) => each(inner, rest, index, act),
        DeValue::Array(items) if bare != *name => {
            for (i, item) in items.iter_mut().enumerate() {
                if let DeValue::Table(inner) = item.get_mut() {
                    each(inner, rest, Some(i), act);
                }
            }
        }
        _ => {}
    }
}

fn joined(path: &str, name: &str) -> String {
    format!("{path}.{name}")
}

/// Moves the key of a row, if `parent` has it.
fn shift(parent: &mut DeTable<'_>, row: &Row, index: Option<usize>, moved: &mut Vec<Moved>) {
    let Some((name, value)) = take(parent, row) else { return };
    let path = row.above.join(".");
    let path = index.map_or_else(|| path.clone(), |index| path.replace("[]", &format!("[{index}]")));
    let offset = name.span().start;
    let (old, new) = (joined(&path, &row.old.join(".")), joined(&path, &row.new.join(".")));
    let Some((last, tables)) = row.new.split_last() else { return };
    let mut at = parent;
    for table in tables {
        let name = Spanned::new(offset..offset, (*table).to_owned().into());
        let empty = || Spanned::new(offset..offset, DeValue::Table(DeTable::new()));
        if !at.contains_key(*table) {
            at.insert(name, empty());
        }
        // A value where a table must be is an error of its own.
        let Some(DeValue::Table(inner)) = at.get_mut(*table).map(Spanned::get_mut) else { return };
        at = inner;
    }
    let name = Spanned::new(name.span(), (*last).to_owned().into());
    let mut twice = Vec::new();
    put(at, (name, value), (&old, &new), &mut twice);
    if twice.is_empty() {
        moved.push(Moved { old, new, offset, twice: None });
    } else {
        moved.append(&mut twice);
    }
}

/// A key with its value.
type Entry<'a> = (Spanned<Cow<'a, str>>, Spanned<DeValue<'a>>);

/// Takes the key of a row out of its table.
fn take<'a>(parent: &mut DeTable<'a>, row: &Row) -> Option<Entry<'a>> {
    let (last, tables) = row.old.split_last()?;
    let mut at = parent;
    for table in tables {
        let DeValue::Table(inner) = at.get_mut(*table)?.get_mut() else { return None };
        at = inner;
    }
    let is_table = matches!(at.get(*last)?.get_ref(), DeValue::Table(_));
    if row.is_table_now() && is_table { None } else { at.remove_entry(*last) }
}

/// Puts a value at its new place. Tables are merged. An existing key is kept, and recorded in `twice`.
fn put<'a>(
    table: &mut DeTable<'a>,
    (name, value): Entry<'a>,
    (old, new): (&str, &str),
    twice: &mut Vec<Moved>,
) {
    let offset = name.span().start;
    let Some((there, _)) = table.get_key_value(&**name.get_ref()) else {
        table.insert(name, value);
        return;
    };
    let second = there.span().start;
    match (table.get_mut(&**name.get_ref()).map(Spanned::get_mut), value.into_inner()) {
        (Some(DeValue::Table(into)), DeValue::Table(from)) => {
            for (name, value) in from {
                let (old, new) = (joined(old, name.get_ref()), joined(new, name.get_ref()));
                put(into, (name, value), (&old, &new), twice);
            }
        }
        _ => twice.push(Moved { old: old.to_owned(), new: new.to_owned(), offset, twice: Some(second) }),
    }
}
