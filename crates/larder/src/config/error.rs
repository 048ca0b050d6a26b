//! Errors in a config, with file, line, key and remedy.

use std::fmt;

use super::suggest::suggest;

/// An error in a config. The author of the file must correct it; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    /// The file, or "command line".
    pub(crate) origin: Box<str>,
    /// Line in the file, from 1; `None` if the key is not in the file.
    pub(crate) line: Option<u32>,
    /// Column in that line, from 1, in characters.
    pub(crate) column: Option<u32>,
    /// Dotted key, such as `switch.nodes[1].weight`; empty for the file as a whole.
    pub(crate) key: String,
    /// Description of the fault.
    pub(crate) what: String,
    /// Remedy.
    pub(crate) hint: Option<Box<str>>,
    /// Whether the cause is a file or account of this machine. On another machine the same config may be valid.
    pub(crate) of_machine: bool,
    /// Further errors of the same file.
    pub(crate) more: Box<[Self]>,
}

impl ConfigError {
    /// Returns the errors that do not depend on this machine; `None` if there are none.
    pub(crate) fn without_machine(mut self) -> Option<Self> {
        let more = std::mem::take(&mut self.more);
        let mut all = std::iter::once(self).chain(more.into_vec()).filter(|error| !error.of_machine);
        let first = all.next()?;
        Some(Self { more: all.collect(), ..first })
    }

    /// Creates an error of the file as a whole.
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

/// A value that validation refuses: its key and the fault. [`super::source::Source::locate`] adds the place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(super) key: String,
    pub(super) what: String,
    pub(super) hint: Option<String>,
    pub(super) of_machine: bool,
    /// The value as `what` shows it, if a message must show it as the file spells it.
    pub(super) shown: Option<String>,
}

impl Fault {
    /// Creates a fault of the value of `key`; `what` describes it.
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), hint: None, of_machine: false, shown: None }
    }

    /// Creates the fault of a value that is not one of the words that the key may have.
    pub(super) fn unknown(key: impl Into<String>, word: &str, known: &[&str]) -> Self {
        Self::new(key, format!("unknown value '{}'", word.escape_debug())).hint(suggest(word, known))
    }

    /// Creates the fault of a value outside of its range. A message shows the value as `shown`.
    pub(super) fn out_of_range(key: impl Into<String>, shown: String) -> Self {
        let what = format!("{shown} is out of range");
        Self { shown: Some(shown), ..Self::new(key, what) }
    }

    /// Returns the key of the fault.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the fault with changed texts.
    pub(super) fn map(self, change: impl Fn(&str) -> String) -> Self {
        Self {
            key: change(&self.key),
            what: change(&self.what),
            hint: self.hint.as_deref().map(change),
            ..self
        }
    }

    /// Returns the fault with another key.
    pub(crate) fn at(self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self }
    }

    /// Marks the fault as one of a file or account of this machine.
    pub(super) fn of_machine(self) -> Self {
        Self { of_machine: true, ..self }
    }

    /// Adds a remedy.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
