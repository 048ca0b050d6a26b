//! The protocol by which switches and nodes hand off TCP connections.
//!
//! - [`channel`] carries messages between a switch and a node: Noise, keys, message formats.
//! - [`agent`] is the node's side: it accepts switches, and has the kernel do what they ask for.
//!
//! `larder-kernel` does the work in the kernel. The agent reaches it by the trait [`agent::Forwarding`], so that tests run
//! the agent without the kernel's programs; [`agent::Host`] is the implementation on this machine.

pub mod agent;
pub mod channel;
