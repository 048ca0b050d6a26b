//! The parser of key templates.

use super::error::{RuleError, RuleTextKind, TextFault, check_length, shortened, text_error};
use super::{ITEMS_MAX, PARAMETERS_MAX};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyPart {
    Literal(Box<[u8]>),
    Method,
    Host,
    Path,
    Segments {
        from: u16,
        to: Option<u16>,
    },
    Extension,
    Query,
    Parameters(Box<[Box<[u8]>]>),
    /// The index of an item of the query, from 0.
    Item(usize),
    Header(Box<str>),
    Cookie(Box<[u8]>),
}

/// Parses a template into its parts.
pub(super) fn parse_template(text: &str) -> Result<Vec<KeyPart>, RuleError> {
    check_length(RuleTextKind::Key, text)?;
    let (mut parts, mut literal, mut at) = (Vec::new(), String::new(), 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if let Some(brace) = ["{{", "}}"].into_iter().find(|brace| rest.starts_with(brace)) {
            literal.push_str(&brace[..1]);
            at += brace.len();
        } else if c == '}' {
            return Err(text_error(RuleTextKind::Key, text, at, TextFault::Unopened));
        } else if c == '{' {
            let Some(end) = rest.find('}') else {
                return Err(text_error(RuleTextKind::Key, text, at, TextFault::Unclosed));
            };
            let inner = &rest[1..end];
            if let Some(open) = inner.find('{') {
                let at = if inner[..open].contains(':') { at + 1 + open } else { at };
                return Err(text_error(RuleTextKind::Key, text, at, TextFault::Unclosed));
            }
            flush(&mut parts, &mut literal);
            parts.push(parse_part(text, at + 1, inner)?);
            at += end + 1;
        } else {
            literal.push(c);
            at += c.len_utf8();
        }
    }
    flush(&mut parts, &mut literal);
    if parts.iter().all(|part| matches!(part, KeyPart::Literal(_))) {
        return Err(text_error(RuleTextKind::Key, text, 0, TextFault::NoPart));
    }
    Ok(parts)
}

fn flush(parts: &mut Vec<KeyPart>, literal: &mut String) {
    if !literal.is_empty() {
        parts.push(KeyPart::Literal(literal.as_bytes().into()));
        literal.clear();
    }
}

/// Parses the part between two braces, which begins at byte `at` of the template.
fn parse_part(text: &str, at: usize, inner: &str) -> Result<KeyPart, RuleError> {
    let (name, argument) = match inner.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (inner, None),
    };
    let parser = ArgumentParser { text, at: at + name.len() + usize::from(argument.is_some()) };
    match (name, argument) {
        ("method", None) => Ok(KeyPart::Method),
        ("host", None) => Ok(KeyPart::Host),
        ("extension", None) => Ok(KeyPart::Extension),
        ("path", None) => Ok(KeyPart::Path),
        ("query", None) => Ok(KeyPart::Query),
        ("method", Some(_)) => parser.error(0, TextFault::Argument("method")),
        ("host", Some(_)) => parser.error(0, TextFault::Argument("host")),
        ("extension", Some(_)) => parser.error(0, TextFault::Argument("extension")),
        ("path", Some(range)) => parser.segments(range),
        ("query", Some(chosen)) => parser.query(chosen),
        ("header", None | Some("")) => parser.error(0, TextFault::NoArgument("header", "accept-language")),
        ("cookie", None | Some("")) => parser.error(0, TextFault::NoArgument("cookie", "session")),
        ("header", Some(field)) => {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            match field.char_indices().find(|(_, c)| !token(*c)) {
                Some((at, c)) => parser.error(at, TextFault::NoToken(c)),
                None => Ok(KeyPart::Header(field.to_ascii_lowercase().into())),
            }
        }
        ("cookie", Some(cookie)) => {
            let never = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ';' | '=' | ',');
            match cookie.char_indices().find(|(_, c)| never(*c)) {
                Some((at, c)) => parser.error(at, TextFault::Separator(c)),
                None => Ok(KeyPart::Cookie(cookie.as_bytes().into())),
            }
        }
        _ => Err(text_error(RuleTextKind::Key, text, at, TextFault::UnknownPart(shortened(name)))),
    }
}

/// A parser of an argument that begins at byte `at` of the template.
struct ArgumentParser<'a> {
    text: &'a str,
    at: usize,
}

