//! The extended log file format of the W3C, as IIS and CloudFront write it.
//!
//! Lines that begin with `#` are directives. `#Fields:` names the columns of the following lines, up to the
//! next `#Fields:`. A server that restarts may write a new header into the same file. IIS separates columns
//! with spaces, and replaces a space in a value with a plus sign. CloudFront separates columns with tabs.
//! Other servers quote values with spaces.
//! - Times are in UTC. If there is no column `date`, the date is that of the directive `#Date:`.
//! - IIS writes `sc-bytes` only if configured to. Otherwise the size is unknown. The size in CloudFront
//!   includes the header of the reply.
//! - If a log has no column for the method or the status, its lines count as GET requests with status 200.

use std::ops::ControlFlow;

use memchr::{memchr, memchr_iter};

use super::log_format::LogFormat;
use super::timestamp;
use super::words::{FieldIter, join_query, origin_form, parse_body, parse_client, parse_status};
use crate::record::{Client, Key, Method, Reason, Record};

/// A column that a record needs.
#[derive(Clone, Copy)]
enum Column {
    Date,
    Time,
    Client,
    Method,
    Stem,
    Query,
    Uri,
    Status,
    Bytes,
}

/// The columns by their names.
const COLUMNS: [(&[u8], Column); 10] = [
    (b"date", Column::Date),
    (b"time", Column::Time),
    (b"c-ip", Column::Client),
    (b"cs-method", Column::Method),
    (b"cs-uri-stem", Column::Stem),
    (b"cs-uri-query", Column::Query),
    (b"cs-uri", Column::Uri),
    (b"sc-status", Column::Status),
    (b"sc-bytes", Column::Bytes),
    (b"bytes", Column::Bytes),
];

/// The directives that have been read.
#[derive(Default)]
struct Header {
    /// The meaning of each column, if a record needs it. Empty before the first `#Fields:`.
    columns: Vec<Option<Column>>,
    date: Option<[u8; 10]>,
}

/// Parses one line, without its line end. A directive changes the header and gives no record. `target` is a
/// buffer for joining a path and its query.
fn parse<'a>(
    line: &'a [u8],
    header: &mut Header,
    target: &'a mut Vec<u8>,
) -> Result<Option<Record<'a>>, Reason> {
    if line.first() == Some(&b'#') {
        header.read(line);
        return Ok(None);
    }
    if header.columns.is_empty() {
        return Err(Reason::NoFields);
    }
    header.record(header.values(line), target).map(Some)
}

/// The values of a line that a record needs, indexed by [`Column`].
type ColumnValues<'a> = [Option<&'a [u8]>; COLUMNS.len()];

impl Header {
    /// Reads a directive.
    fn read(&mut self, line: &[u8]) {
        let Some(colon) = memchr(b':', line) else { return };
        let value = line[colon + 1..].trim_ascii();
        if line[..colon].eq_ignore_ascii_case(b"#Fields") {
            let meaning =
                |word: &[u8]| COLUMNS.iter().find(|(name, _)| name == &word).map(|(_, column)| *column);
            let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            self.columns = words.map(meaning).collect();
        } else if line[..colon].eq_ignore_ascii_case(b"#Date") {
            self.date = value.first_chunk().copied();
        }
    }

