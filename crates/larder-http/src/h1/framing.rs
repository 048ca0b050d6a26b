//! A check of the requests on a connection, for a server that parses them itself.

use super::{Decoder, Fault, HeadEnd, Piece, RequestHead};

/// Memory that a connection keeps between two heads, in bytes.
const KEPT_BYTES: usize = 4 << 10;
/// Largest size of an incomplete head, in bytes. The parser of the server has a smaller limit.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// A fault in the byte stream of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramingError {
    /// The rule that the bytes violate.
    pub fault: Fault,
    /// Bytes of the last call that come before the fault. They belong to messages that are complete, or that
    /// began in earlier calls, and may be served.
    pub valid_bytes: usize,
}

impl FramingError {
    /// Returns bytes that make another parser refuse the incomplete message. No parser accepts these bytes in
    /// a head, in a chunk size or after chunk data.
    ///
    /// Returns nothing if the fault is in trailers, because parsers skip trailers. The connection must be
    /// ended in that case.
    pub const fn poison(&self) -> &'static [u8] {
        match self.fault {
            Fault::Trailer => b"",
            _ => b"\0\0\r\n\r\n",
        }
    }
}

/// The part of the stream that the next byte belongs to.
#[derive(Debug)]
enum FramingState {
    Head,
    Body(Decoder),
    /// Possibly another protocol, after a request with `Upgrade`.
    OtherProtocol,
    Failed(Fault),
}

/// A check of the bytes that a client sends on a connection, for a server whose own parser is more lenient.
///
/// A head that arrives in one piece is not delayed. Bodies are counted and not inspected.
#[derive(Debug)]
pub struct Framing {
    state: FramingState,
    /// The beginning of a head whose end has not arrived.
    partial_head: Vec<u8>,
    end: HeadEnd,
    head: RequestHead,
    /// Unchecked bytes have arrived that may belong to another protocol.
    has_unchecked: bool,
    /// The server never switches to another protocol.
    ignores_upgrades: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self::new()
    }
}

impl Framing {
    /// Creates a check that starts at the beginning of a connection or between two requests.
    pub const fn new() -> Self {
        Self {
            state: FramingState::Head,
            partial_head: Vec::new(),
            end: HeadEnd::new(),
            head: RequestHead::new(),
            has_unchecked: false,
            ignores_upgrades: false,
        }
    }

    /// Creates a check for a server that never switches to another protocol. `Upgrade` is ignored.
    pub const fn without_upgrades() -> Self {
        let mut framing = Self::new();
        framing.ignores_upgrades = true;
        framing
    }

    /// Checks the next bytes of the client.
    ///
    /// # Errors
    /// The bytes violate a rule. All later calls return the same fault.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        // `unit_start` is the start of the current message, or of the current line between chunks. It is 0 if the
        // start is in earlier bytes.
        let (mut at, mut unit_start) = (0, 0);
        while at < bytes.len() {
            match self.step(&bytes[at..]) {
                Ok((taken, ends_unit)) => {
                    at += taken;
                    unit_start = if ends_unit { at } else { unit_start };
                }
                Err(fault) => {
                    self.state = FramingState::Failed(fault);
                    self.partial_head = Vec::new();
                    return Err(FramingError { fault, valid_bytes: unit_start });
                }
            }
        }
        Ok(())
    }

    /// Returns whether the last request asks for another protocol. The bytes after it are not checked.
    pub const fn is_upgrading(&self) -> bool {
        matches!(self.state, FramingState::OtherProtocol)
    }

    /// Continues with requests, after the server has refused to switch the protocol. Returns false if
    /// unchecked bytes have already arrived. The connection must be ended in that case.
    pub fn continue_http(&mut self) -> bool {
        if self.is_upgrading() && !self.has_unchecked {
            self.state = FramingState::Head;
        }
        !self.is_upgrading()
    }

    /// Consumes a part of `bytes`, which must not be empty. Returns the number of consumed bytes, and whether
    /// they end a unit that can only be refused as a whole.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        match &mut self.state {
            FramingState::Head => self.read_head(bytes),
            FramingState::Body(body) => {
                let step = body.step(bytes)?;
                if body.is_ended() {
                    self.finish_request();
                }
                Ok((step.taken, step.piece != Piece::Part))
            }
            FramingState::OtherProtocol => {
                self.has_unchecked = true;
                Ok((bytes.len(), true))
            }
            FramingState::Failed(fault) => Err(*fault),
        }
    }

    /// Consumes a part of a head. Returns the same values as [`Self::step`].
    fn read_head(&mut self, bytes: &[u8]) -> Result<(usize, bool), Fault> {
        if self.partial_head.is_empty() {
            // Empty lines before a request are ignored (RFC 9112 section 2.2).
            let empty = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            if empty > 0 {
                return Ok((empty, false));
            }
            self.end = HeadEnd::new();
            if let Some(end) = self.end.find(bytes) {
                self.head.read(&bytes[..end])?;
                self.begin_body();
                return Ok((end, true));
            }
        }
        let before = self.partial_head.len();
        if before + bytes.len() > HEAD_BYTES_MAX {
            return Err(Fault::TooLarge);
        }
        self.partial_head.extend_from_slice(bytes);
        let Some(end) = self.end.find(&self.partial_head) else { return Ok((bytes.len(), false)) };
        let partial_head = std::mem::take(&mut self.partial_head);
        self.head.read(&partial_head[..end])?;
        self.begin_body();
        Ok((end - before, true))
    }

    /// Starts the body of the request whose head is complete.
    fn begin_body(&mut self) {
        let body = Decoder::new(self.head.body());
        if body.is_ended() { self.finish_request() } else { self.state = FramingState::Body(body) }
    }

    /// Ends a request that is complete.
    fn finish_request(&mut self) {
        let other = self.head.asks_for_upgrade() && !self.ignores_upgrades;
        self.head.shrink(KEPT_BYTES);
        self.state = if other { FramingState::OtherProtocol } else { FramingState::Head };
    }
}
