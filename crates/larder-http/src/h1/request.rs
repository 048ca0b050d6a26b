//! The head of a request.

use super::fields::Span;
use super::{Body, FIELDS_MAX, Fault, FieldName, Fields, body, is_host, line, scan};
use memchr::memchr;

/// The form of a request target (RFC 9112 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `/path?query`.
    #[default]
    Origin,
    /// `http://host/path?query`.
    Absolute,
    /// `host:port`, with CONNECT.
    Authority,
    /// `*`, with OPTIONS.
    Asterisk,
}

/// The HTTP version of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0 (RFC 1945).
    Http10,
    /// HTTP/1.1 (RFC 9112).
    #[default]
    Http11,
    /// HTTP/2 (RFC 9113).
    Http2,
}

/// The head of a request. The memory is kept from one request to the next.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// The fields. They may be changed before the request is sent to a server.
    pub fields: Fields,
    method: Span,
    target: Span,
    form: Form,
    version: Version,
    body: Body,
    upgrade: bool,
    persistent: bool,
    expects_continue: bool,
    /// The complete body is in memory.
    holds_body: bool,
}

impl RequestHead {
    /// Creates an empty head, for [`Self::read`].
    pub const fn new() -> Self {
        const EMPTY: Span = Span::EMPTY;
        Self {
            fields: Fields::new(),
            method: EMPTY,
            target: EMPTY,
            form: Form::Origin,
            version: Version::Http11,
            body: Body::None,
            upgrade: false,
            persistent: false,
            expects_continue: false,
            holds_body: false,
        }
    }

    /// Reads a complete head, as [`HeadEnd`](super::HeadEnd) finds it. The previous contents are replaced.
    ///
    /// # Errors
    /// The head is malformed, or two parsers could read it differently.
    pub fn read(&mut self, head: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        let mut rest = head;
        let first = line::take_line(&mut rest);
        let (method, target, version) = parse_request_line(first)?;
        self.method = self.fields.span_in(head, method)?;
        self.target = self.fields.span_in(head, target)?;
        self.version = version;
        self.fields.read(head, head.len() - rest.len())?;
        self.interpret_fields()
    }

    /// Starts a head that arrived over HTTP/2. The previous contents are replaced. The caller appends fields,
    /// and then calls [`Self::end`].
    ///
    /// # Errors
    /// The method or the target has a character that is not allowed.
    pub(crate) fn begin(&mut self, method: &[u8], target: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        if !scan::is_token(method) {
            return Err(Fault::RequestLine);
        }
        self.method = self.fields.append_text(method)?;
        self.version = Version::Http2;
        self.set_target(target)
    }

    /// Ends a head that was started with [`Self::begin`]. `has_body` is true if the end of the stream has not
    /// arrived with the head.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub(crate) fn end(&mut self, has_body: bool) -> Result<(), Fault> {
        if self.fields.len() > FIELDS_MAX {
            return Err(Fault::TooLarge);
        }
        self.interpret_fields()?;
        // Chunked coding and `Upgrade` concern one HTTP/1 connection (RFC 9113 section 8.2.2). The target of
        // an HTTP/2 request contains no host.
        if self.body == Body::Chunks || self.upgrade || self.form == Form::Absolute {
            return Err(Fault::Field);
        }
        if has_body && self.body == Body::None {
            // A length of zero does not end the stream. The data that follows shows whether the length was
            // correct.
            self.body = Body::Chunks;
        }
        if self.method() == b"TRACE" && has_body { Err(Fault::Body) } else { Ok(()) }
    }

    /// Reads the fields that concern the message itself.
    fn interpret_fields(&mut self) -> Result<(), Fault> {
        let is_http10 = self.is_http10();
        let mut facts = FieldFacts { persistent: !is_http10, ..FieldFacts::default() };
        for field in self.fields.iter() {
            facts.add(field.kind, field.value, is_http10)?;
        }
        let FieldFacts { host, length, chunks, upgrade, persistent, expects_continue } = facts;
        let (method, target) = (self.method(), self.target());
        let form = target_form(method, target, host, is_http10)?;
        let body = match (length, chunks) {
            (Some(_), true) => return Err(Fault::LengthAndCoding),
            (_, true) if is_http10 => return Err(Fault::Coding),
            (None, true) => Body::Chunks,
            (None | Some(0), false) => Body::None,
            (Some(bytes), false) => Body::Length(bytes),
        };
        if method == b"TRACE" && body != Body::None {
            return Err(Fault::Body);
        }
        (self.form, self.body, self.upgrade) = (form, body, upgrade);
        (self.persistent, self.expects_continue, self.holds_body) = (persistent, expects_continue, false);
        Ok(())
    }

    /// Returns the method.
    pub fn method(&self) -> &[u8] {
        self.method.slice(self.fields.text())
    }

    /// Returns the target.
    pub fn target(&self) -> &[u8] {
        self.target.slice(self.fields.text())
    }

    /// Replaces the target.
    ///
    /// # Errors
    /// The target is empty, or has a character that is not allowed in a target.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), Fault> {
        if !scan::is_target(target) {
            return Err(Fault::Target);
        }
        self.target = self.fields.append_text(target)?;
        Ok(())
    }

    /// Returns the form of the received target.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Returns whether the request is of HTTP/1.0.
    pub const fn is_http10(&self) -> bool {
        matches!(self.version, Version::Http10)
    }

    /// Returns the version with which the request arrived. Servers receive requests over HTTP/1.1 or HTTP/2.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the delimitation of the body. An HTTP/2 body without a length is [`Body::Chunks`], as it is
    /// sent to an HTTP/1 server.
    pub const fn body(&self) -> Body {
        self.body
    }

    /// Delimits a body of which all `bytes` are in memory, whatever its delimitation was. The client has sent it, so it
    /// waits for no 100.
    pub(crate) fn hold_body(&mut self, bytes: u64) {
        self.body = if bytes == 0 { Body::None } else { Body::Length(bytes) };
        (self.expects_continue, self.holds_body) = (false, true);
        self.fields.remove(b"expect");
    }

    /// Returns whether the complete body is in memory.
    pub(crate) const fn holds_body(&self) -> bool {
        self.holds_body
    }

    /// Returns whether the request has an `Upgrade` field, so that another protocol may follow (RFC 9110 section
    /// 7.8).
    pub const fn asks_for_upgrade(&self) -> bool {
        self.upgrade
    }

    /// Returns whether the client keeps the connection open after the reply (RFC 9112 section 9.3).
    pub const fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Returns whether the client waits for an interim reply before it sends the body (RFC 9110 section
    /// 10.1.1).
    pub const fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Returns the host and port in a target of absolute form.
    pub fn authority(&self) -> Option<&[u8]> {
        parse_authority(self.target())
    }

    /// Returns whether the method is idempotent: executing the request twice has the effect of executing it
    /// once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
    }

    /// Releases memory beyond `bytes` bytes after the request.
    pub fn shrink(&mut self, bytes: usize) {
        self.fields.shrink(bytes);
    }

    /// Writes the head as HTTP/1.1, with the current fields.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method());
        out.push(b' ');
        out.extend_from_slice(self.target());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        self.fields.write(out);
        out.extend_from_slice(b"\r\n");
    }
}

