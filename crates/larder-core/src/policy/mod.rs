//! Policies: which node serves a request.
//!
//! A policy reads the nodes' rows ([`Sight`](crate::nodes::Sight)), keeps what state it needs behind its own locks, and answers with a
//! [`Choice`]. It does not count load, admit or queue; the [dispatcher](crate::dispatch) does that for all of them.
//! One file is one policy, with its settings. This file lists them: to add one, write its file, and add its module and
//! its row of the table below. [`PolicyKind::ALL`] follows, and the tests run for each. A policy knows the nodes, what
//! policies share (the files that are no policy), and nothing of the dispatcher.

mod about;
mod api;
mod bounded;
mod cap;
pub mod cap_load;
mod choice;
mod common;
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
mod maglev;
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
pub use cap_load::CapLoadSettings;
pub use choice::{Choice, Reason};
pub use explain::Known;
pub use feedback::{CacheEvent, Found, Served};
pub use gossip::{Adopted, Changes, Page};
pub use hacc::HaccSettings;
pub use lard_cost::CostSettings;
pub use lard_util::{LardUtilSettings, UtilBy};
pub use maglev::MaglevSettings;
pub use memory::{Memory, ServerSet};
pub use peak_ewma::PeakEwmaSettings;
pub use rendezvous::RendezvousSettings;
pub use request::{Exclude, Request, Tie};
pub use static_partition::StaticSettings;

pub(crate) use api::Policy;
pub(crate) use common::Common;

use crate::range::SettingsError;
use about::About;
use core::fmt;
use core::str::FromStr;

