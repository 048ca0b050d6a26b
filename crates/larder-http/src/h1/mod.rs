//! HTTP/1 messages (RFC 9112): heads, bodies, and their boundaries.
//!
//! Request smuggling depends on two parsers that read the same bytes differently. This parser therefore
//! accepts a subset of RFC 9112. It refuses messages that other parsers repair:
//!
//! - a length together with chunks, or a length that is given twice,
//! - a transfer coding other than `chunked`,
//! - a control character in a field, or a field that continues on the next line,
//! - a chunk size that is not plain hexadecimal digits.
//!
//! A bare LF may end a line of a head (section 2.2).
//!
//! [`RequestHead`] and [`ReplyHead`] parse heads. [`Decoder`] finds the end of a body. [`Framing`] follows
//! all requests of a connection.

mod body;
mod connection;
mod decode;
mod fields;
mod framing;
mod line;
mod reply;
mod request;
mod scan;

pub use body::Body;
pub use connection::{CONNECTION_OPTIONS_MAX, is_end_to_end};
pub use decode::{Decoder, Piece, Step};
pub use fields::{Field, FieldName, Fields, SavedFields};
pub use framing::{Framing, FramingError};
pub use reply::ReplyHead;
pub use request::{Form, RequestHead, Version};
pub use scan::{HeadEnd, is_host, is_text};

/// Largest number of fields in a head that is read. A head with more fields is refused. A lookup takes time
/// in proportion to the number of fields.
pub const FIELDS_MAX: usize = 256;

/// Reason to refuse bytes: they are no HTTP message, or two parsers could read them differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The request line is malformed (RFC 9112 section 3).
    #[error("the request line is not a method, a target and a version of HTTP/1 with one space between them")]
    RequestLine,
    /// The status line is malformed (RFC 9112 section 4).
    #[error("the status line is not a version of HTTP/1, a status of three digits and a reason")]
    StatusLine,
    /// The target is malformed, or does not suit the method (RFC 9112 section 3.2).
    #[error("the target has a form that its method does not allow, or an invalid character")]
    Target,
    /// A field line is malformed or folded (RFC 9112 sections 5 and 5.2).
    #[error("a line is not a field, or a field is folded over several lines")]
    Field,
    /// A field has a control character (RFC 9110 section 5.5), or a CR has no LF (RFC 9112 section 2.2).
    #[error("a field has a control character, or a CR has no LF")]
    Control,
    /// The host is missing, invalid, ambiguous, or differs from the target (RFC 9112 section 3.2).
    #[error("there is no host, there are several, or it differs from the host in the target")]
    Host,
    /// The length is invalid or ambiguous (RFC 9112 section 6.3).
    #[error("the length is not a number, or there are several")]
    Length,
    /// The transfer coding is not supported (RFC 9112 section 6.1).
    #[error("the transfer coding is not chunked alone, or the message is one of HTTP/1.0")]
    Coding,
    /// The message has a length and a transfer coding (RFC 9112 section 6.1).
    #[error("there are a length and a transfer coding")]
    LengthAndCoding,
    /// A TRACE request has a body (RFC 9110 section 9.3.8).
    #[error("there is a body where none is allowed")]
    Body,
    /// The chunked coding is malformed (RFC 9112 section 7.1).
    #[error("the size of a chunk, or the bytes after a size or a chunk, are invalid")]
    Chunk,
    /// A trailer field is malformed, or the trailer section is too large (RFC 9112 section 7.1.2).
    #[error("a trailer is not a field, or there are too many bytes of trailers")]
    Trailer,
    /// `Connection` has more than [`CONNECTION_OPTIONS_MAX`] options (RFC 9110 section 7.6.1).
    #[error("there are too many options in Connection")]
    Options,
    /// The head exceeds a limit of the parser.
    #[error("the head has too many bytes or too many fields")]
    TooLarge,
}

#[cfg(test)]
mod head_tests;
#[cfg(test)]
mod tests;
