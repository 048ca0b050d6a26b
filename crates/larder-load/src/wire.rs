//! HTTP/1.1 as a client reads it: foreign bytes in, framed replies out. No sockets here.

pub mod cache_status;
pub(crate) mod chunked;
pub mod reply;
