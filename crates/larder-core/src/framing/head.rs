//! A request's head: whether it is one, and what body follows (RFC 9112 sections 3, 5 and 6).

use super::Fault;

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Length(u64),
    Chunks,
}

/// What a head says that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) body: Body,
    /// It asks for another protocol.
    pub(super) upgrade: bool,
}

/// Where a head ends: behind its empty line. The search begins at `from`.
pub(super) fn end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == b'\n')? + 1;
        match bytes.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

/// Reads a head that [`end`] has found.
pub(super) fn read(head: &[u8]) -> Result<Head, Fault> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = RequestLine::read(lines.next().unwrap_or_default())?;
    let mut fields = Fields::default();
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = field(line)?;
        fields.note(name, value)?;
    }
    line.suits(fields.host)?;
    let body = match (fields.length, fields.chunks) {
        (Some(_), true) => return Err(Fault::TwoLengths),
        (_, true) if line.old => return Err(Fault::Coding),
        (None, true) => Body::Chunks,
        (None | Some(0), false) => Body::None,
        (Some(bytes), false) => Body::Length(bytes),
    };
    if line.method == b"TRACE" && body != Body::None {
        return Err(Fault::Body);
    }
    Ok(Head { body, upgrade: fields.upgrade })
}

struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    /// HTTP/1.0.
    old: bool,
}

impl<'a> RequestLine<'a> {
    fn read(line: &'a [u8]) -> Result<Self, Fault> {
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Fault::RequestLine);
        };
        let old = version == b"HTTP/1.0";
        if method.is_empty() || !method.iter().copied().all(is_token) || !old && version != b"HTTP/1.1" {
            return Err(Fault::RequestLine);
        }
        if target.is_empty() || !target.iter().all(|byte| (0x21..0x7f).contains(byte) && *byte != b'#') {
            return Err(Fault::Target);
        }
        Ok(Self { method, target, old })
    }

    /// Whether the target is of a form that its method may have, and goes with the host.
    fn suits(&self, host: Option<&[u8]>) -> Result<(), Fault> {
        if host.is_none() && !self.old {
            return Err(Fault::Host);
        }
        let form = match self.target {
            [b'/', ..] => true,
            b"*" => self.method == b"OPTIONS",
            // Whatever it names, no tunnel is opened.
            _ if self.method == b"CONNECT" => true,
            absolute => {
                let authority = authority(absolute).ok_or(Fault::Target)?;
                if authority.is_empty() || host.is_some_and(|host| !host.eq_ignore_ascii_case(authority)) {
                    return Err(Fault::Host);
                }
                is_host(authority)
            }
        };
        if form { Ok(()) } else { Err(Fault::Target) }
    }
}

/// Of `http://authority/path` and `https://authority/path`.
fn authority(target: &[u8]) -> Option<&[u8]> {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (begin, rest) = target.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    })?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The fields that say where a message ends and whom it is for.
#[derive(Default)]
struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: Option<u64>,
    chunks: bool,
    upgrade: bool,
}

impl<'a> Fields<'a> {
    fn note(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), Fault> {
        // Most names are none of these: their lengths alone tell.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                ensure(self.host.replace(value).is_none() && is_host(value), Fault::Host)?;
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                let mut names = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                // It would be taken off on the way.
                ensure(!names.any(|name| name.eq_ignore_ascii_case(b"host")), Fault::Host)?;
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = number(value).ok_or(Fault::Length)?;
                ensure(self.length.replace(length).is_none(), Fault::Length)?;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                let first = !std::mem::replace(&mut self.chunks, true);
                ensure(first && value.eq_ignore_ascii_case(b"chunked"), Fault::Coding)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn ensure(holds: bool, fault: Fault) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault) }
}

/// A field's name and value, without the white space around the value.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Fault::Field)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err(Fault::Field);
    }
    if !value.iter().copied().all(is_text) {
        return Err(Fault::Control);
    }
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = value.iter().position(|byte| !blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(begin, |at| at + 1);
    Ok((name, &value[begin..end]))
}

/// Digits alone, and fewer than overflow anybody's 64 bits.
fn number(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
        .filter(|number| *number <= i64::MAX as u64)
}

/// A byte of a token (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A byte of a field's value (RFC 9110 section 5.5).
pub(super) fn is_text(byte: u8) -> bool {
    byte >= 0x20 && byte != 0x7f || byte == b'\t'
}

/// Whether this is what `Host` may hold (RFC 9110 section 7.2): a name or an address, and perhaps a port; nothing where there
/// is none. A comma may stand in a name by RFC 3986, but here it can only be between two hosts.
pub fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let address = &rest[..end];
            let valid = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
            if address.is_empty() || !address.iter().all(valid) {
                return false;
            }
            (&b""[..], &rest[end + 1..])
        }
        _ => value.split_at(value.iter().position(|byte| *byte == b':').unwrap_or(value.len())),
    };
    let name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte);
    let digits = match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    host.iter().all(name) && digits
}
