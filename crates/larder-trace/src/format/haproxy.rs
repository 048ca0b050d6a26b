//! The HTTP log of HAProxy (`option httplog` and `option httpslog`), with or without a syslog header.
//!
//! A line is `client:port [time] frontend backend/server timers status bytes cookies state counters
//! {captures} "request"`. A syslog header (RFC 3164 or RFC 5424) is ignored: the client is the word before
//! the first brackets with a time.
//! - The time is that of the request, in the time zone of the host. The zone is not logged, and UTC is
//!   assumed.
//! - Captured headers may contain spaces, but no quotes, which HAProxy escapes. Therefore the request is the
//!   first quoted field.
//! - `<BADREQ>` stands for bytes that are no request. A request that HAProxy has truncated has no closing
//!   quote. Both lines are malformed.
//! - The size includes the header of the reply. `option logasap` writes `+` before it.

use std::ops::ControlFlow;

use memchr::{memchr, memchr_iter, memrchr};

use super::log_format::LogFormat;
use super::timestamp::{CommonClock, fraction_ns};
use super::words::{make_record, parse_body, parse_client, parse_status, without_port};
use crate::record::{Reason, Record};

/// Length of `06/Feb/2009:12:14:14.655`.
const TIME_BYTES: usize = 24;

/// Parses one line, without its line end. `clock` is kept from line to line.
fn parse<'a>(line: &'a [u8], clock: &mut CommonClock) -> Result<Record<'a>, Reason> {
    let (open, time_ns) = memchr_iter(b'[', line)
        .find_map(|open| Some((open, parse_time(&line[open + 1..], clock)?)))
        .ok_or(Reason::NoTime)?;
    let before = line[..open].trim_ascii_end();
    let address = &before[memrchr(b' ', before).map_or(0, |space| space + 1)..];
    let rest = line[open + TIME_BYTES + 2..].strip_prefix(b" ").ok_or(Reason::NoRequest)?;
    // The skipped words are the frontend, the backend with the server, and the timers.
    let mut words = rest.splitn(6, |&b| b == b' ').skip(3);
    let status = parse_status(words.next().ok_or(Reason::NoStatus)?)?;
    let bytes = words.next().ok_or(Reason::BadSize)?;
    let body = parse_body(bytes.strip_prefix(b"+").unwrap_or(bytes))?;
    let tail = words.next().ok_or(Reason::NoRequest)?;
    let quoted = &tail[memchr(b'"', tail).ok_or(Reason::NoRequest)? + 1..];
    let request = &quoted[..memchr(b'"', quoted).ok_or(Reason::NoRequest)?];
    if request == b"<BADREQ>" {
        return Err(Reason::NoRequest);
    }
    Ok(make_record(time_ns, parse_client(without_port(address)), request, status, body))
}

/// Parses the time after an opening bracket. Returns `None` if there is no time, or no closing bracket.
fn parse_time(text: &[u8], clock: &mut CommonClock) -> Option<i64> {
    let (time, [b']', ..]) = text.split_first_chunk::<TIME_BYTES>()? else { return None };
    let (seconds, [b'.', millis @ ..]) = time.split_first_chunk::<20>()? else { return None };
    let mut common = *b"00/Jan/0000:00:00:00 +0000";
    common[..20].copy_from_slice(seconds);
    let whole = clock.read(&common)?;
    millis.iter().all(u8::is_ascii_digit).then(|| whole.saturating_add(fraction_ns(millis)))
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct HaproxyParser {
    clock: CommonClock,
}

impl LogFormat for HaproxyParser {
    const NAME: &'static str = "haproxy";

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

    const LINE: &str = r#"192.0.2.1:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {a b|c} {} "GET /index.html HTTP/1.1""#;

    fn parse(line: &str) -> Result<Record<'_>, Reason> {
        super::parse(line.as_bytes(), &mut CommonClock::default())
    }

    #[test]
    fn a_syslog_header_is_ignored() {
        let plain = parse(LINE).expect("a good line");
        // date -u -d '2009-02-06 12:14:14' +%s
        assert_eq!(plain.time_ns, Some(1_233_922_454_655_000_000));
        assert_eq!((plain.client, plain.target), (Client::Name(b"192.0.2.1"), Key::Name(b"/index.html")));
        assert_eq!((plain.method, plain.status, plain.body), (Method::Get, 200, Some(2_750)));
        for header in [
            "Feb  6 12:14:14 localhost haproxy[14389]: ",
            "<134>Feb  6 12:14:14 haproxy[14389]: ",
            "2009-02-06T12:14:14.655Z lb haproxy[14389]: ",
            r#"<134>1 2009-02-06T12:14:14.655Z lb haproxy 14389 - [a@1 b="[c]"] "#,
        ] {
            assert_eq!(parse(&format!("{header}{LINE}")), Ok(plain), "{header}");
        }
        assert_eq!(parse(&format!("{LINE} 0/0/0/0/0 -/TLSv1.3/-")), Ok(plain), "httpslog");
    }

    #[test]
    fn other_lines_give_the_missing_part() {
        let with = |old: &str, new: &str| LINE.replace(old, new);
        for (line, expected) in [
            (with("GET /index.html HTTP/1.1", "<BADREQ>"), Reason::NoRequest),
            (with("HTTP/1.1\"", "HTT"), Reason::NoRequest),
            (with(" 200 ", " -1 "), Reason::NoStatus),
            (with(" 2750 ", " x "), Reason::BadSize),
            (with("Feb", "Fob"), Reason::NoTime),
            (with("14.655]", "14]"), Reason::NoTime),
            ("Feb  6 12:14:14 lb haproxy[1]: Proxy http-in started.".to_owned(), Reason::NoTime),
            (
                "192.0.2.1:1 [06/Feb/2009:12:14:14.655] tcp-in db/srv1 0/0/5 212 -- 0/0/0/0/3 0/0".to_owned(),
                Reason::BadSize,
            ),
        ] {
            assert_eq!(parse(&line), Err(expected), "{line}");
        }
    }

    #[test]
    fn partial_sizes_and_http2_urls_are_parsed() {
        let line = LINE.replace(" 2750 ", " +2750 ").replace("GET /", "GET https://example.org/");
        assert_eq!(parse(&line), parse(LINE));
    }

    proptest! {
        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..160, byte: u8, cut in 0_usize..170) {
            let mut line = LINE.as_bytes().to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = super::parse(&line, &mut CommonClock::default());
        }
    }
}
