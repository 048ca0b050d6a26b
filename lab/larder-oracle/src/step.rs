//! Converts the values of a case into bytes: requests of clients, and replies of an origin that conforms to RFC 9110.

use crate::case::{CLIENTS, Case, RELAYS, Step};
use crate::catalogue::{CLOSE_BEFORE_HEAD, CLOSE_IN_BODY, reply, request};
use crate::record::{BODY_MARK, Clock, OriginReply, RENEWAL_MARK, REQUEST_MARK, Request};
use crate::wire::{Fields, Head};
use std::fmt::Write as _;

/// Body of a POST.
const POST_BODY: &str = "hello";

/// A step of a case, with the case's clock.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The case.
    pub case: &'a Case,
    /// The clock of the case.
    pub clock: &'a Clock,
    /// Index of the step.
    pub step: usize,
}

/// The origin's action on a request.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The reply; `None` if the origin closes the connection before the head.
    pub reply: Option<OriginReply>,
    /// Framing of the body: "length", "chunked" or "close".
    pub framing: &'static str,
    /// Whether the origin closes the connection within the body.
    pub is_cut: bool,
    /// Whether the origin sends 103 first.
    pub has_interim: bool,
}

impl StepContext<'_> {
    fn step(&self) -> &Step {
        &self.case.steps[self.step]
    }

    /// The request of the step. `mark` is unique to step and run.
    pub fn request(&self, path: &str, mark: &str) -> Request {
        let step = self.step();
        let host = step.request_value(request::HOST);
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
            fields.extend(&Fields::of_lines(&self.expand(step.request_value(dimension), 0)));
        }
        let method = step.request_value(request::METHOD).to_owned();
        if method == "POST" {
            fields.push("content-length", POST_BODY.len().to_string());
        }
        let target = format!("{path}{}", step.request_value(request::QUERY));
        Request { method, host: host.to_ascii_lowercase(), target, relayed: RELAYS[step.client], fields }
    }

    /// Replaces the variables of [`crate::catalogue`].
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
        Fields::of_lines(&self.expand(self.step().reply_value(dimension), exchange))
    }

    /// Returns the origin's action on a request of this step. The request is the exchange with this number.
    pub fn plan(&self, request: &Head, exchange: usize) -> Plan {
        let step = self.step();
        let has_interim = !step.reply_value(reply::INTERIM).is_empty();
        if matches!(request.method.as_str(), "GET" | "HEAD")
            && let Some(tag) = self.matches(&request.fields)
            && let Some(reply) = self.validation(tag.as_deref(), exchange)
        {
            return Plan { reply, framing: "length", is_cut: false, has_interim };
        }
        let status = step.reply_value(reply::STATUS);
        let is_cut = status == CLOSE_IN_BODY;
        let framing = match step.reply_value(reply::FRAMING) {
            // With "close", a body that is cut would look complete.
            "close" if is_cut => "length",
            framing => framing,
        };
        let reply = (status != CLOSE_BEFORE_HEAD).then(|| {
            let full = self.full(status.parse().unwrap_or(200), exchange, is_cut);
            if full.status == 200 && request.method == "GET" { self.part(request, full) } else { full }
        });
        Plan { reply, framing, is_cut, has_interim }
    }

    /// Checks the request's precondition. Returns the matching entity tag; `Some(None)` if the date matches.
    fn matches(&self, request: &Fields) -> Option<Option<String>> {
        if let Some(tags) = request.joined("if-none-match") {
            let known = (0..self.case.steps.len()).filter_map(|step| StepContext { step, ..*self }.tag());
            return known.map(Some).find(|tag| {
                let plain = tag.as_deref().unwrap_or_default().trim_start_matches("W/");
                tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == plain)
            });
        }
        let since = httpdate::parse_http_date(request.first("if-modified-since")?).ok()?;
        let validators = self.lines(reply::VALIDATOR, 0);
        let modified = httpdate::parse_http_date(validators.first("last-modified")?).ok()?;
        (since >= modified).then_some(None)
    }

    fn tag(&self) -> Option<String> {
        self.lines(reply::VALIDATOR, 0).first("etag").map(str::to_owned)
    }

    /// The reply to a matching precondition. `None` means that the origin ignores the precondition, `Some(None)` that it closes
    /// the connection.
    fn validation(&self, tag: Option<&str>, exchange: usize) -> Option<Option<OriginReply>> {
        let text = self.expand(self.step().reply_value(reply::VALIDATION), exchange);
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
                return Some(Some(OriginReply { status: status.parse().unwrap_or(500), fields, body }));
            }
        }
        let changed = Fields::of_lines(lines);
        fields.push("date", self.clock.date(0));
        for dimension in [reply::CACHE_CONTROL, reply::TARGETED, reply::EXPIRES, reply::VARY] {
            let kept = self.lines(dimension, exchange);
            // A new `Cache-Control` replaces all freshness fields of the step.
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
        Some(Some(OriginReply { status: 304, fields, body: Vec::new() }))
    }

    fn full(&self, status: u16, exchange: usize, is_cut: bool) -> OriginReply {
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
        if step.reply_value(reply::CACHE_CONTROL).contains("x-secret") {
            fields.push("x-secret", exchange.to_string());
        }
        if matches!(status, 300..=308) {
            fields.push("location", "/elsewhere");
        }
        fields.push(BODY_MARK, exchange.to_string());
        let len: usize = step.reply_value(reply::LENGTH).parse().unwrap_or(0);
        let len = if is_cut { len.max(200) } else { len };
        let body = if status == 204 { Vec::new() } else { self.body(exchange, len) };
        OriginReply { status, fields, body }
    }

    /// The part of a reply for `Range`, if the origin supports ranges (RFC 9110 section 14.2).
    fn part(&self, request: &Head, full: OriginReply) -> OriginReply {
        let Some(range) = request.fields.first("range") else { return full };
        let strong = self.tag().filter(|tag| tag.starts_with('"'));
        let applies = request.fields.first("if-range").is_none_or(|tag| strong.as_deref() == Some(tag));
        if self.step().reply_value(reply::PARTIAL) != "206" || !applies {
            return full;
        }
        let len = full.body.len();
        let Some((first, end)) = parse_range(range, len) else { return full };
        let mut fields = full.fields;
        if first >= end {
            fields.push("content-range", format!("bytes */{len}"));
            return OriginReply { status: 416, fields, body: Vec::new() };
        }
        fields.push("content-range", format!("bytes {first}-{}/{len}", end - 1));
        OriginReply { status: 206, fields, body: full.body[first..end].to_vec() }
    }

    /// A body that contains the number of its exchange, and whose parts all differ.
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

