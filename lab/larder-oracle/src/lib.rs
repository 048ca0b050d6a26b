//! Oracle for shared caches.
//!
//! A seeded generator ([`case`]) makes pairs and triples of requests, concurrent or successive, and scripts what the
//! origin replies. The harness ([`drive`]) sends the requests over sockets to a built larder ([`topology`]) and plays
//! the origin ([`origin`]). Each origin reply names the exchange that it belongs to, so the harness knows which
//! exchange each client reply was made from. An independent model of RFC 9111 ([`model`]) then decides whether the
//! client may get that reply.
//!
//! The model is written from the RFCs, with one function per rule. It shares no code with larder. It only forbids:
//! a reply that no rule forbids is right. See `docs/oracle.md`.

pub mod case;
pub mod catalogue;
pub mod client;
pub mod drive;
pub mod model;
pub mod origin;
pub mod record;
pub mod report;
pub mod run;
pub mod script;
pub mod shrink;
pub mod topology;
pub mod transcript;
pub mod wire;
