//! Relaying of HTTP/1: from a client's connection to servers and back.
//!
//! A thread serves its connections with one task each, and with none per request. [`serve`] is that task:
//!
//! 1. It reads a head ([`Client`]).
//! 2. [`Proxy::request`] decides what becomes of the request.
//! 3. An [`exchange`] takes it to a server: both directions run at the same time, so that an early reply and a slow upload do not
//!    wait for each other.
//! 4. [`Proxy::ended`] learns how it went.
//!
//! What a thread shares among its connections is not locked: connections to servers that wait for their next request ([`pool`]), a
//! buffer for reading ([`scratch`]), and a clock that is read once per turn of the event loop ([`clock`]).

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
pub use proxy::{Answer, Ended, Failure, Next, Peer, Proxy, Stage, Timeouts};
pub use serve::serve;
