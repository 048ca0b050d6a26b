//! Turns the values of a case into bytes: requests of clients, and replies of an origin that keeps RFC 9110.

use crate::case::{CLIENTS, Case, RELAYS, Step};
use crate::catalogue::{CLOSE_BEFORE_HEAD, CLOSE_IN_BODY, reply, request};
use crate::record::{BODY_MARK, Clock, RENEWAL_MARK, REQUEST_MARK, Request, Sent};
use crate::wire::{Fields, Head};
use std::fmt::Write as _;

/// Body of a POST.
const POST_BODY: &str = "hello";

/// The place of a case: which step, at which time, and under which path.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The case.
    pub case: &'a Case,
    /// Its clock.
    pub clock: &'a Clock,
    /// Index of the step.
    pub step: usize,
}

/// The origin's action on a request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The reply; `None`: it closes the connection before the head.
    pub sent: Option<Sent>,
    /// How the body is framed: "length", "chunked" or "close".
    pub framing: &'static str,
    /// Whether it closes the connection in the middle of the body.
    pub is_cut: bool,
    /// Whether it sends 103 first.
    pub has_interim: bool,
}

impl Scene<'_> {
    fn step(&self) -> &Step {
        &self.case.steps[self.step]
    }

    /// The request of the step. `mark` is unique to step and run.
    pub fn request(&self, path: &str, mark: &str) -> Request {
        let step = self.step();
        let host = step.asks(request::HOST);
        let mut fields = Fields::default();
        fields.push("host", host);
        fields.push(REQUEST_MARK, mark);
        let dimensions = [
            request::CACHE_CONTROL,
            request::CREDENTIALS,
            request::LANGUAGE,
            request::RANGE,
            request::CONDITION,
            request::CONNECTION,
            request::RELAYED,
        ];
        for dimension in dimensions {
            fields.extend(&Fields::of_lines(&self.expand(step.asks(dimension), 0)));
        }
        let method = step.asks(request::METHOD).to_owned();
        if method == "POST" {
            fields.push("content-length", POST_BODY.len().to_string());
        }
        let target = format!("{path}{}", step.asks(request::QUERY));
        Request { method, host: host.to_ascii_lowercase(), target, relayed: RELAYS[step.client], fields }
    }

    /// Replaces the words of [`crate::catalogue`].
    fn expand(&self, text: &str, exchange: usize) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (word, after) = after.split_once('}').unwrap_or((after, ""));
            out.push_str(before);
            match word.split_once(':') {
                Some(("tag", step)) => out.extend(["\"s", step, "\""]),
                Some(("date", shift)) => out.push_str(&self.clock.date(shift.parse().unwrap_or(0))),
                _ if word == "client" => out.push_str(CLIENTS[self.step().client]),
                _ if word == "tag" => out.push_str(&format!("\"s{}\"", self.step)),
                _ => out.push_str(&exchange.to_string()),
            }
            rest = after;
        }
        out.push_str(rest);
        out
    }

    fn lines(&self, dimension: usize, exchange: usize) -> Fields {
        Fields::of_lines(&self.expand(self.step().replies(dimension), exchange))
    }

    /// Returns the origin's action on a request of this step. The request is the exchange with this number.
    pub fn plan(&self, asked: &Head, exchange: usize) -> Plan {
        let step = self.step();
        let has_interim = !step.replies(reply::INTERIM).is_empty();
        if matches!(asked.method.as_str(), "GET" | "HEAD")
            && let Some(tag) = self.matches(&asked.fields)
            && let Some(sent) = self.validation(tag.as_deref(), exchange)
        {
            return Plan { sent, framing: "length", is_cut: false, has_interim };
        }
        let status = step.replies(reply::STATUS);
        let is_cut = status == CLOSE_IN_BODY;
        let framing = match step.replies(reply::FRAMING) {
            // The end of a body that the connection's end delimits would look like its whole.
            "close" if is_cut => "length",
            framing => framing,
        };
        let sent = (status != CLOSE_BEFORE_HEAD).then(|| {
            let full = self.full(status.parse().unwrap_or(200), exchange, is_cut);
            if full.status == 200 && asked.method == "GET" { self.part(asked, full) } else { full }
        });
        Plan { sent, framing, is_cut, has_interim }
    }

    /// Whether a precondition matches, and which entity tag does. `Some(None)`: it matches by date.
    fn matches(&self, asked: &Fields) -> Option<Option<String>> {
        if let Some(tags) = asked.joined("if-none-match") {
            let known = (0..self.case.steps.len()).filter_map(|step| Scene { step, ..*self }.tag());
            return known.map(Some).find(|tag| {
                let plain = tag.as_deref().unwrap_or_default().trim_start_matches("W/");
                tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == plain)
            });
        }
        let since = httpdate::parse_http_date(asked.first("if-modified-since")?).ok()?;
        let validators = self.lines(reply::VALIDATOR, 0);
        let modified = httpdate::parse_http_date(validators.first("last-modified")?).ok()?;
        (since >= modified).then_some(None)
    }

    fn tag(&self) -> Option<String> {
        self.lines(reply::VALIDATOR, 0).first("etag").map(str::to_owned)
    }

    /// The reply to a precondition that matches. `None`: it is as if there were no precondition; `Some(None)`: the
    /// origin closes the connection.
    fn validation(&self, tag: Option<&str>, exchange: usize) -> Option<Option<Sent>> {
        let text = self.expand(self.step().replies(reply::VALIDATION), exchange);
        let (kind, lines) = text.split_once('\n').unwrap_or((&text, ""));
        let mut fields = Fields::default();
        match kind {
            "full" => return None,
            CLOSE_BEFORE_HEAD => return Some(None),
            "304" => {}
            status => {
                fields.push("date", self.clock.date(0));
                fields.push(BODY_MARK, exchange.to_string());
                let body = self.body(exchange, 100);
                return Some(Some(Sent { status: status.parse().unwrap_or(500), fields, body }));
            }
        }
        let changed = Fields::of_lines(lines);
        fields.push("date", self.clock.date(0));
        for dimension in [reply::CACHE_CONTROL, reply::TARGETED, reply::EXPIRES, reply::VARY] {
            let kept = self.lines(dimension, exchange);
            // A change of `Cache-Control` replaces everything that the step says about freshness.
            let is_replaced = changed.has("cache-control") && dimension != reply::VARY;
            if !is_replaced && !kept.iter().any(|(name, _)| changed.has(name)) {
                fields.extend(&kept);
            }
        }
        fields.extend(&changed);
        if let Some(tag) = tag {
            fields.push("etag", tag);
        }
        fields.push(&format!("{RENEWAL_MARK}{exchange}"), "1");
        Some(Some(Sent { status: 304, fields, body: Vec::new() }))
    }

    fn full(&self, status: u16, exchange: usize, is_cut: bool) -> Sent {
        let step = self.step();
        let mut fields = Fields::default();
        let dimensions = [
            reply::DATE,
            reply::CACHE_CONTROL,
            reply::TARGETED,
            reply::EXPIRES,
            reply::AGE,
            reply::VALIDATOR,
            reply::VARY,
            reply::SET_COOKIE,
            reply::CONNECTION,
        ];
        for dimension in dimensions {
            fields.extend(&self.lines(dimension, exchange));
        }
        if step.replies(reply::CACHE_CONTROL).contains("x-secret") {
            fields.push("x-secret", exchange.to_string());
        }
        if matches!(status, 300..=308) {
            fields.push("location", "/elsewhere");
        }
        fields.push(BODY_MARK, exchange.to_string());
        let len: usize = step.replies(reply::LENGTH).parse().unwrap_or(0);
        let len = if is_cut { len.max(200) } else { len };
        let body = if status == 204 { Vec::new() } else { self.body(exchange, len) };
        Sent { status, fields, body }
    }

    /// The part of a reply that `Range` asks for, if the origin knows ranges (RFC 9110 section 14.2).
    fn part(&self, asked: &Head, full: Sent) -> Sent {
        let Some(range) = asked.fields.first("range") else { return full };
        let strong = self.tag().filter(|tag| tag.starts_with('"'));
        let counts = asked.fields.first("if-range").is_none_or(|tag| strong.as_deref() == Some(tag));
        if self.step().replies(reply::PARTIAL) != "206" || !counts {
            return full;
        }
        let len = full.body.len();
        let Some((first, end)) = range_of(range, len) else { return full };
        let mut fields = full.fields;
        if first >= end {
            fields.push("content-range", format!("bytes */{len}"));
            return Sent { status: 416, fields, body: Vec::new() };
        }
        fields.push("content-range", format!("bytes {first}-{}/{len}", end - 1));
        Sent { status: 206, fields, body: full.body[first..end].to_vec() }
    }

    /// A body that names its exchange, and in which every part is different.
    fn body(&self, exchange: usize, len: usize) -> Vec<u8> {
        let client = CLIENTS[self.step().client];
        let mut text = String::with_capacity(len + 80);
        let mut line = 0;
        while text.len() < len {
            let _ = writeln!(text, "exchange {exchange} step {} client {client} line {line}", self.step);
            line += 1;
        }
        text.truncate(len);
        text.into_bytes()
    }
}

