//! A line of the access log.

use super::AccessFormat;
use super::date::{Second, with_now};
use crate::AddressText;
use crate::header::Lookup;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

/// A finished request, as logged.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The request's method.
    pub method: &'a str,
    /// Path and query, as sent.
    pub target: &'a [u8],
    /// The HTTP version, such as `HTTP/1.1`.
    pub version: &'a str,
    /// The host in the request.
    pub host: &'a [u8],
    /// The reply's status; `None` if it is unknown.
    pub status: Option<u16>,
    /// Bytes of the reply's body that were sent.
    pub body_bytes: u64,
    /// The request's `Referer`.
    pub referer: Option<&'a [u8]>,
    /// The request's `User-Agent`.
    pub user_agent: Option<&'a [u8]>,
    /// Additional fields of the log's owner, in the order that was passed to
    /// [`LineFormat::parse`](super::LineFormat::parse).
    pub fields: &'a [(&'static str, Value<'a>)],
    /// The request's header, if it is known.
    pub request: Option<&'a dyn Lookup>,
    /// The reply's header, if there was a reply.
    pub reply: Option<&'a dyn Lookup>,
}

/// The value of a field; `None` if it is unknown.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A name or a word.
    Text(Option<&'a [u8]>),
    /// Text that is not always applicable: the Combined format omits the field if it is unknown.
    Optional(Option<&'a [u8]>),
    /// A number; always known.
    Number(u64),
    /// A duration, written in microseconds.
    Micros(Option<Duration>),
}

impl<'a> Value<'a> {
    /// A word.
    pub fn word(word: Option<&'a str>) -> Self {
        Self::Text(word.map(str::as_bytes))
    }
}

impl Record<'_> {
    /// Appends the line, with a line end.
    pub(super) fn format(&self, format: &AccessFormat, line: &mut Vec<u8>) {
        match format {
            AccessFormat::Combined => self.combined(line),
            AccessFormat::Json => self.json(line),
            AccessFormat::Custom(format) => {
                format.write(self, line);
                line.push(b'\n');
            }
        }
    }

    fn combined(&self, line: &mut Vec<u8>) {
        match self.client {
            Some(client) => address(line, client),
            None => line.push(b'-'),
        }
        line.extend_from_slice(b" - - [");
        with_now(|second, _| line.extend_from_slice(second.clf.as_bytes()));
        line.extend_from_slice(b"] \"");
        line.extend_from_slice(self.method.as_bytes());
        line.push(b' ');
        escape(line, self.target);
        line.push(b' ');
        line.extend_from_slice(self.version.as_bytes());
        line.extend_from_slice(b"\" ");
        match self.status {
            Some(status) => integer(line, status),
            None => line.push(b'-'),
        }
        line.push(b' ');
        integer(line, self.body_bytes);
        line.extend_from_slice(b" \"");
        escape(line, self.referer.unwrap_or(b"-"));
        line.extend_from_slice(b"\" \"");
        escape(line, self.user_agent.unwrap_or(b"-"));
        line.push(b'"');
        for (key, value) in self.fields {
            if matches!(value, Value::Optional(None)) {
                continue;
            }
            line.push(b' ');
            line.extend_from_slice(key.as_bytes());
            line.push(b'=');
            match value {
                Value::Text(text) | Value::Optional(text) => word(line, *text),
                Value::Number(number) => integer(line, *number),
                Value::Micros(Some(span)) => integer(line, span.as_micros()),
                Value::Micros(None) => line.push(b'-'),
            }
        }
        line.push(b'\n');
    }

    /// Writes texts first, then numbers, then durations.
    fn json(&self, line: &mut Vec<u8>) {
        line.extend_from_slice(b"{\"time\":\"");
        with_now(|second, ms| iso(line, second, ms));
        line.push(b'"');
        if let Some(client) = self.client {
            json_key(line, "client");
            line.push(b'"');
            address(line, client);
            line.push(b'"');
        }
        let texts = [
            ("method", Some(self.method.as_bytes())),
            ("host", Some(self.host)),
            ("target", Some(self.target)),
            ("version", Some(self.version.as_bytes())),
            ("referer", self.referer),
            ("user_agent", self.user_agent),
        ];
        for (key, value) in texts {
            json_text(line, key, value);
        }
        for (key, value) in self.fields {
            if let Value::Text(value) | Value::Optional(value) = value {
                json_text(line, key, *value);
            }
        }
        if let Some(status) = self.status {
            json_integer(line, "status", status);
        }
        json_integer(line, "body_bytes", self.body_bytes);
        for (key, value) in self.fields {
            if let Value::Number(number) = value {
                json_integer(line, key, *number);
            }
        }
        for (key, value) in self.fields {
            if let Value::Micros(Some(span)) = value {
                json_integer(line, key, span.as_micros());
            }
        }
        line.extend_from_slice(b"}\n");
    }
}

pub(super) fn integer(line: &mut Vec<u8>, value: impl itoa::Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

pub(super) fn address(line: &mut Vec<u8>, client: IpAddr) {
    line.extend_from_slice(AddressText::new(client).as_bytes());
}

/// Writes a time in UTC with milliseconds (RFC 3339).
pub(super) fn iso(line: &mut Vec<u8>, second: &Second, ms: u32) {
    let digit = |value: u32| b'0' + (value % 10) as u8;
    line.extend_from_slice(second.iso.as_bytes());
    line.extend_from_slice(&[b'.', digit(ms / 100), digit(ms / 10), digit(ms), b'Z']);
}

fn json_key(line: &mut Vec<u8>, key: &str) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(b"\":");
}

