//! Placement of chains: requests whose targets contain each other.
//!
//! A prompt of a language model consists of blocks, and a block's id stands for the whole prompt up to its end. An
//! inference server keeps blocks in its KV cache and computes only what follows the longest stored prefix. So a
//! request does not hit or miss; it hits to a depth. The policies of [`crate::policy`] place one target, count requests, and
//! know no depth. Chains therefore have policies of their own, [`ChainPolicyKind`], and a dispatcher of their own,
//! [`ChainDispatcher`], which counts work in tokens.
//!
//! ```
//! use larder_core::TargetId;
//! use larder_core::cache::Block;
//! use larder_core::chain::{ChainDispatcher, ChainPolicyKind, ChainRequest, ChainSettings};
//!
//! let settings = ChainSettings { policy: ChainPolicyKind::LardPrefix, ..ChainSettings::default() };
//! let mut dispatcher = ChainDispatcher::new(&settings, &[400_000, 400_000])?;
//! let prompt = [1, 2, 3].map(|id| Block { id: TargetId(id), tokens: 512 });
//!
//! let mut first = dispatcher.arrive(&ChainRequest::new(&prompt[..2])).expect("a node is open");
//! dispatcher.first_token(&mut first.work);
//! dispatcher.finish(&prompt[..2], first.work);
//! let second = dispatcher.arrive(&ChainRequest::new(&prompt)).expect("a node is open");
//! assert_eq!((second.node, second.credited), (first.node, 1_024), "the node has the first two blocks");
//! # Ok::<(), larder_core::dispatch::SettingsError>(())
//! ```
//!
//! # Files
//! One file is one policy. `dispatcher` counts work, `credits` follows the nodes' caches, and a policy chooses among
//! `candidate`s, some by a hash `ring`. `shared` is a dispatcher that the threads of a switch share, and that peer switches tell of
//! their placements. To add a policy, write its file, and add its module and its row to the table below.

mod api;
mod candidate;
mod chwbl;
mod credits;
mod dispatcher;
mod dualmap;
mod dynamo;
mod lard_prefix;
mod least_load;
mod prequal;
mod product;
mod request;
mod ring;
mod rr;
mod shared;
mod smg;
pub(crate) mod wire;

pub use candidate::{Candidate, NodeWork};
pub use dispatcher::ChainDispatcher;
pub use request::{ChainDecision, ChainRequest, Work};
pub use shared::SharedChains;

use crate::nodes::NODES_LIMIT;
use crate::range::{SettingsError, in_range};
use alloc::boxed::Box;
use alloc::string::String;
use api::ChainPolicy;
use core::fmt;
use core::str::FromStr;
use credits::Credits;

/// Defines the kinds of policies: `Kind = name, whether it looks at prompts, whether it follows caches, builder;`.
macro_rules! chain_policies {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $looks:literal, $follows:literal, $policy:expr;)+) => {
        /// The kinds of policies that place chains.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ChainPolicyKind {
            $($(#[$doc])* $kind,)+
        }

        impl ChainPolicyKind {
            /// All policies.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            /// Returns the name used on the command line and in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            /// Returns whether the policy looks at prompts, so that equal prefixes meet.
            pub const fn routes_by_prefix(self) -> bool {
                match self {
                    $(Self::$kind => $looks,)+
                }
            }

            /// Returns whether the policy follows the nodes' caches.
            pub const fn follows_caches(self) -> bool {
                match self {
                    $(Self::$kind => $follows,)+
                }
            }

            fn build(self, settings: &ChainSettings) -> Box<dyn ChainPolicy> {
                match self {
                    $(Self::$kind => Box::new({
                        let build: fn(&ChainSettings) -> _ = $policy;
                        build(settings)
                    }),)+
                }
            }
        }
    };
}

chain_policies! {
    /// Each node in turn.
    Rr = "rr", false, false, |_| rr::RoundRobin::default();
    /// The node with the fewest requests.
    LeastLoad = "least-load", false, false, |_| least_load::LeastLoad::default();
    /// The hot-cold rule on a pool of probes (Prequal).
    Prequal = "prequal", false, false, |_| prequal::Prequal::default();
    /// Consistent hashing with bounded loads on the first blocks (KubeAI).
    Chwbl = "chwbl", true, false, |_| chwbl::Chwbl::default();
    /// The better of two nodes by two hashes of a prefix (DualMap).
    DualMap = "dualmap", true, true, |own| dualmap::DualMap::new(own.objective_tokens);
    /// Prefix trees with thresholds (SMG).
    Smg = "smg", true, true, |_| smg::Smg::default();
    /// The cost of overlap and load (Dynamo).
    Dynamo = "dynamo", true, true, |_| dynamo::Dynamo::default();
    /// The product of work and batch (LMetric).
    Product = "prefix-product", true, true, |_| product::Product::default();
    /// The deepest known block whose servers have room.
    LardPrefix = "lard-prefix", true, true, |_| lard_prefix::LardPrefix::default();
}

impl fmt::Display for ChainPolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy of chains has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy of chains '{0}': use one of {names}", names = ChainPolicyKind::ALL.map(ChainPolicyKind::name).join(", "))]
pub struct UnknownChainPolicy(String);

impl FromStr for ChainPolicyKind {
    type Err = UnknownChainPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownChainPolicy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownChainPolicy(name.chars().take(40).collect()))
    }
}

/// The settings of a [`ChainDispatcher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSettings {
    /// The policy.
    pub policy: ChainPolicyKind,
    /// The largest number of credits: pairs of a block and a node that is expected to have it. A credit takes at most
    /// [`TreeCache::BLOCK_BYTES_MAX`](crate::cache::TreeCache::BLOCK_BYTES_MAX) bytes. Above the limit, the oldest credits
    /// of a node end early. 1 to 100,000,000; default 10,000,000.
    pub credits_max: u32,
    /// The objective for the time to the first token, as the tokens that a node prefills in this time. Only `dualmap` reads
    /// it. 1 to 10^12; default 31,250.
    pub objective_tokens: u64,
}

impl Default for ChainSettings {
    fn default() -> Self {
        Self { policy: ChainPolicyKind::LardPrefix, credits_max: 10_000_000, objective_tokens: 31_250 }
    }
}

impl ChainDispatcher {
    /// Creates a dispatcher for nodes whose caches have these capacities in tokens. All nodes are open, and their
    /// caches are empty.
    ///
    /// # Errors
    /// [`SettingsError`] if there is no node, there are more than [`NODES_LIMIT`] nodes, or a setting is out of range.
    pub fn new(settings: &ChainSettings, capacities: &[u64]) -> Result<Self, SettingsError> {
        let (nodes, credits_max) = (capacities.len(), settings.credits_max);
        in_range("nodes", nodes as u64, (1..=usize::from(NODES_LIMIT)).contains(&nodes), "1 to 65534")?;
        let ok = (1..=100_000_000).contains(&credits_max);
        in_range("credits_max", credits_max.into(), ok, "1 to 100000000")?;
        let objective = settings.objective_tokens;
        let ok = (1..=1_000_000_000_000).contains(&objective);
        in_range("objective_tokens", objective, ok, "1 to 1000000000000")?;
        let follows = settings.policy.follows_caches();
        let credits = follows.then(|| Credits::new(capacities, credits_max as usize));
        Ok(Self::with_policy(settings.policy.build(settings), nodes, credits))
    }
}

#[cfg(test)]
mod tests;