/// First byte and the byte after the last of a single range; an empty one if it is not satisfiable, `None` if the
/// field is none that an origin has to know (RFC 9110 section 14.1.2).
pub fn range_of(value: &str, len: usize) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix: usize = last.parse().ok()?;
        return Some((len.saturating_sub(suffix), len));
    }
    let first: usize = first.parse().ok()?;
    let end = if last.is_empty() { len } else { last.parse::<usize>().ok()?.saturating_add(1) };
    Some((first, end.min(len)))
}

/// A request's bytes.
pub fn request_bytes(request: &Request) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.target);
    request.fields.write(&mut text);
    text.push_str("\r\n");
    if request.method == "POST" {
        text.push_str(POST_BODY);
    }
    text.into_bytes()
}

impl Plan {
    /// Bytes of the interim reply, the head and the first half of the body; and the second half of the body.
    pub fn bytes(&self, sent: &Sent, method: &str) -> (Vec<u8>, Vec<u8>) {
        let mut text = String::new();
        if self.has_interim {
            text.push_str("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
        }
        let _ = write!(text, "HTTP/1.1 {} Status\r\n", sent.status);
        sent.fields.write(&mut text);
        let bodiless = matches!(sent.status, 204 | 304);
        match self.framing {
            _ if bodiless => {}
            "chunked" => text.push_str("Transfer-Encoding: chunked\r\n"),
            "close" => text.push_str("Connection: close\r\n"),
            _ => {
                let _ = write!(text, "Content-Length: {}\r\n", sent.body.len());
            }
        }
        text.push_str("\r\n");
        let mut first = text.into_bytes();
        if bodiless || method == "HEAD" {
            return (first, Vec::new());
        }
        let (left, right) = sent.body.split_at(sent.body.len() / 2);
        let mut second = Vec::new();
        for (half, out) in [(left, &mut first), (right, &mut second)] {
            match self.framing {
                "chunked" if half.is_empty() => {}
                "chunked" => {
                    out.extend(format!("{:x}\r\n", half.len()).bytes());
                    out.extend(half);
                    out.extend(b"\r\n");
                }
                _ => out.extend(half),
            }
        }
        if self.framing == "chunked" {
            second.extend(b"0\r\n\r\n");
        }
        (first, second)
    }

    /// Whether the connection ends after the reply.
    pub fn closes(&self, sent: &Sent) -> bool {
        self.is_cut || (self.framing == "close" && !matches!(sent.status, 204 | 304))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_an_origin_must() {
        for (value, expected) in [
            ("bytes=0-9", Some((0, 10))),
            ("bytes=-5", Some((15, 20))),
            ("bytes=-50", Some((0, 20))),
            ("bytes=18-", Some((18, 20))),
            ("bytes=30-", Some((30, 20))),
            ("bytes=0-1,4-5", None),
            ("lines=1-2", None),
        ] {
            assert_eq!(range_of(value, 20), expected, "{value}");
        }
    }
}
