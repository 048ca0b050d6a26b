//! Relaying of requests from the connection of a client to servers, and of replies back.
//!
//! A thread serves each of its HTTP/1 connections with one task, and starts no task for a request.
//! [`serve()`] is that task:
//!
//! 1. It reads a head ([`client_session::ClientSession`]).
//! 2. [`Proxy::request`] decides where the request goes.
//! 3. An [`exchange`] sends the request to a server. Both directions run at the same time, so that an early
//!    reply and a slow upload do not wait for each other.
//! 4. [`Proxy::on_end`] is called with the result.
//!
//! Large bodies pass from socket to socket without a copy ([`splice`]).
//!
//! The connections of a thread share a [`Worker`] without locks. The worker holds idle connections to
//! servers. A thread also shares read buffers ([`scratch`]) and a clock that is read about once per turn of
//! the event loop ([`Clock`]).

mod answer;
mod answer_writer;
mod buffered_stream;
mod client_session;
mod client_side;
mod clock;
mod deadline;
mod exchange;
mod fault;
mod fields;
mod handle;
mod hedge;
mod http1;
mod http2;
mod intake;
mod limits;
mod pool;
mod proxy;
mod request;
mod scratch;
mod serve;
mod server_side;
mod server_streams;
mod splice;
mod threads;
mod transfer;
mod tunnel;
mod worker;

pub use answer::{AfterAnswer, Answer, Contents};
pub use clock::{Clock, runtime};
pub use fault::{ClientFault, Failure, Http2Fault, MessageRejection, Refusal, Stage};
pub use handle::{BodyFault, ClientHandle, InterimSender, RequestBody};
pub use http2::{StreamMemory, serve_http2};
pub use limits::Limits;
pub use pool::PoolLimits;
pub use proxy::{HedgeEvent, Next, Proxy, ReplyForwarding, Report};
pub use serve::{End, Start, serve};
pub use splice::Transport;
pub use threads::{StartupSignal, Threads};
pub use worker::Worker;
