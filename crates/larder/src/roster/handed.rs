//! Nodes as the process before had them: what the operator and the health checks have said of them goes on, and who was let
//! join by hand stays.

use larder_core::{Bytes, NodeSpec, Weight};
use larder_switch::{NodeEntry, NodeReloadState, SwitchHandle};
use serde::{Deserialize, Serialize};

/// A node as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handed {
    pub(crate) standing: NodeReloadState,
    /// The source that named it, in words.
    pub(crate) source: String,
    /// Its relative capacity by that source, in 1/1000. It has another if the operator has given it one.
    pub(crate) named_weight_milli: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) groups: Vec<String>,
    /// Whether it is a backup by that source.
    #[serde(default)]
    pub(crate) backup: bool,
}

impl Handed {
    /// The node as its source named it.
    pub(crate) fn entry(&self) -> NodeEntry {
        let weight = Weight::from_milli(self.named_weight_milli).unwrap_or(Weight::ONE);
        let named = NodeSpec::named(&self.standing.name);
        let spec = NodeSpec { weight, cache: Bytes(self.cache_bytes), backup: self.backup, ..named };
        NodeEntry { groups: self.groups.clone(), ..NodeEntry::new(spec, self.standing.address.clone()) }
    }

    /// The operator's weight, if it has one and `now`, what its source says, is what it said before.
    pub(crate) fn weight(&self, now: Weight) -> Option<Weight> {
        let (named, had) = (self.named_weight_milli, self.standing.weight_milli);
        Weight::from_milli(had).filter(|_| had != named && now.milli() == named)
    }

    /// Lets the node stand as it did, in a switch that has it.
    pub(crate) fn stand(&self, switch: &SwitchHandle, entry: &NodeEntry) {
        let name = &self.standing.name;
        let stood = switch.restore_node_state(&self.standing);
        let weighed = self.weight(entry.spec.weight).map_or(Ok(()), |weight| switch.reweigh(name, weight));
        if let Err(error) = stood.and(weighed) {
            tracing::debug!(%error, "a node of the process before has not come yet");
        }
    }
}
