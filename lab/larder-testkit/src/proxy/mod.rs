//! Tests of proxies: nodes behind a proxy, and clients in front of it.

mod client;
mod load;
mod node;

pub use client::{Client, Reply, get, post};
pub use load::{CLIENTS, Connections, Load, path, placements};
pub use node::Node;
