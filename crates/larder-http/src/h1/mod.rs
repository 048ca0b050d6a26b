//! HTTP/1 messages (RFC 9112): heads, bodies, and where each begins and ends.
//!
//! Request smuggling depends on two parsers that read the same bytes differently. This parser therefore accepts a subset of what
//! RFC 9112 allows. It refuses what others mend: a length beside chunks, a coding other than `chunked`, a length given twice, a
//! control character in a field, a chunk size that is not plain digits, a field that goes on in the next line. A bare LF may end
//! a line of a head (section 2.2).
//!
//! [`RequestHead`] and [`ReplyHead`] read a head. [`Decoder`] finds the end of a body. [`Framing`] follows all requests of a
//! connection.

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
pub use framing::{Broken, Framing};
pub use reply::ReplyHead;
pub use request::{Form, RequestHead, Version};
pub use scan::{HeadEnd, is_host, is_text};

/// Fields of a head that is read; one with more is refused. Looking a field up takes time in proportion to their number.
pub const FIELDS_MAX: usize = 256;

/// The reason to refuse bytes: they are no message, or could be read as two different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// RFC 9112 section 3.
    #[error("the request line is not a method, a target and a version of HTTP/1 with one space between them")]
    RequestLine,
    /// RFC 9112 section 4.
    #[error("the status line is not a version of HTTP/1, a status of three digits and a reason")]
    StatusLine,
    /// RFC 9112 section 3.2.
    #[error("the target has a form that its method does not allow, or a character that no target may have")]
    Target,
    /// RFC 9112 sections 5 and 5.2.
    #[error("a line is not a field, or a field goes on in the next line")]
    Field,
    /// RFC 9110 section 5.5, RFC 9112 section 2.2.
    #[error("a field has a control character, or a CR has no LF")]
    Control,
    /// RFC 9112 section 3.2.
    #[error("there is no host, there are several, or it differs from the host in the target")]
    Host,
    /// RFC 9112 section 6.3.
    #[error("the length is not a number, or there are several")]
    Length,
    /// RFC 9112 section 6.1.
    #[error("the transfer coding is not chunked alone, or the message is one of HTTP/1.0")]
    Coding,
    /// RFC 9112 section 6.1.
    #[error("there are a length and a transfer coding")]
    TwoLengths,
    /// RFC 9110 section 9.3.8.
    #[error("there is a body where none may be")]
    Body,
    /// RFC 9112 section 7.1.
    #[error("the size of a chunk, or what follows a size or a chunk, is not as it must be")]
    Chunk,
    /// RFC 9112 section 7.1.2.
    #[error("a trailer is not a field, or there are too many bytes of trailers")]
    Trailer,
    /// RFC 9110 section 7.6.1: more options than [`CONNECTION_OPTIONS_MAX`].
    #[error("there are too many options in Connection")]
    Options,
    /// A limit of the parser.
    #[error("the head has too many bytes or too many fields")]
    TooLarge,
}

#[cfg(test)]
mod heads_test;
#[cfg(test)]
mod tests;
