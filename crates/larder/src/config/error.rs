//! Config errors that name the file, the line, the key, and what would be right.

use std::fmt;

use super::suggest::suggest;

/// Why a config cannot be used. It is always the writer's to mend; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The file, or "command line".
    pub(crate) origin: Box<str>,
    /// Line in the file, from 1; none where the key is not in the file.
    pub(crate) line: Option<u32>,
    /// Column in that line, from 1, in characters.
    pub(crate) column: Option<u32>,
    /// Dotted key, such as `switch.nodes[1].weight`; empty for the file as a whole.
    pub(crate) key: String,
    /// What is wrong.
    pub(crate) what: String,
    /// What would be right.
    pub(crate) hint: Option<Box<str>>,
    /// The cause is a file or account of this machine: elsewhere the same config may be right.
    pub(crate) of_machine: bool,
    /// Further errors of the same file.
    pub(crate) more: Box<[Self]>,
}

impl ConfigError {
    /// The errors that are errors on any machine; `None` if there are none.
    pub(crate) fn without_machine(mut self) -> Option<Self> {
        let more = std::mem::take(&mut self.more);
        let mut all = std::iter::once(self).chain(more.into_vec()).filter(|error| !error.of_machine);
        let first = all.next()?;
        Some(Self { more: all.collect(), ..first })
    }

    /// An error of the file as a whole.
    pub(super) fn of_file(origin: &str, what: String) -> Self {
        Self {
            origin: origin.into(),
            line: None,
            column: None,
            key: String::new(),
            what,
            hint: None,
            of_machine: false,
            more: Box::default(),
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.what)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        self.more.iter().try_for_each(|error| write!(f, "\n{error}"))
    }
}

/// A value that validation refuses: the key it stands at and what is wrong with it. [`super::source::Source::locate`] adds where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(super) key: String,
    pub(super) what: String,
    pub(super) hint: Option<String>,
    pub(super) of_machine: bool,
    /// The value as `what` shows it, where a message is to show it as the file has it.
    pub(super) shown: Option<String>,
}

impl Fault {
    /// `what` is wrong with the value of `key`.
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), hint: None, of_machine: false, shown: None }
    }

    /// The value of `key` is none of the words that it may have.
    pub(super) fn unknown(key: impl Into<String>, word: &str, known: &[&str]) -> Self {
        Self::new(key, format!("unknown value '{}'", word.escape_debug())).hint(suggest(word, known))
    }

    /// The value of `key`, which a message shows as `shown`, is outside of its range.
    pub(super) fn out_of_range(key: impl Into<String>, shown: String) -> Self {
        let what = format!("{shown} is out of range");
        Self { shown: Some(shown), ..Self::new(key, what) }
    }

    /// The key that the fault stands at.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The same fault with its texts changed.
    pub(super) fn map(self, change: impl Fn(&str) -> String) -> Self {
        Self {
            key: change(&self.key),
            what: change(&self.what),
            hint: self.hint.as_deref().map(change),
            ..self
        }
    }

    /// The same fault at another key.
    pub(crate) fn at(self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self }
    }

    /// The fault lies in a file or account of this machine.
    pub(super) fn of_machine(self) -> Self {
        Self { of_machine: true, ..self }
    }

    /// Says what would be right.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
