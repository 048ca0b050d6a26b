//! The HTTP engine of the switch and the node.
//!
//! - [`h1`] implements HTTP/1 (RFC 9112) as state machines over bytes. It enforces limits, but uses no clock
//!   and no socket.
//! - [`http2`] enforces limits on HTTP/2 clients that the crate `h2` does not enforce.
//! - [`relay`] carries requests from clients to servers, or has the proxy answer them.
//! - [`convert`] converts heads to and from the types of the crate `http`.
//! - [`client`] is an HTTP client for requests that are not time-critical.

pub mod client;
pub mod convert;
pub mod h1;
pub mod http2;
pub mod relay;
