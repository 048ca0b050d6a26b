//! Delivering connections without standing in between: the edge of the switch.
//!
//! [`mechanism`] has the rule that chooses; `edge` asks the dispatcher for connections that the forwarding plane
//! holds; `table` keeps what handed-off connections hold; `peers` talks to the nodes; `sweep` keeps counts and ends
//! exact; `fabric` is the machine.

mod config;
mod counts;
mod edge;
mod entrance;
mod fabric;
mod first;
mod held;
mod keyring;
mod learned;
mod log;
mod machine;
mod mechanism;
mod moving;
mod passing;
mod peers;
mod run;
mod splice;
mod sweep;
mod table;
#[cfg(test)]
mod tests;

pub use config::{Forward, HandoffConfig, NodeHandoff};
pub use mechanism::{Delivery, Facts, Mechanism, Setting, Speaks, UnknownMechanism, Why};
pub use peers::HandoffStatus;

pub use run::HandoffError;

pub(crate) use edge::{Edge, Started};
pub(crate) use entrance::Entered;
pub(crate) use run::Ears;