    /// Splits a line into its values.
    fn values<'a>(&self, line: &'a [u8]) -> ColumnValues<'a> {
        let mut values = ColumnValues::default();
        let mut take = |words: &mut dyn Iterator<Item = &'a [u8]>| {
            for (column, word) in self.columns.iter().zip(words) {
                if let Some(column) = column {
                    values[*column as usize] = Some(word);
                }
            }
        };
        if memchr(b'\t', line).is_some() {
            take(&mut line.split(|&b| b == b'\t'));
        } else if memchr_iter(b' ', line).count() < self.columns.len() {
            // In such a line, a quote is part of its value.
            take(&mut line.split(|&b| b == b' '));
        } else {
            take(&mut FieldIter(line));
        }
        values
    }

    /// Creates the record of a line.
    fn record<'a>(&self, values: ColumnValues<'a>, target: &'a mut Vec<u8>) -> Result<Record<'a>, Reason> {
        let of = |column: Column| values[column as usize];
        // A line may be too short to have a value in a column that the header names.
        let has = |column: Column| self.columns.iter().flatten().any(|known| *known as u8 == column as u8);
        let date = of(Column::Date).map_or(self.date.as_ref(), |date| date.try_into().ok());
        let time_ns =
            date.zip(of(Column::Time)).and_then(|(date, time)| timestamp::parse_date_and_clock(date, time));
        let method = match of(Column::Method) {
            None if has(Column::Method) => return Err(Reason::NoRequest),
            word => word.map_or(Method::Get, Method::of),
        };
        let path = of(Column::Stem).or_else(|| of(Column::Uri)).ok_or(Reason::NoRequest)?;
        let status = match of(Column::Status) {
            None if has(Column::Status) => return Err(Reason::NoStatus),
            word => word.map_or(Ok(200), parse_status)?,
        };
        let body = match of(Column::Bytes) {
            None if has(Column::Bytes) => return Err(Reason::BadSize),
            word => word.map(parse_body).transpose()?,
        };
        Ok(Record {
            time_ns: Some(time_ns.ok_or(Reason::NoTime)?),
            client: of(Column::Client).map_or(Client::Unknown, parse_client),
            method,
            target: Key::Name(join_query(origin_form(path), of(Column::Query), target)),
            status,
            body,
        })
    }
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct W3cParser {
    header: Header,
    /// The target, if a query was joined to a path.
    target: Vec<u8>,
}

impl LogFormat for W3cParser {
    const NAME: &'static str = "w3c";

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match parse(bytes, &mut self.header, &mut self.target).transpose() {
            Some(parsed) => take(parsed),
            None => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the target and the size, or the reason, of each line that is no directive.
    fn read(log: &str) -> Vec<Result<(String, Option<u64>), Reason>> {
        let mut header = Header::default();
        let mut out = Vec::new();
        for line in log.lines() {
            let mut target = Vec::new();
            match parse(line.as_bytes(), &mut header, &mut target) {
                Ok(None) => {}
                Err(reason) => out.push(Err(reason)),
                Ok(Some(Record { target: Key::Name(name), body, .. })) => {
                    out.push(Ok((String::from_utf8_lossy(name).into_owned(), body)));
                }
                Ok(Some(_)) => unreachable!("targets have names"),
            }
        }
        out
    }

    #[test]
    fn columns_may_change_in_mid_file() {
        let log = r#"2024-05-01 10:00:00 GET /early - 200
#Software: Microsoft Internet Information Services 10.0
#Version: 1.0
#Date: 2024-05-01 10:00:00
#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) cs(Referer) sc-status sc-substatus sc-win32-status time-taken
2024-05-01 10:00:00 198.51.100.1 GET /a b=c 443 - 192.0.2.1 "Mozilla/5.0+(X) - 200 0 0 15
2024-05-01 10:00:00 198.51.100.1 GET /a - 443 -
#Fields: time cs-uri sc-bytes
10:00:01.5 http://example.org/c?d 7
10:00:01 "/e f" -
10:00:01 /g x
#Fields: sc-status
200
"#;
        let good = |name: &str, body| Ok((name.to_owned(), body));
        let expected = [
            Err(Reason::NoFields),
            good("/a?b=c", None),
            Err(Reason::NoStatus),
            good("/c?d", Some(7)),
            good("/e f", Some(0)),
            Err(Reason::BadSize),
            Err(Reason::NoRequest),
        ];
        assert_eq!(read(log), expected);
    }

    #[test]
    fn a_time_alone_has_the_date_of_the_directive() {
        let mut header = Header::default();
        for line in ["#Date: 2024-05-01 00:00:00", "#Fields: time cs-uri"] {
            assert_eq!(parse(line.as_bytes(), &mut header, &mut Vec::new()), Ok(None));
        }
        let mut target = Vec::new();
        let record = parse(b"10:00:01 /", &mut header, &mut target).expect("a good line").expect("a record");
        // date -u -d '2024-05-01 10:00:01' +%s
        assert_eq!(record.time_ns, Some(1_714_557_601_000_000_000));
        assert_eq!((record.method, record.status), (Method::Get, 200));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_record_or_an_error(lines in prop::collection::vec(
            prop::collection::vec(prop::sample::select(&b"#Fields: cs-uri date time\t\"2024-05-01 10:00:01"[..]), 0..60), 0..6))
        {
            let mut header = Header::default();
            let _ = parse(b"#Fields: date time cs-uri cs-uri-query sc-status", &mut header, &mut Vec::new());
            for line in lines {
                let _ = parse(&line, &mut header, &mut Vec::new());
            }
        }
    }
}
