//! Oracle for shared caches.
//!
//! A seeded generator ([`case`]) draws pairs and triples of requests, concurrent or successive, and the origin's replies to
//! them. The harness ([`runner`]) sends the requests over sockets to a built larder ([`topology`]) and acts as the origin
//! ([`origin`]). Each origin reply contains the number of its exchange, so the harness knows the source of each client reply.
//! An independent model of RFC 9111 ([`model`]) then judges whether the client may get that reply.
//!
//! The model is written from the RFCs, with one function for each rule, and shares no code with larder. It only forbids: a
//! reply that violates no rule is right. See `docs/understand/laboratory.md`.
//!
//! # Extending the oracle
//!
//! * A value: add it to its dimension in [`catalogue`]. The indices of other values move, so the same seed gives other cases.
//! * A rule: add it with its section to [`model::rule`], write its function, enter it in `STORING` or `REUSE` (or in the checks
//!   of [`model::reply_form`]), and add a pair of requests to `model/examples.rs` for which it alone decides.
//! * A system: add it to [`topology`].

pub mod case;
pub mod catalogue;
pub mod client;
pub mod model;
pub mod origin;
pub mod record;
pub mod report;
pub mod run;
pub mod runner;
pub mod shrink;
pub mod step;
pub mod topology;
pub mod transcript;
pub mod wire;
