//! The guard and the injector against real sockets and an unmodified server, in network namespaces.

mod accept;
mod ends;
mod frame;
mod lab;
mod lifetime;
mod moves;
mod nginx;
mod reuse;
mod stash;
mod support;
mod tunnels;
mod wire;
