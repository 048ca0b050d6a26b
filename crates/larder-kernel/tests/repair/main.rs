//! Connections that move between hosts in network namespaces. Needs root and the command `ip`; skipped without them.

mod moves;
mod net;
mod races;
