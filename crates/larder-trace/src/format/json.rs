//! JSON lines: each is an object for a request, whose fields are found by a table of keys.
//!
//! Each server has a table of its own; for other JSON the user gives one: [`json_fields`](super::json_fields). A key with points leads into
//! nested objects, or is a key that has points. Values may be numbers or texts. Notes:
//! * Time is RFC 3339, as in the Common Log Format, or seconds (or milliseconds and so on) since 1970.
//! * The target is a path with its query, or a whole URL. A query of its own is joined to a path that has none.
//! * nginx without `escape=json` writes `\xHH` into strings, which is no JSON: it is read as in nginx's own logs.
//! * `null` and `-` mean that there is no such thing: a size of 0, an unknown client.

use std::borrow::Cow;
use std::fmt;

use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json_fields::{Field, JsonFields, KEYS_MAX, Keys, Table};
use super::timestamp::{self, CommonClock};
use super::words::{self, client, join, origin_form, request_line, without_any_port};
use crate::record::{Client, Key, Method, Reason, Record};

/// Reads the lines of one table.
pub(crate) struct Parser {
    keys: Keys,
    /// Strings whose escapes are resolved.
    unescaped: Vec<u8>,
    mended: Vec<u8>,
    target: Vec<u8>,
}

impl Parser {
    /// For a known server.
    pub(crate) fn of_server(table: Table) -> Self {
        Self::new(table.iter().map(|&(field, key)| (field, Cow::Borrowed(key))).collect())
    }

    /// For the user's keys.
    pub(crate) fn of_user(fields: &JsonFields) -> Self {
        Self::new(fields.keys().clone())
    }

    fn new(keys: Keys) -> Self {
        Self { keys, unescaped: Vec::new(), mended: Vec::new(), target: Vec::new() }
    }

    /// Reads one line (without its line end). `clock` is kept from line to line.
    pub(crate) fn parse<'a>(
        &'a mut self,
        line: &'a [u8],
        clock: &mut CommonClock,
    ) -> Result<Record<'a>, Reason> {
        if line.first() != Some(&b'{') {
            return Err(Reason::NotJson);
        }
        let Self { keys, unescaped, mended, target } = self;
        let values = match scan(line, keys, unescaped) {
            Ok(values) => values,
            Err(_) if mend(line, mended) => scan(mended, keys, unescaped).map_err(|_| Reason::NotJson)?,
            Err(_) => return Err(Reason::NotJson),
        };
        let line = Line { keys, values, unescaped };
        line.record(clock, target)
    }
}

/// Writes the line with each `\xHH` escaped, so that it stands for the same four characters in JSON. False if the line
/// has none.
fn mend(line: &[u8], out: &mut Vec<u8>) -> bool {
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

/// A value that a record may need.
#[derive(Clone, Copy, Default)]
enum Value<'l> {
    /// The key is not there, or has an object or an array.
    #[default]
    Absent,
    Null,
    Text(&'l [u8]),
    /// A text with escapes: where it begins and ends among the unescaped bytes.
    Unescaped(usize, usize),
    Integer(u64),
    Number(f64),
}

type Values<'l> = [Value<'l>; KEYS_MAX];

/// The values of the keys in a line.
fn scan<'l>(line: &'l [u8], keys: &Keys, unescaped: &mut Vec<u8>) -> serde_json::Result<Values<'l>> {
    unescaped.clear();
    let mut values = Values::default();
    let wanted = Wanted { exact: None, nested: (1 << keys.len().min(KEYS_MAX)) - 1, depth_bytes: 0 };
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    Scanner { keys, values: &mut values, unescaped, wanted }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(values)
}

/// The keys that a value belongs to.
#[derive(Clone, Copy)]
struct Wanted {
    /// The key whose value it is.
    exact: Option<usize>,
    /// The keys that lead into it, as a set.
    nested: u32,
    /// How many bytes of those keys lead to it.
    depth_bytes: usize,
}

/// Reads one value into the values.
struct Scanner<'s, 'l> {
    keys: &'s Keys,
    values: &'s mut Values<'l>,
    unescaped: &'s mut Vec<u8>,
    wanted: Wanted,
}

