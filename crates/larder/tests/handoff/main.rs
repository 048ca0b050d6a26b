//! Clusters end to end, with handoff and without a front-end: clients, switch and nodes in network namespaces, real servers, every byte verified.
//!
//! Needs the rights to make namespaces; without them every test here is skipped, but for those of the client. A skipped test says
//! so and is counted; in CI it fails.

#![allow(unreachable_pub, clippy::panic, clippy::unwrap_used, reason = "test code: a panic is a failed test")]

mod adversary;
mod client;
mod cluster;
mod content;
mod cookie;
mod counters;
mod degrade;
mod demo;
mod direct;
mod doctor;
mod endings;
mod ends;
mod equals;
mod expired;
mod families;
mod faults;
mod flood;
mod flood_test;
mod handover;
mod handover_die;
mod handover_kept;
mod handover_lab;
mod handover_refused;
mod handover_trouble;
mod kills;
mod lateral;
mod long;
mod origin;
mod plans;
mod process;
mod races;
mod renewals;
mod sockets;
mod switches;
mod tls;
mod tunnel;
mod verifier;
