//! Moves established TCP connections between hosts and forwards their packets. Linux only.
//!
//! The protocol between the hosts is in `larder-handoff`, which uses this crate.
//!
//! A client always talks to the same address, but the host that answers it can change. There are two mechanisms:
//!
//! - *cookie*: the switch's program answers the SYN without keeping state, reads the first segment, and forwards the
//!   connection's packets to a node. The node's kernel completes the handshake from the cookie in the acknowledgement.
//! - *repair*: the switch's kernel accepts the connection. Its state is read out of the socket (`TCP_REPAIR`), sent to
//!   the node, and restored in a socket there.
//!
//! In both cases the node answers the client directly. [`abi`] is the ABI between the kernel programs and this library.
//! The programs are written in C, in `bpf/`.
//!
//! Apart from `liblarder`, this is the only crate of larder with unsafe code. Each unsafe block states why it is sound.

pub mod abi;
mod bpffs;
mod cookie;
pub mod cpu;
mod flow;
pub mod frame;
pub mod guard;
pub mod inject;
pub mod interface;
pub mod leftovers;
mod listing;
pub mod neighbour;
pub mod netns;
pub mod plane;
pub mod probe;
mod readiness;
pub mod repair;
pub mod sockets;

pub use cookie::{Cookie, CookieKey, SynAckCookie, SynOptions};
pub use flow::FlowKey;
pub use readiness::Readiness;
