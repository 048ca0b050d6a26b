//! One request as a trace file states it, borrowed from the read buffer, or the reason why there is none.

use std::fmt;

use serde::Serialize;

/// The request method, as far as replay cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET, and every request of a format that records no method.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// Anything else, nothing at all included.
    Other,
}

impl Method {
    /// The method of a request line; case matters, as in HTTP.
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            _ => Self::Other,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// A path with its query, as logged: escapes are kept, bytes need not be UTF-8.
    Name(&'a [u8]),
    /// A number, in formats that have renumbered their targets.
    Number(u64),
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client<'a> {
    /// An address or a host name, as logged.
    Name(&'a [u8]),
    /// A number, in formats that have renumbered their clients.
    Number(u32),
    /// The format does not say.
    Unknown,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in nanoseconds since 1970-01-01 UTC or since the file's own origin; `None` in formats without times.
    /// Resolution is the format's: 1 s in logs, 1 ms in Mooncake traces.
    pub time_ns: Option<i64>,
    /// Who.
    pub client: Client<'a>,
    /// How.
    pub method: Method,
    /// What.
    pub target: Key<'a>,
    /// The reply's status code; 200 in formats that record only successful accesses.
    pub status: u16,
    /// The reply's body in bytes (in Mooncake traces: in tokens), 0 where the log says `-`; `None` in formats that
    /// record no sizes.
    pub body: Option<u64>,
}

impl Record<'_> {
    /// Whether the request is one a cache cluster can be asked again: a GET answered 200 with a body. Statistics and
    /// [`Trace`](crate::Trace) keep only these.
    pub fn is_replayable(&self) -> bool {
        self.method == Method::Get && self.status == 200 && self.body != Some(0)
    }
}

/// The reason why a line or record is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// No time where the format has one, or an impossible one.
    NoTime,
    /// No request after the time.
    NoRequest,
    /// No end of the request with a status code behind it.
    NoStatus,
    /// A reply size that is no number.
    BadSize,
    /// Not a JSON object with the format's fields.
    NotJson,
    /// No line before it names the columns.
    NoFields,
    /// Longer than [`Limits::line_bytes_max`](crate::Limits::line_bytes_max).
    TooLong,
    /// The file ends inside a record.
    Partial,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTime => "no valid time",
            Self::NoRequest => "no request",
            Self::NoStatus => "no status code",
            Self::BadSize => "the size is no number",
            Self::NotJson => "not a JSON object with the expected fields",
            Self::NoFields => "no '#Fields:' line before it",
            Self::TooLong => "too long",
            Self::Partial => "the file ends inside the record",
        })
    }
}
