//! HTTP/1.1 as a client reads it: foreign bytes in, framed replies out. No sockets here.

pub(crate) mod chunked;
pub mod reply;
