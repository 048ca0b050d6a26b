//! JSON lines: each line is an object for a request. A table of keys determines the fields.
//!
//! Each server has its own table. For other JSON logs the user gives a table: see
//! [`json_fields`](super::json_fields). A key with points is a path into nested objects, or a key that
//! contains points. Values may be numbers or strings.
//! - The time is in RFC 3339, in the notation of the Common Log Format, or a number of seconds, milliseconds
//!   and so on since 1970.
//! - The target is a path with its query, or a whole URL. A separate query is joined to a path that has none.
//! - nginx without `escape=json` writes `\xHH` into strings, which is invalid JSON. It is parsed as in the
//!   other logs of nginx.
//! - `null` and `-` mean that the value is missing: a size of 0, or an unknown client.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json_fields::{Field, JsonFields, KEYS_MAX, KeyTable, Keys};
use super::log_format::LogFormat;
use super::timestamp::{self, CommonClock};
use super::words::{self, join_query, origin_form, parse_client, split_request_line, without_any_port};
use crate::record::{Client, Key, Method, Reason, Record};

/// A server that writes its access log as JSON lines.
pub(crate) trait JsonServer {
    /// The name of the format.
    const NAME: &'static str;

    /// The keys of a line.
    const KEYS: KeyTable;
}

/// The parser of the log of a known server.
pub(crate) struct ServerParser<S> {
    lines: LineParser,
    server: PhantomData<S>,
}

impl<S: JsonServer> Default for ServerParser<S> {
    fn default() -> Self {
        const { check_keys(S::KEYS) };
        let keys = S::KEYS.iter().map(|&(field, key)| (field, Cow::Borrowed(key))).collect();
        Self { lines: LineParser::new(keys), server: PhantomData }
    }
}

impl<S: JsonServer> LogFormat for ServerParser<S> {
    const NAME: &'static str = S::NAME;

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(self.lines.parse(bytes))
    }
}

/// Checks at compile time that a table has at most [`KEYS_MAX`] keys, and a key for each field that every log
/// needs.
const fn check_keys(keys: KeyTable) {
    assert!(keys.len() <= KEYS_MAX, "too many keys");
    let mut found = 0_u32;
    let mut i = 0;
    while i < keys.len() {
        found |= 1 << keys[i].0 as u32;
        i += 1;
    }
    let required = [Field::Time, Field::Method, Field::Path, Field::Status, Field::Bytes, Field::Client];
    let mut i = 0;
    while i < required.len() {
        assert!(found & (1 << required[i] as u32) != 0, "a field without a key");
        i += 1;
    }
}

/// The parser for the keys of the user. Without keys no line has a request.
pub(crate) struct JsonParser(LineParser);

impl Default for JsonParser {
    fn default() -> Self {
        Self(LineParser::new(Keys::new()))
    }
}

impl LogFormat for JsonParser {
    const NAME: &'static str = "json";

    fn new(fields: Option<&JsonFields>) -> Self {
        fields.map_or_else(Self::default, |fields| Self(LineParser::new(fields.keys().clone())))
    }

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(self.0.parse(bytes))
    }
}

/// The parser of lines with given keys.
struct LineParser {
    keys: Keys,
    clock: CommonClock,
    /// Text of strings whose escapes were resolved.
    unescaped: Vec<u8>,
    /// The line with valid escapes, if it was repaired.
    repaired: Vec<u8>,
    /// The target, if a query was joined to a path.
    target: Vec<u8>,
}

impl LineParser {
    /// Creates a parser for these keys.
    fn new(keys: Keys) -> Self {
        Self {
            keys,
            clock: CommonClock::default(),
            unescaped: Vec::new(),
            repaired: Vec::new(),
            target: Vec::new(),
        }
    }

    /// Parses one line, without its line end.
    fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Record<'a>, Reason> {
        if line.first() != Some(&b'{') {
            return Err(Reason::NotJson);
        }
        let Self { keys, clock, unescaped, repaired, target } = self;
        let values = match scan(line, keys, unescaped) {
            Ok(values) => values,
            Err(_) if repair_escapes(line, repaired) => {
                scan(repaired, keys, unescaped).map_err(|_| Reason::NotJson)?
            }
            Err(_) => return Err(Reason::NotJson),
        };
        let line = ScannedLine { keys, values, unescaped };
        line.make_record(clock, target)
    }
}

