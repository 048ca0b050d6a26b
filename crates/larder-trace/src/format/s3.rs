//! Server access logs of Amazon S3.
//!
//! A line is `owner bucket [time] client requester id operation key "request" status error bytes ...`.
//! Operations without a request, such as those of lifecycle rules, have no status. Their lines are malformed.

use std::ops::ControlFlow;

use super::log_format::LogFormat;
use super::timestamp::CommonClock;
use super::words::{FieldIter, make_record, parse_body, parse_client, parse_status};
use crate::record::{Reason, Record};

/// Parses one line, without its line end. `clock` is kept from line to line.
fn parse<'a>(line: &'a [u8], clock: &mut CommonClock) -> Result<Record<'a>, Reason> {
    let mut fields = FieldIter(line);
    let time = fields.nth(2).and_then(|time| <&[u8; 26]>::try_from(time).ok());
    let time_ns = time.and_then(|time| clock.read(time)).ok_or(Reason::NoTime)?;
    let address = fields.next().ok_or(Reason::NoRequest)?;
    // The requester, the request id, the operation and the key follow the address.
    let request = fields.nth(4).ok_or(Reason::NoRequest)?;
    let status = parse_status(fields.next().ok_or(Reason::NoStatus)?)?;
    let body = parse_body(fields.nth(1).ok_or(Reason::BadSize)?)?;
    Ok(make_record(time_ns, parse_client(address), request, status, body))
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct S3Parser {
    clock: CommonClock,
}

impl LogFormat for S3Parser {
    const NAME: &'static str = "s3";

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(parse(bytes, &mut self.clock))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Client, Key, Method};

    const LINE: &str = r#"79a59df900b949e5 bucket1 [06/Feb/2019:00:00:38 +0000] 192.0.2.3 79a59df900b949e5 3E57427F3EXAMPLE REST.GET.OBJECT a/b.jpg "GET /bucket1/a/b.jpg?x-foo=bar HTTP/1.1" 200 - 113 7000 7 6 "-" "S3Console/0.4" - s9lz= SigV4 ECDHE AuthHeader host TLSV1.2 - Yes"#;

    fn parse(line: &str) -> Result<Record<'_>, Reason> {
        super::parse(line.as_bytes(), &mut CommonClock::default())
    }

    #[test]
    fn a_documented_line_is_parsed() {
        let record = parse(LINE).expect("a good line");
        // date -u -d '2019-02-06 00:00:38' +%s
        assert_eq!(record.time_ns, Some(1_549_411_238_000_000_000));
        assert_eq!(record.client, Client::Name(b"192.0.2.3"));
        assert_eq!(record.target, Key::Name(b"/bucket1/a/b.jpg?x-foo=bar"));
        assert_eq!((record.method, record.status, record.body), (Method::Get, 200, Some(113)));
    }

    #[test]
    fn other_lines_give_the_missing_part() {
        let with = |old: &str, new: &str| LINE.replace(old, new);
        for (line, expected) in [
            (with("\"GET /bucket1/a/b.jpg?x-foo=bar HTTP/1.1\" 200", "\"-\" -"), Reason::NoStatus),
            (with(" 113 ", " x "), Reason::BadSize),
            (with("[06/Feb/2019:00:00:38 +0000]", "-"), Reason::NoTime),
            ("a b [06/Feb/2019:00:00:38 +0000] c".to_owned(), Reason::NoRequest),
        ] {
            assert_eq!(parse(&line), Err(expected), "{line}");
        }
    }

    proptest! {
        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..240, byte: u8, cut in 0_usize..240) {
            let mut line = LINE.as_bytes().to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = super::parse(&line, &mut CommonClock::default());
        }
    }
}
