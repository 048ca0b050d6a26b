//! The head of a reply.

use super::fields::Span;
use super::{Body, Fault, FieldName, Fields, body, line, scan};

/// Memory of a head that is made: enough for most, so that it need not grow with each field.
const ROOM_BYTES: usize = 512;
const ROOM_FIELDS: usize = 16;

/// The head of a reply. Keeps its memory from one reply to the next.
#[derive(Clone, Debug, Default)]
pub struct ReplyHead {
    /// The fields, which may be changed on the way to a client.
    pub fields: Fields,
    status: u16,
    reason: Span,
    is_old: bool,
    /// The body as the fields announce it. The request and the status take precedence.
    announced: Body,
    persistent: bool,
}

impl ReplyHead {
    /// An empty head, to be read into.
    pub const fn new() -> Self {
        Self {
            fields: Fields::new(),
            status: 0,
            reason: Span::NOWHERE,
            is_old: false,
            announced: Body::Close,
            persistent: false,
        }
    }

    /// A head with a status and no fields. The status must have three digits.
    pub fn with_status(status: u16) -> Self {
        let fields = Fields::with_room(ROOM_BYTES, ROOM_FIELDS);
        let mut head = Self { fields, status, persistent: true, ..Self::new() };
        // A reason is far below the limits of a head.
        head.reason = head.fields.add_text(reason(status).as_bytes()).unwrap_or(Span::NOWHERE);
        head
    }

    /// Reads a head that is complete, as [`HeadEnd`](super::HeadEnd) finds it, in place of the one before.
    ///
    /// # Errors
    /// It is no reply, or its body could be read in two ways.
    pub fn read(&mut self, head: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        let mut rest = head;
        let first = line::next(&mut rest);
        let (is_old, status, reason) = status_line(first)?;
        (self.is_old, self.status) = (is_old, status);
        self.reason = self.fields.span_of(head, reason)?;
        self.fields.read(head, head.len() - rest.len())?;
        self.interpret()
    }

    /// Begins a head that did not come as bytes of HTTP/1, in place of the one before. Fields are appended, then [`Self::end`] is called.
    pub(crate) fn begin(&mut self, status: u16) {
        self.fields.clear();
        (self.status, self.is_old) = (status, false);
        // A reason is far below the limits of a head.
        self.reason = self.fields.add_text(reason(status).as_bytes()).unwrap_or(Span::NOWHERE);
    }

    /// Ends such a head. `is_empty`: no contents follow, whether or not a length says so.
    pub(crate) fn end(&mut self, is_empty: bool) -> Result<(), Fault> {
        self.interpret()?;
        if is_empty && self.announced == Body::Close {
            self.announced = Body::Length(0);
        }
        Ok(())
    }

    /// Reads what the fields say of the message itself.
    fn interpret(&mut self) -> Result<(), Fault> {
        let (mut length, mut chunks, mut persistent) = (None, false, !self.is_old);
        for field in self.fields.iter() {
            match field.kind {
                FieldName::Connection => {
                    for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        if option.eq_ignore_ascii_case(b"close") {
                            persistent = false;
                        } else if self.is_old && option.eq_ignore_ascii_case(b"keep-alive") {
                            persistent = true;
                        }
                    }
                }
                FieldName::ContentLength => {
                    let bytes = body::length(field.value).ok_or(Fault::Length)?;
                    if length.replace(bytes).is_some_and(|before| before != bytes) {
                        return Err(Fault::Length);
                    }
                }
                FieldName::TransferEncoding => {
                    let first = !std::mem::replace(&mut chunks, true);
                    if self.is_old || !first || !field.value.eq_ignore_ascii_case(b"chunked") {
                        return Err(Fault::Coding);
                    }
                }
                _ => {}
            }
        }
        self.announced = match (length, chunks) {
            (Some(_), true) => return Err(Fault::TwoLengths),
            (None, true) => Body::Chunks,
            (Some(bytes), false) => Body::Length(bytes),
            (None, false) => Body::Close,
        };
        self.persistent = persistent;
        Ok(())
    }

    /// The status.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The words after the status; often empty.
    pub fn reason(&self) -> &[u8] {
        self.reason.of(self.fields.text())
    }

    /// Whether this is a reply of HTTP/1.0.
    pub const fn is_http10(&self) -> bool {
        self.is_old
    }

    /// Whether another reply to the same request follows (RFC 9110 section 15.2). 101 is the last one of HTTP.
    pub const fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// The way in which the body is delimited, if the request had this method (RFC 9112 section 6.3). A tunnel begins after a 101 and
    /// after a 2xx to CONNECT, which have no body.
    pub fn body(&self, method: &[u8]) -> Body {
        match self.status {
            100..=199 | 204 | 304 => Body::None,
            200..=299 if method == b"CONNECT" => Body::None,
            _ if method == b"HEAD" => Body::None,
            _ if self.announced == Body::Length(0) => Body::None,
            _ => self.announced,
        }
    }

    /// The length that the fields state, whether or not there is a body.
    pub const fn stated_length(&self) -> Option<u64> {
        match self.announced {
            Body::Length(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Whether the server lets the connection go on after this reply (RFC 9112 section 9.3), if the end of its body is known.
    pub const fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Gives back memory beyond `bytes` when the reply has ended.
    pub fn shrink(&mut self, bytes: usize) {
        self.fields.shrink(bytes);
    }

    /// Writes the head as one of HTTP/1.1, with the fields as they are now.
    pub fn write(&self, out: &mut Vec<u8>) {
        let digit = |value: u16| b'0' + (value % 10) as u8;
        let status = [digit(self.status / 100), digit(self.status / 10), digit(self.status)];
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&status);
        out.push(b' ');
        out.extend_from_slice(self.reason());
        out.extend_from_slice(b"\r\n");
        self.fields.write(out);
        out.extend_from_slice(b"\r\n");
    }
}

/// Whether the version is 1.0, the status and the reason. The space after the status may be missing, as some servers leave it out.
fn status_line(line: &[u8]) -> Result<(bool, u16, &[u8]), Fault> {
    let (version, rest) = line.split_at_checked(b"HTTP/1.1 ".len()).ok_or(Fault::StatusLine)?;
    let is_old = match version {
        b"HTTP/1.1 " => false,
        b"HTTP/1.0 " => true,
        _ => return Err(Fault::StatusLine),
    };
    let (status, reason) = match rest {
        [a @ b'1'..=b'9', b, c, rest @ ..] if b.is_ascii_digit() && c.is_ascii_digit() => {
            let digits = [*a, *b, *c];
            (digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')), rest)
        }
        _ => return Err(Fault::StatusLine),
    };
    let reason = match reason {
        [] => reason,
        [b' ', reason @ ..] => reason,
        _ => return Err(Fault::StatusLine),
    };
    if scan::is_text(reason) { Ok((is_old, status, reason)) } else { Err(Fault::StatusLine) }
}

/// The words for a status that is registered (RFC 9110 section 15, RFC 6585 and RFC 8297).
const fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        511 => "Network Authentication Required",
        _ => "",
    }
}
