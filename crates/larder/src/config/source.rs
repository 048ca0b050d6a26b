//! The text of a config, the places of keys in it, and errors with these places.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Fault};
use super::explain::explain;
use super::moved::{self, Moved};

/// The text of a config, which is kept to locate errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    origin: &'a str,
    text: &'a str,
}

impl<'a> Source<'a> {
    /// Creates a source with the config `text`, which errors call `origin`.
    pub(crate) fn new(origin: &'a str, text: &'a str) -> Self {
        Self { origin, text }
    }

    pub(super) fn text(self) -> &'a str {
        self.text
    }

    /// Parses the file. Each key is moved to its new place; the keys with old spellings are returned too.
    pub(super) fn table(&self) -> Result<(Spanned<DeTable<'a>>, Vec<Moved>), toml::de::Error> {
        let mut table = DeTable::parse(self.text)?;
        let moved = moved::apply(table.get_mut());
        Ok((table, moved))
    }

    fn parsed(&self) -> Option<Spanned<DeTable<'a>>> {
        self.table().ok().map(|(table, _)| table)
    }

    /// Whether the text sets the key at this path.
    pub(super) fn gives(&self, path: &[&str]) -> bool {
        let Some(table) = self.parsed() else { return false };
        let mut at = table.get_ref();
        let Some((last, tables)) = path.split_last() else { return true };
        for name in tables {
            let Some(DeValue::Table(inner)) = at.get(*name).map(Spanned::get_ref) else { return false };
            at = inner;
        }
        at.contains_key(*last)
    }

    /// Returns the error for a key that the file sets by both spellings; `None` if it has the old one only.
    pub(super) fn twice(&self, moved: &Moved) -> Option<ConfigError> {
        let line = self.line(moved.twice?);
        let what = format!("is the old spelling of {}, which line {line} sets too", moved.new);
        Some(self.at_old(moved, what, Some("keep the new spelling and delete this one")))
    }

    /// Returns the warning for a key with an old spelling.
    pub(super) fn old_spelling(&self, moved: &Moved, hint: Option<&str>) -> ConfigError {
        self.at_old(moved, format!("old spelling: write {}", moved.new), hint)
    }

    fn at_old(&self, moved: &Moved, what: String, hint: Option<&str>) -> ConfigError {
        ConfigError {
            line: Some(self.line(moved.offset)),
            column: Some(self.column(moved.offset)),
            key: moved.old.clone(),
            hint: hint.map(Into::into),
            ..ConfigError::of_file(self.origin, what)
        }
    }

    /// Whether the text sets the key, or the key is empty.
    pub(super) fn has(&self, key: &str) -> bool {
        let Some(table) = self.parsed() else { return true };
        let parent = key.rsplit_once('.').map_or("", |(parent, _)| parent);
        // Places in the text tell nothing here: a table that a moved key has made has the place of that key.
        parent.is_empty() || value_of(table.get_ref(), key).is_some()
    }

    /// Returns the error for a file that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
        ConfigError::of_file(&path.display().to_string(), format!("cannot be read: {error}"))
    }

    /// Locates a fault in the file.
    pub(crate) fn locate(&self, fault: Fault) -> ConfigError {
        let table = self.parsed();
        let offset = table.as_ref().and_then(|table| offset_of(table.get_ref(), &fault.key));
        let written = table.as_ref().and_then(|table| self.written(table.get_ref(), &fault.key));
        let Fault { key, mut what, mut hint, of_machine, shown } = fault;
        if let (Some(shown), Some(written)) = (shown, written) {
            what = what.replacen(&shown, &written, 1);
        }
        self.suit(&key, &mut what, &mut hint);
        let (line, column) = (offset.map(|at| self.line(at)), offset.map(|at| self.column(at)));
        let hint = hint.map(String::into_boxed_str);
        ConfigError { line, column, key, hint, of_machine, ..ConfigError::of_file(self.origin, what) }
    }

    /// Returns the error for a text that the TOML reader refuses: invalid syntax, an unknown key, or a wrong type.
    pub(crate) fn refused(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map(|span| span.start);
        let key = offset.and_then(|at| {
            let table = self.parsed()?;
            key_at(table.get_ref(), at)
        });
        let key = key.unwrap_or_default();
        let (mut what, mut hint) = explain(&without_secret(error.message(), &key), &key);
        if key.is_empty() && ["duplicate key", "cannot extend value"].iter().any(|text| what.contains(text)) {
            let line = offset.map(|at| self.text.split_at_checked(at).unwrap_or_default());
            let line = line.map(|(before, after)| {
                let (head, tail) = (before.rsplit('\n').next(), after.split('\n').next());
                head.into_iter().chain(tail).collect::<String>()
            });
            hint = line.and_then(|line| moved::became_table(&line)).or(hint);
        }
        self.suit(&key, &mut what, &mut hint);
        let (line, column) = (offset.map(|at| self.line(at)), offset.map(|at| self.column(at)));
        let hint = hint.map(String::into_boxed_str);
        ConfigError { line, column, key, hint, ..ConfigError::of_file(self.origin, what) }
    }

    /// Adapts an error to a file that sets the key, or its table, by an old spelling.
    fn suit(&self, key: &str, what: &mut String, hint: &mut Option<String>) {
        fn last(key: &str) -> &str {
            key.rsplit('.').next().unwrap_or(key)
        }
        let Ok((_, all)) = self.table() else { return };
        let within = |moved: &&Moved| {
            key.strip_prefix(&*moved.new).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let Some(Moved { old, new, .. }) = all.iter().find(within) else { return };
        // A table may be given by both spellings, with different keys.
        if DeTable::parse(self.text).is_ok_and(|table| value_of(table.get_ref(), key).is_some()) {
            return;
        }
        what.push_str(&format!(
            " (given as {old}, the old spelling of {new}; larder check --migrate rewrites the file)"
        ));
        // The new name is no key of the old table.
        if last(old) != last(new) {
            *hint = hint.take().filter(|hint| key != new || !hint.contains(&format!("{} = ", last(new))));
        }
    }

    /// Returns the value of a key as in the text, without quotes; `None` for a missing key, a list and a table.
    fn written(&self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = value_of(table, key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Array(_) | DeValue::Table(_) => None,
            _ => self.text.get(value.span()).map(str::to_owned),
        }
    }

    fn line(&self, offset: usize) -> u32 {
        from_one(self.text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count())
    }

    fn column(&self, offset: usize) -> u32 {
        let before = self.text.get(..offset).unwrap_or_default();
        from_one(before.rsplit('\n').next().unwrap_or_default().chars().count())
    }
}