/// Parses a single range into its first byte and the byte after its last. The range is empty if it is not satisfiable. `None` if
/// an origin may ignore the field (RFC 9110 section 14.1.2).
pub fn parse_range(value: &str, len: usize) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix: usize = last.parse().ok()?;
        return Some((len.saturating_sub(suffix), len));
    }
    let first: usize = first.parse().ok()?;
    let end = if last.is_empty() { len } else { last.parse::<usize>().ok()?.saturating_add(1) };
    Some((first, end.min(len)))
}

/// Encodes a request.
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
    /// Encodes the interim reply, the head and the first half of the body; and separately the second half of the body.
    pub fn bytes(&self, reply: &OriginReply, method: &str) -> (Vec<u8>, Vec<u8>) {
        let mut text = String::new();
        if self.has_interim {
            text.push_str("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
        }
        let _ = write!(text, "HTTP/1.1 {} Status\r\n", reply.status);
        reply.fields.write(&mut text);
        let bodiless = matches!(reply.status, 204 | 304);
        match self.framing {
            _ if bodiless => {}
            "chunked" => text.push_str("Transfer-Encoding: chunked\r\n"),
            "close" => text.push_str("Connection: close\r\n"),
            _ => {
                let _ = write!(text, "Content-Length: {}\r\n", reply.body.len());
            }
        }
        text.push_str("\r\n");
        let mut first = text.into_bytes();
        if bodiless || method == "HEAD" {
            return (first, Vec::new());
        }
        let (left, right) = reply.body.split_at(reply.body.len() / 2);
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

    /// Whether the connection is closed after the reply.
    pub fn closes(&self, reply: &OriginReply) -> bool {
        self.is_cut || (self.framing == "close" && !matches!(reply.status, 204 | 304))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_by_an_origin() {
        for (value, expected) in [
            ("bytes=0-9", Some((0, 10))),
            ("bytes=-5", Some((15, 20))),
            ("bytes=-50", Some((0, 20))),
            ("bytes=18-", Some((18, 20))),
            ("bytes=30-", Some((30, 20))),
            ("bytes=0-1,4-5", None),
            ("lines=1-2", None),
        ] {
            assert_eq!(parse_range(value, 20), expected, "{value}");
        }
    }
}
