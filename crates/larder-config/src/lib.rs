//! The policy part of `larder.toml` as text, for programs that embed the dispatcher.
//!
//! The keys are those under `[switch]`, in TOML or as a JSON object. Keys that only larder's own switch has, such as
//! addresses and timeouts, are unknown here, and an unknown key is an error. `docs/reference/liblarder.md` lists the
//! keys.
//!
//! ```
//! use larder_config::EmbeddedConfig;
//! use larder_core::PolicyKind;
//!
//! let toml = "policy = \"lard-r\"\nnodes = [\"a\", \"b\"]\n[policies.lard]\nt_high = 80\n";
//! let json = r#"{"policy": "lard-r", "nodes": ["a", "b"], "policies": {"lard": {"t_high": 80}}}"#;
//! let config: EmbeddedConfig = toml.parse()?;
//! assert_eq!((config.settings.policy, config.settings.t_high), (PolicyKind::LardR, 80));
//! assert_eq!(json.parse::<EmbeddedConfig>()?, config);
//! let error = "polcy = \"rr\"".parse::<EmbeddedConfig>().expect_err("no such key").to_string();
//! assert!(error.contains("polcy"));
//! # Ok::<(), larder_config::ConfigError>(())
//! ```

mod extra_input;
mod policies;
mod sections;
mod text;

pub use extra_input::extra_input;
pub use text::{ParseSpanError, Size, Span};

use larder_core::dispatch::SettingsError;
use larder_core::{NodeSpec, PolicyKind, Settings};
use sections::Section;
use std::collections::BTreeSet;
use std::str::FromStr;

/// The largest size of a node's name in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;

/// The settings and the first nodes of an embedded dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedConfig {
    /// The settings, in range. Requests do not queue: `queue_max` is 0.
    pub settings: Settings,
    /// The nodes. They are warm from the start.
    pub nodes: Vec<NodeSpec>,
}

/// The reason why a config cannot be used. The same text fails again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is neither TOML nor JSON, or a key is unknown or has the wrong type.
    #[error("{0}")]
    Text(String),
    /// A value cannot be used.
    #[error("{key}: {what}")]
    Value {
        /// The key, with dots.
        key: String,
        /// The cause and the remedy.
        what: String,
    },
    /// The settings are out of range or contradict each other.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl ConfigError {
    fn value(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Value { key: key.into(), what: what.into() }
    }
}

impl FromStr for EmbeddedConfig {
    type Err = ConfigError;

    /// Reads a config: JSON if the text begins with `{`, else TOML.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let section: Section = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| ConfigError::Text(error.to_string()))?
        } else {
            toml::from_str(text)
                .map_err(|error| ConfigError::Text(error.to_string().trim_end().to_owned()))?
        };
        let settings = settings(&section)?;
        settings.validate()?;
        let nodes = section.nodes.iter().map(sections::NodeKey::spec).collect::<Result<Vec<_>, _>>()?;
        let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        if names.len() < nodes.len() {
            return Err(ConfigError::value("nodes", "two nodes have the same name"));
        }
        if nodes.len() > usize::from(settings.nodes_max) {
            let what = format!("{} nodes: raise limits.nodes_max", nodes.len());
            return Err(ConfigError::value("nodes", what));
        }
        Ok(Self { settings, nodes })
    }
}

fn settings(section: &Section) -> Result<Settings, ConfigError> {
    let defaults = Settings::default();
    let mut settings = Settings {
        nodes_max: section.limits.nodes_max.unwrap_or(defaults.nodes_max),
        admission: section.admission.limit(),
        long_lived_max: section.admission.long_lived.max_per_node.unwrap_or(defaults.long_lived_max),
        queue_max: 0,
        join_targets_per_s: section.join.targets_per_s.unwrap_or(defaults.join_targets_per_s),
        join_warm_targets: section.join.warm_targets.unwrap_or(defaults.join_warm_targets),
        shards: section.process.shards.unwrap_or(defaults.shards),
        report_age_max: section.signals.missing_after.map_or(defaults.report_age_max, |age| age.0),
        ..defaults
    };
    if let Some(name) = &section.policy {
        settings.policy =
            name.parse::<PolicyKind>().map_err(|e| ConfigError::value("policy", e.to_string()))?;
    }
    section.policies.apply(&mut settings)?;
    Ok(settings)
}

#[cfg(test)]
mod tests;
