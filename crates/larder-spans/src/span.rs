//! What was done, from when to when.

use crate::id::{Parent, SpanId, TraceId};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whose side of what is done a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something within a process.
    Internal = 1,
    /// A request that is answered.
    Server = 2,
    /// A request that is made.
    Client = 3,
}

/// Longest text of an attribute, bytes; more is cut off.
const TEXT_MAX: usize = 512;

/// A text, cut to the bound.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        text.shrink_to_fit();
    }
    text
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Whole(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(TEXT_MAX)].to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(cut(text))
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Whole(number.into())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Nanoseconds since 1970.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    /// What went wrong, in a word.
    pub(crate) error: Option<String>,
}

/// A span that goes on.
#[derive(Clone, Debug)]
pub struct Open {
    span: Span,
}

impl Open {
    pub(crate) fn new(
        (trace, id, parent): (TraceId, SpanId, Option<SpanId>),
        name: &'static str,
        kind: Kind,
        began_ns: u64,
    ) -> Self {
        let span = Span {
            trace,
            id,
            parent,
            name,
            kind,
            began_ns,
            ended_ns: 0,
            attributes: Vec::new(),
            error: None,
        };
        Self { span }
    }

    /// What is part of it says so with this.
    pub fn parent(&self) -> Parent {
        Parent { trace: self.span.trace, span: self.span.id, sampled: true }
    }

    /// Whether its trace begins with it.
    pub fn is_root(&self) -> bool {
        self.span.parent.is_none()
    }

    /// Notes something about it.
    pub fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.span.attributes.push((name, value.into()));
    }

    /// It has failed.
    pub fn fail(&mut self, what: impl Into<String>) {
        self.span.error = Some(cut(what.into()));
    }

    /// When it began, nanoseconds since 1970.
    pub fn began_ns(&self) -> u64 {
        self.span.began_ns
    }

    /// It ends at this moment, but not before it began.
    pub fn end(self, ended_ns: u64) -> Span {
        Span { ended_ns: ended_ns.max(self.span.began_ns), ..self.span }
    }
}

/// Now, nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = format!("{}\u{e9}tail", "x".repeat(TEXT_MAX - 1));
        let short = Value::Text("x".repeat(TEXT_MAX - 1));
        assert_eq!([Value::from(&*long), Value::from(long)], [short.clone(), short]);
        assert_eq!(Value::from("\u{e9}"), Value::Text("\u{e9}".to_owned()));
    }
}
