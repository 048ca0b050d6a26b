//! The live network between peers: who is there, connections to them, messages, and forwarded requests.
//!
//! ```text
//! Network --- Membership: SWIM over sealed datagrams (UDP) ------------- Joined, Left
//!         --- control links: messages, one way each (TCP, Noise) ------- Up, Message, Down
//!         --- data links: forwarded requests, HTTP/2 (TCP, Noise)
//!         --- port: accepts both kinds of links
//! ```
//!
//! All of it listens on one port number. Whoever has a secret of the cluster is a member; nobody else can read, change or
//! add anything. What messages say is the cooperation protocol's matter, not this one's. Everything has a limit, and each
//! limit an outcome that is counted: see [`Counters`].

pub mod config;
mod connect;
mod control;
mod counters;
mod datagram;
mod events;
mod gossip;
mod hello;
mod keyring;
mod links;
mod member;
mod name;
mod network;
mod noise;
mod port;
mod secret;
mod seeds;

pub use config::{ConfigError, ControlConfig, GossipConfig, LinksConfig, PeersConfig};
pub use connect::LinkError;
pub use control::{MESSAGE_BYTES_MAX, SendError};
pub use counters::{Counted, Counters};
#[doc(hidden)]
pub use datagram::fuzz_datagram;
pub use events::{Event, Events, Way};
pub use links::{BodyError, ForwardError, ReplyBody, Sent};
pub use member::{Member, Peer, Why};
pub use name::{NAME_BYTES_MAX, Name, NameError};
pub use network::{Network, NetworkError};
pub use noise::NoiseError;
pub use port::Service;
pub use secret::{ClusterSecret, ClusterSecrets, PROOF_FIELD};
pub use seeds::{Seed, SeedError};