impl ArgumentParser<'_> {
    fn error<T>(&self, at: usize, error: TextFault) -> Result<T, RuleError> {
        Err(text_error(RuleTextKind::Key, self.text, self.at + at, error))
    }

    fn segments(&self, range: &str) -> Result<KeyPart, RuleError> {
        // `parse` alone is not enough, because it accepts a sign.
        let number = |text: &str| -> Option<u16> {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|number| digits && *number > 0)
        };
        let read = match range.split_once("..") {
            None => number(range).map(|to| (1, Some(to))),
            Some((from, "")) => number(from).map(|from| (from, None)),
            Some((from, to)) => number(from).zip(number(to)).map(|(from, to)| (from, Some(to))),
        };
        match read {
            Some((from, to)) if to.is_none_or(|to| from <= to) => Ok(KeyPart::Segments { from, to }),
            _ => self.error(0, TextFault::Segments(shortened(range))),
        }
    }

    fn query(&self, chosen: &str) -> Result<KeyPart, RuleError> {
        if let Some(number) = chosen.strip_prefix('#') {
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            return match number.parse::<usize>() {
                Ok(at) if digits && (1..=ITEMS_MAX).contains(&at) => Ok(KeyPart::Item(at - 1)),
                _ => self.error(0, TextFault::Item(shortened(chosen))),
            };
        }
        let (mut names, mut at): (Vec<Box<[u8]>>, usize) = (Vec::new(), 0);
        for name in chosen.split(',') {
            if name.is_empty() {
                return self.error(at, TextFault::NoParameter);
            }
            if let Some((within, c)) = name.char_indices().find(|(_, c)| matches!(c, '=' | '&' | ' ' | '?')) {
                return self.error(at + within, TextFault::Separator(c));
            }
            if names.iter().any(|known| **known == *name.as_bytes()) {
                return self.error(at, TextFault::Twice(shortened(name)));
            }
            if names.len() == PARAMETERS_MAX {
                return self.error(at, TextFault::Parameters);
            }
            names.push(name.as_bytes().into());
            at += name.len() + 1;
        }
        Ok(KeyPart::Parameters(names.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{KeyTemplate, TEMPLATE_BYTES_MAX};
    use proptest::prelude::*;

    #[test]
    fn every_fault_has_its_column_and_remedy() {
        let many = (0..=PARAMETERS_MAX).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let (many, long) = (format!("{{query:{many}}}"), "{path}".repeat(200));
        for (text, column, expected) in [
            ("", 1, "it is empty: write for example '{host}{path}{query}'"),
            (&*long, TEMPLATE_BYTES_MAX + 1, "it is longer than 1024 bytes: shorten it"),
            (
                "{host}{path",
                7,
                "this '{' is not closed: write '}' behind the name, or '{{' for the character itself",
            ),
            ("{host{path}", 1, "this '{' is not closed"),
            ("{host}}", 7, "this '}' closes nothing: write '}}' for the character itself"),
            ("ä{hots}", 3, "there is no part 'hots': use one of {method}, {host}, {path}, {path:2}"),
            ("{}", 2, "there is no part ''"),
            ("{host:1}", 7, "'host' takes nothing behind ':': write '{host}'"),
            ("{header}", 8, "'header' needs a name: write for example '{header:accept-language}'"),
            ("{cookie:}", 9, "'cookie' needs a name: write for example '{cookie:session}'"),
            ("{header:a b}", 10, "' ' cannot stand here"),
            ("{cookie:a=b}", 10, "'=' is never part of the name: leave it out"),
            (
                "{path:0}",
                7,
                "segments are counted from 1 to 65535, '0' is no range of them: write 2 for the first two",
            ),
            ("{path:4..2}", 7, "segments are counted from 1 to 65535, '4..2'"),
            ("{path:+1}", 7, "segments are counted from 1 to 65535, '+1'"),
            ("{path:..2}", 7, "segments are counted from 1 to 65535, '..2'"),
            ("{path:99999}", 7, "segments are counted from 1 to 65535, '99999'"),
            (
                "{query:#0}",
                8,
                "items of a query are counted from 1 to 1024, '#0' is none: write '{query:#1}'",
            ),
            ("{query:a,,b}", 10, "a parameter needs a name: write '{query:a,b}'"),
            ("{query:a,b,a}", 12, "parameter 'a' is named twice: leave one out"),
            ("{query:a,b=1}", 11, "'=' is never part of the name"),
            (&*many, 46, "more than 16 parameters: name fewer, or use '{query}' for all"),
            ("static {{}}", 1, "no part of the request is in it"),
        ] {
            let error = text.parse::<KeyTemplate>().expect_err(text);
            let RuleError::Text { part: RuleTextKind::Key, column: found, fault, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(*found, column, "{error}");
            assert!(fault.to_string().starts_with(expected), "{error}");
        }
        let error = "{hots}".parse::<KeyTemplate>().expect_err("no part").to_string();
        assert!(error.starts_with("key '{hots}', column 2: there is no part 'hots'"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails_with_a_column(text in "(\\{(path|query|header|cookie|host)?:?[#0-9a-c,.]{0,3}\\}?|\\PC|\\}){0,6}") {
            match text.parse::<KeyTemplate>() {
                Ok(template) => prop_assert_eq!(template.as_str(), text),
                Err(RuleError::Text { column, .. }) => prop_assert!(column <= text.chars().count() + 1),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }

        /// Any text becomes a template when its braces are doubled.
        #[test]
        fn doubled_braces_are_braces(text in "\\PC{0,30}") {
            let template = format!("{{method}}{}", text.replace('{', "{{").replace('}', "}}"));
            let template: KeyTemplate = template.parse().expect("a template");
            let mut key = Vec::new();
            template.render(&crate::rules::Head::get(b"h", b"/"), &mut key);
            prop_assert_eq!(key, format!("GET{text}").into_bytes());
        }
    }
}
