//! End-to-end tests of clusters with handoff and without a front-end: clients, switch, nodes and real servers
//! in network namespaces, with every byte verified.
//!
//! The tests need the privileges to make namespaces. Without them all tests but those of the client are
//! skipped. A skipped test says so and is counted; in CI it fails.

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
