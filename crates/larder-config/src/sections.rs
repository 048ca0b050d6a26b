//! The tables of the config, without those of single policies.

use crate::policies::Policies;
use crate::text::{Size, Span};
use crate::{ConfigError, NAME_BYTES_MAX};
use larder_core::dispatch::Admission;
use larder_core::{NodeSpec, Weight};
use serde::Deserialize;

/// The whole config.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Section {
    pub(crate) policy: Option<String>,
    pub(crate) nodes: Vec<NodeKey>,
    pub(crate) policies: Policies,
    pub(crate) admission: AdmissionSection,
    pub(crate) limits: LimitsSection,
    pub(crate) join: JoinSection,
    pub(crate) signals: SignalsSection,
    pub(crate) process: ProcessSection,
}

/// A node: its name, or a table.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a node is a name, or { name = \"a\", weight = 1.0, cache = \"8GiB\", backup = false }"
)]
pub(crate) enum NodeKey {
    Name(String),
    Table(NodeTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeTable {
    name: String,
    #[serde(default)]
    weight: Option<f64>,
    #[serde(default)]
    cache: Size,
    #[serde(default)]
    backup: bool,
}

impl NodeKey {
    pub(crate) fn spec(&self) -> Result<NodeSpec, ConfigError> {
        let spec = match self {
            Self::Name(name) => NodeSpec::named(name.as_str()),
            Self::Table(table) => {
                let weight = table.weight.map_or(Some(Weight::ONE), Weight::from_f64);
                let weight = weight
                    .ok_or_else(|| ConfigError::value("nodes.weight", "out of range: write 0.001 to 100"))?;
                let named = NodeSpec::named(table.name.as_str());
                NodeSpec { weight, cache: table.cache.0, backup: table.backup, ..named }
            }
        };
        if spec.name.is_empty() || spec.name.len() > NAME_BYTES_MAX {
            return Err(ConfigError::value(
                "nodes",
                format!("a node's name has 1 to {NAME_BYTES_MAX} bytes"),
            ));
        }
        Ok(spec)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdmissionSection {
    limit: Option<LimitKey>,
    pub(crate) long_lived: LongLivedSection,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LongLivedSection {
    pub(crate) max_per_node: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "limit is \"auto\", \"derived\", \"unlimited\" or a number of requests")]
enum LimitKey {
    Fixed(u32),
    Word(LimitWord),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LimitWord {
    Auto,
    Derived,
    Unlimited,
}

impl AdmissionSection {
    pub(crate) fn limit(&self) -> Admission {
        match self.limit {
            Some(LimitKey::Fixed(limit)) => Admission::Fixed(limit),
            Some(LimitKey::Word(LimitWord::Derived)) => Admission::Derived,
            Some(LimitKey::Word(LimitWord::Unlimited)) => Admission::Unlimited,
            Some(LimitKey::Word(LimitWord::Auto)) | None => Admission::Auto,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsSection {
    pub(crate) nodes_max: Option<u16>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JoinSection {
    pub(crate) targets_per_s: Option<u32>,
    pub(crate) warm_targets: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SignalsSection {
    pub(crate) missing_after: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProcessSection {
    pub(crate) shards: Option<usize>,
}
