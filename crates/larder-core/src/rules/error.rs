//! What is wrong with a rule or a template, where, and what would be right.

use super::{ALTERNATIVES_MAX, PARAMETERS_MAX, PATTERN_BYTES_MAX, RULES_MAX, TEMPLATE_BYTES_MAX};
use core::fmt;

/// What a text is meant to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A method.
    Method,
    /// A host.
    Host,
    /// A pattern of a path.
    Path,
    /// A path's extension.
    Extension,
    /// The name of a field.
    HeaderName,
    /// A pattern of a field's value.
    HeaderValue,
    /// A key template.
    Key,
}

impl Part {
    /// How errors call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Host => "host",
            Self::Path => "path",
            Self::Extension => "extension",
            Self::HeaderName => "header name",
            Self::HeaderValue => "header value",
            Self::Key => "key",
        }
    }

    /// One that is right.
    const fn example(self) -> &'static str {
        match self {
            Self::Method => "GET",
            Self::Host => "www.example.com",
            Self::Path => "/cgi-bin/*",
            Self::Extension => "php",
            Self::HeaderName => "accept",
            Self::HeaderValue => "*json*",
            Self::Key => "{host}{path}{query}",
        }
    }

    pub(super) const fn bytes_max(self) -> usize {
        match self {
            Self::Key => TEMPLATE_BYTES_MAX,
            _ => PATTERN_BYTES_MAX,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why rules or a template cannot be used. Fault of the config; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A text is not what it is meant to be.
    #[error("{part} '{text}', column {column}: {fault}")]
    Text {
        /// What it is meant to be.
        part: Part,
        /// The text; a long one is cut.
        text: String,
        /// The character at fault, counted from 1.
        column: usize,
        /// What is wrong, and what would be right.
        fault: Fault,
    },
    /// A rule has too many alternatives of a kind.
    #[error(
        "{0} alternatives too many: a rule has at most {ALTERNATIVES_MAX} of one kind: make two rules of it"
    )]
    Alternatives(Part),
    /// A list has too many rules.
    #[error("{0} rules are too many: at most {RULES_MAX}: put paths that begin alike under one '*'")]
    Rules(usize),
    /// A rule is never asked, because every request that it is for is another's already.
    #[error("rule {rule} is never reached: rule {by} takes {}: {}", .everything.takes(), .everything.right())]
    Unreachable {
        /// The rule, counted from 1.
        rule: usize,
        /// The one before it.
        by: usize,
        /// Whether that one takes every request, or the same ones.
        everything: Everything,
    },
}

/// Whether a rule takes every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Everything(pub bool);

impl Everything {
    const fn takes(self) -> &'static str {
        if self.0 { "every request" } else { "the same requests" }
    }

    const fn right(self) -> &'static str {
        if self.0 { "put that one last" } else { "leave one of them out" }
    }
}

