//! Cooperation of nodes without a front-end: which node serves a request, and the messages between nodes.
//!
//! Each node runs state machines. The inputs are events with their time, and the outputs are messages and actions.
//! The driver transports messages, tracks the membership and serves requests. The live node is one driver. The
//! simulator is another, and it loses, delays, repeats and reorders messages.

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
