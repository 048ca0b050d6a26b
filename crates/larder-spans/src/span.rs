//! Spans: operations with a start, an end and attributes.

use crate::id::{SpanId, TraceId, TraceParent};
use std::time::{SystemTime, UNIX_EPOCH};

/// Kind of a span, with the numbers of OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// An operation within a process.
    Internal = 1,
    /// Serving a request.
    Server = 2,
    /// Sending a request.
    Client = 3,
}

/// Longest text of an attribute, in bytes. Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 512;

/// Truncates a text to [`TEXT_BYTES_MAX`].
fn truncate(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.shrink_to_fit();
    }
    text
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// An integer.
    Integer(i64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(truncate(text))
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Integer(number.into())
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// A finished span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) trace: TraceId,
    pub(crate) id: SpanId,
    pub(crate) parent: Option<SpanId>,
    pub(crate) name: &'static str,
    pub(crate) kind: SpanKind,
    /// Nanoseconds since 1970.
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) attributes: Vec<(&'static str, AttributeValue)>,
    /// The reason of a failure, in a word.
    pub(crate) error: Option<String>,
}

/// A span that has not ended.
#[derive(Clone, Debug)]
pub struct ActiveSpan {
    span: Span,
}

impl ActiveSpan {
    pub(crate) fn new(
        (trace, id, parent): (TraceId, SpanId, Option<SpanId>),
        name: &'static str,
        kind: SpanKind,
        started_ns: u64,
    ) -> Self {
        let span = Span {
            trace,
            id,
            parent,
            name,
            kind,
            started_ns,
            ended_ns: 0,
            attributes: Vec::new(),
            error: None,
        };
        Self { span }
    }

    /// The parent for child spans and for requests to other processes.
    pub fn parent(&self) -> TraceParent {
        TraceParent { trace: self.span.trace, span: self.span.id, sampled: true }
    }

    /// Whether this is the first span of its trace.
    pub fn is_root(&self) -> bool {
        self.span.parent.is_none()
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.span.attributes.push((name, value.into()));
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, reason: impl Into<String>) {
        self.span.error = Some(truncate(reason.into()));
    }

    /// Start time, in nanoseconds since 1970.
    pub fn started_ns(&self) -> u64 {
        self.span.started_ns
    }

    /// Ends the span at the given time, but not before its start. Nanoseconds since 1970.
    pub fn end(self, ended_ns: u64) -> Span {
        Span { ended_ns: ended_ns.max(self.span.started_ns), ..self.span }
    }
}

/// The current time, in nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated_between_characters() {
        let long = format!("{}\u{e9}tail", "x".repeat(TEXT_BYTES_MAX - 1));
        let short = AttributeValue::Text("x".repeat(TEXT_BYTES_MAX - 1));
        assert_eq!([AttributeValue::from(&*long), AttributeValue::from(long)], [short.clone(), short]);
        assert_eq!(AttributeValue::from("\u{e9}"), AttributeValue::Text("\u{e9}".to_owned()));
    }
}