/// Makes the kinds and the settings of policies from the table: `Kind = description, builder[, field: settings];`. The
/// builder is given what policies share and the settings of all.
macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident = $about:path, |$common:pat_param, $own:pat_param| $policy:expr
        $(, $(#[$field_doc:meta])* $field:ident: $settings:ty)?;)+) => {
        /// The policies there are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PolicyKind {
            $($(#[$doc])* $kind,)+
        }

        /// The settings that are one policy's own; each policy reads its field.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct PolicySettings {
            $($($(#[$field_doc])* pub $field: $settings,)?)+
        }

        impl PolicyKind {
            /// Every policy.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            const fn about(self) -> &'static About {
                match self {
                    $(Self::$kind => const { &$about },)+
                }
            }

            /// Whether a decision holds for the target's next requests too, so that it may be used again for a moment. Not
            /// where each request has a turn, a lot or a comparison of its own.
            pub const fn is_by_target(self) -> bool {
                // Asked for every request: a constant for each kind.
                match self {
                    $(Self::$kind => const { $about.by_target },)+
                }
            }

            /// The policy, without anything learned.
            pub(crate) fn build(self, common: &Common, own: &PolicySettings) -> Box<dyn Policy> {
                match self {
                    $(Self::$kind => {
                        let ($common, $own) = (common, own);
                        Box::new($policy)
                    })+
                }
            }
        }

        impl PolicySettings {
            /// Checks every range.
            pub(crate) fn validate(&self) -> Result<(), SettingsError> {
                $($(self.$field.validate()?;)?)+
                Ok(())
            }
        }
    };
}

policies! {
    /// Any node, by lot.
    Random = random::ABOUT, |common, _| random::Random::new(common.seed);
    /// The next node.
    Rr = rr::ABOUT, |_, _| rr::RoundRobin::default();
    /// The next node that is not above the mean load: LARD's baseline.
    Wrr = wrr::ABOUT, |_, _| wrr::WeightedRoundRobin::default();
    /// The node with the fewest requests in flight.
    LeastConn = least_conn::ABOUT, |_, _| least_conn::LeastConnections::default();
    /// The node that the target's hash names: LARD's LB.
    Hash = hash::ABOUT, |_, _| hash::Hash;
    /// LARD without replication.
    Lard = lard::ABOUT, |common, _| lard::Lard::new(common);
    /// LARD with replication.
    LardR = lard_r::ABOUT, |common, _| lard_r::LardR::new(common);
    /// The next node, weighted by the active processes that nodes report: CAP's WRR (num).
    WrrNum = wrr_num::ABOUT, |common, _| wrr_num::wrr_num(common);
    /// The next node, weighted by the service times that nodes report: CAP's WRR (time).
    WrrTime = wrr_time::ABOUT, |common, _| wrr_time::wrr_time(common);
    /// The next node of the request's class: CAP.
    Cap = cap::ABOUT, |_, _| cap::Cap::new();
    /// The next of the nodes set aside for the request's class: CAP's static partitioning.
    Static = static_partition::ABOUT, |_, own| static_partition::StaticPartition::new(own.static_partition),
        /// The nodes of each class. Default: equal shares.
        static_partition: StaticSettings;
    /// LARD on the utilisation that nodes report: CAP's LARD.
    LardUtil = lard_util::ABOUT, |common, own| lard_util::LardUtil::new(common, own.lard_util),
        /// The load of a node, and its bounds. Default: utilisation, 30 % and 70 % (CAP section 4.1).
        lard_util: LardUtilSettings;
    /// The node that a routing table names, or the one where the request arrived: WARD.
    Ward = ward::ABOUT, |common, _| ward::Ward::new(common);
    /// WARD without a core: its PART.
    Part = ward::PART, |common, _| ward::Ward::part(common);
    /// A node per document; measured loads place new ones and move some: HACC.
    Hacc = hacc::ABOUT, |common, own| hacc::Hacc::new(common, own.hacc),
        /// Signals, rounds and moves. Default: [`HaccSettings::STATIC_FILES`].
        hacc: HaccSettings;
    /// The node that caches the target, or the one with the globally oldest: LARD's LB/GC.
    LbGc = lb_gc::ABOUT, |common, _| lb_gc::LbGc::new(common);
    /// The node that a ring names, or the next one with room: consistent hashing with bounded loads.
    Bounded = bounded::ABOUT, |_, own| bounded::Bounded::new(own.bounded),
        /// The bound and the ring. Default: 1.25 times the mean load, 160 points per node.
        bounded: BoundedSettings;
    /// The node that a permuted table names: Maglev hashing.
    Maglev = maglev::ABOUT, |_, own| maglev::Maglev::new(own.maglev),
        /// The table. Default: 65,537 places (Maglev section 5.3).
        maglev: MaglevSettings;
    /// The node with the highest random weight for the target: rendezvous hashing.
    Rendezvous = rendezvous::ABOUT, |_, own| rendezvous::Rendezvous::new(own.rendezvous),
        /// The places. Default: 262,144.
        rendezvous: RendezvousSettings;
    /// The less loaded of two nodes drawn by lot.
    P2c = p2c::ABOUT, |common, _| p2c::TwoChoices::new(common.seed);
    /// The one of two nodes drawn by lot that promises the shorter wait: peak EWMA.
    PeakEwma = peak_ewma::ABOUT, |common, own| peak_ewma::PeakEwma::new(common, own.peak_ewma),
        /// The decay of latencies. Default: 10 s (Finagle, linkerd).
        peak_ewma: PeakEwmaSettings;
    /// CAP that passes over nodes above the mean load.
    CapLoad = cap_load::ABOUT, |_, own| cap_load::CapLoad::new(own.cap_load),
        /// The load above which a node loses its turn. Default: 1.25 times the mean load and two connections.
        cap_load: CapLoadSettings;
    /// LARD by costs instead of thresholds.
    LardCost = lard_cost::ABOUT, |common, own| lard_cost::LardCost::new(common, own.cost),
        /// The costs. Default: the cost of a miss is measured, 50 until enough is known; L_idle 30 and
        /// L_overload 130 (USENIX 1999, section 4).
        cost: CostSettings;
}

impl PolicyKind {
    /// The name used in configuration, tables and logs.
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    /// The policy's rule, in one line.
    pub const fn summary(self) -> &'static str {
        self.about().summary
    }

    /// Whether the policy mirrors the nodes' caches, and so needs to be told of their changes.
    pub const fn mirrors_caches(self) -> bool {
        self.about().mirrors_caches
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
