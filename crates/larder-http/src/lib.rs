//! The HTTP engine of switch and node.
//!
//! [`h1`] is HTTP/1 (RFC 9112) as state machines over bytes: it has limits, but no clock and no socket. [`http2`]
//! limits HTTP/2 where the crate `h2` does not. [`relay`] takes requests from clients to servers, or has them answered. [`convert`] has
//! heads as the types of crate `http`. [`client`] asks for what needs no speed.

pub mod client;
pub mod convert;
pub mod h1;
pub mod http2;
pub mod relay;
