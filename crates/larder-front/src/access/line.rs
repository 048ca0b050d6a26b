//! One line of the access log.

use super::AccessFormat;
use super::date::with_now;
use http::HeaderMap;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

/// What is known of a request once it has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) client: Option<IpAddr>,
    pub(crate) method: &'a str,
    /// As sent.
    pub(crate) target: &'a [u8],
    pub(crate) version: &'a str,
    pub(crate) host: &'a [u8],
    /// `None` where a node has answered the client directly.
    pub(crate) status: Option<u16>,
    pub(crate) body_bytes: u64,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
    pub(crate) node: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) error: Option<&'a str>,
    pub(crate) tries: u8,
    pub(crate) cache: Option<&'a str>,
    pub(crate) queue: Option<Duration>,
    pub(crate) connect: Option<Duration>,
    pub(crate) first_byte: Option<Duration>,
    pub(crate) total: Duration,
    pub(crate) route: &'a str,
    pub(crate) class: &'a str,
    /// How it was delivered, and why so.
    pub(crate) mechanism: &'a str,
    pub(crate) why: &'a str,
    /// `None` where requests have none.
    pub(crate) request_id: Option<&'a [u8]>,
    /// The header of the request, and of the reply.
    pub(crate) request: Option<&'a HeaderMap>,
    pub(crate) reply: Option<&'a HeaderMap>,
}

impl Record<'_> {
    /// The line, with its line end.
    pub(super) fn format(&self, format: &AccessFormat) -> Vec<u8> {
        let mut line = Vec::with_capacity(256);
        match format {
            AccessFormat::Combined => self.combined(&mut line),
            AccessFormat::Json => self.json(&mut line),
            AccessFormat::Own(format) => {
                format.write(self, &mut line);
                line.push(b'\n');
            }
        }
        line
    }

    fn combined(&self, line: &mut Vec<u8>) {
        // Writing to a vector does not fail.
        let _ = match self.client {
            Some(client) => write!(line, "{client}"),
            None => write!(line, "-"),
        };
        with_now(|second, _| write!(line, " - - [{}] \"", second.clf)).unwrap_or_default();
        line.extend_from_slice(self.method.as_bytes());
        line.push(b' ');
        escape(line, self.target);
        let _ = write!(line, " {}\" ", self.version);
        let _ = match self.status {
            Some(status) => write!(line, "{status}"),
            None => write!(line, "-"),
        };
        let _ = write!(line, " {} \"", self.body_bytes);
        escape(line, self.referer.unwrap_or(b"-"));
        line.extend_from_slice(b"\" \"");
        escape(line, self.user_agent.unwrap_or(b"-"));
        line.extend_from_slice(b"\" node=");
        word(line, self.node);
        for (key, value) in [(" reason=", self.reason), (" error=", self.error)] {
            line.extend_from_slice(key.as_bytes());
            line.extend_from_slice(value.unwrap_or("-").as_bytes());
        }
        let _ = write!(line, " tries={} cache={}", self.tries, self.cache.unwrap_or("-"));
        for (key, span) in self.spans() {
            let _ = match span {
                Some(span) => write!(line, " {key}={}", span.as_micros()),
                None => write!(line, " {key}=-"),
            };
        }
        // A route's name is a word.
        let _ = write!(line, " route={} class={}", self.route, self.class);
        let _ = write!(line, " mechanism={} why={}", self.mechanism, self.why);
        if let Some(id) = self.request_id {
            // An id holds nothing that would end the field.
            line.extend_from_slice(b" request_id=");
            line.extend_from_slice(id);
        }
        line.push(b'\n');
    }

    fn json(&self, line: &mut Vec<u8>) {
        with_now(|second, ms| write!(line, "{{\"time\":\"{}.{ms:03}Z\"", second.iso)).unwrap_or_default();
        if let Some(client) = self.client {
            let _ = write!(line, ",\"client\":\"{client}\"");
        }
        let texts = [
            ("method", Some(self.method.as_bytes())),
            ("host", Some(self.host)),
            ("target", Some(self.target)),
            ("version", Some(self.version.as_bytes())),
            ("referer", self.referer),
            ("user_agent", self.user_agent),
            ("node", self.node.map(str::as_bytes)),
            ("reason", self.reason.map(str::as_bytes)),
            ("error", self.error.map(str::as_bytes)),
            ("cache", self.cache.map(str::as_bytes)),
            ("route", Some(self.route.as_bytes())),
            ("class", Some(self.class.as_bytes())),
            ("mechanism", Some(self.mechanism.as_bytes())),
            ("why", Some(self.why.as_bytes())),
            ("request_id", self.request_id),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                let _ = write!(line, ",\"{key}\":\"");
                escape_json(line, value);
                line.push(b'"');
            }
        }
        if let Some(status) = self.status {
            let _ = write!(line, ",\"status\":{status}");
        }
        let _ = write!(line, ",\"body_bytes\":{},\"tries\":{}", self.body_bytes, self.tries);
        for (key, span) in self.spans() {
            if let Some(span) = span {
                let _ = write!(line, ",\"{key}\":{}", span.as_micros());
            }
        }
        line.extend_from_slice(b"}\n");
    }

    fn spans(&self) -> [(&'static str, Option<Duration>); 4] {
        [
            ("queue_us", self.queue),
            ("connect_us", self.connect),
            ("first_byte_us", self.first_byte),
            ("total_us", Some(self.total)),
        ]
    }
}

