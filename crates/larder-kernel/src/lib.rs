//! Moves established TCP connections between hosts and forwards their packets. Linux only.
//!
//! The protocol between the hosts is in `larder-handoff`, which uses this crate.
//!
//! A client talks to one address all the time; which host answers changes underneath. Two mechanisms:
//!
//! - *cookie*: the front-end's program answers the SYN without keeping state, reads the first segment, and passes the
//!   connection's packets on to a node, whose kernel completes the handshake from the cookie in the acknowledgement;
//! - *repair*: the front-end's kernel accepts the connection, its state is read out of the socket (`TCP_REPAIR`), sent
//!   to the node and put into a socket there.
//!
//! Either way the node answers the client directly. What the programs in the kernel and this library share is in
//! [`abi`]; the programs themselves are C, in `bpf/`.
//!
//! This is the only crate of larder with unsafe code; each block says why it is sound.

pub mod abi;
mod bpffs;
mod cookie;
mod flow;
pub mod guard;
pub mod inject;
pub mod interface;
mod listing;
pub mod load;
pub mod neighbour;
pub mod netns;
pub mod plane;
pub mod probe;
mod readiness;
pub mod remains;
pub mod repair;
pub mod sockets;

pub use cookie::{Answer, Cookie, CookieKey, SynOptions};
pub use flow::FlowKey;
pub use readiness::Readiness;