fn json_integer(line: &mut Vec<u8>, key: &str, value: impl itoa::Integer) {
    json_key(line, key);
    integer(line, value);
}

fn json_text(line: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    if let Some(value) = value {
        json_key(line, key);
        line.push(b'"');
        escape_json(line, value);
        line.push(b'"');
    }
}

/// Writes the value of a `key=value` field, quoted if it contains a character that would end the field.
fn word(line: &mut Vec<u8>, name: Option<&[u8]>) {
    let Some(name) = name else { return line.push(b'-') };
    let plain =
        !name.is_empty() && name.iter().all(|&byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if plain {
        line.extend_from_slice(name);
    } else {
        line.push(b'"');
        escape(line, name);
        line.push(b'"');
    }
}

/// Writes text into a quoted field of the Combined format: quotes, backslashes and non-printable bytes become `\xHH`,
/// as in nginx.
pub(super) fn escape(line: &mut Vec<u8>, text: &[u8]) {
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte) && *byte != b'"' && *byte != b'\\';
    let mut rest = text;
    loop {
        let plain = rest.iter().take_while(|byte| is_plain(byte)).count();
        line.extend_from_slice(&rest[..plain]);
        let Some(byte) = rest.get(plain) else { return };
        // Writing to a vector cannot fail.
        let _ = write!(line, "\\x{byte:02X}");
        rest = &rest[plain + 1..];
    }
}

/// Writes text into a JSON string (RFC 8259 section 7). Bytes that are not UTF-8 become U+FFFD.
fn escape_json(line: &mut Vec<u8>, text: &[u8]) {
    if text.iter().all(|byte| (b' '..=b'~').contains(byte) && *byte != b'"' && *byte != b'\\') {
        return line.extend_from_slice(text);
    }
    for c in String::from_utf8_lossy(text).chars() {
        // Writing to a vector cannot fail.
        let _ = match c {
            '"' => write!(line, "\\\""),
            '\\' => write!(line, "\\\\"),
            c if u32::from(c) < 0x20 => write!(line, "\\u{:04x}", u32::from(c)),
            c => write!(line, "{c}"),
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Fields of every kind.
    pub(in super::super) const FIELDS: [(&str, Value<'static>); 8] = [
        ("node", Value::Text(Some(b"n 1"))),
        ("error", Value::Text(None)),
        ("tries", Value::Number(1)),
        ("cache", Value::Text(Some(b"hit"))),
        ("queue_us", Value::Micros(None)),
        ("first_byte_us", Value::Micros(Some(Duration::from_micros(512)))),
        ("request_id", Value::Optional(Some(b"id"))),
        ("trace", Value::Optional(None)),
    ];

    pub(in super::super) fn record<'a>(target: &'a [u8], agent: &'a [u8]) -> Record<'a> {
        Record {
            client: Some([192, 0, 2, 7].into()),
            method: "GET",
            target,
            version: "HTTP/1.1",
            host: b"example.org",
            status: Some(200),
            body_bytes: 1024,
            referer: None,
            user_agent: Some(agent),
            fields: &FIELDS,
            request: None,
            reply: None,
        }
    }

    fn line(record: &Record<'_>, format: &AccessFormat) -> Vec<u8> {
        let mut line = Vec::new();
        record.format(format, &mut line);
        line
    }

    #[test]
    fn combined_line() {
        let line =
            String::from_utf8(line(&record(b"/a?\"", b"curl\x00"), &AccessFormat::Combined)).expect("text");
        let (start, rest) = line.split_once(" - - [").expect("a date");
        let (_, rest) = rest.split_once("] ").expect("a date");
        assert_eq!(start, "192.0.2.7");
        assert_eq!(
            rest,
            "\"GET /a?\\x22 HTTP/1.1\" 200 1024 \"-\" \"curl\\x00\" node=\"n 1\" error=- tries=1 cache=hit queue_us=- \
             first_byte_us=512 request_id=id\n"
        );
    }

    #[test]
    fn json_line_omits_unknown_values() {
        let line = line(&record(b"/a", b"x"), &AccessFormat::Json);
        let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!((&value["first_byte_us"], &value["tries"]), (&512.into(), &1.into()));
        assert_eq!((&value["node"], &value["request_id"]), (&"n 1".into(), &"id".into()));
        for unknown in ["queue_us", "referer", "error", "trace"] {
            assert!(value.get(unknown).is_none(), "{unknown}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_stay_inside_their_field(target in prop::collection::vec(any::<u8>(), 0..60),
                                                 agent in prop::collection::vec(any::<u8>(), 0..60)) {
            let combined = line(&record(&target, &agent), &AccessFormat::Combined);
            prop_assert_eq!(combined.iter().filter(|&&byte| byte == b'"').count(), 8);
            prop_assert_eq!(combined.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let json = line(&record(&target, &agent), &AccessFormat::Json);
            let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
            prop_assert_eq!(value["target"].as_str(), Some(&*String::from_utf8_lossy(&target)));
        }
    }
}
