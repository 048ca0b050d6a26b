//! Incremental parser of replies (RFC 9112 sections 4 to 7).
//!
//! Body bytes are counted and discarded. [`ReplyReader::skippable`] returns how many of the next bytes are body, so that the
//! caller can have the kernel discard them without copying.

use memchr::memchr;

use super::chunked::Chunked;
use larder_core::cache_status;

/// Longest reply head, in bytes. A longer one is [`ReplyError::HeadTooLong`].
pub const HEAD_BYTES_MAX: usize = 65_536;
/// Maximum header lines of a reply head. More are [`ReplyError::TooManyHeaders`].
pub const HEADERS_MAX: usize = 96;
/// Longest cache name, in bytes. A `Cache-Status` that begins with a longer one counts as malformed.
pub const CACHE_NAME_BYTES_MAX: usize = 256;
/// Maximum interim (1xx) heads before the final reply.
const INTERIM_MAX: u32 = 16;

/// Why bytes are not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The head is not that of an HTTP/1 reply.
    #[error("the head is not HTTP/1")]
    Head,
    /// The head exceeds [`HEAD_BYTES_MAX`].
    #[error("the head exceeds {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    /// The head has more than [`HEADERS_MAX`] lines.
    #[error("the head has more than {HEADERS_MAX} lines")]
    TooManyHeaders,
    /// `Content-Length` is not a number, or two of them differ.
    #[error("Content-Length is contradictory or not a number")]
    Length,
    /// The chunked coding is invalid.
    #[error("invalid chunked coding")]
    Chunk,
    /// An upgrade that was not requested, or too many interim replies.
    #[error("unexpected interim reply")]
    Interim,
    /// The server closed the connection within the head.
    #[error("closed within the head")]
    ClosedInHead,
    /// The server closed the connection before the end of the body.
    #[error("closed before the end of the body")]
    ShortBody,
}

/// The result of the cache closest to the origin in `Cache-Status`. This is the content node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheResult {
    name: Vec<u8>,
    hit: bool,
    members: u32,
}

impl CacheResult {
    /// Name of the cache, without quotes; empty if the field was absent.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether that cache had a hit.
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// Number of caches that the reply passed.
    pub fn members(&self) -> u32 {
        self.members
    }

    fn clear(&mut self) {
        self.name.clear();
        self.hit = false;
        self.members = 0;
    }

    /// Parses one field line; further lines of the same reply continue the list. A malformed field is ignored as a whole
    /// (RFC 9651 section 4.2): the result is cleared, and the return value is false.
    fn read(&mut self, value: &[u8]) -> bool {
        let is_valid = cache_status::members(value).all(|member| {
            if self.members == 0 {
                self.name.extend(member.unquoted_name());
                self.hit = member.hit;
            }
            self.members = self.members.saturating_add(1);
            member.is_valid && self.name.len() <= CACHE_NAME_BYTES_MAX
        });
        if !is_valid {
            self.clear();
        }
        is_valid
    }
}

/// State of the reader after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStatus {
    /// The reader needs more bytes or the end of the stream.
    More,
    /// The reply is complete.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length { left: u64 },
    Chunked(Chunked),
    UntilClose,
    Done,
}

/// Parses one reply after another; [`ReplyReader::begin`] starts the next one and keeps the buffers.
#[derive(Debug)]
pub struct ReplyReader {
    state: State,
    head: Vec<u8>,
    is_reply_to_head: bool,
    interim: u32,
    status: u16,
    body_bytes: u64,
    keep_alive: bool,
    started: bool,
    cache: CacheResult,
    cache_malformed: bool,
}

impl Default for ReplyReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyReader {
    /// Creates a reader that expects the reply to a GET.
    pub fn new() -> Self {
        Self {
            state: State::Head,
            head: Vec::new(),
            is_reply_to_head: false,
            interim: 0,
            status: 0,
            body_bytes: 0,
            keep_alive: false,
            started: false,
            cache: CacheResult::default(),
            cache_malformed: false,
        }
    }

