//! A cluster in the config of a proxy, in terms that all proxies share.

use larder_core::PolicyKind;
use larder_core::dispatch::Settings;

/// A cluster of hosts in a proxy's config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// The name in the config.
    pub(crate) name: String,
    /// The hosts that share the requests.
    pub(crate) hosts: Hosts,
    /// The policy that chooses the hosts.
    pub(crate) in_use: PolicyInUse,
    /// Keys that the lines of [`Proxy::lines`](super::Proxy::lines) replace, or beside which the proxy refuses them.
    pub(crate) replaced: Vec<String>,
    /// Parts of the config that larder's module refuses or ignores, or that the simulator cannot know.
    pub(crate) warnings: Vec<String>,
    /// Parts of the config that conflict with the lines of [`Proxy::lines`](super::Proxy::lines).
    pub(crate) lines_warnings: Vec<String>,
}

/// The hosts of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hosts {
    /// The number of hosts in the config.
    Listed(u32),
    /// The config does not list the hosts. The text gives the reason.
    Unlisted(String),
}

/// The policy in use, and its equivalent in the simulator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyInUse {
    /// The policy in the words of the proxy's config.
    pub(crate) written: String,
    /// The equivalent policy.
    pub(crate) kind: PolicyKind,
    /// The bound of `bounded`, in 1/1000 of the mean load.
    pub(crate) factor_permille: Option<u32>,
    /// The size of the table of `maglev`.
    pub(crate) table_size: Option<u32>,
    /// Differences between the policy and its equivalent.
    pub(crate) notes: Vec<String>,
}

impl PolicyInUse {
    /// Creates a policy without parameters.
    pub(super) fn new(written: impl Into<String>, kind: PolicyKind) -> Self {
        Self { written: written.into(), kind, factor_permille: None, table_size: None, notes: Vec::new() }
    }

    /// Sets the parameters of the policy.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        if let Some(factor) = self.factor_permille {
            settings.policies.bounded.factor_permille = factor;
        }
        if let Some(size) = self.table_size {
            settings.policies.maglev.size = size;
        }
    }
}
