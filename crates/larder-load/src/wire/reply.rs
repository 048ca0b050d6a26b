//! A reply, read from whatever pieces the network hands over (RFC 9112 sections 4 to 7).
//!
//! The body is counted, not kept. While only body bytes are to come, [`ReplyReader::skippable`] says how many, so
//! that the owner of the socket may have the kernel drop them uncopied.

use memchr::memchr;

use super::chunked::Chunked;
use larder_core::cache_status;

/// Longest reply head, bytes. A longer one is [`BadReply::HeadTooLong`].
pub const HEAD_BYTES_MAX: usize = 65_536;
/// Most header lines in a reply head. More are [`BadReply::TooManyHeaders`].
pub const HEADERS_MAX: usize = 96;
/// Longest name of a cache that is kept, bytes. A `Cache-Status` that begins with a longer one counts as malformed.
pub const CACHE_NAME_BYTES_MAX: usize = 256;
/// Most interim (1xx) heads before the reply proper.
const INTERIM_MAX: u32 = 16;

/// Why bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReply {
    /// Not the head of an HTTP/1 reply.
    #[error("the head is not HTTP/1")]
    Head,
    /// The head exceeds [`HEAD_BYTES_MAX`].
    #[error("the head exceeds {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    /// The head has more than [`HEADERS_MAX`] lines.
    #[error("the head has more than {HEADERS_MAX} lines")]
    TooManyHeaders,
    /// `Content-Length` is no number, or there are two that differ.
    #[error("Content-Length is contradictory or no number")]
    Length,
    /// The chunked coding is broken.
    #[error("the chunked coding is broken")]
    Chunk,
    /// An upgrade that nobody asked for, or interim replies without end.
    #[error("unexpected interim reply")]
    Interim,
    /// The peer closed in the middle of the head.
    #[error("closed in the middle of the head")]
    ClosedInHead,
    /// The peer closed before the announced end of the body.
    #[error("closed before the end of the body")]
    ShortBody,
}

/// The result in `Cache-Status` of the cache closest to the origin, which is the content node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheNote {
    name: Vec<u8>,
    hit: bool,
    members: u32,
}

impl CacheNote {
    /// Name of the cache, without quotes; empty if the field was absent.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether that cache answered from its store.
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

    /// Reads one field line. Further lines of the same reply continue the list. A field that breaks the grammar is
    /// ignored whole, as RFC 9651 section 4.2 asks: the note is cleared, and the result is false.
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

/// What the reader needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes, or the end of the stream.
    More,
    /// Nothing: the reply is complete.
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

/// Reads one reply after the other; [`ReplyReader::begin`] separates them and keeps the memory.
#[derive(Debug)]
pub struct ReplyReader {
    state: State,
    head: Vec<u8>,
    to_head_request: bool,
    interim: u32,
    status: u16,
    body_bytes: u64,
    keep_alive: bool,
    started: bool,
    cache: CacheNote,
    cache_malformed: bool,
}

impl Default for ReplyReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyReader {
    /// A reader that expects the reply to a GET.
    pub fn new() -> Self {
        Self {
            state: State::Head,
            head: Vec::new(),
            to_head_request: false,
            interim: 0,
            status: 0,
            body_bytes: 0,
            keep_alive: false,
            started: false,
            cache: CacheNote::default(),
            cache_malformed: false,
        }
    }

    /// Forgets the last reply and expects the next, to a HEAD request if so said.
    pub fn begin(&mut self, to_head_request: bool) {
        self.state = State::Head;
        self.head.clear();
        self.to_head_request = to_head_request;
        self.interim = 0;
        self.status = 0;
        self.body_bytes = 0;
        self.keep_alive = false;
        self.started = false;
        self.cache.clear();
        self.cache_malformed = false;
    }

    /// Reads all of `bytes`. Bytes beyond the reply's end make the connection unfit for another request.
    ///
    /// # Errors
    /// [`BadReply`]; the connection is of no further use.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Step, BadReply> {
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
        Ok(if self.state == State::Done { Step::Done } else { Step::More })
    }

