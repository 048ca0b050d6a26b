//! Line formats defined by the operator: text with parts that are replaced by values of a finished request.

use super::date::with_now;
use super::line::{Record, Value, address, escape, integer, iso};
use crate::header::Lookup;
use crate::template::{FormatError, pieces};
use http::header::HeaderName;
use std::sync::Arc;

/// A line format: text in which `{part}` is replaced by a value; `{{` and `}}` are literal braces.
///
/// Parts are those of every log (`client`, `method`, `host`, `target`, `version`, `status`, `body_bytes`, `referer`,
/// `user_agent`), the fields that the log's owner adds, `time` as in the Combined format, `time_iso` (RFC 3339,
/// milliseconds, UTC), `header:NAME` of the request and `reply:NAME` of the reply. Unknown values are `-`. Quotes,
/// backslashes and non-printable bytes become `\xHH`, and so do spaces in parts outside the format's quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFormat {
    /// The pieces, each with whether it is inside quotes.
    pieces: Arc<[(Piece, bool)]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<[u8]>),
    Part(Part),
    Request(HeaderName),
    Reply(HeaderName),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Client,
    Time,
    TimeIso,
    Method,
    Host,
    Target,
    Version,
    Status,
    BodyBytes,
    Referer,
    UserAgent,
    /// A field of the log's owner, by its index.
    Field(usize),
}

const PARTS: [(&str, Part); 11] = [
    ("client", Part::Client),
    ("time", Part::Time),
    ("time_iso", Part::TimeIso),
    ("method", Part::Method),
    ("host", Part::Host),
    ("target", Part::Target),
    ("version", Part::Version),
    ("status", Part::Status),
    ("body_bytes", Part::BodyBytes),
    ("referer", Part::Referer),
    ("user_agent", Part::UserAgent),
];

impl LineFormat {
    /// Parses a format. `fields` are the names of the fields that the log's owner adds, in the order of
    /// [`Record::fields`].
    ///
    /// # Errors
    /// It is longer than 1,024 bytes, its braces do not match, it has an unknown part, it contains a control character
    /// other than a tab, or it has no part.
    pub fn parse(text: &str, fields: &[&str]) -> Result<Self, FormatError> {
        if text.chars().any(|c| c.is_control() && c != '\t') {
            return Err(FormatError::new("a control character would end the line", "leave it out"));
        }
        let pieces = pieces(text, Piece::Text, |name, braced| piece(name, braced, fields))?;
        if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))) {
            return Err(FormatError::new("every line would be the same", "name a part, such as {target}"));
        }
        let mut quoted = false;
        let pieces = pieces.into_iter().map(|piece| {
            if let Piece::Text(text) = &piece {
                quoted ^= text.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
            }
            (piece, quoted)
        });
        Ok(Self { pieces: pieces.collect() })
    }

    /// Checks whether it contains fields of the request's header, and of the reply's.
    pub(super) fn uses_headers(&self) -> (bool, bool) {
        let names = |is: fn(&Piece) -> bool| self.pieces.iter().any(|(piece, _)| is(piece));
        (names(|piece| matches!(piece, Piece::Request(_))), names(|piece| matches!(piece, Piece::Reply(_))))
    }

    /// Appends a line, without a line end.
    pub(super) fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        for (piece, quoted) in &*self.pieces {
            let start = line.len();
            match piece {
                Piece::Text(text) => {
                    line.extend_from_slice(text);
                    continue;
                }
                // The time contains a space.
                Piece::Part(Part::Time) => {
                    write_part(Part::Time, record, line);
                    continue;
                }
                Piece::Part(part) => write_part(*part, record, line),
                Piece::Request(name) => text(line, field(record.request, name)),
                Piece::Reply(name) => text(line, field(record.reply, name)),
            }
            if !quoted && line[start..].contains(&b' ') {
                let spaced = line.split_off(start);
                let parts = spaced.split(|byte| *byte == b' ');
                line.extend_from_slice(&parts.collect::<Vec<_>>().join(&b"\\x20"[..]));
            }
        }
    }
}

