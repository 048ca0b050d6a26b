//! Pull-through from an HTTP origin: a shared cache before any application (RFC 9111, RFC 5861).
//!
//! ```text
//! client -> pull: page of the target? -> variant for the request? -> fresh? -> from memory
//!                 else one request to the origin for all that wait (flight) -> stored and read as it arrives (filling),
//!                 or, if others may not use its reply without validation, each request asks alone (passed)
//! ```
//!
//! What may be kept and used is decided in [`crate::http::freshness`]. Choices of ours: only replies to GET are kept,
//! and HEAD is answered from them. A range is served from what is kept whole; one that misses is passed on and not
//! kept, and the whole is fetched beside it. Preconditions of clients are held against what is kept; what is fetched to be kept is fetched without them.
//! A client that goes away does not end a fetch that fills the cache. Other methods are passed on, and a reply that
//! is no error then drops what is kept of the target, and of its `Location` and `Content-Location` on the same host.
//! A request for a WebSocket opens a tunnel ([`tunnel`]). Any other `Upgrade` is taken off.

mod body;
mod client;
mod client_key;
mod connector;
mod error;
mod failover;
mod fetch;
mod flight;
mod interim;
mod passed;
mod patience;
mod permit;
mod place;
mod pull;
mod range_fill;
mod send;
mod serve;
mod site;
mod slots;
mod stats;
mod terms;
pub(crate) mod tunnel;
mod upload;

pub use failover::OriginStanding;
pub use stats::OriginStats;

pub(crate) use client::{Fetched, Origin};
pub(crate) use client_key::Client;
pub(crate) use pull::Puller;
pub(crate) use serve::pass;
