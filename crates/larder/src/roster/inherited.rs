//! Nodes of the previous process at a reload. Their health and the operator's changes are kept, and so are
//! nodes that joined through the admin interface.

use larder_core::{Bytes, NodeSpec, Weight};
use larder_switch::{NodeEntry, NodeReloadState, SwitchHandle};
use serde::{Deserialize, Serialize};

/// A node of the previous process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InheritedNode {
    pub(crate) standing: NodeReloadState,
    /// Description of the source that listed the node.
    pub(crate) source: String,
    /// Weight that the source gave the node, in 1/1000. An operator may have set another weight.
    pub(crate) named_weight_milli: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) groups: Vec<String>,
    /// Whether the source marked the node as a backup.
    #[serde(default)]
    pub(crate) backup: bool,
}

impl InheritedNode {
    /// Returns the node as its source listed it.
    pub(crate) fn entry(&self) -> NodeEntry {
        let weight = Weight::from_milli(self.named_weight_milli).unwrap_or(Weight::ONE);
        let named = NodeSpec::named(&self.standing.name);
        let spec = NodeSpec { weight, cache: Bytes(self.cache_bytes), backup: self.backup, ..named };
        NodeEntry { groups: self.groups.clone(), ..NodeEntry::new(spec, self.standing.address.clone()) }
    }

    /// Returns the operator's weight, if there is one. `now` is the weight that the source gives now. The
    /// operator's weight is dropped if the source's weight has changed.
    pub(crate) fn weight(&self, now: Weight) -> Option<Weight> {
        let (named, had) = (self.named_weight_milli, self.standing.weight_milli);
        Weight::from_milli(had).filter(|_| had != named && now.milli() == named)
    }

    /// Restores the node's health and weight in a switch.
    pub(crate) fn restore(&self, switch: &SwitchHandle, entry: &NodeEntry) {
        let name = &self.standing.name;
        let restored = switch.restore_node_state(&self.standing);
        let reweighed = self.weight(entry.spec.weight).map_or(Ok(()), |weight| switch.reweigh(name, weight));
        if let Err(error) = restored.and(reweighed) {
            tracing::debug!(%error, "node: state of the previous process not applied");
        }
    }
}
