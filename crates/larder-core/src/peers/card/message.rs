//! Messages between a distributor and its dispatcher.

use crate::id::TargetId;

/// Most requests in one batch, and most nodes whose ends one batch tells.
pub const BATCH_MAX: usize = 1_024;

/// A node's name as messages carry it: its XXH3-64. No name has 0, which stands for *whoever asks*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameKey(pub u64);

impl NameKey {
    /// Whoever asks.
    pub const ASKER: Self = Self(0);

    /// The key of a name.
    pub fn of(name: &str) -> Self {
        Self(TargetId::of(name.as_bytes()).0.max(1))
    }
}

/// The place that a dispatcher gives a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// The node.
    pub node: NameKey,
    /// Which life of it, as the dispatcher counts: from 1, one more with each node that comes, or comes again.
    pub life: u64,
}

impl Seat {
    /// At whoever asks, where the dispatcher counts nothing.
    pub const ASKER: Self = Self { node: NameKey::ASKER, life: 0 };
}

/// Requests of one distributor that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// In which life of their node.
    pub life: u64,
    /// Their number.
    pub count: u32,
}

/// The questions and news of a distributor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Which life of the distributor.
    pub epoch: u64,
    /// The number of the first batch of the account.
    pub account: u64,
    /// Counts up.
    pub number: u64,
    /// The last batch of the account whose answers were used; 0 if there is none.
    pub heard: u64,
    /// Which lot of ends this is, from 1; 0 for none yet.
    pub lot: u64,
    /// Requests that have ended, at most [`BATCH_MAX`].
    pub ends: Vec<Ends>,
    /// Targets that are asked for, at most [`BATCH_MAX`].
    pub asks: Vec<TargetId>,
}

/// A message between a distributor and a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardMessage {
    /// Asks where targets are to be served, and tells which requests have ended.
    Batch(Batch),
    /// There.
    Answers {
        /// The batch's.
        number: u64,
        /// One for each that was asked for, in order.
        seats: Vec<Seat>,
    },
    /// The account of that batch is not known.
    Unknown {
        /// The batch's.
        number: u64,
    },
}
