//! Kinds of failed requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of failure of one request. Each failed request has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The connection could not be opened: refused, unreachable, or out of ports.
    Connect,
    /// The request's timeout passed, which includes the time to connect.
    Timeout,
    /// The connection was reset before the reply was complete.
    Reset,
    /// The connection was closed before the first byte of a reply, and it was not a stale kept-alive connection.
    NoReply,
    /// The connection was closed before the announced end of the body.
    ShortBody,
    /// The bytes received are not an HTTP/1 reply.
    BadReply,
    /// A complete reply with a 4xx status.
    Status4xx,
    /// A complete reply with a 5xx status.
    Status5xx,
    /// A complete reply with status 200 whose body has another size than expected.
    WrongSize,
}

impl Fault {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Connect,
        Self::Timeout,
        Self::Reset,
        Self::NoReply,
        Self::ShortBody,
        Self::BadReply,
        Self::Status4xx,
        Self::Status5xx,
        Self::WrongSize,
    ];

    /// The kind's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::NoReply => "no_reply",
            Self::ShortBody => "short_body",
            Self::BadReply => "bad_reply",
            Self::Status4xx => "status4xx",
            Self::Status5xx => "status5xx",
            Self::WrongSize => "wrong_size",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_json() {
        for fault in Fault::ALL {
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        }
    }
}
