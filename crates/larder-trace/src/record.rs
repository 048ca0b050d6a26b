//! A request as a trace file states it, borrowed from the read buffer, and the reasons why a line has none.

use std::fmt;

use serde::Serialize;

/// The method of a request, as far as it matters for a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET, and every request in a format without methods.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// Any other method, or none.
    Other,
}

impl Method {
    /// Returns the method of this name. Methods are case-sensitive (RFC 9110 section 9.1).
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            _ => Self::Other,
        }
    }
}

/// A requested target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// A path with its query, as logged. Escapes are kept, and the bytes need not be UTF-8.
    Name(&'a [u8]),
    /// A number, in formats that number their targets.
    Number(u64),
}

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client<'a> {
    /// An address or a host name, as logged.
    Name(&'a [u8]),
    /// A number, in formats that number their clients.
    Number(u32),
    /// The client is not known.
    Unknown,
}

/// A request of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time in nanoseconds since 1970-01-01 UTC, or since the origin of the file; `None` in formats without
    /// times. The resolution is that of the format: 1 s in logs, 1 ms in Mooncake traces.
    pub time_ns: Option<i64>,
    /// The client.
    pub client: Client<'a>,
    /// The method.
    pub method: Method,
    /// The target.
    pub target: Key<'a>,
    /// Status code of the reply. It is 200 in formats that record only successful requests.
    pub status: u16,
    /// Body of the reply in bytes, or in tokens in Mooncake traces. It is 0 if the log has `-`, and `None` in
    /// formats without sizes.
    pub body: Option<u64>,
}

impl Record<'_> {
    /// Returns whether the request can be replayed on a cache cluster: a GET with status 200 and a body.
    /// Statistics and [`Trace`](crate::Trace) use only these requests.
    pub fn is_replayable(&self) -> bool {
        self.method == Method::Get && self.status == 200 && self.body != Some(0)
    }
}

/// Reason why a line or record is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The time is missing or invalid.
    NoTime,
    /// The request is missing.
    NoRequest,
    /// The status code after the request is missing or invalid.
    NoStatus,
    /// The size of the reply is not a number.
    BadSize,
    /// The line is not a JSON object with the fields of the format.
    NotJson,
    /// No earlier line names the columns.
    NoFields,
    /// The line has no prompt.
    NoPrompt,
    /// The blocks of a prompt are not those of its length.
    BadBlocks,
    /// The line exceeds [`Limits::line_bytes_max`](crate::Limits::line_bytes_max).
    TooLong,
    /// The file ends within the record.
    Partial,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTime => "no valid time",
            Self::NoRequest => "no request",
            Self::NoStatus => "no status code",
            Self::BadSize => "the size is not a number",
            Self::NotJson => "not a JSON object with the expected fields",
            Self::NoFields => "no '#Fields:' line before it",
            Self::NoPrompt => "no 'messages' and no 'prompt'",
            Self::BadBlocks => "'hash_ids' must have one id for each 512 tokens of 'input_length'",
            Self::TooLong => "too long",
            Self::Partial => "the file ends inside the record",
        })
    }
}

/// Token sums of an LLM trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenSums {
    /// Input tokens of all requests.
    pub input: u64,
    /// Output tokens of all requests.
    pub output: u64,
}
