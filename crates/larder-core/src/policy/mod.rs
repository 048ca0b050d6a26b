//! Policies, which choose the node that serves a request.
//!
//! A policy reads the nodes (`ClusterView`), keeps its state behind its own locks, and
//! answers with a [`Choice`]. It does not count load, admit or queue, because the [dispatcher](crate::dispatch) does
//! that for all policies.
//!
//! # Example
//! [`PolicyKind::ALL`] lists the policies, and a name selects one. Settings of one policy are in
//! [`PolicySettings`]:
//!
//! ```
//! use larder_core::policy::{BoundedSettings, PolicyKind, PolicySettings};
//! use larder_core::{Dispatcher, NodeSpec, Settings};
//!
//! for kind in PolicyKind::ALL {
//!     println!("{kind}: {}", kind.summary());
//! }
//! let settings = Settings {
//!     policy: "bounded".parse()?,
//!     policies: PolicySettings {
//!         bounded: BoundedSettings { factor_permille: 1_100, ..BoundedSettings::default() },
//!         ..PolicySettings::default()
//!     },
//!     ..Settings::default()
//! };
//! Dispatcher::new(settings.clone(), &[NodeSpec::named("a")])?;
//!
//! let wrong = Settings { t_low: 70, t_high: 65, ..settings };
//! assert!(wrong.validate().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//! One file is one policy, with its settings. To add a policy, write its file, and add its module and its row to the
//! table below. [`PolicyKind::ALL`] is derived from the table, and the tests run for each kind. A policy depends on
//! the nodes and on the files that policies share, but not on the dispatcher.

mod api;
mod bounded;
mod bounded_jump;
mod cap;
pub mod cap_load;
mod choice;
mod common;
mod description;
mod feedback;
mod gauge;
pub mod hacc;
mod hash;
mod journal;
mod lard;
pub mod lard_cost;
mod lard_r;
mod lard_util;
mod lb_gc;
mod learned_state;
mod least_conn;
mod lmetric;
mod maglev;
mod membership_cache;
mod mirror;
mod open_nodes;
mod p2c;
mod peak_ewma;
pub(crate) mod prequal;
mod random;
mod rendezvous;
mod report_weighted;
mod request;
mod rr;
mod sampling;
pub(crate) mod set;
mod set_exchange;
mod static_partition;
pub mod table;
mod target_servers;
mod targets;
pub mod thresholds;
mod ward;
mod wrr;
mod wrr_num;
mod wrr_time;

#[cfg(test)]
mod learning_tests;
#[cfg(test)]
mod policy_tests;

pub use bounded::BoundedSettings;
pub use cap_load::CapLoadSettings;
pub use choice::{Choice, Reason};
pub use feedback::{CacheEvent, CacheResult, ReplyFeedback};
pub use hacc::HaccSettings;
pub use lard_cost::CostSettings;
pub use lard_util::{LardUtilSettings, UtilBy};
pub use learned_state::{LearnedState, ServerSet};
pub use maglev::MaglevSettings;
pub use peak_ewma::PeakEwmaSettings;
pub use prequal::PrequalSettings;
pub use rendezvous::RendezvousSettings;
pub use request::{ExcludedNodes, Request, RequestAffinity};
pub use static_partition::StaticSettings;
pub use target_servers::TargetServers;

pub(crate) use api::Policy;
pub(crate) use common::CommonSettings;
pub(crate) use set_exchange::{AdoptionCounts, SetChanges, SetPage};

use crate::range::SettingsError;
use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use description::PolicyDescription;