    /// How many bytes to come are nothing but body.
    pub fn skippable(&self) -> u64 {
        match self.state {
            State::Length { left } => left,
            State::Chunked(chunked) => chunked.data_left(),
            State::UntilClose => u64::MAX,
            State::Head | State::Done => 0,
        }
    }

    /// Counts `bytes` (at most [`ReplyReader::skippable`]) body bytes that were dropped unread.
    pub fn skip(&mut self, bytes: u64) -> Step {
        let bytes = bytes.min(self.skippable());
        self.body_bytes = self.body_bytes.saturating_add(bytes);
        match &mut self.state {
            State::Length { left } => {
                *left -= bytes;
                if *left == 0 {
                    self.state = State::Done;
                    return Step::Done;
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
        Step::More
    }

    /// The peer has closed its side.
    ///
    /// # Errors
    /// [`BadReply::ClosedInHead`] and [`BadReply::ShortBody`], unless the close is what ends the body.
    pub fn eof(&mut self) -> Result<(), BadReply> {
        self.keep_alive = false;
        match self.state {
            State::Head => Err(BadReply::ClosedInHead),
            State::Length { .. } | State::Chunked(_) => Err(BadReply::ShortBody),
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
        }
    }

    /// Whether any byte of this reply has come.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Status of the reply; 0 before its head is complete.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Body bytes so far, without the framing.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Whether the connection may carry another request, once the reply is done.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// What `Cache-Status` said.
    pub fn cache(&self) -> &CacheNote {
        &self.cache
    }

    /// Whether there was a `Cache-Status` that breaks its grammar.
    pub fn cache_malformed(&self) -> bool {
        self.cache_malformed
    }

    /// Reads heads until the final one is complete or the bytes are used up; returns what follows the head.
    fn feed_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], BadReply> {
        let mut rest = bytes;
        // The usual case: the whole head in one piece, parsed where it lies.
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
            // Only a line end can complete a head: bytes that trickle in are not parsed again one by one.
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
                    return Err(BadReply::Head);
                }
            }
            self.check_partial()?;
        }
        Ok(rest)
    }

    fn check_partial(&self) -> Result<(), BadReply> {
        if self.head.len() > HEAD_BYTES_MAX { Err(BadReply::HeadTooLong) } else { Ok(()) }
    }

    /// Parses one head at the front of `bytes`: its length, or `None` if it is not complete.
    fn parse_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadReply> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut headers);
        let window = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
        // Empty lines before a status line are a liberty for servers to take with requests, not with replies.
        if window.first().is_some_and(|first| *first != b'H') {
            return Err(BadReply::Head);
        }
        let len = match head.parse(window) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(BadReply::TooManyHeaders),
            Err(_) => return Err(BadReply::Head),
        };
        let status = head.code.ok_or(BadReply::Head)?;
        match status {
            101 => return Err(BadReply::Interim),
            100..=199 => {
                self.interim += 1;
                return if self.interim > INTERIM_MAX { Err(BadReply::Interim) } else { Ok(Some(len)) };
            }
            200..=999 => {}
            _ => return Err(BadReply::Head),
        }
        self.status = status;
        self.keep_alive = head.version == Some(1);
        let framing = self.read_headers(head.headers)?;
        self.state = if self.to_head_request || status == 204 || status == 304 {
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

    fn read_headers(&mut self, headers: &[httparse::Header<'_>]) -> Result<Framing, BadReply> {
        let mut framing = Framing { length: None, encoded: false, chunked: false };
        for header in headers {
            // Told apart by length first: most headers are none of these.
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
    /// Several equal lengths are one (RFC 9110 section 8.6); different ones are an attack or a bug.
    fn add_length(&mut self, value: &[u8]) -> Result<(), BadReply> {
        for member in members(value) {
            if member.is_empty() || !member.iter().all(u8::is_ascii_digit) {
                return Err(BadReply::Length);
            }
            let text = std::str::from_utf8(member).map_err(|_| BadReply::Length)?;
            let length: u64 = text.parse().map_err(|_| BadReply::Length)?;
            if self.length.is_some_and(|before| before != length) {
                return Err(BadReply::Length);
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