/// The facts about a request that its fields state.
#[derive(Default)]
struct FieldFacts<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunks: bool,
    upgrade: bool,
    persistent: bool,
    expects_continue: bool,
}

impl<'a> FieldFacts<'a> {
    /// Adds the facts in one field.
    fn add(&mut self, kind: FieldName, value: &'a [u8], is_http10: bool) -> Result<(), Fault> {
        match kind {
            FieldName::Host => ensure(self.host.replace(value).is_none() && is_host(value), Fault::Host)?,
            FieldName::Upgrade => self.upgrade = true,
            FieldName::Connection => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    // A proxy would remove the host.
                    ensure(!option.eq_ignore_ascii_case(b"host"), Fault::Host)?;
                    if option.eq_ignore_ascii_case(b"close") {
                        self.persistent = false;
                    } else if is_http10 && option.eq_ignore_ascii_case(b"keep-alive") {
                        self.persistent = true;
                    }
                }
            }
            FieldName::ContentLength => {
                let length = body::parse_content_length(value).ok_or(Fault::Length)?;
                ensure(self.length.replace(length).is_none(), Fault::Length)?;
            }
            FieldName::TransferEncoding => {
                let first = !std::mem::replace(&mut self.chunks, true);
                ensure(first && value.eq_ignore_ascii_case(b"chunked"), Fault::Coding)?;
            }
            FieldName::Expect => {
                self.expects_continue |= !is_http10 && value.eq_ignore_ascii_case(b"100-continue");
            }
            FieldName::Other => {}
        }
        Ok(())
    }
}

/// Returns `fault` unless `holds` is true.
fn ensure(holds: bool, fault: Fault) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault) }
}

/// Parses a request line (RFC 9112 section 3). Returns the method, the target and the version.
fn parse_request_line(line: &[u8]) -> Result<(&[u8], &[u8], Version), Fault> {
    let space = |bytes| memchr(b' ', bytes).ok_or(Fault::RequestLine);
    let (method, rest) = line.split_at(space(line)?);
    let rest = &rest[1..];
    let (target, version) = rest.split_at(space(rest)?);
    let version = match &version[1..] {
        b"HTTP/1.1" => Version::Http11,
        b"HTTP/1.0" => Version::Http10,
        _ => return Err(Fault::RequestLine),
    };
    if !scan::is_token(method) {
        return Err(Fault::RequestLine);
    }
    if !scan::is_target(target) {
        return Err(Fault::Target);
    }
    Ok((method, target, version))
}

/// Returns the form of a target.
///
/// # Errors
/// The target does not suit the method or the `Host` field.
fn target_form(method: &[u8], target: &[u8], host: Option<&[u8]>, is_http10: bool) -> Result<Form, Fault> {
    if host.is_none() && !is_http10 {
        return Err(Fault::Host);
    }
    match target {
        [b'/', ..] => Ok(Form::Origin),
        b"*" if method == b"OPTIONS" => Ok(Form::Asterisk),
        // The target needs no check, because no tunnel is opened.
        _ if method == b"CONNECT" => Ok(Form::Authority),
        absolute => {
            let authority = parse_authority(absolute).ok_or(Fault::Target)?;
            if authority.is_empty() || host.is_some_and(|host| !host.eq_ignore_ascii_case(authority)) {
                return Err(Fault::Host);
            }
            if is_host(authority) { Ok(Form::Absolute) } else { Err(Fault::Target) }
        }
    }
}

/// Returns the authority in `http://authority/path` or `https://authority/path`.
fn parse_authority(target: &[u8]) -> Option<&[u8]> {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    })?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some(&rest[..end])
}
