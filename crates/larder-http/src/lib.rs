//! The HTTP engine of switch and node.
//!
//! [`h1`] is HTTP/1 (RFC 9112) as state machines over bytes: it has limits, but no clock and no socket. [`relay`] takes requests from
//! clients to servers.

pub mod h1;
pub mod relay;
