//! Helpers that the tests of all crates share. A development dependency only: no product code uses this crate.
//!
//! - [`wait`](mod@wait) waits for an event with a deadline. Tests do not sleep for an assumed duration.
//! - [`Authority`] signs certificates, and [`acceptor`] is a server with one.
//! - [`free_port`] finds a port that no other process uses by chance.
//! - [`http`] reads the heads of HTTP/1 messages.
//! - [`proxy`] has nodes and clients for tests of proxies.
//! - [`build_library`] builds a shared library as a user gets it.
//! - [`metric`] reads a value from a page of metrics.
//! - [`assert_objects_are_current`] compares the digests of compiled BPF programs with their sources.
//! - [`skip`](mod@skip) is the only way in which a test may return without testing. A skip is printed, counted by `make test`,
//!   and a failure under `CI=true`.

mod authority;
pub mod http;
mod library;
mod metrics;
mod objects;
pub mod port;
pub mod proxy;
pub mod skip;
pub mod wait;

pub use authority::{Authority, acceptor, write_secret};
pub use library::build_library;
pub use metrics::metric;
pub use objects::assert_objects_are_current;
pub use port::free_port;
pub use skip::{needs_root, needs_tool, or_skip, skip};
pub use wait::{
    PATIENCE, eventually, eventually_asked, eventually_async, eventually_within, holds_for, holds_for_async,
    take_time, take_time_async, within,
};
