//! The protocol by which switches and nodes hand off TCP connections.
//!
//! - [`channel`] carries messages between a switch and a node: Noise encryption, keys, message formats.
//! - [`noise`] has the preamble and the records of encrypted connections, also for those between peers.
//! - [`frozen`] has the socket of a connection that is being handed off, at the host that hands it off.
//! - [`agent`] is the node's side. It accepts switches and carries out their requests in the kernel.
//!
//! `larder-kernel` does the work in the kernel. The agent uses it through the trait [`agent::NodeKernel`], so that
//! tests can run the agent with a fake kernel. [`agent::LinuxKernel`] is the real implementation.

pub mod agent;
pub mod channel;
pub mod frozen;
pub mod noise;
