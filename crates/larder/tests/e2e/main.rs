//! End to end: the real binary, real processes, real sockets on loopback with ports the kernel chooses.

#![allow(unreachable_pub, clippy::panic, clippy::unwrap_used, reason = "test code: a panic is a failed test")]

mod acme;
mod browser;
mod churn;
mod command_line;
mod compress;
mod conformance;
mod crowd;
mod demo;
mod discovery;
mod edits;
mod failover;
mod guides;
mod hedge;
mod hostile;
mod http;
mod http2;
mod keys;
mod kubernetes;
mod live_routes;
mod load;
mod load_users;
mod mirror;
mod node_content;
mod origin;
mod packaging;
mod page;
mod peers;
mod peers_policies;
mod plan;
mod process;
mod reach;
mod reload;
mod replay;
mod routes_for_others;
mod serving;
mod shadow;
mod shares;
mod sticky;
mod switches;
mod top;
mod trace_ward;
mod traces;
mod validate;
mod wrong_configs;
