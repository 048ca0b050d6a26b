//! Cooperation of nodes without a front-end: which node serves a request, and the messages between nodes.
//!
//! Each node runs state machines. The inputs are events with their time, and the outputs are messages and actions.
//! The driver transports messages, tracks the membership and serves requests. The live node is one driver. The
//! simulator is another, and it loses, delays, repeats and reorders messages.
//!
//! # Example
//! Two nodes under PRESS. The program carries the messages between them:
//!
//! ```
//! use larder_core::peers::{Press, PressReason, PressSettings, SharingSettings};
//! use larder_core::{Bytes, NodeId, TargetId, Time};
//!
//! // These nodes share their caches from the start, and send changes at once.
//! let sharing = SharingSettings { on_permille: 0, off_permille: 0, ..SharingSettings::default() };
//! let settings = PressSettings { sharing, gather: core::time::Duration::ZERO, ..PressSettings::default() };
//! let (a, b) = (NodeId(0), NodeId(1));
//! let (mut node_a, mut node_b) = (Press::new(a, 1, settings), Press::new(b, 1, settings));
//! let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
//! node_a.add_peer(Time::ZERO, b, &mut from_a);
//! node_b.add_peer(Time::ZERO, a, &mut from_b);
//!
//! // A request reaches node a, which reads the target and keeps it.
//! let (target, size) = (TargetId::of(b"/logo.png"), Some(Bytes(4_000)));
//! let decision = node_a.decide(Time::ZERO, target, size);
//! assert_eq!((decision.node, decision.reason), (a, PressReason::First));
//! node_a.set_cached(Time::ZERO, target, true, &mut from_a);
//!
//! let now = Time::from_millis(1);
//! for output in from_a.drain(..) {
//!     node_b.receive(now, a, output.message, &mut from_b);
//! }
//! for output in from_b.drain(..) {
//!     node_a.receive(now, b, output.message, &mut from_a);
//! }
//! // A request for the same target reaches node b, which forwards it.
//! let decision = node_b.decide(now, target, size);
//! assert_eq!((decision.node, decision.reason), (a, PressReason::Peer));
//! ```

mod card;
mod decision;
pub mod handoff;
mod ledger;
mod message;
mod peer;
mod pending_reads;
mod press;
mod sets;
mod sharing;
mod trust;
mod ward;

pub use card::{
    BATCH_MAX, Batch, Card, CardMessage, CardOutput, CardPlacement, CardReason, CardSettings, Claim,
    EndedRequests, Miscount, NameKey, NodeInstance,
};
pub use decision::{PressDecision, PressReason};
pub use message::{CHANGES_MAX, CacheChange, LIST_MAX, MESSAGE_BYTES_MAX, PressMessage};
pub use press::{Press, PressSettings};
pub use sharing::SharingSettings;
pub use ward::{
    AnalysisInput, COUNTS_MAX, Count, CurrentPlacement, OWNERS_MAX, PART_MAX, TableId, UnlistedTargets, Ward,
    WardDecision, WardMessage, WardOutput, WardReason, WardSettings, WardStatus,
};

#[cfg(test)]
mod robustness_tests;

use crate::id::NodeId;

/// Receivers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// All peers.
    All,
    /// One peer.
    One(NodeId),
}

/// Message that the caller sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PressOutput {
    /// Receivers.
    pub to: Recipient,
    /// Message.
    pub message: PressMessage,
}
