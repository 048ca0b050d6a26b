//! The control channel between switches and nodes.
//!
//! A node listens on TCP, and the switch connects. Both authenticate with a static X25519 key before they exchange
//! messages: the node accepts only keys on its list, and the switch only the key from its config. The protocol is the
//! Noise pattern IK (`Noise_IK_25519_ChaChaPoly_BLAKE2s`, The Noise Protocol Framework, revision 34, sections 7.5 and
//! 12). Messages are therefore encrypted, in order, and cannot be replayed.
//!
//! ```text
//! client::NodeChannel (switch)                           server::Server (node)
//!   e, es, s, ss  ----------------------------------->  is the key on the list?
//!   is it the node's key?  <--------------------------  e, ee, se
//!   Hello{services, tag, keys}  --------------------->  proves that the switch is live, and not a replay
//!   ToNode ...  <------------------------------------>  Welcome, FromNode ...
//! ```
//!
//! Messages of two sessions are never mixed. A switch that reconnects starts with a new Hello, and learns the outcome
//! of handoffs in progress only from the node's reports.

pub mod client;
pub mod holders;
pub mod identity;
pub mod message;
pub mod server;
mod timing;
pub mod transport;

pub use timing::{Timing, retry_delay};
