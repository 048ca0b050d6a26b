//! Policies: which node serves a request.
//!
//! A policy reads the nodes' rows ([`Sight`]), keeps what state it needs behind its own locks, and answers with a
//! [`Choice`]. It does not count load, admit or queue; the [dispatcher](crate::dispatch) does that for all of them.
//! One file is one policy. [`PolicyKind::ALL`] is the one list of them, and the tests run for each.

mod api;
mod bounded;
mod cap;
pub mod cap_load;
mod choice;
mod explain;
mod feedback;
mod gathered;
mod gauge;
mod gossip;
pub mod hacc;
mod hash;
mod journal;
mod lard;
pub mod lard_cost;
mod lard_r;
mod lard_util;
mod lb_gc;
mod least_conn;
mod lots;
pub(crate) mod maglev;
mod measured;
mod members;
mod memory;
mod mirror;
mod p2c;
mod peak_ewma;
mod random;
mod rendezvous;
mod request;
mod rr;
pub(crate) mod set;
mod static_partition;
pub mod table;
pub mod targets;
pub mod thresholds;
mod ward;
mod wrr;
mod wrr_num;
mod wrr_time;

#[cfg(test)]
mod learning;
#[cfg(test)]
mod shelf;

pub use bounded::BoundedSettings;
pub use choice::{Choice, Reason};
pub use explain::Known;
pub use feedback::{CacheEvent, Found, Served};
pub use gossip::{Adopted, Changes, Page};
pub use lard_util::UtilBy;
pub use memory::{Memory, ServerSet};
pub use request::{Exclude, Request, Tie};

pub(crate) use api::Policy;