/// Escapes the backslash of each `\xHH`, so that the JSON string contains these four characters. Returns
/// false if the line contains no `\x`.
fn repair_escapes(line: &[u8], out: &mut Vec<u8>) -> bool {
    if memmem::find(line, br"\x").is_none() {
        return false;
    }
    out.clear();
    let mut bytes = line.iter();
    while let Some(&byte) = bytes.next() {
        out.push(byte);
        if byte == b'\\' {
            match bytes.next() {
                Some(b'x') => out.extend_from_slice(br"\x"),
                Some(&other) => out.push(other),
                None => {}
            }
        }
    }
    true
}

/// The value of a key.
#[derive(Clone, Copy, Default)]
enum JsonValue<'l> {
    /// The line does not have the key, or the value is an object, an array or a boolean.
    #[default]
    Absent,
    Null,
    Text(&'l [u8]),
    /// A string with escapes: its range in the unescaped text.
    Unescaped(usize, usize),
    Integer(u64),
    Number(f64),
}

type KeyValues<'l> = [JsonValue<'l>; KEYS_MAX];

/// Parses a line. Returns the values of the keys.
fn scan<'l>(line: &'l [u8], keys: &Keys, unescaped: &mut Vec<u8>) -> serde_json::Result<KeyValues<'l>> {
    unescaped.clear();
    let mut values = KeyValues::default();
    let key_match = KeyMatch { exact: None, nested: (1 << keys.len().min(KEYS_MAX)) - 1, depth_bytes: 0 };
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    Scanner { keys, values: &mut values, unescaped, key_match }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(values)
}

/// The relation of a value to the keys of the table.
#[derive(Clone, Copy)]
struct KeyMatch {
    /// The index of the key that the value belongs to.
    exact: Option<usize>,
    /// The keys that lead into the value, as a bit set of indices.
    nested: u32,
    /// Length of the part of these keys that has been matched, in bytes.
    depth_bytes: usize,
}

/// A deserializer that stores one value, or the values nested in it.
struct Scanner<'s, 'l> {
    keys: &'s Keys,
    values: &'s mut KeyValues<'l>,
    unescaped: &'s mut Vec<u8>,
    key_match: KeyMatch,
}

impl<'l> Scanner<'_, 'l> {
    fn store<E>(self, value: JsonValue<'l>) -> Result<(), E> {
        if let Some(slot) = self.key_match.exact.and_then(|at| self.values.get_mut(at)) {
            *slot = value;
        }
        Ok(())
    }
}

