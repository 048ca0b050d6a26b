//! The head of a request.

use super::fields::Span;
use super::{Body, FIELDS_MAX, Fault, FieldName, Fields, body, is_host, line, scan};
use memchr::memchr;

/// The form of a request's target (RFC 9112 section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `/path?query`.
    #[default]
    Origin,
    /// `http://host/path?query`.
    Absolute,
    /// `host:port`, of CONNECT.
    Authority,
    /// `*`, of OPTIONS.
    Asterisk,
}

/// The version of HTTP by which a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RFC 1945.
    Http10,
    /// RFC 9112.
    #[default]
    Http11,
    /// RFC 9113.
    Http2,
}

/// The head of a request. Keeps its memory from one request to the next.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// The fields, which may be changed on the way to a server.
    pub fields: Fields,
    method: Span,
    target: Span,
    form: Form,
    version: Version,
    body: Body,
    upgrade: bool,
    persistent: bool,
    expects_continue: bool,
}

impl RequestHead {
    /// An empty head, to be read into.
    pub const fn new() -> Self {
        const NOWHERE: Span = Span::NOWHERE;
        Self {
            fields: Fields::new(),
            method: NOWHERE,
            target: NOWHERE,
            form: Form::Origin,
            version: Version::Http11,
            body: Body::None,
            upgrade: false,
            persistent: false,
            expects_continue: false,
        }
    }

    /// Reads a head that is complete, as [`HeadEnd`](super::HeadEnd) finds it, in place of the one before.
    ///
    /// # Errors
    /// It is no request, or could be read as two different ones.
    pub fn read(&mut self, head: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        let mut rest = head;
        let first = line::next(&mut rest);
        let (method, target, version) = request_line(first)?;
        self.method = self.fields.span_of(head, method)?;
        self.target = self.fields.span_of(head, target)?;
        self.version = version;
        self.fields.read(head, head.len() - rest.len())?;
        self.interpret()
    }

    /// Begins a head that came by HTTP/2, in place of the one before. Fields are appended, then [`Self::end`] is called.
    ///
    /// # Errors
    /// The method or the target has a character that it may not have.
    pub(crate) fn begin(&mut self, method: &[u8], target: &[u8]) -> Result<(), Fault> {
        self.fields.clear();
        if !scan::is_token(method) {
            return Err(Fault::RequestLine);
        }
        self.method = self.fields.add_text(method)?;
        self.version = Version::Http2;
        self.set_target(target)
    }

    /// Ends such a head. `has_body`: the end of the stream has not come with it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn end(&mut self, has_body: bool) -> Result<(), Fault> {
        if self.fields.len() > FIELDS_MAX {
            return Err(Fault::TooLarge);
        }
        self.interpret()?;
        // These concern one connection of HTTP/1 (RFC 9113 section 8.2.2), and a target names no host.
        if self.body == Body::Chunks || self.upgrade || self.form == Form::Absolute {
            return Err(Fault::Field);
        }
        if has_body && self.body == Body::None {
            // A length of zero does not end the stream, and what follows shows whether it was true.
            self.body = Body::Chunks;
        }
        if self.method() == b"TRACE" && has_body { Err(Fault::Body) } else { Ok(()) }
    }

    /// Reads what the fields say of the message itself.
    fn interpret(&mut self) -> Result<(), Fault> {
        let is_old = self.is_http10();
        let mut facts = Facts { persistent: !is_old, ..Facts::default() };
        for field in self.fields.iter() {
            facts.note(field.kind, field.value, is_old)?;
        }
        let Facts { host, length, chunks, upgrade, persistent, expects_continue } = facts;
        let (method, target) = (self.method(), self.target());
        let form = form(method, target, host, is_old)?;
        let body = match (length, chunks) {
            (Some(_), true) => return Err(Fault::TwoLengths),
            (_, true) if is_old => return Err(Fault::Coding),
            (None, true) => Body::Chunks,
            (None | Some(0), false) => Body::None,
            (Some(bytes), false) => Body::Length(bytes),
        };
        if method == b"TRACE" && body != Body::None {
            return Err(Fault::Body);
        }
        (self.form, self.body, self.upgrade) = (form, body, upgrade);
        (self.persistent, self.expects_continue) = (persistent, expects_continue);
        Ok(())
    }

    /// The method.
    pub fn method(&self) -> &[u8] {
        self.method.of(self.fields.text())
    }

    /// The target.
    pub fn target(&self) -> &[u8] {
        self.target.of(self.fields.text())
    }

    /// Gives the request another target.
    ///
    /// # Errors
    /// It is empty, or has a character that no target may have.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), Fault> {
        if !scan::is_target(target) {
            return Err(Fault::Target);
        }
        self.target = self.fields.add_text(target)?;
        Ok(())
    }

    /// The form of the target that came.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Whether this is a request of HTTP/1.0.
    pub const fn is_http10(&self) -> bool {
        matches!(self.version, Version::Http10)
    }

    /// The version by which the request came. It goes to servers by HTTP/1.1 or HTTP/2.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The way in which the body is delimited. A body of HTTP/2 without a length is [`Body::Chunks`], as a server of HTTP/1 gets it.
    pub const fn body(&self) -> Body {
        self.body
    }

    /// Whether there is an `Upgrade`: what follows may be another protocol (RFC 9110 section 7.8).
    pub const fn asks_for_upgrade(&self) -> bool {
        self.upgrade
    }

    /// Whether the client lets the connection go on after the reply (RFC 9112 section 9.3).
    pub const fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Whether the client waits for an interim reply before it sends the body (RFC 9110 section 10.1.1).
    pub const fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// The host and port in a target of absolute form.
    pub fn authority(&self) -> Option<&[u8]> {
        authority(self.target())
    }

    /// Whether a server may execute the request twice with the effect of once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
    }

    /// Gives back memory beyond `bytes` when the request has ended.
    pub fn shrink(&mut self, bytes: usize) {
        self.fields.shrink(bytes);
    }

    /// Writes the head as one of HTTP/1.1, with the fields as they are now.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method());
        out.push(b' ');
        out.extend_from_slice(self.target());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        self.fields.write(out);
        out.extend_from_slice(b"\r\n");
    }
}

