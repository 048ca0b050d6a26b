//! The access log of Envoy: its default text, or JSON.
//!
//! A line of the default text is `[time] "request" status flags received sent duration upstream-time
//! "x-forwarded-for" ...`. Istio adds three fields after the flags: details, termination and a quoted reason. The
//! client is the first address in `x-forwarded-for`.
//!
//! In JSON the operator chooses the keys. These are the keys of Envoy's documentation, of Istio and of Envoy
//! Gateway.

use std::ops::ControlFlow;

use memchr::memchr;

use super::json::{JsonServer, ServerParser};
use super::json_fields::{Field, KeyTable};
use super::log_format::LogFormat;
use super::timestamp::parse_rfc3339;
use super::words::{
    FieldIter, make_record, parse_body, parse_client, parse_decimal, parse_status, without_any_port,
};
use crate::record::{Reason, Record};

/// The server Envoy.
enum Envoy {}

impl JsonServer for Envoy {
    const NAME: &'static str = "envoy";
    const KEYS: KeyTable = &[
        (Field::Time, "start_time"),
        (Field::Method, "method"),
        (Field::Path, "path"),
        (Field::Path, "x-envoy-origin-path"),
        (Field::Path, "x_envoy_original_path"),
        (Field::Status, "response_code"),
        (Field::Bytes, "bytes_sent"),
        (Field::Client, "downstream_remote_address"),
        (Field::Client, "downstream_remote_address_without_port"),
    ];
}

/// The parser of this format.
#[derive(Default)]
pub(crate) struct EnvoyParser {
    json: ServerParser<Envoy>,
}

impl LogFormat for EnvoyParser {
    const NAME: &'static str = Envoy::NAME;

    fn parse(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if bytes.first() == Some(&b'[') { take(parse_text(bytes)) } else { self.json.parse(bytes, take) }
    }
}

/// Parses a line of text, without its line end.
fn parse_text(line: &[u8]) -> Result<Record<'_>, Reason> {
    let mut fields = FieldIter(line);
    let time_ns = fields.next().and_then(parse_rfc3339).ok_or(Reason::NoTime)?;
    let request = fields.next().ok_or(Reason::NoRequest)?;
    let status = parse_status(fields.next().ok_or(Reason::NoStatus)?)?;
    let after_flags = fields.nth(1).ok_or(Reason::BadSize)?;
    let sent = match parse_decimal(after_flags) {
        Some(_received) => fields.next(),
        // The details of Istio, followed by the termination, the reason, and the bytes received.
        None => fields.nth(3),
    };
    let body = parse_body(sent.ok_or(Reason::BadSize)?)?;
    let forwarded = fields.nth(2).unwrap_or_default();
    let first = &forwarded[..memchr(b',', forwarded).unwrap_or(forwarded.len())];
    let client = parse_client(without_any_port(first.trim_ascii()));
    Ok(make_record(time_ns, client, request, status, body))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::Format;
    use crate::record::{Client, Key, Method};

    const LINE: &str = r#"[2024-05-06T07:08:09.250Z] "GET /images/7?size=s HTTP/1.1" 200 - 0 5120 12 11 "203.0.113.9, 10.0.0.7" "agent "x" 1" "9e7c" "www.example.com" "10.0.1.2:8080""#;
    const ISTIO: &str = r#"[2024-05-06T07:08:09.250Z] "GET /images/7?size=s HTTP/1.1" 200 - via_upstream - "-" 0 5120 12 11 "203.0.113.9" "agent" "9e7c" "www.example.com" "10.0.1.2:8080" outbound|80||images 10.0.0.1:1 10.0.0.2:2 10.0.0.3:3 - default"#;

    #[test]
    fn the_default_text_and_that_of_istio_are_parsed() {
        for line in [LINE, ISTIO] {
            let record = parse_text(line.as_bytes()).expect("a good line");
            // date -u -d '2024-05-06 07:08:09' +%s
            assert_eq!(record.time_ns, Some(1_714_979_289_250_000_000), "{line}");
            assert_eq!((record.method, record.target), (Method::Get, Key::Name(b"/images/7?size=s")));
            assert_eq!((record.status, record.body), (200, Some(5_120)));
            assert_eq!(record.client, Client::Name(b"203.0.113.9"));
        }
    }

    #[test]
    fn a_log_of_text_is_detected() {
        for line in [LINE, ISTIO] {
            assert_eq!(
                Format::detect(format!("{line}\n{line}\n").as_bytes(), true).expect("known"),
                Format::Envoy
            );
        }
    }

    #[test]
    fn other_lines_give_the_missing_part() {
        for (old, new, expected) in [
            ("2024-", "x", Reason::NoTime),
            (" 200 ", " x ", Reason::NoStatus),
            (" 5120 ", " 5k ", Reason::BadSize),
        ] {
            assert_eq!(parse_text(LINE.replace(old, new).as_bytes()), Err(expected), "{new}");
        }
        assert_eq!(parse_text(b"[2024-05-06T07:08:09.250Z]"), Err(Reason::NoRequest));
        assert_eq!(parse_text(br#"[2024-05-06T07:08:09.250Z] "GET / HTTP/1.1" 200"#), Err(Reason::BadSize));
        let unknown = LINE.replace("\"203.0.113.9, 10.0.0.7\"", "\"-\"");
        assert_eq!(parse_text(unknown.as_bytes()).map(|record| record.client), Ok(Client::Unknown));
    }

    proptest! {
        #[test]
        fn damaged_lines_do_not_panic(at in 0_usize..180, byte: u8, cut in 0_usize..180) {
            for line in [LINE, ISTIO] {
                let mut line = line.as_bytes().to_vec();
                if let Some(place) = line.get_mut(at) {
                    *place = byte;
                }
                line.truncate(cut);
                let _ = parse_text(&line);
            }
        }
    }
}
