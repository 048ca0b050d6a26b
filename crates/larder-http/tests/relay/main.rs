//! The relay between real sockets.

mod exchanges;
mod features;
mod kit;
mod rules;