use crate::dispatch::Settings;
use core::fmt;
use core::str::FromStr;

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    /// Any node, by lot.
    Random,
    /// The next node.
    Rr,
    /// The next node that is not above the mean load: LARD's baseline.
    Wrr,
    /// The node with the fewest requests in flight.
    LeastConn,
    /// The node that the target's hash names: LARD's LB.
    Hash,
    /// LARD without replication.
    Lard,
    /// LARD with replication.
    LardR,
    /// The next node, weighted by the active processes that nodes report: CAP's WRR (num).
    WrrNum,
    /// The next node, weighted by the service times that nodes report: CAP's WRR (time).
    WrrTime,
    /// The next node of the request's class: CAP.
    Cap,
    /// The next of the nodes set aside for the request's class: CAP's static partitioning.
    Static,
    /// LARD on the utilisation that nodes report: CAP's LARD.
    LardUtil,
    /// Where a routing table says, or where the request arrived: WARD.
    Ward,
    /// The same without a core: WARD's PART.
    Part,
    /// A node per document; measured loads place new ones and move some: HACC.
    Hacc,
    /// The node that caches the target, or the one with the globally oldest: LARD's LB/GC.
    LbGc,
    /// The node that a ring names, or the next one with room: consistent hashing with bounded loads.
    Bounded,
    /// The node that a permuted table names: Maglev hashing.
    Maglev,
    /// The node with the highest random weight for the target: rendezvous hashing.
    Rendezvous,
    /// The less loaded of two nodes drawn by lot.
    P2c,
    /// Of two nodes drawn by lot the one that promises the shorter wait: peak EWMA.
    PeakEwma,
    /// CAP that passes over nodes above the mean load.
    CapLoad,
    /// LARD by costs instead of thresholds.
    LardCost,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 23] = [
        Self::Random,
        Self::Rr,
        Self::Wrr,
        Self::LeastConn,
        Self::Hash,
        Self::Lard,
        Self::LardR,
        Self::WrrNum,
        Self::WrrTime,
        Self::Cap,
        Self::Static,
        Self::LardUtil,
        Self::Ward,
        Self::Part,
        Self::Hacc,
        Self::LbGc,
        Self::Bounded,
        Self::Maglev,
        Self::Rendezvous,
        Self::P2c,
        Self::PeakEwma,
        Self::CapLoad,
        Self::LardCost,
    ];

    /// The name used in configuration, tables and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::LeastConn => "least-conn",
            Self::Hash => "hash",
            Self::Lard => "lard",
            Self::LardR => "lard-r",
            Self::WrrNum => "wrr-num",
            Self::WrrTime => "wrr-time",
            Self::Cap => "cap",
            Self::Static => "static",
            Self::LardUtil => "lard-util",
            Self::Ward => "ward",
            Self::Part => "part",
            Self::Hacc => "hacc",
            Self::LbGc => "lb-gc",
            Self::CapLoad => "cap-load",
            Self::LardCost => "lard-cost",
            Self::Bounded => "bounded",
            Self::Maglev => "maglev",
            Self::Rendezvous => "rendezvous",
            Self::P2c => "p2c",
            Self::PeakEwma => "peak-ewma",
        }
    }

    /// What the policy does, in one line.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Random => "any node, by lot",
            Self::Rr => "each node in turn",
            Self::Wrr => "each node in turn, passing over those above the mean load",
            Self::LeastConn => "the node with the fewest requests in flight",
            Self::Hash => "the node that the target's hash names, whatever its load",
            Self::Lard => "the node that has the target, until that node is overloaded (LARD)",
            Self::LardR => "the nodes that have the target; more of them while it is hot (LARD/R)",
            Self::WrrNum => "each node in turn, weighted by the active processes it reports",
            Self::WrrTime => "each node in turn, weighted by the service time it reports",
            Self::Cap => "each node in turn, separately for each service class (CAP)",
            Self::Static => "each node in turn among those set aside for the service class",
            Self::LardUtil => "like lard, on the utilisation that nodes report",
            Self::Ward => {
                "where the routing table says: core where it arrived, partition at its owner (WARD)"
            }
            Self::Part => "where the routing table says, without a core (PART)",
            Self::Hacc => "the node that has the document; the loads that nodes report move some (HACC)",
            Self::LbGc => "the node that caches the target, else the one with the globally oldest (LB/GC)",
            Self::Bounded => {
                "the node that a hash ring names, or the next that is not above its share of the load"
            }
            Self::Maglev => "the node that an evenly filled hash table names (Maglev)",
            Self::Rendezvous => "the node with the highest random weight for the target",
            Self::P2c => "of two nodes drawn by lot the one with fewer requests in flight",
            Self::PeakEwma => {
                "of two nodes drawn by lot the one that promises the shorter wait, by latencies"
            }
            Self::CapLoad => "like cap, passing over nodes above the mean load",
            Self::LardCost => "like lard-r, by what queues and misses cost instead of thresholds",
        }
    }

    /// Whether the policy mirrors the nodes' caches, and so needs to be told of their changes.
    pub const fn mirrors_caches(self) -> bool {
        matches!(self, Self::LbGc)
    }

    /// Whether a decision holds for the target's next requests too, so that it may be used again for a moment. Not where
    /// each request has a turn, a lot or a comparison of its own.
    pub const fn is_by_target(self) -> bool {
        match self {
            Self::Hash
            | Self::Lard
            | Self::LardR
            | Self::LardUtil
            | Self::LardCost
            | Self::Ward
            | Self::Part
            | Self::Hacc
            | Self::LbGc
            | Self::Bounded
            | Self::Maglev
            | Self::Rendezvous => true,
            Self::Random
            | Self::Rr
            | Self::Wrr
            | Self::LeastConn
            | Self::WrrNum
            | Self::WrrTime
            | Self::Cap
            | Self::Static
            | Self::P2c
            | Self::PeakEwma
            | Self::CapLoad => false,
        }
    }

    pub(crate) fn build(self, settings: &Settings) -> Box<dyn Policy> {
        match self {
            Self::Random => Box::new(random::Random::new(settings.seed)),
            Self::Rr => Box::new(rr::RoundRobin::default()),
            Self::Wrr => Box::new(wrr::WeightedRoundRobin::default()),
            Self::LeastConn => Box::new(least_conn::LeastConnections::default()),
            Self::Hash => Box::new(hash::Hash),
            Self::Lard => Box::new(lard::Lard::new(settings)),
            Self::LardR => Box::new(lard_r::LardR::new(settings)),
            Self::WrrNum => Box::new(wrr_num::wrr_num(settings)),
            Self::WrrTime => Box::new(wrr_time::wrr_time(settings)),
            Self::Cap => Box::new(cap::Cap::new()),
            Self::Static => Box::new(static_partition::StaticPartition::new(settings)),
            Self::LardUtil => Box::new(lard_util::LardUtil::new(settings)),
            Self::Ward => Box::new(ward::Ward::new(settings)),
            Self::Part => Box::new(ward::Ward::part(settings)),
            Self::Hacc => Box::new(hacc::Hacc::new(settings)),
            Self::LbGc => Box::new(lb_gc::LbGc::new(settings)),
            Self::CapLoad => Box::new(cap_load::CapLoad::new(settings)),
            Self::LardCost => Box::new(lard_cost::LardCost::new(settings)),
            Self::Bounded => Box::new(bounded::Bounded::new(settings)),
            Self::Maglev => Box::new(maglev::Maglev::new(settings)),
            Self::Rendezvous => Box::new(rendezvous::Rendezvous::new(settings)),
            Self::P2c => Box::new(p2c::TwoChoices::new(settings)),
            Self::PeakEwma => Box::new(peak_ewma::PeakEwma::new(settings)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy '{0}': use one of {names}", names = PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.chars().take(40).collect()))
    }
}
