//! The config of the policy: a JSON object in Envoy's config of the cluster.
//!
//! The object is the policy part of `larder.toml`, with the same keys, ranges and defaults, and these keys:
//!
//! | key | content | default |
//! |---|---|---|
//! | `key` | template of the target key | `{host}{path}{query}` |
//! | `state_file` | file that keeps the learned state while Envoy restarts | none |
//! | `record_file` | file in which decisions are recorded, for `larder sim replay` | none |
//! | `prompts` | placement of completions by their prompts, as `prompts` of a route of `larder switch` | none |

use crate::prompt;
use larder_core::dispatch::Admission;
use larder_core::rules::{KeyTemplate, RuleError};
use larder_core::{NodeSpec, PolicyKind, Settings};
use larder_embed::{ConfigError, EmbeddedConfig, extra_input};
use larder_prompts::PromptConfig;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The policy of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyConfig {
    settings: Settings,
    pub(crate) key: KeyTemplate,
    pub(crate) state_file: Option<PathBuf>,
    pub(crate) record_file: Option<PathBuf>,
    pub(crate) prompts: Option<PromptConfig>,
}

/// The reason why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyConfigError {
    #[error("lb_policy_config is not JSON: {0}")]
    Json(serde_json::Error),
    #[error("lb_policy_config is not a JSON object: write {{\"policy\": \"lard-r\"}}")]
    NoObject,
    #[error("nodes: Envoy's cluster lists the hosts; remove this key")]
    Nodes,
    #[error("{key}: write a text")]
    NoText { key: &'static str },
    #[error("key: {0}")]
    Key(RuleError),
    #[error("{key}: write the absolute path of a file, such as /var/lib/envoy/larder")]
    NoPath { key: &'static str },
    #[error("policy: {policy} cannot run inside Envoy: {reason}; use lard-r or lard-cost, for example")]
    Policy { policy: PolicyKind, reason: &'static str },
    #[error(transparent)]
    Prompts(#[from] prompt::SectionError),
    #[error(transparent)]
    Embedded(#[from] ConfigError),
}

impl PolicyConfig {
    /// Reads a config. An empty text has the defaults.
    pub(crate) fn parse(text: &str) -> Result<Self, PolicyConfigError> {
        let mut keys = match text.trim() {
            "" => Map::new(),
            text => match serde_json::from_str(text).map_err(PolicyConfigError::Json)? {
                Value::Object(keys) => keys,
                _ => return Err(PolicyConfigError::NoObject),
            },
        };
        if keys.contains_key("nodes") {
            return Err(PolicyConfigError::Nodes);
        }
        let key = match take_text(&mut keys, "key")? {
            Some(template) => template.parse().map_err(PolicyConfigError::Key)?,
            None => KeyTemplate::default(),
        };
        let (state_file, record_file) =
            (take_path(&mut keys, "state_file")?, take_path(&mut keys, "record_file")?);
        let prompts = match keys.remove("prompts") {
            None | Some(Value::Null) => None,
            Some(section) => Some(prompt::read(section)?),
        };
        let EmbeddedConfig { mut settings, .. } = Value::Object(keys).to_string().parse()?;
        if let Some(reason) = extra_input(settings.policy) {
            return Err(PolicyConfigError::Policy { policy: settings.policy, reason });
        }
        // Envoy's circuit breakers limit the requests of a cluster, unless the config sets a limit here too.
        if settings.admission == Admission::Auto {
            settings.admission = Admission::Unlimited;
        }
        Ok(Self { settings, key, state_file, record_file, prompts })
    }

    /// Returns the largest number of nodes.
    pub(crate) fn nodes_max(&self) -> usize {
        usize::from(self.settings.nodes_max)
    }

    /// Returns the config of a dispatcher that starts with these nodes.
    pub(crate) fn with_nodes(&self, nodes: Vec<NodeSpec>) -> EmbeddedConfig {
        EmbeddedConfig { settings: self.settings.clone(), nodes }
    }
}

fn take_text(keys: &mut Map<String, Value>, key: &'static str) -> Result<Option<String>, PolicyConfigError> {
    match keys.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(PolicyConfigError::NoText { key }),
    }
}

fn take_path(keys: &mut Map<String, Value>, key: &'static str) -> Result<Option<PathBuf>, PolicyConfigError> {
    let path = take_text(keys, key)?.map(PathBuf::from);
    match path {
        Some(path) if !path.is_absolute() || path.file_name().is_none() => {
            Err(PolicyConfigError::NoPath { key })
        }
        path => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        PolicyConfig::parse(text).expect_err("it cannot be used").to_string()
    }

    #[test]
    fn a_config_is_the_policy_part_with_keys_of_its_own() {
        let config = PolicyConfig::parse(
            r#"{"policy": "lard-r", "policies": {"lard": {"t_high": 80}}, "key": "{path}", "state_file": "/tmp/s"}"#,
        )
        .expect("it can be used");
        assert_eq!((config.settings.policy, config.settings.t_high), (PolicyKind::LardR, 80));
        assert_eq!(config.key.as_str(), "{path}");
        assert_eq!(config.state_file, Some(PathBuf::from("/tmp/s")));
        assert_eq!(PolicyConfig::parse(" ").expect("defaults"), PolicyConfig::parse("{}").expect("defaults"));
    }

    #[test]
    fn envoy_limits_requests_unless_the_config_does() {
        let admission = |text: &str| PolicyConfig::parse(text).expect("it can be used").settings.admission;
        assert_eq!(admission("{}"), Admission::Unlimited);
        assert_eq!(admission(r#"{"admission": {"limit": 50}}"#), Admission::Fixed(50));
        assert_eq!(admission(r#"{"admission": {"limit": "derived"}}"#), Admission::Derived);
    }

    #[test]
    fn a_wrong_config_names_the_key_and_the_remedy() {
        assert_eq!(refusal("[]"), PolicyConfigError::NoObject.to_string());
        assert!(refusal("{").contains("is not JSON"));
        assert!(refusal(r#"{"nodes": ["a"]}"#).contains("Envoy's cluster lists the hosts"));
        assert!(refusal(r#"{"key": 1}"#).contains("key: write a text"));
        assert!(refusal(r#"{"key": "{pth}"}"#).starts_with("key: "));
        assert!(refusal(r#"{"state_file": "s"}"#).starts_with("state_file: write the absolute path"));
        assert!(refusal(r#"{"record_file": "/"}"#).starts_with("record_file: write the absolute path"));
        assert!(refusal(r#"{"polcy": "rr"}"#).contains("polcy"));
    }

    #[test]
    fn a_policy_that_envoy_cannot_serve_is_refused_with_the_reason() {
        for policy in PolicyKind::ALL {
            let parsed = PolicyConfig::parse(&format!(r#"{{"policy": "{policy}"}}"#));
            match extra_input(policy) {
                None => assert!(parsed.is_ok(), "{policy}: {parsed:?}"),
                Some(reason) => assert!(refusal(&format!(r#"{{"policy": "{policy}"}}"#)).contains(reason)),
            }
        }
    }
}
