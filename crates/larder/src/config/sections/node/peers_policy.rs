//! Validation of `node.peers.policy` and its settings.

use std::path::PathBuf;

use larder_core::peers::{CardSettings, PressSettings, UnlistedTargets, WardSettings};
use larder_core::{Bytes, PolicyKind, Settings};
use larder_node::PeersMemory;
use larder_trace::ward::WardCosts;

use crate::config::error::Fault;
use crate::config::sections::node::peers::{
    BY_CONNECTIONS, CardSection, PeersKind, PeersSection, TablesSection, press,
};
use crate::config::sections::policy::threshold::{HighKey, LardSection, LowKey};
use crate::config::sections::policy::{Parameters, PoliciesSection, apply, permille};
use crate::config::sections::switch::ward::every;
use crate::config::values::word;

/// Policy of a cluster of nodes, valid.
#[derive(Clone, Debug)]
pub(crate) enum PeersPolicy {
    /// PRESS: each node decides by the contents of its peers.
    Press(PressSettings),
    /// CARD: one node decides for all.
    Card(Box<CardSettings>),
    /// WARD: each node decides by a routing table.
    Ward(PeersWard),
}

impl PeersPolicy {
    /// Returns the name in the config.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Press(_) => "press",
            Self::Card(_) => "card",
            Self::Ward(_) => "ward",
        }
    }

    /// Returns the size from which on objects are stored by no node.
    pub(crate) fn large_min(&self) -> Option<Bytes> {
        match self {
            Self::Press(press) => Some(press.large_min),
            Self::Card(_) | Self::Ward(_) => None,
        }
    }

    /// Returns the memory that the policy uses at a node whose cache has the size `cache`.
    pub(crate) fn memory(&self, cache: Bytes) -> PeersMemory {
        let memory = if let Self::Ward(ward) = self { ward.settings.memory } else { cache };
        PeersMemory { memory, large_min: self.large_min() }
    }
}

/// Source of the routing table.
#[derive(Clone, Debug)]
pub(crate) struct PeersWard {
    pub(crate) settings: WardSettings,
    pub(crate) carry_permille: u16,
    pub(crate) costs: WardCosts,
    /// The table's file.
    pub(crate) table: Option<PathBuf>,
    /// Host of table rows that name no host; empty if unknown.
    pub(crate) host: String,
}

pub(crate) fn policy(raw: &PeersSection, memory: Bytes) -> Result<PeersPolicy, Fault> {
    match raw.policy {
        PeersKind::Press => Ok(PeersPolicy::Press(press(raw, memory))),
        PeersKind::Card => card(&raw.card).map(|card| PeersPolicy::Card(Box::new(card))),
        PeersKind::Ward => ward(&raw.ward, memory).map(PeersPolicy::Ward),
    }
}

fn card(raw: &CardSection) -> Result<CardSettings, Fault> {
    const AT: &str = "node.peers.card";
    let known = BY_CONNECTIONS.map(PolicyKind::name);
    let kind: PolicyKind = word(&format!("{AT}.policy"), &raw.policy, &known)?;
    if !BY_CONNECTIONS.contains(&kind) {
        let what = format!(
            "'{kind}' needs more than targets and connections, which is all that a dispatcher among peers knows"
        );
        return Err(Fault::new(format!("{AT}.policy"), what).hint(format!("one of {}", known.join(", "))));
    }
    let lard = LardSection {
        t_low: Some(LowKey::Fixed(raw.t_low)),
        t_high: Some(HighKey::Fixed(raw.t_high)),
        replication_decay: Some(raw.replication_decay),
        training: None,
    };
    let policies = PoliciesSection {
        targets_max: Some(raw.targets_max),
        lard: Some(lard),
        ..PoliciesSection::default()
    };
    let given = Parameters { policy: Some(&raw.policy), policies: &policies, training_above: None };
    let mut dispatcher = Settings::default();
    // The keys stand in this table itself.
    let here = |fault: Fault| {
        let key = fault.key().replace(".policies.lard", "").replace(".policies", "");
        fault.at(key)
    };
    apply(AT, &given, &mut dispatcher).map_err(here)?;
    Ok(CardSettings {
        patience: raw.patience.0,
        retry: raw.retry.0,
        waiting_max: raw.waiting_max,
        dispatcher,
        ..CardSettings::default()
    })
}

fn ward(raw: &TablesSection, cache: Bytes) -> Result<PeersWard, Fault> {
    let key = |name: &str| format!("node.peers.ward.{name}");
    let refresh = every(&key("refresh"), &raw.refresh)?;
    if refresh.is_none() && raw.table.is_none() {
        return Err(Fault::new(key("refresh"), "there is no routing table, and none would be computed")
            .hint("set refresh = \"15m\", or table = \"FILE\" (larder trace ward makes one)"));
    }
    for (name, text) in [("table", &raw.table), ("host", &raw.host)] {
        if text.as_ref().is_some_and(String::is_empty) {
            return Err(Fault::new(key(name), "is empty").hint("write a value, or leave it out"));
        }
    }
    let memory = raw.memory.map_or(cache, |size| size.0);
    if memory == Bytes::ZERO {
        return Err(Fault::new(key("memory"), "0B is out of range").hint("1B or more"));
    }
    let settings = WardSettings {
        refresh,
        first_requests: raw.first_requests,
        settle: raw.settle.0,
        targets_max: raw.targets_max,
        memory,
        unlisted: if raw.unnamed == "here" { UnlistedTargets::Here } else { UnlistedTargets::Hashed },
        ..WardSettings::default()
    };
    let costs = WardCosts {
        forward_us: raw.forward_us,
        disk_us_per_byte: raw.disk_us_per_byte,
        origin: "config".to_owned(),
    };
    Ok(PeersWard {
        settings,
        carry_permille: permille(raw.carry),
        costs,
        table: raw.table.as_ref().map(PathBuf::from),
        host: raw.host.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Written;

    /// Returns the policy of a node with these keys of `[node.peers]`, and the size of its cache.
    pub(in crate::config::sections::node) fn parsed(keys: &str) -> (PeersPolicy, Bytes) {
        let text = format!(
            "[node]\nname = \"a\"\nlisten = \"127.0.0.1:9001\"\nroot = \"/srv\"\ncache.size = \"16GiB\"\n\
             [node.peers]\nlisten = \"127.0.0.1:9101\"\nsecret = \"/etc/secret\"\n{keys}"
        );
        let config = Written::parse("node.toml", &text).and_then(|written| written.validate());
        let node = config.unwrap_or_else(|error| panic!("{text}\n{error}")).node.expect("there is one");
        (node.peers.expect("it has peers").policy, node.node.cache.bytes)
    }

    fn memory(keys: &str) -> PeersMemory {
        let (policy, cache) = parsed(keys);
        policy.memory(cache)
    }

    #[test]
    fn each_policy_goes_by_a_memory() {
        let all = Bytes::mib(16 << 10);
        assert_eq!(memory("policy = \"card\"\n"), PeersMemory { memory: all, large_min: None });
        let press = memory("policy = \"press\"\n");
        assert!(press.memory == all && press.large_min.is_some(), "{press:?}");
        assert_eq!(memory("policy = \"ward\"\n").memory, all);
        let less = memory("policy = \"ward\"\nward = { memory = \"8GiB\" }\n");
        assert_eq!(less, PeersMemory { memory: Bytes::mib(8 << 10), large_min: None });
    }
}
