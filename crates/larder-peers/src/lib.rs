//! The network between the peers of a cluster: membership, control messages and forwarded requests.
//!
//! ```text
//! Network --- Membership: SWIM over encrypted datagrams (UDP) ---------- Joined, Left
//!         --- control links: one-way message streams (TCP, Noise) ------ LinkUp, Message, LinkDown
//!         --- data links: forwarded requests, HTTP/2 (TCP, Noise)
//!         --- Acceptor: accepts both kinds of links
//! ```
//!
//! All of it listens on one port number, TCP and UDP. A process that has a secret of the cluster is a member; no other
//! process can read, change or inject traffic. The crate does not interpret messages: their content belongs to the
//! cooperation protocol. Every resource has a limit, and each limit has an outcome that is counted: see [`Counters`].

mod acceptor;
pub mod config;
mod control_links;
mod counters;
mod data_links;
mod datagram;
mod events;
mod gossip;
mod handshaker;
mod hello;
mod keyring;
mod member;
mod name;
mod network;
mod noise;
mod secret;
mod seeds;

pub use acceptor::Service;
pub use config::{ConfigError, ControlConfig, GossipConfig, LinksConfig, PeersConfig};
pub use control_links::{MESSAGE_BYTES_MAX, SendError};
pub use counters::{CounterValues, Counters};
pub use data_links::{BodyError, ForwardError, ReplyBody};
#[doc(hidden)]
pub use datagram::fuzz_datagram;
pub use events::{Event, Events, LinkDirection};
pub use handshaker::LinkError;
pub use member::{LeaveReason, Member, PeerId};
pub use name::{NAME_BYTES_MAX, Name, NameError};
pub use network::{Network, NetworkError};
pub use noise::NoiseError;
pub use secret::{ClusterSecret, ClusterSecrets, PROOF_FIELD};
pub use seeds::{Seed, SeedError};
