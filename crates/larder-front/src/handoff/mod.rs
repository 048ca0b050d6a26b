//! Delivering connections without standing in between: the edge of the switch.
//!
//! Connections are kept by [`larder_core::handoff::EdgeMachine`]. [`mechanism`] has the rule that chooses; `edge` gives the
//! machine what the forwarding plane tells, and asks the dispatcher; `outputs` carries out what the machine answers; `peers` talks to
//! the nodes, whose places are in `slots`; `sweep` keeps counts and ends exact; `gates` bounds what the plane opens by itself;
//! `fabric` is the plane, which `lent` lets go of.

mod begun;
mod choice;
pub(crate) mod config;
mod counts;
mod edge;
mod entrance;
mod fabric;
mod first;
mod frame;
mod gates;
mod hear;
mod keyring;
mod learned;
mod lent;
mod lock;
mod log;
mod machine;
pub(crate) mod mechanism;
mod moving;
mod outputs;
mod parts;
pub(crate) mod peers;
mod run;
mod slots;
mod splice;
mod sweep;
#[cfg(test)]
mod tests;
mod text;
mod whereabouts;

pub use config::{Forward, HandoffConfig, Handshake, NodeHandoff};
pub use mechanism::{
    ConnectionFacts, Delivery, DeliveryReason, FirstBytes, Mechanism, MechanismSetting, UnknownMechanism,
};
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
    use super::frame::{Frame, payload, segment};
    use super::mechanism::FirstBytes;

    /// Reads the first bytes of a connection as they grow: a verdict stays, whatever comes behind.
    pub fn fuzz_first(bytes: &[u8]) {
        let Some((cut, bytes)) = bytes.split_first() else { return };
        let kind = |bytes: &[u8]| match first::read(bytes) {
            First::Http(asked) => (FirstBytes::Http1, asked.target.as_bytes().to_vec()),
            First::Tls(name) => (FirstBytes::Tls, name),
            First::No(speaks) => (speaks, Vec::new()),
        };
        let early = kind(&bytes[..bytes.len().min(usize::from(*cut) * 2)]);
        if early.0 != FirstBytes::Partial {
            assert_eq!(early, kind(bytes));
        }
    }

    /// Puts held frames together, each as long as the byte before it says.
    pub fn fuzz_held(mut bytes: &[u8]) {
        let mut held = Vec::new();
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(usize::from(*length).min(rest.len()));
            held.push(Frame::new(frame, None));
            bytes = rest;
        }
        let mut payloads = held.iter().filter_map(|frame| segment(&frame.bytes)).map(|s| s.payload);
        let first = payloads.find(|payload| !payload.is_empty()).unwrap_or_default();
        assert!(payload(&held).starts_with(first));
    }
}
