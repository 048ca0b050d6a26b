//! The relay between real sockets.

mod exchanges;
mod kit;
mod rules;
