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
//! Large bodies pass from socket to socket without a copy ([`splice`]).
//!
//! The connections of a thread share a [`Worker`], without locks: connections to servers that wait for their next request, a buffer
//! for reading ([`scratch`]), and a clock that is read about once per turn of the event loop ([`Clock`]).

mod answer;
mod client;
mod clock;
mod deadline;
mod downstream;
mod exchange;
mod fault;
mod fields;
mod handle;
mod http1;
mod http2;
mod intake;
mod limits;
mod pool;
mod proxy;
mod race;
mod request;
mod scratch;
mod sending;
mod serve;
mod splice;
mod streams;
mod threads;
mod transfer;
mod tunnel;
mod upstream;
mod wire;
mod worker;

pub use answer::{Answer, Contents, Then};
pub use clock::{Clock, runtime};
pub use fault::{ClientFault, Failure, Http2Fault, Refusal, Stage, Unfit};
pub use handle::{BodyFault, ClientHandle, InterimSender, RequestBody};
pub use http2::{StreamMemory, serve_http2};
pub use limits::Limits;
pub use pool::PoolLimits;
pub use proxy::{Next, Passage, Proxy, RaceEvent, Report};
pub use serve::{End, Start, serve};
pub use splice::Transport;
pub use threads::{Begun, Threads};
pub use worker::Worker;
