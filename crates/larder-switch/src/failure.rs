//! Failures: the reasons why the switch replies to a request itself, or ends it. Each has one name, one status and
//! one party at fault.

use larder_core::Refusal;
use std::fmt;

/// Response header with [`Failure::name`], on every reply of the switch itself.
pub const ERROR_HEADER: &str = "x-larder-error";

/// Reason why the switch replied to a request itself, or ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The request is malformed or ambiguous. Fault of the client.
    BadRequest,
    /// A trusted balancer sent no valid PROXY protocol header. Fault of the balancer, or of the config that trusts
    /// it. No reply is sent.
    BadAnnouncement,
    /// The request target is longer than the limit. Fault of the client.
    UriTooLong,
    /// The header is longer than the limit. Fault of the client.
    HeaderTooLarge,
    /// The header did not arrive in time. Fault of the client.
    HeaderTimeout,
    /// The request body did not arrive in time. Fault of the client.
    BodyTimeout,
    /// The client closed the connection or stopped reading. Fault of the client; no reply is possible.
    ClientGone,
    /// The request body exceeds the limit of its route. Fault of the client.
    BodyTooLarge,
    /// The body of a request for a completion has no prompt. Fault of the client.
    NoPrompt,
    /// The bodies of prompts have used up their memory. A later attempt may succeed.
    PromptMemoryFull,
    /// The route requires a name and a password, and the request has none or wrong ones. Fault of the client.
    Unauthorized,
    /// The client's network may not use this route. Fault of the client.
    Denied,
    /// The client exceeds its request rate. A later request will succeed.
    RateLimited,
    /// The client has reached its connection limit. A later attempt may succeed.
    ClientConnectionsFull,
    /// The switch has reached its connection limit. A later attempt may succeed.
    ConnectionsFull,
    /// Replies to HTTP/2 clients have reached their memory limit, and the client of this request reads nothing. A
    /// later attempt may succeed.
    StreamsFull,
    /// The HTTP/2 client has reset too many streams, or sent too many empty frames. Fault of the client; its
    /// connection is closed.
    Http2Flood,
    /// The queue for admission is full. A later attempt may succeed.
    QueueFull,
    /// The request waited for admission until its deadline. A later attempt may succeed.
    QueueDeadline,
    /// No node takes requests. A later attempt may succeed.
    NoNode,
    /// A connection to a node failed. Fault of the node.
    ConnectFailed,
    /// A connection to a node timed out. Fault of the node.
    ConnectTimeout,
    /// The TLS handshake with a node failed, because one of the certificates was rejected. Fault of the node, or of
    /// the config.
    NodeTls,
    /// A node did not send or receive data in time. Fault of the node.
    NodeTimeout,
    /// A node closed the connection before its reply was complete. Fault of the node.
    NodeClosed,
    /// A node's reply is malformed. Fault of the node.
    BadReply,
    /// The switch failed. Fault of the switch.
    Internal,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Self; 27] = [
        Self::BadRequest,
        Self::BadAnnouncement,
        Self::UriTooLong,
        Self::HeaderTooLarge,
        Self::HeaderTimeout,
        Self::BodyTimeout,
        Self::ClientGone,
        Self::BodyTooLarge,
        Self::NoPrompt,
        Self::PromptMemoryFull,
        Self::Unauthorized,
        Self::Denied,
        Self::RateLimited,
        Self::ClientConnectionsFull,
        Self::ConnectionsFull,
        Self::StreamsFull,
        Self::Http2Flood,
        Self::QueueFull,
        Self::QueueDeadline,
        Self::NoNode,
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::NodeTls,
        Self::NodeTimeout,
        Self::NodeClosed,
        Self::BadReply,
        Self::Internal,
    ];

    /// Returns the name used in the header, in logs and in metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::BadAnnouncement => "bad_announcement",
            Self::UriTooLong => "uri_too_long",
            Self::HeaderTooLarge => "header_too_large",
            Self::HeaderTimeout => "header_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::ClientGone => "client_gone",
            Self::BodyTooLarge => "body_too_large",
            Self::NoPrompt => "no_prompt",
            Self::PromptMemoryFull => "prompt_memory_full",
            Self::Unauthorized => "unauthorized",
            Self::Denied => "denied",
            Self::RateLimited => "rate_limited",
            Self::ClientConnectionsFull => "client_connections_full",
            Self::ConnectionsFull => "connections_full",
            Self::StreamsFull => "streams_full",
            Self::Http2Flood => "http2_flood",
            Self::QueueFull => "queue_full",
            Self::QueueDeadline => "queue_deadline",
            Self::NoNode => "no_node",
            Self::ConnectFailed => "connect_failed",
            Self::ConnectTimeout => "connect_timeout",
            Self::NodeTls => "node_tls",
            Self::NodeTimeout => "node_timeout",
            Self::NodeClosed => "node_closed",
            Self::BadReply => "bad_reply",
            Self::Internal => "internal",
        }
    }

    /// Returns the status of the reply. For [`Failure::ClientGone`], which sends no reply, returns 499 for logs.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::BadAnnouncement | Self::Http2Flood | Self::NoPrompt => 400,
            Self::HeaderTimeout | Self::BodyTimeout => 408,
            Self::Unauthorized => 401,
            Self::Denied => 403,
            Self::BodyTooLarge => 413,
            Self::UriTooLong => 414,
            Self::RateLimited | Self::ClientConnectionsFull => 429,
            Self::HeaderTooLarge => 431,
            Self::ClientGone => 499,
            Self::ConnectionsFull
            | Self::StreamsFull
            | Self::PromptMemoryFull
            | Self::QueueFull
            | Self::QueueDeadline
            | Self::NoNode => 503,
            Self::ConnectFailed | Self::NodeTls | Self::NodeClosed | Self::BadReply => 502,
            Self::ConnectTimeout | Self::NodeTimeout => 504,
            Self::Internal => 500,
        }
    }

    /// Returns the value of `Retry-After` in seconds, if a later attempt may succeed.
    pub const fn retry_after_s(self) -> Option<u32> {
        match self {
            Self::RateLimited
            | Self::ClientConnectionsFull
            | Self::ConnectionsFull
            | Self::StreamsFull
            | Self::PromptMemoryFull
            | Self::QueueFull
            | Self::QueueDeadline
            | Self::NoNode => Some(1),
            _ => None,
        }
    }

    /// Returns the whole reply as text, for connections without a parsed request.
    pub(crate) fn raw_reply(self) -> String {
        let (status, name) = (self.status(), self.name());
        let phrase = http::StatusCode::from_u16(status).ok().and_then(|code| code.canonical_reason());
        let retry = self.retry_after_s().map_or(String::new(), |s| format!("Retry-After: {s}\r\n"));
        format!(
            "HTTP/1.1 {status} {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{retry}\
             {ERROR_HEADER}: {name}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n{name}\n",
            phrase.unwrap_or(""),
            name.len() + 1,
        )
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoNode => Self::NoNode,
            Refusal::QueueFull => Self::QueueFull,
            Refusal::Deadline => Self::QueueDeadline,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_words() {
        let mut names: Vec<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        assert!(
            names
                .iter()
                .all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::ALL.len());
    }

    #[test]
    fn raw_replies_parse() {
        for failure in Failure::ALL {
            let text = failure.raw_reply();
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut reply = httparse::Response::new(&mut headers);
            let head = reply.parse(text.as_bytes()).expect("parses").unwrap();
            assert_eq!(reply.code, Some(failure.status()));
            let length = reply.headers.iter().find(|h| h.name == "Content-Length").expect("a length");
            assert_eq!(length.value, (text.len() - head).to_string().as_bytes());
            let retry = reply.headers.iter().any(|h| h.name == "Retry-After");
            assert_eq!(retry, matches!(failure.status(), 429 | 503));
        }
    }
}