/// Defines the kinds and the settings of policies from the table: `Kind = description, builder[, field: settings];`.
/// The builder receives the shared settings and the settings of all policies.
macro_rules! policies {
    ($($(#[$doc:meta])* $kind:ident = $description:path, |$common:pat_param, $own:pat_param| $policy:expr
        $(, $(#[$field_doc:meta])* $field:ident: $settings:ty)?;)+) => {
        /// The kinds of policies.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PolicyKind {
            $($(#[$doc])* $kind,)+
        }

        /// The settings that belong to one policy; each policy reads its field.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct PolicySettings {
            $($($(#[$field_doc])* pub $field: $settings,)?)+
        }

        impl PolicyKind {
            /// All policies.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            const fn description(self) -> &'static PolicyDescription {
                match self {
                    $(Self::$kind => const { &$description },)+
                }
            }

            /// Returns whether a decision also applies to the target's next requests, so that it may be reused for a
            /// moment. False if each request has its own turn, random draw or comparison.
            pub const fn is_by_target(self) -> bool {
                // This is asked for every request, so it is a constant for each kind.
                match self {
                    $(Self::$kind => const { $description.by_target },)+
                }
            }

            /// Creates the policy without learned state.
            pub(crate) fn build(self, common: &CommonSettings, own: &PolicySettings) -> Box<dyn Policy> {
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
    /// A node drawn at random.
    Random = random::DESCRIPTION, |common, _| random::Random::new(common.seed);
    /// The next node.
    Rr = rr::DESCRIPTION, |_, _| rr::RoundRobin::default();
    /// The next node that is not above the mean load: LARD's baseline.
    Wrr = wrr::DESCRIPTION, |_, _| wrr::WeightedRoundRobin::default();
    /// The node with the fewest requests in flight.
    LeastConn = least_conn::DESCRIPTION, |_, _| least_conn::LeastConnections::default();
    /// The node to which the target's hash maps: LARD's LB.
    Hash = hash::DESCRIPTION, |_, _| hash::Hash;
    /// LARD without replication.
    Lard = lard::DESCRIPTION, |common, _| lard::Lard::new(common);
    /// LARD with replication.
    LardR = lard_r::DESCRIPTION, |common, _| lard_r::LardR::new(common);
    /// The next node, weighted by the active processes that nodes report: CAP's WRR (num).
    WrrNum = wrr_num::DESCRIPTION, |common, _| wrr_num::wrr_num(common);
    /// The next node, weighted by the service times that nodes report: CAP's WRR (time).
    WrrTime = wrr_time::DESCRIPTION, |common, _| wrr_time::wrr_time(common);
    /// The next node of the request's class: CAP.
    Cap = cap::DESCRIPTION, |_, _| cap::Cap::new();
    /// The next of the nodes reserved for the request's class: CAP's static partitioning.
    Static = static_partition::DESCRIPTION, |_, own| static_partition::StaticPartition::new(own.static_partition),
        /// The nodes of each class. Default: equal shares.
        static_partition: StaticSettings;
    /// LARD by the utilisation that nodes report: CAP's LARD.
    LardUtil = lard_util::DESCRIPTION, |common, own| lard_util::LardUtil::new(common, own.lard_util),
        /// The measure of load, and its bounds. Default: utilisation, 30 % and 70 % (CAP section 4.1).
        lard_util: LardUtilSettings;
    /// The node that a routing table assigns, or the node at which the request arrived: WARD.
    Ward = ward::DESCRIPTION, |common, _| ward::Ward::new(common);
    /// WARD without a core: the paper's PART.
    Part = ward::PART, |common, _| ward::Ward::part(common);
    /// One node per document; measured loads place new documents and move some: HACC.
    Hacc = hacc::DESCRIPTION, |common, own| hacc::Hacc::new(common, own.hacc),
        /// Signals, rounds and moves. Default: [`HaccSettings::STATIC_FILES`].
        hacc: HaccSettings;
    /// The node that caches the target, or the node with the globally oldest object: LARD's LB/GC.
    LbGc = lb_gc::DESCRIPTION, |common, _| lb_gc::LbGc::new(common);
    /// The node that a hash ring selects, or the next one with capacity: consistent hashing with bounded loads.
    Bounded = bounded::DESCRIPTION, |_, own| bounded::Bounded::new(own.bounded),
        /// The bound and the ring. Default: 1.25 times the mean load, 160 points per node.
        bounded: BoundedSettings;
    /// The node that a permuted table selects: Maglev hashing.
    Maglev = maglev::DESCRIPTION, |_, own| maglev::Maglev::new(own.maglev),
        /// The table. Default: 65,537 entries (Maglev section 5.3).
        maglev: MaglevSettings;
    /// The node with the highest random weight for the target: rendezvous hashing.
    Rendezvous = rendezvous::DESCRIPTION, |_, own| rendezvous::Rendezvous::new(own.rendezvous),
        /// The table. Default: 262,144 entries.
        rendezvous: RendezvousSettings;
    /// The less loaded of two nodes drawn at random.
    P2c = p2c::DESCRIPTION, |common, _| p2c::TwoChoices::new(common.seed);
    /// The one of two nodes drawn at random that has the shorter expected wait: peak EWMA.
    PeakEwma = peak_ewma::DESCRIPTION, |common, own| peak_ewma::PeakEwma::new(common, own.peak_ewma),
        /// The decay of latencies. Default: 10 s (Finagle, linkerd).
        peak_ewma: PeakEwmaSettings;
    /// CAP that skips nodes above the mean load.
    CapLoad = cap_load::DESCRIPTION, |_, own| cap_load::CapLoad::new(own.cap_load),
        /// The load above which a node loses its turn. Default: 1.25 times the mean load plus two connections.
        cap_load: CapLoadSettings;
    /// LARD with costs instead of thresholds.
    LardCost = lard_cost::DESCRIPTION, |common, own| lard_cost::LardCost::new(common, own.cost),
        /// The costs. Default: the cost of a miss is measured, and is 50 until enough is known; L_idle 30 and
        /// L_overload 130 (USENIX 1999, section 4).
        cost: CostSettings;
    /// `bounded` that goes on to random points of the ring: RJ-CH.
    BoundedJump = bounded_jump::DESCRIPTION, |_, own| bounded_jump::BoundedJump::new(own.bounded);
    /// The best of a pool of recent probes, by requests in flight and latency: Prequal.
    Prequal = prequal::DESCRIPTION, |common, own| prequal::Prequal::new(common, own.prequal),
        /// The limit of hot nodes. Default: the quantile 0.84 (NSDI 2024, section 5).
        prequal: PrequalSettings;
    /// The node with the lowest product of work and load: LMetric.
    Lmetric = lmetric::DESCRIPTION, |common, _| lmetric::LMetric::new(common);
}

impl PolicyKind {
    /// Returns the name used in configuration, tables and logs.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Returns the policy's rule, in one line.
    pub const fn summary(self) -> &'static str {
        self.description().summary
    }

    /// Returns whether the policy mirrors the nodes' caches and needs their changes.
    pub const fn mirrors_caches(self) -> bool {
        self.description().mirrors_caches
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy '{0}': use one of {names}", names = PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.chars().take(40).collect()))
    }
}
