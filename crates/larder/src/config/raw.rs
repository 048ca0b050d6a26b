//! The config as written: what may stand in the file, with its defaults.
//!
//! The doc comments here are the reference: the JSON Schema (`larder check --schema`) and the commented default
//! file (`larder check --defaults`, kept as `examples/larder.toml`) are generated from these types. A value that
//! reads is not yet valid; [`super::valid`] turns it into settings that are.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::raw_agent::RawAgent;
use super::raw_node::RawNode;
use super::raw_switch::RawSwitch;

/// The config file of larder. A switch needs `switch.listen` and `switch.nodes`; a node needs `node.listen` and
/// `node.root`. Everything else has a default.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawConfig {
    /// The front-end: accepts clients, picks the node that holds the target, relays (`larder switch`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switch: Option<RawSwitch>,
    /// A content node: serves a directory through its own bounded memory cache (`larder node`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<RawNode>,
    /// Handoff for a host whose server is of another make (`larder agent`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<RawAgent>,
    /// The admin interface: JSON and Prometheus metrics over HTTP.
    pub(crate) admin: RawAdmin,
    /// What is written to stderr.
    pub(crate) log: RawLog,
}

/// `[admin]`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdmin {
    #[schemars(example = "127.0.0.1:9900")]
    /// Where the admin interface listens: "address:port", or "off". Unset: 127.0.0.1:9900 for a switch, off for
    /// the others. It has no authentication: keep it on loopback or on a network of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
}

/// `[log]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLog {
    /// Least severity written to stderr: "error", "warn", "info", "debug", "trace", or a filter such as
    /// "info,larder_front=debug". The environment variable LARDER_LOG wins over it.
    pub(crate) level: String,
}

impl Default for RawLog {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}
