//! Whether the requests on a connection of HTTP/1 have one meaning only.
//!
//! Request smuggling lives on two parsers that read the same bytes differently. The engines that parse here are lenient in
//! places, as most are; so all that a client sends passes by a [`Framing`] first, which knows where each message begins and
//! ends (RFC 9112 sections 2 to 7) and says where it stops being sure. What it lets through is a subset of what RFC 9112
//! allows: a length and chunks at once, a coding other than `chunked`, a length given twice, a control character, a chunk
//! whose size is not plain digits are refused rather than mended. Bare LF as a line's end is let through, as section 2.2 has
//! it.
//!
//! It is a state machine over bytes: bodies are counted, not looked at; a head that comes whole is not copied.

mod head;

pub use head::is_host;
use head::{Body, Head};

/// Bytes of a head or of trailers that are kept while their end is awaited. Whoever reads has a limit below it.
const HELD_MAX: usize = 1 << 20;
/// Bytes behind a chunk's size, before the end of its line.
const EXTENSION_MAX: usize = 4096;
/// Bytes of all trailers.
const TRAILERS_MAX: usize = 8 << 10;

/// Why bytes are no request, or could be taken for two different ones. Fault of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request line is not method, target and version of HTTP/1 with one space between (RFC 9112 section 3).
    RequestLine,
    /// The target is of no form that its method may have, or holds what no target may (RFC 9112 section 3.2).
    Target,
    /// A line is no field, or a field is continued on a further line (RFC 9112 sections 5, 5.2).
    Field,
    /// A control character in a field or a CR without its LF (RFC 9110 section 5.5, RFC 9112 section 2.2).
    Control,
    /// No host, more than one, one that is none, or another than the target names (RFC 9112 section 3.2).
    Host,
    /// The length is no number, or there are several (RFC 9112 section 6.3).
    Length,
    /// A transfer coding other than `chunked` alone, or any in HTTP/1.0 (RFC 9112 section 6.1).
    Coding,
    /// A length and a transfer coding (RFC 9112 section 6.1).
    TwoLengths,
    /// A body where none may be (RFC 9110 section 9.3.8).
    Body,
    /// A chunk's size, or what stands behind it, is not as it must be (RFC 9112 section 7.1).
    Chunk,
    /// A trailer is no field (RFC 9112 section 7.1.2).
    Trailer,
    /// A head or trailers without end.
    TooLarge,
}

/// Where a connection stops making sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Why.
    pub fault: Fault,
    /// How many of the bytes that were looked at last come before it: what is whole, or has begun in earlier bytes, may be served.
    pub good: usize,
}

impl Broken {
    /// What to give the parser instead of the bytes at fault, so that it refuses what it has got of the message: in a head,
    /// in a chunk's size and behind a chunk's data no parser takes it. Nothing where the fault is in trailers, which parsers
    /// skip: there the connection can only end.
    pub const fn poison(&self) -> &'static [u8] {
        match self.fault {
            Fault::Trailer => b"",
            _ => b"\0\0\r\n\r\n",
        }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of a body.
    Body(u64),
    /// A chunk's size: what was read of it.
    Size {
        digits: u8,
        size: u64,
    },
    /// What may stand behind the size, up to the CR: bytes so far, and whether a semicolon was among them.
    Extension {
        size: u64,
        bytes: usize,
        begun: bool,
    },
    /// The LF of a size's line.
    SizeEnd(u64),
    Data(u64),
    /// The CR LF behind a chunk's data: how much of it was there.
    DataEnd(u8),
    Trailers,
    /// Another protocol, perhaps.
    Other,
    Broken(Fault),
}

/// The requests on a connection, as far as they have come.
#[derive(Debug)]
pub struct Framing {
    state: State,
    /// Of a head or trailers whose end has not come.
    held: Vec<u8>,
    /// The request being read asks for another protocol, which begins behind it.
    upgrade: bool,
    /// Bytes have come that may be another protocol's.
    other_seen: bool,
    /// No other protocol is ever spoken.
    http_alone: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

impl Framing {
    /// A connection's, at its beginning or between two requests.
    pub const fn new() -> Self {
        Self { state: State::Head, held: Vec::new(), upgrade: false, other_seen: false, http_alone: false }
    }

    /// The same where no other protocol is ever spoken, whatever requests ask for.
    pub const fn without_upgrades() -> Self {
        let mut framing = Self::new();
        framing.http_alone = true;
        framing
    }

