//! The head of a reply.

use super::fields::Span;
use super::{Body, Fault, FieldName, Fields, body, line, scan};

/// Initial memory for a generated head. It is enough for most heads, so that appending fields needs no
/// reallocation.
const INITIAL_BYTES: usize = 512;
const INITIAL_FIELDS: usize = 16;

/// The head of a reply. The memory is kept from one reply to the next.
#[derive(Clone, Debug, Default)]
pub struct ReplyHead {
    /// The fields. They may be changed before the reply is sent to the client.
    pub fields: Fields,
    status: u16,
    reason: Span,
    is_http10: bool,
    /// The delimitation that the fields declare. The method of the request and the status take precedence.
    declared: Body,
    persistent: bool,
}

impl ReplyHead {
    /// Creates an empty head, for [`Self::read`].
    pub const fn new() -> Self {
        Self {
            fields: Fields::new(),
            status: 0,
            reason: Span::EMPTY,
            is_http10: false,
            declared: Body::Close,
            persistent: false,
        }
    }

    /// Creates a head without fields. The status must have three digits.
    pub fn with_status(status: u16) -> Self {
        let fields = Fields::with_capacity(INITIAL_BYTES, INITIAL_FIELDS);
        let mut head = Self { fields, status, persistent: true, ..Self::new() };
        // A reason phrase is far below the limits of a head.
        head.reason = head.fields.append_text(reason_phrase(status).as_bytes()).unwrap_or(Span::EMPTY);
        head
    }

    /// Reads a complete head, as [`HeadEnd`](super::HeadEnd) finds it. The previous contents are replaced.
    ///
    /// # Errors
    /// The head is malformed, or the body could be delimited in two ways.
    pub fn read(&mut self, head: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        let mut rest = head;
        let first = line::take_line(&mut rest);
        let (is_http10, status, reason) = parse_status_line(first)?;
        (self.is_http10, self.status) = (is_http10, status);
        self.reason = self.fields.span_in(head, reason)?;
        self.fields.read(head, head.len() - rest.len())?;
        self.interpret_fields()
    }

    /// Starts a head that did not arrive as HTTP/1. The previous contents are replaced. The caller appends
    /// fields, and then calls [`Self::end`].
    pub(crate) fn begin(&mut self, status: u16) {
        self.fields.clear();
        (self.status, self.is_http10) = (status, false);
        // A reason phrase is far below the limits of a head.
        self.reason = self.fields.append_text(reason_phrase(status).as_bytes()).unwrap_or(Span::EMPTY);
    }

    /// Ends a head that was started with [`Self::begin`]. If `is_empty` is true, no content follows, even
    /// without a length field.
    pub(crate) fn end(&mut self, is_empty: bool) -> Result<(), Fault> {
        self.interpret_fields()?;
        if is_empty && self.declared == Body::Close {
            self.declared = Body::Length(0);
        }
        Ok(())
    }

    /// Reads the fields that concern the message itself.
    fn interpret_fields(&mut self) -> Result<(), Fault> {
        let (mut length, mut chunks, mut persistent) = (None, false, !self.is_http10);
        for field in self.fields.iter() {
            match field.kind {
                FieldName::Connection => {
                    for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                        if option.eq_ignore_ascii_case(b"close") {
                            persistent = false;
                        } else if self.is_http10 && option.eq_ignore_ascii_case(b"keep-alive") {
                            persistent = true;
                        }
                    }
                }
                FieldName::ContentLength => {
                    let bytes = body::parse_content_length(field.value).ok_or(Fault::Length)?;
                    if length.replace(bytes).is_some_and(|before| before != bytes) {
                        return Err(Fault::Length);
                    }
                }
                FieldName::TransferEncoding => {
                    let first = !std::mem::replace(&mut chunks, true);
                    if self.is_http10 || !first || !field.value.eq_ignore_ascii_case(b"chunked") {
                        return Err(Fault::Coding);
                    }
                }
                _ => {}
            }
        }
        self.declared = match (length, chunks) {
            (Some(_), true) => return Err(Fault::LengthAndCoding),
            (None, true) => Body::Chunks,
            (Some(bytes), false) => Body::Length(bytes),
            (None, false) => Body::Close,
        };
        self.persistent = persistent;
        Ok(())
    }

    /// Returns the status code.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Returns the reason phrase, which is often empty.
    pub fn reason(&self) -> &[u8] {
        self.reason.slice(self.fields.text())
    }

    /// Returns whether the reply is of HTTP/1.0.
    pub const fn is_http10(&self) -> bool {
        self.is_http10
    }

    /// Returns whether the reply is interim, so that another reply to the request follows (RFC 9110 section
    /// 15.2). After 101, no other HTTP reply follows.
    pub const fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Returns the delimitation of the body for a request with this method (RFC 9112 section 6.3). A 101, and
    /// a 2xx to CONNECT, have no body, because they start a tunnel.
    pub fn body(&self, method: &[u8]) -> Body {
        match self.status {
            100..=199 | 204 | 304 => Body::None,
            200..=299 if method == b"CONNECT" => Body::None,
            _ if method == b"HEAD" => Body::None,
            _ if self.declared == Body::Length(0) => Body::None,
            _ => self.declared,
        }
    }

    /// Returns the length that the fields declare, whether or not the reply has a body.
    pub const fn declared_length(&self) -> Option<u64> {
        match self.declared {
            Body::Length(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether the server keeps the connection open after this reply (RFC 9112 section 9.3). The end
    /// of the body must be known, too.
    pub const fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Releases memory beyond `bytes` bytes after the reply.
    pub fn shrink(&mut self, bytes: usize) {
        self.fields.shrink(bytes);
    }

    /// Writes the head as HTTP/1.1, with the current fields.
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

/// Parses a status line (RFC 9112 section 4). Returns whether the version is 1.0, the status and the reason
/// phrase. The space after the status may be missing, because some servers omit it.
fn parse_status_line(line: &[u8]) -> Result<(bool, u16, &[u8]), Fault> {
    let (version, rest) = line.split_at_checked(b"HTTP/1.1 ".len()).ok_or(Fault::StatusLine)?;
    let is_http10 = match version {
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
    if scan::is_text(reason) { Ok((is_http10, status, reason)) } else { Err(Fault::StatusLine) }
}

/// Returns the reason phrase of a registered status (RFC 9110 section 15, RFC 6585 and RFC 8297).
const fn reason_phrase(status: u16) -> &'static str {
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