/// What is wrong with a text, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is nothing.
    #[error("it is empty: write for example '{}'", .0.example())]
    Empty(Part),
    /// It is too long.
    #[error("it is longer than {0} bytes: shorten it")]
    TooLong(usize),
    /// A character that cannot stand in a method or in the name of a field.
    #[error("{0:?} cannot stand here: only letters, digits and !#$%&'*+-.^_`|~ can (RFC 9110 section 5.6.2)")]
    NoToken(char),
    /// A method in the wrong case.
    #[error("methods are compared with their case: write '{0}'")]
    MethodCase(String),
    /// A space or control character where none can be.
    #[error(
        "{0:?} never comes here in a request: write it as it is sent, percent-encoded ('%20' for a space)"
    )]
    NeverSent(char),
    /// A path pattern that no path matches.
    #[error("a path begins with '/': write '/{0}', or '*{0}' for any beginning")]
    PathStart(String),
    /// A path pattern with a query.
    #[error(
        "'?' begins the query, which a path does not hold: leave out what follows; a key template chooses parameters"
    )]
    PathQuery,
    /// A regular expression that is none, or too large.
    #[error("no valid regular expression ({0}): see https://docs.rs/regex for the syntax")]
    Regex(String),
    /// A regular expression with nginx's mark for one without case.
    #[error("'~*' is nginx's: write '~(?i){0}' for an expression that ignores case")]
    RegexCase(String),
    /// A scheme or path in a host.
    #[error("a host is a name or address alone: write '{0}'")]
    HostAlone(String),
    /// A star in the wrong place of a host.
    #[error(
        "'*' stands for the front labels of a host only: write '*.example.com'; for any host, leave hosts out"
    )]
    HostStar,
    /// No port.
    #[error("a port is a number from 1 to 65535: write for example 'example.com:8080', or no port for any")]
    Port,
    /// An extension with more than the extension.
    #[error("an extension is what follows the last dot: write '{0}'")]
    Dot(String),
    /// A star or slash in an extension.
    #[error("an extension has no '{0}': write a path for that, as '*.php*'")]
    ExtensionPattern(char),
    /// `{` without `}`.
    #[error("this '{{' is not closed: write '}}' behind the name, or '{{{{' for the character itself")]
    Unclosed,
    /// `}` without `{`.
    #[error("this '}}' closes nothing: write '}}}}' for the character itself")]
    Unopened,
    /// A name that is no part of a request.
    #[error(
        "there is no part '{0}': use one of {{method}}, {{host}}, {{path}}, {{path:2}}, {{path:2..4}}, {{extension}}, {{query}}, {{query:a,b}}, {{query:#1}}, {{header:name}}, {{cookie:name}}"
    )]
    UnknownPart(String),
    /// An argument where none is taken.
    #[error("'{0}' takes nothing behind ':': write '{{{0}}}'")]
    Argument(&'static str),
    /// No argument where one is needed.
    #[error("'{0}' needs a name: write for example '{{{0}:{1}}}'")]
    NoArgument(&'static str, &'static str),
    /// No range of segments.
    #[error(
        "segments are counted from 1 to 65535, '{0}' is no range of them: write 2 for the first two, 2..4, or 2.. to the end"
    )]
    Segments(String),
    /// No number of a query's item.
    #[error("items of a query are counted from 1 to {max}, '{0}' is none: write '{{query:#1}}' for the first", max = super::ITEMS_MAX)]
    Item(String),
    /// A parameter without a name.
    #[error("a parameter needs a name: write '{{query:a,b}}'")]
    NoParameter,
    /// A parameter named twice.
    #[error("parameter '{0}' is named twice: leave one out")]
    Twice(String),
    /// Too many parameters.
    #[error("more than {PARAMETERS_MAX} parameters: name fewer, or use '{{query}}' for all")]
    Parameters,
    /// A character that no cookie's or parameter's name can hold.
    #[error("{0:?} is never part of the name: leave it out")]
    Separator(char),
    /// No part of a request at all.
    #[error(
        "no part of the request is in it, so that all requests would have one target: write '{{host}}{{path}}{{query}}'"
    )]
    NoPart,
}

/// The fault of `text` at byte `at`.
pub(super) fn fault(part: Part, text: &str, at: usize, fault: Fault) -> RuleError {
    let before = text.get(..at).unwrap_or(text);
    RuleError::Text { part, text: shortened(text), column: before.chars().count() + 1, fault }
}

/// A foreign text for a message.
pub(super) fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let mut short: String = text.chars().take(CHARACTERS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("..");
    }
    short
}

/// Checks what holds for every text: that there is one, and not too much of it.
pub(super) fn check_length(part: Part, text: &str) -> Result<(), RuleError> {
    if text.is_empty() && part != Part::HeaderValue {
        return Err(fault(part, text, 0, Fault::Empty(part)));
    }
    let max = part.bytes_max();
    if text.len() > max {
        let at = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        return Err(fault(part, text, at, Fault::TooLong(max)));
    }
    Ok(())
}

/// Refuses what a request line cannot hold.
pub(super) fn check_sent(part: Part, text: &str) -> Result<(), RuleError> {
    match text.char_indices().find(|(_, c)| *c == ' ' || c.is_control()) {
        Some((at, c)) => Err(fault(part, text, at, Fault::NeverSent(c))),
        None => Ok(()),
    }
}
