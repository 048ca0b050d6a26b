//! Relaying of HTTP/1: from a client's connection to servers and back.
//!
//! A thread serves its connections with one task each, and with none per request. [`serve()`] is that task:
//!
//! 1. It reads a head ([`client::Client`]).
//! 2. [`Proxy::request`] decides where the request goes.
//! 3. An [`exchange`] takes it to a server: both directions run at the same time, so that an early reply and a slow upload do not
//!    wait for each other.
//! 4. [`Proxy::on_end`] learns how it went.
//!
//! The connections of a thread share three things, without locks: connections to servers that wait for their next request
//! ([`Pool`]), a buffer for reading ([`scratch`]), and a clock that is read about once per turn of the event loop ([`Clock`]).
//!
//! Not done yet: a truncated reply to a client of HTTP/1.0 ends like a whole one, since nothing here can reset a connection; a
//! client that is idle does not notice that the proxy drains.

mod client;
mod clock;
mod deadline;
mod exchange;
mod fields;
mod pool;
mod proxy;
mod scratch;
mod serve;
mod tunnel;
mod wire;

pub use clock::{Clock, runtime};
pub use pool::Pool;
pub use proxy::{Answer, ClientInfo, Failure, Limits, Next, Proxy, Report, Stage};
pub use serve::serve;
