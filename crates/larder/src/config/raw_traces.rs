//! `[switch.traces]` and `[node.traces]` as written, with their defaults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::Texts;

/// `[switch.traces]`, `[node.traces]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTraces {
    /// Where an OpenTelemetry collector takes spans by OTLP/HTTP: "http://HOST:PORT", with a path if it is not /v1/traces.
    /// Required.
    #[schemars(example = "http://127.0.0.1:4318")]
    pub(crate) endpoint: String,
    /// Share of the requests without a traceparent that begin a trace: 0 to 1. Those with one are traced if it says so.
    pub(crate) ratio: f64,
    /// Whether a request's traceparent decides. false: the ratio decides for all, and traces begin here; for a switch whose clients
    /// are strangers, since each of them could have all of his requests traced.
    pub(crate) parents: bool,
    /// What the collector is told as service.name. Unset: "larder-switch" or "larder-node".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"edge")]
    pub(crate) service: Option<String>,
    /// Fields that are sent along, each "name: value", such as a key that the collector asks for.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    #[schemars(example = ["x-api-key: 1234"])]
    pub(crate) headers: Texts,
}

impl Default for RawTraces {
    fn default() -> Self {
        Self { endpoint: String::new(), ratio: 0.01, parents: true, service: None, headers: Texts::default() }
    }
}