impl<'l> Scanner<'_, 'l> {
    fn put<E>(self, value: Value<'l>) -> Result<(), E> {
        if let Some(slot) = self.wanted.exact.and_then(|at| self.values.get_mut(at)) {
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
        let Wanted { nested, depth_bytes, .. } = self.wanted;
        while let Some(wanted) = map.next_key_seed(KeyScanner { keys: self.keys, nested, depth_bytes })? {
            if wanted.exact.is_none() && wanted.nested == 0 {
                map.next_value::<IgnoredAny>()?;
            } else {
                let (keys, values, unescaped) = (self.keys, &mut *self.values, &mut *self.unescaped);
                map.next_value_seed(Scanner { keys, values, unescaped, wanted })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E>(self, text: &'l str) -> Result<(), E> {
        self.put(Value::Text(text.as_bytes()))
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let begin = self.unescaped.len();
        self.unescaped.extend_from_slice(text.as_bytes());
        let end = self.unescaped.len();
        self.put(Value::Unescaped(begin, end))
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.put(Value::Integer(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.put(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.put(Value::Number(value))
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.put(Value::Absent)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.put(Value::Null)
    }
}

/// Finds the keys that a key of the object stands for or leads into.
struct KeyScanner<'s> {
    keys: &'s Keys,
    nested: u32,
    depth_bytes: usize,
}

impl<'l> DeserializeSeed<'l> for KeyScanner<'_> {
    type Value = Wanted;

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<Wanted, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyScanner<'_> {
    type Value = Wanted;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Wanted, E> {
        let mut wanted = Wanted { exact: None, nested: 0, depth_bytes: self.depth_bytes + key.len() + 1 };
        for (at, (_, path)) in self.keys.iter().enumerate() {
            if self.nested & (1 << at) == 0 {
                continue;
            }
            let rest = &path.as_bytes()[self.depth_bytes..];
            if rest == key.as_bytes() {
                wanted.exact = Some(at);
            } else if rest.get(key.len()) == Some(&b'.') && rest.starts_with(key.as_bytes()) {
                wanted.nested |= 1 << at;
            }
        }
        Ok(wanted)
    }
}

/// A scanned line.
struct Line<'a> {
    keys: &'a Keys,
    values: Values<'a>,
    unescaped: &'a [u8],
}

impl<'a> Line<'a> {
    fn record(&self, clock: &mut CommonClock, target: &'a mut Vec<u8>) -> Result<Record<'a>, Reason> {
        let time_ns = match self.first(Field::Time) {
            None if self.has(Field::Time) => return Err(Reason::NoTime),
            None => None,
            Some(value) => Some(self.time(value, clock).ok_or(Reason::NoTime)?),
        };
        let (method, path) = self.request().ok_or(Reason::NoRequest)?;
        let path = origin_form(path);
        let query =
            self.first(Field::Query).and_then(|query| self.text(query)).filter(|_| !path.contains(&b'?'));
        let status = match self.first(Field::Status) {
            None if self.has(Field::Status) => return Err(Reason::NoStatus),
            None => 200,
            Some(value) => self.status(value)?,
        };
        let body = self.first(Field::Bytes).map(|value| self.body(value)).transpose()?;
        let client =
            self.first(Field::Client).and_then(|client| self.text(client)).map_or(Client::Unknown, address);
        Ok(Record { time_ns, client, method, target: Key::Name(join(path, query, target)), status, body })
    }

    /// Method and target: of the first key that is there.
    fn request(&self) -> Option<(Method, &'a [u8])> {
        let (field, text) = self.keys.iter().zip(&self.values).find_map(|((field, _), value)| {
            let text = matches!(field, Field::Path | Field::Request).then(|| self.text(*value))??;
            Some((*field, text))
        })?;
        if field == Field::Request {
            return Some(request_line(text));
        }
        let method = match self.first(Field::Method) {
            Some(method) => Method::of(self.text(method)?),
            None if self.has(Field::Method) => return None,
            None => Method::Get,
        };
        Some((method, text))
    }

    /// The value of the first key for the field that is there.
    fn first(&self, wanted: Field) -> Option<Value<'a>> {
        let values = self.keys.iter().zip(&self.values);
        values
            .filter(|((field, _), _)| *field == wanted)
            .map(|(_, value)| *value)
            .find(|value| !matches!(value, Value::Absent))
    }

    fn has(&self, wanted: Field) -> bool {
        self.keys.iter().any(|(field, _)| *field == wanted)
    }

    fn text(&self, value: Value<'a>) -> Option<&'a [u8]> {
        match value {
            Value::Text(text) => Some(text),
            Value::Unescaped(begin, end) => self.unescaped.get(begin..end),
            _ => None,
        }
    }

    fn time(&self, value: Value<'a>, clock: &mut CommonClock) -> Option<i64> {
        match value {
            Value::Integer(value) => timestamp::epoch_integer(value),
            Value::Number(value) => timestamp::epoch_number(value),
            value => timestamp::any(self.text(value)?, clock),
        }
    }

    fn status(&self, value: Value<'a>) -> Result<u16, Reason> {
        match value {
            Value::Integer(code @ 0..=999) => u16::try_from(code).map_err(|_| Reason::NoStatus),
            value => words::status(self.text(value).ok_or(Reason::NoStatus)?),
        }
    }

    fn body(&self, value: Value<'a>) -> Result<u64, Reason> {
        match value {
            Value::Null => Ok(0),
            Value::Integer(bytes) => Ok(bytes),
            value => words::body(self.text(value).ok_or(Reason::BadSize)?),
        }
    }
}

fn address(text: &[u8]) -> Client<'_> {
    client(without_any_port(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::json_fields::CADDY;

    fn parser(fields: &str) -> Parser {
        Parser::of_user(&fields.parse().expect("good fields"))
    }

    /// Target, status and size of a line.
    fn read(parser: &mut Parser, line: &str) -> Result<(String, u16, Option<u64>), Reason> {
        let record = parser.parse(line.as_bytes(), &mut CommonClock::default())?;
        let Key::Name(name) = record.target else { panic!("logs have names") };
        Ok((String::from_utf8_lossy(name).into_owned(), record.status, record.body))
    }

    #[test]
    fn keys_are_nested_or_have_points() {
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
    fn other_lines_say_what_is_missing() {
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
    fn the_escapes_of_nginx_are_kept() {
        let mut parser = parser("path=p");
        let target = |line: &str| read(&mut parser, line).map(|read| read.0);
        let lines = [r#"{"p":"/a\x22b","agent":"\x22\xC3"}"#, r#"{"p":"/a\\x22b"}"#];
        assert_eq!(lines.map(target), [Ok(r"/a\x22b".to_owned()), Ok(r"/a\x22b".to_owned())]);
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_record_or_a_reason(tail in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parser("path=a.b").parse(&[b"{".to_vec(), tail].concat(), &mut CommonClock::default());
        }

        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..120, byte: u8, cut in 0_usize..120) {
            let mut line = br#"{"ts":1.5e9,"request":{"uri":"/\u00e9\x22","method":"GET"},"status":200,"size":-1,"x":[{}]}"#.to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = Parser::of_server(CADDY).parse(&line, &mut CommonClock::default());
        }
    }
}
