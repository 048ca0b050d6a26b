//! The errors of rules and templates, with their position and remedy.

use super::{ALTERNATIVES_MAX, PARAMETERS_MAX, PATTERN_BYTES_MAX, RULES_MAX, TEMPLATE_BYTES_MAX};
use alloc::string::String;
use core::fmt;

/// The kind of a text in a rule or template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTextKind {
    /// A method.
    Method,
    /// A host.
    Host,
    /// A path pattern.
    Path,
    /// The extension of a path.
    Extension,
    /// The name of a field.
    HeaderName,
    /// A pattern of a field's value.
    HeaderValue,
    /// A key template.
    Key,
}

impl RuleTextKind {
    /// Returns the name used in errors.
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

    /// Returns a valid example.
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

impl fmt::Display for RuleTextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why rules or a template cannot be used. The config must be changed; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A text is invalid.
    #[error("{part} '{text}', column {column}: {fault}")]
    Text {
        /// The kind of the text.
        part: RuleTextKind,
        /// The text; a long one is cut.
        text: String,
        /// The position of the invalid character, from 1.
        column: usize,
        /// The fault and its remedy.
        fault: TextFault,
    },
    /// A rule has too many alternatives of a kind.
    #[error(
        "{0} alternatives too many: a rule has at most {ALTERNATIVES_MAX} of one kind: make two rules of it"
    )]
    Alternatives(RuleTextKind),
    /// A list has too many rules.
    #[error("{0} rules are too many: at most {RULES_MAX}: put paths that begin alike under one '*'")]
    Rules(usize),
    /// A rule is never reached, because an earlier rule matches all of its requests.
    #[error("rule {rule} is never reached: rule {by} takes {}: {}", .coverage.describe(), .coverage.remedy())]
    Unreachable {
        /// The number of the rule, from 1.
        rule: usize,
        /// The number of the earlier rule, from 1.
        by: usize,
        /// Whether the earlier rule matches every request, or the same ones.
        coverage: RuleCoverage,
    },
}

/// Whether a rule matches every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCoverage(pub bool);

impl RuleCoverage {
    const fn describe(self) -> &'static str {
        if self.0 { "every request" } else { "the same requests" }
    }

    const fn remedy(self) -> &'static str {
        if self.0 { "put that one last" } else { "leave one of them out" }
    }
}

/// The fault of a text, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// The text is empty.
    #[error("it is empty: write for example '{}'", .0.example())]
    Empty(RuleTextKind),
    /// The text is too long.
    #[error("it is longer than {0} bytes: shorten it")]
    TooLong(usize),
    /// A character that is not allowed in a method or in the name of a field.
    #[error("{0:?} cannot stand here: only letters, digits and !#$%&'*+-.^_`|~ can (RFC 9110 section 5.6.2)")]
    NoToken(char),
    /// A method in the wrong case.
    #[error("methods are compared with their case: write '{0}'")]
    MethodCase(String),
    /// A space or control character that is not allowed.
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
    /// A regular expression that is invalid or too large.
    #[error("no valid regular expression ({0}): see https://docs.rs/regex for the syntax")]
    Regex(String),
    /// A regular expression with nginx's prefix for ignoring case.
    #[error("'~*' is nginx's: write '~(?i){0}' for an expression that ignores case")]
    RegexCase(String),
    /// A scheme or path in a host.
    #[error("a host is a name or address alone: write '{0}'")]
    HostAlone(String),
    /// A star at an invalid position of a host.
    #[error(
        "'*' stands for the front labels of a host only: write '*.example.com'; for any host, leave hosts out"
    )]
    HostStar,
    /// An invalid port.
    #[error("a port is a number from 1 to 65535: write for example 'example.com:8080', or no port for any")]
    Port,
    /// An extension that contains a dot.
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
    /// A name that is not a part of a request.
    #[error(
        "there is no part '{0}': use one of {{method}}, {{host}}, {{path}}, {{path:2}}, {{path:2..4}}, {{extension}}, {{query}}, {{query:a,b}}, {{query:#1}}, {{header:name}}, {{cookie:name}}"
    )]
    UnknownPart(String),
    /// An argument where none is allowed.
    #[error("'{0}' takes nothing behind ':': write '{{{0}}}'")]
    Argument(&'static str),
    /// A missing argument.
    #[error("'{0}' needs a name: write for example '{{{0}:{1}}}'")]
    NoArgument(&'static str, &'static str),
    /// An invalid range of segments.
    #[error(
        "segments are counted from 1 to 65535, '{0}' is no range of them: write 2 for the first two, 2..4, or 2.. to the end"
    )]
    Segments(String),
    /// An invalid number of a query item.
    #[error("items of a query are counted from 1 to {max}, '{0}' is none: write '{{query:#1}}' for the first", max = super::ITEMS_MAX)]
    Item(String),
    /// A parameter without a name.
    #[error("a parameter needs a name: write '{{query:a,b}}'")]
    NoParameter,
    /// A parameter that is named twice.
    #[error("parameter '{0}' is named twice: leave one out")]
    Twice(String),
    /// Too many parameters.
    #[error("more than {PARAMETERS_MAX} parameters: name fewer, or use '{{query}}' for all")]
    Parameters,
    /// A character that the name of a cookie or parameter cannot contain.
    #[error("{0:?} is never part of the name: leave it out")]
    Separator(char),
    /// A template without any part of a request.
    #[error(
        "no part of the request is in it, so that all requests would have one target: write '{{host}}{{path}}{{query}}'"
    )]
    NoPart,
}

/// Returns an error about `text` at byte `at`.
pub(super) fn text_error(part: RuleTextKind, text: &str, at: usize, fault: TextFault) -> RuleError {
    let before = text.get(..at).unwrap_or(text);
    RuleError::Text { part, text: shortened(text), column: before.chars().count() + 1, fault }
}

/// Shortens a foreign text for a message.
pub(super) fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    let mut short: String = text.chars().take(CHARACTERS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("..");
    }
    short
}

/// Checks that a text is neither empty nor too long.
pub(super) fn check_length(part: RuleTextKind, text: &str) -> Result<(), RuleError> {
    if text.is_empty() && part != RuleTextKind::HeaderValue {
        return Err(text_error(part, text, 0, TextFault::Empty(part)));
    }
    let max = part.bytes_max();
    if text.len() > max {
        let at = (0..=max).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        return Err(text_error(part, text, at, TextFault::TooLong(max)));
    }
    Ok(())
}

/// Refuses characters that a request line cannot contain.
pub(super) fn check_sent(part: RuleTextKind, text: &str) -> Result<(), RuleError> {
    match text.char_indices().find(|(_, c)| *c == ' ' || c.is_control()) {
        Some((at, c)) => Err(text_error(part, text, at, TextFault::NeverSent(c))),
        None => Ok(()),
    }
}