    /// Looks at the next `bytes`.
    ///
    /// # Errors
    /// Where they make no sense any more. From then on nothing does.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        // Where that begins which is being read: a message, or a line of chunks. 0 if it was earlier.
        let (mut at, mut began) = (0, 0);
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Ok((taken, ends)) => {
                    at += taken;
                    began = if ends { at } else { began };
                }
                Err(fault) => {
                    self.state = State::Broken(fault);
                    self.held = Vec::new();
                    return Err(Broken { fault, good: began });
                }
            }
        }
        Ok(())
    }

    /// Whether the last request asks for another protocol. What comes behind it is not looked at.
    pub fn is_other(&self) -> bool {
        self.state == State::Other
    }

    /// Whether bytes have come that may be the other protocol's.
    pub fn has_other(&self) -> bool {
        self.other_seen
    }

    /// The other protocol was refused: requests go on. Not so if bytes have come already that were not looked at; then the
    /// connection must end.
    pub fn go_on(&mut self) -> bool {
        if self.state == State::Other && !self.other_seen {
            self.state = State::Head;
        }
        self.state != State::Other
    }

    /// Takes some of `bytes`, which are not empty: how many, and whether they end what can be refused only as a whole.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        let first = bytes[0];
        match self.state {
            State::Head => self.head(bytes),
            State::Body(left) => Ok((self.count(left, bytes, State::Body), true)),
            State::Data(left) => Ok((self.count(left, bytes, State::Data), true)),
            State::Size { digits, size } => self.size(digits, size, first),
            State::Extension { size, bytes, begun } => self.extension(size, bytes, begun, first),
            State::SizeEnd(size) if first == b'\n' => {
                self.state = if size == 0 { State::Trailers } else { State::Data(size) };
                Ok((1, true))
            }
            State::DataEnd(0) if first == b'\r' => {
                self.state = State::DataEnd(1);
                Ok((1, false))
            }
            State::DataEnd(1) if first == b'\n' => {
                self.state = State::Size { digits: 0, size: 0 };
                Ok((1, true))
            }
            State::SizeEnd(_) | State::DataEnd(_) => Err(Fault::Chunk),
            State::Trailers => self.trailer(bytes),
            State::Other => {
                self.other_seen = true;
                Ok((bytes.len(), true))
            }
            State::Broken(fault) => Err(fault),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        if self.held.is_empty() {
            // Empty lines before a request are none of it (RFC 9112 section 2.2).
            let empty = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if empty > 0 {
                return Ok((empty, false));
            }
            if let Some(end) = head::end(bytes, 0) {
                self.begin(&bytes[..end])?;
                return Ok((end, true));
            }
        }
        let before = self.held.len();
        if before + bytes.len() > HELD_MAX {
            return Err(Fault::TooLarge);
        }
        self.held.extend_from_slice(bytes);
        let Some(end) = head::end(&self.held, before.saturating_sub(2)) else {
            return Ok((bytes.len(), false));
        };
        let held = std::mem::take(&mut self.held);
        self.begin(&held[..end])?;
        Ok((end - before, true))
    }

    /// A head has come whole.
    fn begin(&mut self, head: &[u8]) -> Result<(), Fault> {
        let Head { body, upgrade } = head::read(head)?;
        self.upgrade = upgrade && !self.http_alone;
        match body {
            Body::None => self.end(),
            Body::Length(bytes) => self.state = State::Body(bytes),
            Body::Chunks => self.state = State::Size { digits: 0, size: 0 },
        }
        Ok(())
    }

    /// A request has come whole.
    fn end(&mut self) {
        self.state = if std::mem::take(&mut self.upgrade) { State::Other } else { State::Head };
    }

    fn count(&mut self, left: u64, bytes: &[u8], more: fn(u64) -> State) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        match (left - taken as u64, self.state) {
            (0, State::Data(_)) => self.state = State::DataEnd(0),
            (0, _) => self.end(),
            (left, _) => self.state = more(left),
        }
        taken
    }

    fn size(&mut self, digits: u8, size: u64, byte: u8) -> Result<(usize, bool), Fault> {
        let digit = char::from(byte).to_digit(16);
        self.state = match (digit, byte) {
            // Sixteen digits are 64 bits; the highest stays free, so that nobody's sum overflows.
            (Some(digit), _) if digits < 16 && size >> 59 == 0 => {
                State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
            }
            (None, b'\r') if digits > 0 => State::SizeEnd(size),
            (None, b' ' | b'\t' | b';') if digits > 0 => {
                State::Extension { size, bytes: 1, begun: byte == b';' }
            }
            _ => return Err(Fault::Chunk),
        };
        Ok((1, false))
    }

    fn extension(&mut self, size: u64, bytes: usize, begun: bool, byte: u8) -> Result<(usize, bool), Fault> {
        self.state = match byte {
            b'\r' => State::SizeEnd(size),
            b';' if bytes < EXTENSION_MAX => State::Extension { size, bytes: bytes + 1, begun: true },
            b' ' | b'\t' if bytes < EXTENSION_MAX => State::Extension { size, bytes: bytes + 1, begun },
            _ if begun && bytes < EXTENSION_MAX && head::is_text(byte) => {
                State::Extension { size, bytes: bytes + 1, begun }
            }
            _ => return Err(Fault::Chunk),
        };
        Ok((1, false))
    }

    /// Trailers are held line by line; the sum of them is limited by what was held before, which is not given back.
    fn trailer(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        let taken = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        if self.held.len() + taken > TRAILERS_MAX {
            return Err(Fault::Trailer);
        }
        self.held.extend_from_slice(&bytes[..taken]);
        if !self.held.ends_with(b"\n") {
            return Ok((taken, false));
        }
        let line_at = self.held[..self.held.len() - 1].iter().rposition(|byte| *byte == b'\n');
        let line = &self.held[line_at.map_or(0, |at| at + 1)..];
        match line {
            b"\r\n" => {
                self.held = Vec::new();
                self.end();
                return Ok((taken, true));
            }
            [field @ .., b'\r', b'\n'] => head::field(field).map_err(|_| Fault::Trailer)?,
            _ => return Err(Fault::Trailer),
        };
        Ok((taken, true))
    }
}

#[cfg(test)]
mod tests;
