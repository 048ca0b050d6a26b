//! `prompts` of the policy's config, with the keys of `prompts` in `larder.toml`.

use larder_config::{Size, Span};
use larder_core::chain::{ChainPolicyKind, ChainSettings};
use larder_prompts::PromptConfig;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The reason why `prompts` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("prompts{0}")]
pub(crate) struct SectionError(String);

impl SectionError {
    fn of(key: &str, error: impl std::fmt::Display) -> Self {
        Self(format!(".{key}: {error}"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    policy: Option<String>,
    server_tokens: Option<u64>,
    body_max: Option<Value>,
    body_timeout: Option<Value>,
    memory: Option<Value>,
    credits: Option<u32>,
    metrics_period: Option<Value>,
}

/// Reads the value of a key that has a text form. Serde does not name the key in its errors.
fn value<T: DeserializeOwned>(key: &str, value: Option<Value>) -> Result<Option<T>, SectionError> {
    value.map(serde_json::from_value).transpose().map_err(|error| SectionError::of(key, error))
}

/// Reads a number of bytes.
fn size(key: &str, text: Option<Value>, standard: usize) -> Result<usize, SectionError> {
    let size: Option<Size> = value(key, text)?;
    Ok(size.map_or(standard, |size| usize::try_from(size.0.get()).unwrap_or(usize::MAX)))
}

/// Reads the section.
pub(crate) fn read(section: Value) -> Result<PromptConfig, SectionError> {
    let section: Section =
        serde_json::from_value(section).map_err(|error| SectionError(format!(": {error}")))?;
    if section.metrics_period.is_some() {
        return Err(SectionError::of(
            "metrics_period",
            "only larder switch reads the metrics of servers; remove this key",
        ));
    }
    let standard = PromptConfig::default();
    let policy = match section.policy {
        Some(name) => name.parse::<ChainPolicyKind>().map_err(|error| SectionError::of("policy", error))?,
        None => standard.settings.policy,
    };
    let credits_max = section.credits.unwrap_or(standard.settings.credits_max);
    let config = PromptConfig {
        settings: ChainSettings { policy, credits_max, ..standard.settings },
        node_tokens: section.server_tokens.unwrap_or(standard.node_tokens),
        metrics_period: None,
        body_bytes_max: size("body_max", section.body_max, standard.body_bytes_max)?,
        body_timeout: value("body_timeout", section.body_timeout)?
            .map_or(standard.body_timeout, |Span(time)| time),
        memory_bytes_max: size("memory", section.memory, standard.memory_bytes_max)?,
    };
    config.validate().map_err(|error| SectionError(format!(".{error}")))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn keys_have_the_defaults_of_the_switch() {
        let standard = PromptConfig { metrics_period: None, ..PromptConfig::default() };
        assert_eq!(read(json!({})).expect("defaults"), standard);
        let config = read(json!({
            "policy": "least-load", "server_tokens": 50_000, "body_max": "1MiB", "memory": 2_097_152, "credits": 7,
            "body_timeout": "5s",
        }));
        let config = config.expect("it can be used");
        assert_eq!(config.settings.policy, ChainPolicyKind::LeastLoad);
        assert_eq!((config.node_tokens, config.settings.credits_max), (50_000, 7));
        assert_eq!((config.body_bytes_max, config.memory_bytes_max), (1 << 20, 2 << 20));
        assert_eq!(config.body_timeout, Duration::from_secs(5));
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_key() {
        for (section, wanted) in [
            (json!(true), "prompts: invalid type"),
            (json!({ "polcy": "rr" }), "unknown field `polcy`"),
            (json!({ "policy": "lard" }), "prompts.policy: unknown policy of chains 'lard'"),
            (json!({ "body_max": "8 apples" }), "prompts.body_max: '8 apples' is not a size"),
            (json!({ "body_max": "1B" }), "prompts.body_max is out of range"),
            (json!({ "body_max": 1.5 }), "prompts.body_max: invalid type: floating point `1.5`"),
            (json!({ "body_timeout": 5 }), "prompts.body_timeout: invalid type: integer `5`"),
            (json!({ "body_timeout": "2h" }), "prompts.body_timeout is out of range"),
            (json!({ "memory": "1KiB" }), "prompts.memory is out of range"),
            (json!({ "server_tokens": 1 }), "prompts.server_tokens is out of range"),
            (json!({ "credits": 0 }), "prompts.credits is out of range"),
            (json!({ "metrics_period": "1s" }), "prompts.metrics_period: only larder switch"),
        ] {
            let refusal = read(section.clone()).expect_err("it cannot be used").to_string();
            assert!(refusal.contains(wanted), "{section}: {refusal}");
        }
    }
}