fn piece(name: &str, braced: &str, fields: &[&str]) -> Result<Piece, FormatError> {
    if let Some((_, part)) = PARTS.iter().find(|(known, _)| *known == name) {
        return Ok(Piece::Part(*part));
    }
    if let Some(at) = fields.iter().position(|field| *field == name) {
        return Ok(Piece::Part(Part::Field(at)));
    }
    let known = || {
        let all = PARTS.iter().map(|(name, _)| name).chain(fields);
        let names: Vec<String> = all.map(|name| format!("{{{name}}}")).collect();
        format!("use one of {}, {{header:name}}, {{reply:name}}", names.join(", "))
    };
    let (side, field) = match name.split_once(':') {
        Some(("header", field)) => (Piece::Request as fn(HeaderName) -> Piece, field),
        Some(("reply", field)) => (Piece::Reply as fn(HeaderName) -> Piece, field),
        _ => return Err(FormatError::new(format!("there is no part {braced}"), known())),
    };
    let name = HeaderName::try_from(field);
    name.map(side).map_err(|_| {
        FormatError::new(format!("'{}' is not a field name", field.escape_debug()), "such as {header:x-user}")
    })
}

fn field<'a>(fields: Option<&'a dyn Lookup>, name: &HeaderName) -> Option<&'a [u8]> {
    fields?.first(name.as_str())
}

fn text(line: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) if !value.is_empty() => escape(line, value),
        _ => line.push(b'-'),
    }
}

fn number(line: &mut Vec<u8>, value: Option<impl itoa::Integer>) {
    match value {
        Some(value) => integer(line, value),
        None => line.push(b'-'),
    }
}

fn write_part(part: Part, record: &Record<'_>, line: &mut Vec<u8>) {
    match part {
        Part::Client => match record.client {
            Some(client) => address(line, client),
            None => line.push(b'-'),
        },
        Part::Time => with_now(|second, _| line.extend_from_slice(second.clf.as_bytes())),
        Part::TimeIso => with_now(|second, ms| iso(line, second, ms)),
        Part::Method => text(line, Some(record.method.as_bytes())),
        Part::Host => text(line, Some(record.host)),
        Part::Target => text(line, Some(record.target)),
        Part::Version => text(line, Some(record.version.as_bytes())),
        Part::Status => number(line, record.status),
        Part::BodyBytes => number(line, Some(record.body_bytes)),
        Part::Referer => text(line, record.referer),
        Part::UserAgent => text(line, record.user_agent),
        Part::Field(at) => match record.fields.get(at) {
            Some((_, Value::Text(value) | Value::Optional(value))) => text(line, *value),
            Some((_, Value::Number(value))) => number(line, Some(*value)),
            Some((_, Value::Micros(span))) => number(line, span.map(|span| span.as_micros())),
            None => line.push(b'-'),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::{FIELDS, record};
    use super::*;
    use http::{HeaderMap, HeaderValue};

    fn line(format: &str, record: &Record<'_>) -> String {
        let mut line = Vec::new();
        LineFormat::parse(format, &FIELDS.map(|(name, _)| name)).expect(format).write(record, &mut line);
        String::from_utf8(line).expect("text")
    }

    #[test]
    fn parts_are_replaced_and_unknown_values_are_dashes() {
        let mut request = HeaderMap::new();
        request.insert("x-user", HeaderValue::from_static("a \"b\""));
        let known = Record { request: Some(&request), ..record(b"/a?\"", b"curl") };
        for (format, expected) in [
            ("{client} {method} {host}{target} {status}", "192.0.2.7 GET example.org/a?\\x22 200"),
            ("{{{node}}}/{tries}/{error}/{cache}", "{n\\x201}/1/-/hit"),
            ("{queue_us}\t{first_byte_us}\t{body_bytes}", "-\t512\t1024"),
            ("{header:X-User}|{header:x-none}|{reply:etag}", "a\\x20\\x22b\\x22|-|-"),
            ("\"{header:x-user} {node}\" {header:x-user}", "\"a \\x22b\\x22 n 1\" a\\x20\\x22b\\x22"),
            ("{version} {referer} {user_agent} {request_id} {trace}", "HTTP/1.1 - curl id -"),
        ] {
            assert_eq!(line(format, &known), expected);
        }
        assert_eq!(line("[{time}]", &known).len(), "[10/Oct/2000:13:55:36 +0000]".len());
        assert_eq!(line("{time_iso}", &known).len(), "2000-10-10T13:55:36.000Z".len());
    }

    #[test]
    fn invalid_formats_are_refused() {
        for (format, what) in [
            ("{nod}", "there is no part {nod}"),
            ("{header:a b}", "'a b' is not a field name"),
            ("{node", "a '{' is not closed"),
            ("node}", "a '}' closes nothing"),
            ("{node}\n", "a control character would end the line"),
            ("nothing", "every line would be the same"),
            ("", "every line would be the same"),
        ] {
            assert_eq!(LineFormat::parse(format, &["node"]).expect_err(format).what, what);
        }
    }
}
