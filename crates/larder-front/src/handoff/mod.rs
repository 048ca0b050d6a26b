//! Delivering connections without standing in between: the edge of the switch.
//!
//! [`mechanism`] has the rule that chooses; `edge` asks the dispatcher for connections that the forwarding plane
//! holds; `table` keeps what handed-off connections hold; `peers` talks to the nodes, whose
//! places are in `slots`; `sweep` keeps counts and ends
//! exact; `gates` bounds what the plane opens by itself; `fabric` is the machine, which `lent` lets go of.

mod begun;
mod choice;
pub(crate) mod config;
mod counts;
mod edge;
mod ends;
mod entrance;
mod fabric;
mod first;
mod gates;
mod hear;
mod held;
mod keyring;
mod learned;
mod lent;
mod lock;
mod log;
mod machine;
pub(crate) mod mechanism;
mod moves;
mod moving;
mod pass;
mod passing;
pub(crate) mod peers;
mod resume;
mod resumed;
mod run;
mod slots;
mod splice;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod whereabouts;

pub use config::{Forward, HandoffConfig, Handshake, NodeHandoff};
pub use mechanism::{Delivery, Facts, Mechanism, Setting, Speaks, UnknownMechanism, Why};
pub use peers::HandoffStatus;

pub use run::HandoffError;

pub(crate) use edge::{Edge, Owners};
pub(crate) use entrance::Entered;
pub(crate) use run::Ears;
pub(crate) use slots::key_of;

/// Entry points for the fuzz targets.
#[doc(hidden)]
pub(crate) mod fuzzing {
    use super::first::{self, First};
    use super::held::{Held, segment};
    use super::mechanism::Speaks;

    /// Reads the first bytes of a connection as they grow: a verdict stays, whatever comes behind.
    pub fn fuzz_first(bytes: &[u8]) {
        let Some((cut, bytes)) = bytes.split_first() else { return };
        let kind = |bytes: &[u8]| match first::read(bytes) {
            First::Http(asked) => (Speaks::Http1, asked.target.as_bytes().to_vec()),
            First::Tls(name) => (Speaks::Tls, name),
            First::No(speaks) => (speaks, Vec::new()),
        };
        let early = kind(&bytes[..bytes.len().min(usize::from(*cut) * 2)]);
        if early.0 != Speaks::Partial {
            assert_eq!(early, kind(bytes));
        }
    }

    /// Puts held frames together, each as long as the byte before it says.
    pub fn fuzz_held(mut bytes: &[u8]) {
        let mut held = Held::default();
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(usize::from(*length).min(rest.len()));
            held.push(frame);
            bytes = rest;
        }
        let mut payloads = held.packets().iter().filter_map(|frame| segment(frame)).map(|s| s.payload);
        let first = payloads.find(|payload| !payload.is_empty()).unwrap_or_default();
        assert!(held.bytes().starts_with(first));
    }
}
