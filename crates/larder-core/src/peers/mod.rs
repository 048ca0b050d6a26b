//! Nodes that cooperate without a front-end: who serves what, and what they tell one another.
//!
//! All here is a state machine per node: what happens comes in with the time, messages to others come out. How messages
//! travel, who is there, and what serving means is the business of those who drive it: the live node, and the simulator,
//! which loses, delays, repeats and reorders them.

mod card;
mod coming;
pub mod handing;
mod ledger;
mod message;
mod peer;
mod press;
mod sets;
mod sharing;
mod trust;
mod verdict;
mod ward;

pub use card::{
    BATCH_MAX, Batch, Card, CardMessage, CardOutput, CardSettings, CardWhy, Claim, Ends, Miscount, NameKey,
    Placed, Seat,
};
pub use message::{CHANGES_MAX, Change, LIST_MAX, MESSAGE_BYTES_MAX, Message};
pub use press::{Press, PressSettings};
pub use sharing::SharingSettings;
pub use verdict::{Verdict, Why};
pub use ward::{
    Analyse, COUNTS_MAX, Count, OWNERS_MAX, PART_MAX, Rest, Serving, TableId, Ward, WardMessage, WardOutput,
    WardSettings, WardStatus, WardVerdict, WardWhy,
};

#[cfg(test)]
mod extremes;

use crate::id::NodeId;

/// To whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// To all peers.
    All,
    /// To this one.
    One(NodeId),
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom.
    pub to: To,
    /// What.
    pub message: Message,
}
