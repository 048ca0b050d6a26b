//! Pull-through from an HTTP origin: a shared cache in front of any application (RFC 9111, RFC 5861).
//!
//! ```text
//! client -> pull: page of the target? -> variant for the request? -> fresh? -> from memory
//!                 else one request to the origin for all that wait (flight) -> stored, and read during the
//!                 transfer (fetch),
//!                 or, if other clients may not use its reply without validation, each request is sent
//!                 alone (serve)
//! ```
//!
//! [`crate::http::freshness`] decides which replies may be stored and used. Only replies to GET are stored, and
//! HEAD is answered from them. A range is served from a completely stored reply. A range that misses is passed
//! on and not stored, and the whole is fetched separately. Preconditions of clients are evaluated against the
//! stored reply; fetches that fill the cache carry none of them. A client that leaves does not end such a
//! fetch. Other methods are passed on. If their reply is no error, the stored replies of the target are
//! dropped, and those of its `Location` and `Content-Location` on the same host. A request for a WebSocket
//! opens a tunnel ([`tunnel`]). Any other `Upgrade` is removed.

mod body;
mod client;
mod client_key;
mod connector;
mod error;
mod failover;
mod fetch;
mod flight;
mod interim;
mod origin_slot;
mod permit;
mod private_replies;
mod range_fill;
mod send;
mod serve;
mod service;
mod settings;
mod site;
mod slots;
mod stats;
mod transfer_limits;
pub(crate) mod tunnel;
mod upload;

pub use failover::OriginStatus;
pub use stats::OriginStats;

pub(crate) use client::{Origin, OriginReply};
pub(crate) use client_key::ClientKey;
pub(crate) use serve::forward_reply;
pub(crate) use service::OriginService;