impl<'l> DeserializeSeed<'l> for Scanner<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for Scanner<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        let KeyMatch { nested, depth_bytes, .. } = self.key_match;
        while let Some(key_match) = map.next_key_seed(KeyScanner { keys: self.keys, nested, depth_bytes })? {
            if key_match.exact.is_none() && key_match.nested == 0 {
                map.next_value::<IgnoredAny>()?;
            } else {
                let (keys, values, unescaped) = (self.keys, &mut *self.values, &mut *self.unescaped);
                map.next_value_seed(Scanner { keys, values, unescaped, key_match })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<(), E> {
        self.store(JsonValue::Text(text.as_bytes()))
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let begin = self.unescaped.len();
        self.unescaped.extend_from_slice(text.as_bytes());
        let end = self.unescaped.len();
        self.store(JsonValue::Unescaped(begin, end))
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.store(JsonValue::Integer(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.store(JsonValue::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.store(JsonValue::Number(value))
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.store(JsonValue::Absent)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.store(JsonValue::Null)
    }
}

/// A deserializer that finds the keys of the table that match a key of the object.
struct KeyScanner<'s> {
    keys: &'s Keys,
    nested: u32,
    depth_bytes: usize,
}

impl<'l> DeserializeSeed<'l> for KeyScanner<'_> {
    type Value = KeyMatch;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<KeyMatch, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyScanner<'_> {
    type Value = KeyMatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<KeyMatch, E> {
        let mut key_match =
            KeyMatch { exact: None, nested: 0, depth_bytes: self.depth_bytes + key.len() + 1 };
        for (at, (_, path)) in self.keys.iter().enumerate() {
            if self.nested & (1 << at) == 0 {
                continue;
            }
            let rest = &path.as_bytes()[self.depth_bytes..];
            if rest == key.as_bytes() {
                key_match.exact = Some(at);
            } else if rest.get(key.len()) == Some(&b'.') && rest.starts_with(key.as_bytes()) {
                key_match.nested |= 1 << at;
            }
        }
        Ok(key_match)
    }
}

/// A parsed line.
struct ScannedLine<'a> {
    keys: &'a Keys,
    values: KeyValues<'a>,
    unescaped: &'a [u8],
}

impl<'a> ScannedLine<'a> {
    fn make_record(&self, clock: &mut CommonClock, target: &'a mut Vec<u8>) -> Result<Record<'a>, Reason> {
        let time_ns = match self.first_value(Field::Time) {
            None if self.has_key(Field::Time) => return Err(Reason::NoTime),
            None => None,
            Some(value) => Some(self.parse_time(value, clock).ok_or(Reason::NoTime)?),
        };
        let (method, path) = self.request().ok_or(Reason::NoRequest)?;
        let path = origin_form(path);
        let query = self
            .first_value(Field::Query)
            .and_then(|query| self.text(query))
            .filter(|_| !path.contains(&b'?'));
        let status = match self.first_value(Field::Status) {
            None if self.has_key(Field::Status) => return Err(Reason::NoStatus),
            None => 200,
            Some(value) => self.parse_status(value)?,
        };
        let body = self.first_value(Field::Bytes).map(|value| self.parse_body(value)).transpose()?;
        let client = self
            .first_value(Field::Client)
            .and_then(|client| self.text(client))
            .map_or(Client::Unknown, parse_address);
        Ok(Record {
            time_ns,
            client,
            method,
            target: Key::Name(join_query(path, query, target)),
            status,
            body,
        })
    }

    /// Returns the method and the target. They are those of the first key that is present.
    fn request(&self) -> Option<(Method, &'a [u8])> {
        let (field, text) = self.keys.iter().zip(&self.values).find_map(|((field, _), value)| {
            let text = matches!(field, Field::Path | Field::Request).then(|| self.text(*value))??;
            Some((*field, text))
        })?;
        if field == Field::Request {
            return Some(split_request_line(text));
        }
        let method = match self.first_value(Field::Method) {
            Some(method) => Method::of(self.text(method)?),
            None if self.has_key(Field::Method) => return None,
            None => Method::Get,
        };
        Some((method, text))
    }

    /// Returns the value of the first key for this field that is present.
    fn first_value(&self, wanted: Field) -> Option<JsonValue<'a>> {
        let values = self.keys.iter().zip(&self.values);
        values
            .filter(|((field, _), _)| *field == wanted)
            .map(|(_, value)| *value)
            .find(|value| !matches!(value, JsonValue::Absent))
    }

    /// Returns whether the table has a key for this field.
    fn has_key(&self, wanted: Field) -> bool {
        self.keys.iter().any(|(field, _)| *field == wanted)
    }

    fn text(&self, value: JsonValue<'a>) -> Option<&'a [u8]> {
        match value {
            JsonValue::Text(text) => Some(text),
            JsonValue::Unescaped(begin, end) => self.unescaped.get(begin..end),
            _ => None,
        }
    }

    fn parse_time(&self, value: JsonValue<'a>, clock: &mut CommonClock) -> Option<i64> {
        match value {
            JsonValue::Integer(value) => timestamp::epoch_integer_ns(value),
            JsonValue::Number(value) => timestamp::epoch_number_ns(value),
            value => timestamp::parse_any(self.text(value)?, clock),
        }
    }

    fn parse_status(&self, value: JsonValue<'a>) -> Result<u16, Reason> {
        match value {
            JsonValue::Integer(code @ 0..=999) => u16::try_from(code).map_err(|_| Reason::NoStatus),
            value => words::parse_status(self.text(value).ok_or(Reason::NoStatus)?),
        }
    }

    fn parse_body(&self, value: JsonValue<'a>) -> Result<u64, Reason> {
        match value {
            JsonValue::Null => Ok(0),
            JsonValue::Integer(bytes) => Ok(bytes),
            value => words::parse_body(self.text(value).ok_or(Reason::BadSize)?),
        }
    }
}

fn parse_address(text: &[u8]) -> Client<'_> {
    parse_client(without_any_port(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::caddy::CaddyParser;

    fn parser(fields: &str) -> LineParser {
        LineParser::new(JsonFields::parse(fields).expect("good fields").keys().clone())
    }

    /// Parses a line. Returns its target, status and size.
    fn read(parser: &mut LineParser, line: &str) -> Result<(String, u16, Option<u64>), Reason> {
        let record = parser.parse(line.as_bytes())?;
        let Key::Name(name) = record.target else { panic!("logs have names") };
        Ok((String::from_utf8_lossy(name).into_owned(), record.status, record.body))
    }

    #[test]
    fn keys_match_nested_objects_and_dotted_names() {
        let mut parser = parser("path=http.request.uri,bytes=size");
        let good = |size| Ok(("/a".to_owned(), 200, size));
        for line in [
            r#"{"http":{"x":1,"request":{"uri":"/a","y":{"uri":"/b"}}},"uri":"/c"}"#,
            r#"{"http.request.uri":"/a"}"#,
            r#"{"http.request":{"uri":"/a"},"http":"x"}"#,
            r#"{"http":[{"request":1}],"http.request":{"uri":"\u002fa"}}"#,
        ] {
            assert_eq!(read(&mut parser, line), good(None), "{line}");
        }
        assert_eq!(read(&mut parser, r#"{"http.request.uri":"/a","size":null}"#), good(Some(0)));
        assert_eq!(read(&mut parser, r#"{"http.request.uri":"/a","size":"-"}"#), good(Some(0)));
        assert_eq!(read(&mut parser, r#"{"http.request.uri":"/a","size":"7"}"#), good(Some(7)));
        assert_eq!(read(&mut parser, r#"{"http":{"request":{"uri":{"x":1}}}}"#), Err(Reason::NoRequest));
        assert_eq!(read(&mut parser, r#"{"http.request.uri":"/a","size":7.5}"#), Err(Reason::BadSize));
    }

    #[test]
    fn a_query_is_joined_to_a_path_without_one() {
        let mut parser = parser("path=p,query=q");
        for (line, target) in [
            (r#"{"p":"/a","q":"b=c"}"#, "/a?b=c"),
            (r#"{"p":"/a","q":"?b=c"}"#, "/a?b=c"),
            (r#"{"p":"/a?b=c","q":"b=c"}"#, "/a?b=c"),
            (r#"{"p":"http://example.org/a","q":""}"#, "/a"),
            (r#"{"p":"/a","q":null}"#, "/a"),
        ] {
            assert_eq!(read(&mut parser, line).map(|read| read.0), Ok(target.to_owned()), "{line}");
        }
    }

    #[test]
    fn other_lines_give_the_missing_part() {
        let mut parser = parser("time=t,path=p,status=s,method=m");
        let line = r#"{"t":1,"p":"/","s":200,"m":"GET"}"#;
        assert!(read(&mut parser, line).is_ok());
        for (old, new, reason) in [
            ("\"t\":1", "\"t\":\"x\"", Reason::NoTime),
            ("\"t\"", "\"x\"", Reason::NoTime),
            ("\"p\"", "\"x\"", Reason::NoRequest),
            ("\"m\"", "\"x\"", Reason::NoRequest),
            ("\"s\"", "\"x\"", Reason::NoStatus),
            ("200", "2000", Reason::NoStatus),
            ("}", "} x", Reason::NotJson),
            ("}", "", Reason::NotJson),
            ("{", " {", Reason::NotJson),
        ] {
            assert_eq!(read(&mut parser, &line.replace(old, new)), Err(reason), "{new}");
        }
    }

    #[test]
    fn nginx_escapes_are_kept() {
        let mut parser = parser("path=p");
        let target = |line: &str| read(&mut parser, line).map(|read| read.0);
        let lines = [r#"{"p":"/a\x22b","agent":"\x22\xC3"}"#, r#"{"p":"/a\\x22b"}"#];
        assert_eq!(lines.map(target), [Ok(r"/a\x22b".to_owned()), Ok(r"/a\x22b".to_owned())]);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_record_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parser("path=a.b").parse(&[b"{".to_vec(), tail].concat());
        }

        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..120, byte: u8, cut in 0_usize..120) {
            let mut line = br#"{"ts":1.5e9,"request":{"uri":"/\u00e9\x22","method":"GET"},"status":200,"size":-1,"x":[{}]}"#.to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = CaddyParser::default().lines.parse(&line);
        }
    }
}
