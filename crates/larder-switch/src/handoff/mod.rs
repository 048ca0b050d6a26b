//! The handoff edge of the switch: delivers connections to nodes without a relay.
//!
//! [`larder_core::handoff::EdgeMachine`] holds the state of connections. [`mechanism`] has the rule that chooses how
//! a connection is delivered. `edge` passes events of the forwarding plane to the machine and asks the dispatcher.
//! `outputs` executes what the machine returns. `channels` and `node_messages` talk to the nodes, and `slots` keeps
//! the slots of nodes in the plane. `sweep` keeps counts and ends exact, and `gates` limits what the plane opens by
//! itself. `datapath` is the interface to the plane, and `detachable` lets another process take it over.

mod accepted;
pub(crate) mod channels;
pub(crate) mod config;
mod counts;
mod datapath;
mod detachable;
mod edge;
mod facts;
mod first_state;
mod frame;
mod gates;
mod history;
mod host_datapath;
mod keyring;
mod locate;
mod log;
mod log_text;
pub(crate) mod mechanism;
mod node_messages;
mod opening;
mod outputs;
mod parts;
mod run;
mod slots;
mod socket_move;
mod splice;
mod sweep;
#[cfg(test)]
mod tests;

pub use channels::HandoffStatus;
pub use config::{Encapsulation, HandoffConfig, Handshake, NodeHandoff};
pub use mechanism::{
    ConnectionFacts, Delivery, DeliveryReason, FirstBytes, Mechanism, MechanismSetting, UnknownMechanism,
};

pub use run::HandoffError;

pub(crate) use accepted::AcceptedDelivery;
pub(crate) use edge::{Edge, SwitchParts};
pub(crate) use run::EdgeInputs;
pub(crate) use slots::node_key;

/// Entry points for the fuzz targets.
#[doc(hidden)]
pub(crate) mod fuzzing {
    use super::frame::{Frame, payload};
    use super::mechanism::FirstBytes;
    use super::opening::{self, Opening};
    use larder_kernel::frame::TcpFrame;

    /// Parses growing prefixes of a connection: a verdict must not change when more bytes follow.
    pub fn fuzz_first(bytes: &[u8]) {
        let Some((cut, bytes)) = bytes.split_first() else { return };
        let kind = |bytes: &[u8]| match opening::parse(bytes) {
            Opening::Http(asked) => (FirstBytes::Http1, asked.target.as_bytes().to_vec()),
            Opening::Tls(name) => (FirstBytes::Tls, name),
            Opening::Unusable(first_bytes) => (first_bytes, Vec::new()),
        };
        let early = kind(&bytes[..bytes.len().min(usize::from(*cut) * 2)]);
        if early.0 != FirstBytes::Partial {
            assert_eq!(early, kind(bytes));
        }
    }

    /// Reassembles held frames. The byte before each frame is its length.
    pub fn fuzz_held(mut bytes: &[u8]) {
        let mut held = Vec::new();
        while let Some((length, rest)) = bytes.split_first() {
            let (frame, rest) = rest.split_at(usize::from(*length).min(rest.len()));
            held.push(Frame::new(frame, None));
            bytes = rest;
        }
        let mut payloads = held.iter().filter_map(|frame| TcpFrame::parse(&frame.bytes)).map(|s| s.payload);
        let first = payloads.find(|payload| !payload.is_empty()).unwrap_or_default();
        assert!(payload(&held).starts_with(first));
    }
}