/// Removes the quoted value from a message of the deserializer, if the key's values may be secrets.
fn without_secret(message: &str, key: &str) -> String {
    let (found, wanted) = message.rsplit_once(", expected ").unwrap_or((message, ""));
    let secret = [".traces.headers", ".origin.headers"].iter().any(|table| key.contains(table));
    match found.split_once('"').filter(|_| secret) {
        Some((kind, _)) => format!("{kind}(not shown), expected {wanted}"),
        None => message.to_owned(),
    }
}

/// Adds 1, because lines and columns are counted from 1. A file is much shorter than the largest number.
fn from_one(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1)
}

/// Returns the byte offset of a dotted key, or of its nearest existing ancestor.
fn offset_of(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (head, rest) = key.split_once('.').unwrap_or((key, ""));
    let (name, index) = match head.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
        None => (head, None),
    };
    let (found, value) = table.iter().find(|(found, _)| found.get_ref() == name)?;
    let item = match (index, value.get_ref()) {
        (Some(index), DeValue::Array(items)) => items.get(index),
        _ => None,
    };
    let at = item.map_or(found.span().start, |item| item.span().start);
    let inner = item.unwrap_or(value);
    match inner.get_ref() {
        DeValue::Table(inner) if !rest.is_empty() => offset_of(inner, rest).or(Some(at)),
        _ => Some(at),
    }
}

/// Returns the value of a dotted key.
fn value_of<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<&'t Spanned<DeValue<'a>>> {
    let (head, rest) = key.split_once('.').unwrap_or((key, ""));
    let (name, index) = match head.split_once('[') {
        Some((name, index)) => (name, Some(index.trim_end_matches(']').parse::<usize>().ok()?)),
        None => (head, None),
    };
    let value = table.get(name)?;
    let value = match (index, value.get_ref()) {
        (Some(index), DeValue::Array(items)) => items.get(index)?,
        // A list may be written as its only entry.
        (None | Some(0), _) => value,
        _ => return None,
    };
    match value.get_ref() {
        _ if rest.is_empty() => Some(value),
        DeValue::Table(inner) => value_of(inner, rest),
        _ => None,
    }
}

/// Returns the dotted key whose name or value covers a byte offset.
pub(super) fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let own = || name.get_ref().to_string();
        if name.span().contains(&offset) {
            return Some(own());
        }
        inside(value, offset).map(|inner| format!("{}{inner}", own()))
    })
}

/// Returns the rest of a dotted key below `value`; `None` if the offset is outside.
fn inside(value: &Spanned<DeValue<'_>>, offset: usize) -> Option<String> {
    let within = value.span().contains(&offset).then(String::new);
    match value.get_ref() {
        DeValue::Table(inner) => key_at(inner, offset).map(|key| format!(".{key}")).or(within),
        DeValue::Array(items) => {
            let found = items.iter().enumerate();
            let mut found = found.filter_map(|(i, item)| Some(format!("[{i}]{}", inside(item, offset)?)));
            found.next().or(within)
        }
        _ => within,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "[switch]\nlisten = \"x\"\nnodes = [\n  \"a\",\n  { address = \"b\", weight = 0 },\n]\n";

    #[test]
    fn a_fault_is_found_in_the_text() {
        let source = Source::new("f.toml", TEXT);
        let line = |key: &str| source.locate(Fault::new(key, "bad")).line;
        assert_eq!(line("switch.listen"), Some(2));
        assert_eq!(line("switch.nodes"), Some(3));
        assert_eq!(line("switch.nodes[1].weight"), Some(5));
        assert_eq!(line("switch.absent"), Some(1));
        assert_eq!(line("absent"), None);
    }
}