/// A name in a `key=value` field: quoted where it holds anything that would end the field.
fn word(line: &mut Vec<u8>, name: Option<&str>) {
    let Some(name) = name else { return line.push(b'-') };
    let plain =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
    if plain {
        line.extend_from_slice(name.as_bytes());
    } else {
        line.push(b'"');
        escape(line, name.as_bytes());
        line.push(b'"');
    }
}

/// Writes text into a quoted field of the Combined format: quotes, backslashes and what is not printable become
/// `\xHH`, as nginx writes them.
pub(super) fn escape(line: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if byte == b'"' || byte == b'\\' || !(b' '..=b'~').contains(&byte) {
            let _ = write!(line, "\\x{byte:02X}");
        } else {
            line.push(byte);
        }
    }
}

/// Writes text into a JSON string. Bytes that are no UTF-8 become U+FFFD.
fn escape_json(line: &mut Vec<u8>, text: &[u8]) {
    for c in String::from_utf8_lossy(text).chars() {
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
            node: Some("n1"),
            reason: Some("first"),
            error: None,
            tries: 1,
            cache: Some("hit"),
            queue: None,
            connect: None,
            first_byte: Some(Duration::from_micros(512)),
            total: Duration::from_micros(640),
            route: "default",
            class: "n",
            mechanism: "relay",
            why: "configured",
            request_id: None,
            request: None,
            reply: None,
        }
    }

    #[test]
    fn a_combined_line() {
        let line =
            String::from_utf8(record(b"/a?\"", b"curl\x00").format(&AccessFormat::Combined)).expect("text");
        let (start, rest) = line.split_once(" - - [").expect("a date");
        let (_, rest) = rest.split_once("] ").expect("a date");
        assert_eq!(start, "192.0.2.7");
        assert_eq!(
            rest,
            "\"GET /a?\\x22 HTTP/1.1\" 200 1024 \"-\" \"curl\\x00\" node=n1 reason=first error=- tries=1 cache=hit \
             queue_us=- connect_us=- first_byte_us=512 total_us=640 route=default class=n mechanism=relay \
             why=configured\n"
        );
    }

    #[test]
    fn a_json_line_leaves_out_what_is_unknown() {
        let line = record(b"/a", b"x").format(&AccessFormat::Json);
        let value: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(value["first_byte_us"], 512);
        assert_eq!(value["node"], "n1");
        assert!(value.get("queue_us").is_none() && value.get("referer").is_none());
    }

    proptest! {
        #[test]
        fn foreign_bytes_stay_inside_their_field(target in prop::collection::vec(any::<u8>(), 0..60),
                                                 agent in prop::collection::vec(any::<u8>(), 0..60)) {
            let line = record(&target, &agent).format(&AccessFormat::Combined);
            prop_assert_eq!(line.iter().filter(|&&byte| byte == b'"').count(), 6);
            prop_assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let json = record(&target, &agent).format(&AccessFormat::Json);
            let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
            prop_assert_eq!(value["target"].as_str(), Some(&*String::from_utf8_lossy(&target)));
        }
    }
}