    /// Starts a new reply. `is_reply_to_head` states whether the request was a HEAD.
    pub fn begin(&mut self, is_reply_to_head: bool) {
        self.state = State::Head;
        self.head.clear();
        self.is_reply_to_head = is_reply_to_head;
        self.interim = 0;
        self.status = 0;
        self.body_bytes = 0;
        self.keep_alive = false;
        self.started = false;
        self.cache.clear();
        self.cache_malformed = false;
    }

    /// Parses `bytes`. Bytes after the end of the reply make the connection unusable for another request.
    ///
    /// # Errors
    /// [`ReplyError`]; the connection must be closed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<ReadStatus, ReplyError> {
        self.started |= !bytes.is_empty();
        let mut rest = bytes;
        if self.state == State::Head {
            rest = self.feed_head(rest)?;
        }
        let consumed = match &mut self.state {
            State::Head => rest.len(),
            State::Length { left } => {
                let here = (*left).min(rest.len() as u64);
                *left -= here;
                self.body_bytes += here;
                here as usize
            }
            State::Chunked(chunked) => chunked.feed(rest, &mut self.body_bytes)?,
            State::UntilClose => {
                self.body_bytes = self.body_bytes.saturating_add(rest.len() as u64);
                rest.len()
            }
            State::Done => 0,
        };
        if matches!(self.state, State::Length { left: 0 } | State::Chunked(Chunked::Done)) {
            self.state = State::Done;
        }
        if consumed < rest.len() {
            self.keep_alive = false;
        }
        Ok(if self.state == State::Done { ReadStatus::Done } else { ReadStatus::More })
    }

    /// Number of next bytes that belong to the body.
    pub fn skippable(&self) -> u64 {
        match self.state {
            State::Length { left } => left,
            State::Chunked(chunked) => chunked.data_left(),
            State::UntilClose => u64::MAX,
            State::Head | State::Done => 0,
        }
    }

    /// Counts `bytes` body bytes that were discarded, at most [`ReplyReader::skippable`].
    pub fn skip(&mut self, bytes: u64) -> ReadStatus {
        let bytes = bytes.min(self.skippable());
        self.body_bytes = self.body_bytes.saturating_add(bytes);
        match &mut self.state {
            State::Length { left } => {
                *left -= bytes;
                if *left == 0 {
                    self.state = State::Done;
                    return ReadStatus::Done;
                }
            }
            State::Chunked(Chunked::Data { left }) => {
                *left -= bytes;
                if *left == 0 {
                    self.state = State::Chunked(Chunked::DataCr);
                }
            }
            _ => {}
        }
        ReadStatus::More
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// [`ReplyError::ClosedInHead`] and [`ReplyError::ShortBody`], unless the end of the stream ends the body.
    pub fn eof(&mut self) -> Result<(), ReplyError> {
        self.keep_alive = false;
        match self.state {
            State::Head => Err(ReplyError::ClosedInHead),
            State::Length { .. } | State::Chunked(_) => Err(ReplyError::ShortBody),
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
        }
    }

    /// Whether a byte of this reply has been received.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Status of the reply; 0 before the head is complete.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Body bytes so far, without framing.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Whether the connection may carry another request, once the reply is done.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// The result in `Cache-Status`.
    pub fn cache(&self) -> &CacheResult {
        &self.cache
    }

    /// Whether a `Cache-Status` was malformed.
    pub fn cache_malformed(&self) -> bool {
        self.cache_malformed
    }

    /// Parses heads until the final one is complete or the bytes are used up. Returns the bytes after the head.
    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], ReplyError> {
        let mut rest = bytes;
        // The usual case: the whole head is in one piece and is parsed in place.
        while self.head.is_empty() && self.state == State::Head && !rest.is_empty() {
            match self.parse_head(rest)? {
                Some(len) => rest = &rest[len..],
                None => {
                    self.head.extend_from_slice(&rest[..rest.len().min(HEAD_BYTES_MAX + 1)]);
                    return self.check_partial().map(|()| &rest[rest.len()..]);
                }
            }
        }
        while self.state == State::Head && !rest.is_empty() {
            // Only a line end can complete a head. So a head that arrives byte by byte is not parsed again for each byte.
            let until = memchr(b'\n', rest).map_or(rest.len(), |at| at + 1);
            let (line, after) = rest.split_at(until);
            self.head.extend_from_slice(&line[..line.len().min(HEAD_BYTES_MAX + 1)]);
            rest = after;
            if self.head.ends_with(b"\n\r\n") || self.head.ends_with(b"\n\n") {
                let head = std::mem::take(&mut self.head);
                let parsed = self.parse_head(&head);
                self.head = head;
                self.head.clear();
                if parsed?.is_none() {
                    return Err(ReplyError::Head);
                }
            }
            self.check_partial()?;
        }
        Ok(rest)
    }

    fn check_partial(&self) -> Result<(), ReplyError> {
        if self.head.len() > HEAD_BYTES_MAX { Err(ReplyError::HeadTooLong) } else { Ok(()) }
    }

    /// Parses a head at the start of `bytes`. Returns its length, or `None` if it is incomplete.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let window = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
        // The parser accepts empty lines before the head, but RFC 9112 allows them before requests only.
        if window.first().is_some_and(|first| *first != b'H') {
            return Err(ReplyError::Head);
        }
        let len = match head.parse(window) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(ReplyError::TooManyHeaders),
            Err(_) => return Err(ReplyError::Head),
        };
        let status = head.code.ok_or(ReplyError::Head)?;
        match status {
            101 => return Err(ReplyError::Interim),
            100..=199 => {
                self.interim += 1;
                return if self.interim > INTERIM_MAX { Err(ReplyError::Interim) } else { Ok(Some(len)) };
            }
            200..=999 => {}
            _ => return Err(ReplyError::Head),
        }
        self.status = status;
        self.keep_alive = head.version == Some(1);
        let framing = self.read_headers(head.headers)?;
        self.state = if self.is_reply_to_head || status == 204 || status == 304 {
            State::Done
        } else {
            match framing {
                Framing { encoded: true, chunked: true, .. } => State::Chunked(Chunked::START),
                Framing { encoded: true, .. } | Framing { length: None, .. } => State::UntilClose,
                Framing { length: Some(0), .. } => State::Done,
                Framing { length: Some(left), .. } => State::Length { left },
            }
        };
        if self.state == State::UntilClose {
            self.keep_alive = false;
        }
        Ok(Some(len))
    }

    fn read_headers(&mut self, headers: &[httparse::Header<'_>]) -> Result<Framing, ReplyError> {
        let mut framing = Framing { length: None, encoded: false, chunked: false };
        for header in headers {
            // Compares the length first, because most headers are none of these.
            match header.name.len() {
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    for option in members(header.value) {
                        if option.eq_ignore_ascii_case(b"close") {
                            self.keep_alive = false;
                        } else if option.eq_ignore_ascii_case(b"keep-alive") {
                            self.keep_alive = true;
                        }
                    }
                }
                12 if header.name.eq_ignore_ascii_case("cache-status") && !self.cache_malformed => {
                    self.cache_malformed = !self.cache.read(header.value);
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    framing.add_length(header.value)?;
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    framing.encoded = true;
                    framing.chunked = members(header.value)
                        .last()
                        .is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
                }
                _ => {}
            }
        }
        Ok(framing)
    }
}

struct Framing {
    length: Option<u64>,
    encoded: bool,
    chunked: bool,
}

impl Framing {
    /// Adds a `Content-Length`. Several equal values count as one (RFC 9110 section 8.6); different ones are an error.
    fn add_length(&mut self, value: &[u8]) -> Result<(), ReplyError> {
        for member in members(value) {
            if member.is_empty() || !member.iter().all(u8::is_ascii_digit) {
                return Err(ReplyError::Length);
            }
            let text = std::str::from_utf8(member).map_err(|_| ReplyError::Length)?;
            let length: u64 = text.parse().map_err(|_| ReplyError::Length)?;
            if self.length.is_some_and(|before| before != length) {
                return Err(ReplyError::Length);
            }
            self.length = Some(length);
        }
        Ok(())
    }
}

fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests;
