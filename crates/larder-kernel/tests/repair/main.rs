//! Connections that move between hosts in network namespaces. Needs root and the command `ip`; says so when it has not.

mod moves;
mod net;
mod races;
