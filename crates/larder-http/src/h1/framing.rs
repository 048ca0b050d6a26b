//! The requests on a connection, watched from beside.

use super::{Decoder, Fault, HeadEnd, Piece, RequestHead};

/// Memory that a connection keeps between two heads. Bytes.
const KEPT: usize = 4 << 10;
/// Bytes of a head that are kept while its end is awaited. Whoever reads has a limit below it.
const HELD_MAX: usize = 1 << 20;

/// The place of a fault in the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The fault.
    pub fault: Fault,
    /// The number of bytes of the last call that come before the fault: what is whole, or has begun in earlier bytes, may be
    /// served.
    pub good: usize,
}

impl Broken {
    /// Bytes that make another parser refuse the message that it has begun to read: no parser accepts them in a head, in a chunk's
    /// size or after a chunk's data. Empty if the fault is in trailers, which parsers skip: then the connection must end.
    pub const fn poison(&self) -> &'static [u8] {
        match self.fault {
            Fault::Trailer => b"",
            _ => b"\0\0\r\n\r\n",
        }
    }
}

#[derive(Debug)]
enum State {
    Head,
    Body(Decoder),
    /// Another protocol, perhaps.
    Other,
    Broken(Fault),
}

/// Checks all that a client sends on a connection, for a server whose own parser is more lenient.
///
/// A head that comes whole is not held back; bodies are counted and not looked at.
#[derive(Debug)]
pub struct Framing {
    state: State,
    /// The beginning of a head whose end has not come.
    held: Vec<u8>,
    end: HeadEnd,
    head: RequestHead,
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
    /// A connection at its beginning or between two requests.
    pub const fn new() -> Self {
        Self {
            state: State::Head,
            held: Vec::new(),
            end: HeadEnd::new(),
            head: RequestHead::new(),
            other_seen: false,
            http_alone: false,
        }
    }

    /// The same where no other protocol is ever spoken, whatever requests ask for.
    pub const fn without_upgrades() -> Self {
        let mut framing = Self::new();
        framing.http_alone = true;
        framing
    }

    /// Checks the next `bytes`.
    ///
    /// # Errors
    /// The bytes break a rule. All later calls return the same fault.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        // The beginning of the message, or of the line between chunks, that is being read; 0 if it is in earlier bytes.
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

    /// Whether the last request asks for another protocol. What comes after it is not checked.
    pub const fn is_other(&self) -> bool {
        matches!(self.state, State::Other)
    }

    /// Whether bytes have come that may be the other protocol's.
    pub const fn has_other(&self) -> bool {
        self.other_seen
    }

    /// The other protocol was refused: requests go on. Returns false if bytes have come already that were not checked: then the
    /// connection must end.
    pub fn go_on(&mut self) -> bool {
        if self.is_other() && !self.other_seen {
            self.state = State::Head;
        }
        !self.is_other()
    }

    /// Takes some of `bytes`, which are not empty: how many, and whether they end what can be refused only as a whole.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        match &mut self.state {
            State::Head => self.head(bytes),
            State::Body(body) => {
                let step = body.step(bytes)?;
                if body.is_ended() {
                    self.finish();
                }
                Ok((step.taken, step.piece != Piece::Part))
            }
            State::Other => {
                self.other_seen = true;
                Ok((bytes.len(), true))
            }
            State::Broken(fault) => Err(*fault),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        if self.held.is_empty() {
            // Empty lines before a request are none of it (RFC 9112 section 2.2).
            let empty = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if empty > 0 {
                return Ok((empty, false));
            }
            self.end = HeadEnd::new();
            if let Some(end) = self.end.find(bytes) {
                self.head.read(&bytes[..end])?;
                self.begin();
                return Ok((end, true));
            }
        }
        let before = self.held.len();
        if before + bytes.len() > HELD_MAX {
            return Err(Fault::TooLarge);
        }
        self.held.extend_from_slice(bytes);
        let Some(end) = self.end.find(&self.held) else { return Ok((bytes.len(), false)) };
        let held = std::mem::take(&mut self.held);
        self.head.read(&held[..end])?;
        self.begin();
        Ok((end - before, true))
    }

    /// A head has come whole.
    fn begin(&mut self) {
        let body = Decoder::new(self.head.body());
        if body.is_ended() { self.finish() } else { self.state = State::Body(body) }
    }

    /// A request has come whole.
    fn finish(&mut self) {
        let other = self.head.asks_for_upgrade() && !self.http_alone;
        self.head.shrink(KEPT);
        self.state = if other { State::Other } else { State::Head };
    }
}
