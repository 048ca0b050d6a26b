//! Parsing of HTTP/1.1 replies from bytes, without sockets.

pub(crate) mod chunked;
pub mod reply;