/// The facts about a message in its fields.
#[derive(Default)]
struct Facts<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunks: bool,
    upgrade: bool,
    persistent: bool,
    expects_continue: bool,
}

impl<'a> Facts<'a> {
    fn note(&mut self, kind: FieldName, value: &'a [u8], is_old: bool) -> Result<(), Fault> {
        match kind {
            FieldName::Host => ensure(self.host.replace(value).is_none() && is_host(value), Fault::Host)?,
            FieldName::Upgrade => self.upgrade = true,
            FieldName::Connection => {
                for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    // A proxy would remove the host.
                    ensure(!option.eq_ignore_ascii_case(b"host"), Fault::Host)?;
                    if option.eq_ignore_ascii_case(b"close") {
                        self.persistent = false;
                    } else if is_old && option.eq_ignore_ascii_case(b"keep-alive") {
                        self.persistent = true;
                    }
                }
            }
            FieldName::ContentLength => {
                let length = body::length(value).ok_or(Fault::Length)?;
                ensure(self.length.replace(length).is_none(), Fault::Length)?;
            }
            FieldName::TransferEncoding => {
                let first = !std::mem::replace(&mut self.chunks, true);
                ensure(first && value.eq_ignore_ascii_case(b"chunked"), Fault::Coding)?;
            }
            FieldName::Expect => {
                self.expects_continue |= !is_old && value.eq_ignore_ascii_case(b"100-continue");
            }
            FieldName::Other => {}
        }
        Ok(())
    }
}

fn ensure(holds: bool, fault: Fault) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault) }
}

/// Method, target and version.
fn request_line(line: &[u8]) -> Result<(&[u8], &[u8], Version), Fault> {
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

/// The form of the target, which must suit the method and the host.
fn form(method: &[u8], target: &[u8], host: Option<&[u8]>, is_old: bool) -> Result<Form, Fault> {
    if host.is_none() && !is_old {
        return Err(Fault::Host);
    }
    match target {
        [b'/', ..] => Ok(Form::Origin),
        b"*" if method == b"OPTIONS" => Ok(Form::Asterisk),
        // Whatever it names, no tunnel is opened.
        _ if method == b"CONNECT" => Ok(Form::Authority),
        absolute => {
            let authority = authority(absolute).ok_or(Fault::Target)?;
            if authority.is_empty() || host.is_some_and(|host| !host.eq_ignore_ascii_case(authority)) {
                return Err(Fault::Host);
            }
            if is_host(authority) { Ok(Form::Absolute) } else { Err(Fault::Target) }
        }
    }
}

/// The authority in `http://authority/path` and `https://authority/path`.
fn authority(target: &[u8]) -> Option<&[u8]> {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    })?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some(&rest[..end])
}
