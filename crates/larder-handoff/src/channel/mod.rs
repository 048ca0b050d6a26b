//! The control channel between front-ends and nodes.
//!
//! A node listens on TCP, the front-end connects. Both prove who they are by a static X25519 key before anything else
//! is said: the node accepts only keys on its list, the front-end only the key it was told. All of it is the Noise
//! pattern IK (`Noise_IK_25519_ChaChaPoly_BLAKE2s`, The Noise Protocol Framework, revision 34, sections 7.5 and 12),
//! so that what is said is secret, in order and cannot be replayed.
//!
//! ```text
//! client::NodeChannel (front-end)                       server::Server (node)
//!   e, es, s, ss  ----------------------------------->  is the key on the list?
//!   is it the node's key?  <--------------------------  e, ee, se
//!   Hello{services, tag, keys}  --------------------->  only now the peer is known to be alive, and not a replay
//!   ToNode ...  <------------------------------------>  Welcome, FromNode ...
//! ```
//!
//! The last packets of a connection and those of the next one are never mixed: a front-end that connects anew starts
//! with a new Hello, and what was under way is unknown to it until the node's reports say so.

pub mod client;
pub mod identity;
pub mod message;
pub mod server;
mod timing;
pub mod transport;
pub mod whereabouts;

pub use timing::Timing;
