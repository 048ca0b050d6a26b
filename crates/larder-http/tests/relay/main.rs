//! Tests of the relay on real sockets.

mod answers;
mod exchanges;
mod features;
mod frames;
mod http2;
mod http2_limits;
mod kit;
mod rules;
