//! The relay between real sockets.

mod exchanges;
mod frames;
mod http2;
mod kit;
mod passages;
mod rules;
