//! Access logs of AWS load balancers: Application, and Classic with HTTP listeners.
//!
//! `type time elb client:port target:port seconds seconds seconds status target-status received sent
//! "request" ...`. Classic load balancers write no type. The time is that of the reply. The request has the
//! whole URL. Sizes include the header of the reply.

use std::ops::ControlFlow;

use super::log_format::LogFormat;
use super::timestamp;
use super::words::{FieldIter, make_record, parse_body, parse_client, parse_status, without_port};
use crate::record::{Reason, Record};

/// Parses one line, without its line end.
fn parse(line: &[u8]) -> Result<Record<'_>, Reason> {
    // The text log of Istio has brackets around its time, and otherwise similar fields.
    if line.first() == Some(&b'[') {
        return Err(Reason::NoTime);
    }
    let mut fields = FieldIter(line);
    let first = fields.next().ok_or(Reason::NoTime)?;
    let time_ns = timestamp::parse_rfc3339(first)
        .or_else(|| timestamp::parse_rfc3339(fields.next()?))
        .ok_or(Reason::NoTime)?;
    let address = fields.nth(1).ok_or(Reason::NoRequest)?;
    // The target and three durations follow the address.
    let status = parse_status(fields.nth(4).ok_or(Reason::NoStatus)?)?;
    let body = parse_body(fields.nth(2).ok_or(Reason::BadSize)?)?;
    let request = fields.next().ok_or(Reason::NoRequest)?;
    Ok(make_record(time_ns, parse_client(without_port(address)), request, status, body))
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct AlbParser;

impl LogFormat for AlbParser {
    const NAME: &'static str = "alb";

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        take(parse(bytes))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Client, Key, Method};

    const LINE: &str = r#"https 2018-07-02T22:23:00.186641Z app/my-lb/50dc6c495c0c9188 192.0.2.10:2817 198.51.100.1:80 0.086 0.048 0.037 200 200 0 57 "GET https://www.example.com:443/a b?c HTTP/1.1" "curl/7.46.0" ECDHE TLSv1.2 arn "Root=1" "www.example.com" "arn" 1 2018-07-02T22:22:48.364000Z "forward" "-" "-" "198.51.100.1:80" "200" "-" "-""#;

    fn parse(line: &str) -> Result<Record<'_>, Reason> {
        super::parse(line.as_bytes())
    }

    #[test]
    fn both_load_balancer_types_are_parsed() {
        let record = parse(LINE).expect("a good line");
        // date -u -d '2018-07-02 22:23:00' +%s
        assert_eq!(record.time_ns, Some(1_530_570_180_186_641_000));
        assert_eq!((record.client, record.target), (Client::Name(b"192.0.2.10"), Key::Name(b"/a b?c")));
        assert_eq!((record.method, record.status, record.body), (Method::Get, 200, Some(57)));
        let classic = LINE.strip_prefix("https ").expect("a type");
        assert_eq!(parse(classic), Ok(record));
    }

    #[test]
    fn lines_without_a_request_are_errors() {
        let line = LINE.replace("GET https://www.example.com:443/a b?c HTTP/1.1", "- - - ");
        assert!(!parse(&line).expect("a good line").is_replayable());
        for (line, reason) in [
            ("", Reason::NoTime),
            ("https yesterday", Reason::NoTime),
            ("https 2018-07-02T22:23:00.186641Z lb", Reason::NoRequest),
            ("https 2018-07-02T22:23:00.186641Z lb c:1 t:2 0 0 0 - - 0 0 \"- - - \"", Reason::NoStatus),
            ("https 2018-07-02T22:23:00.186641Z lb c:1 t:2 0 0 0 200 - 0 x \"- - - \"", Reason::BadSize),
            ("https 2018-07-02T22:23:00.186641Z lb c:1 t:2 0 0 0 200 - 0 0", Reason::NoRequest),
        ] {
            assert_eq!(parse(line), Err(reason), "{line}");
        }
    }

    proptest! {
        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..300, byte: u8, cut in 0_usize..300) {
            let mut line = LINE.as_bytes().to_vec();
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
            line.truncate(cut);
            let _ = super::parse(&line);
        }
    }
}
