//! `[switch.switches]` as written, with its defaults.

use larder_core::switches::SwitchesSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Span, Texts};

/// `[switch.switches]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSwitches {
    /// This switch's name, which no other switch has: 1 to 100 printable ASCII characters. Required.
    #[schemars(example = &"edge1")]
    pub(crate) name: String,
    /// Where other switches connect to, TCP and UDP: "address:port". Required.
    #[schemars(example = "10.0.0.1:7960")]
    pub(crate) listen: Texts,
    /// Where other switches reach it, if not at `listen`; needed where that is all addresses.
    #[schemars(example = "10.0.0.1:7960")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// File with the secret that all switches of the cluster share, for its owner only, and not that of the nodes. Made by
    /// `larder keys new FILE`. A second line may hold another secret that is accepted too, so that the secret can be rotated.
    /// Read at each reload. Required.
    #[schemars(example = "/etc/larder/switches.key")]
    pub(crate) secret: String,
    /// Where to look for others: "host:port", at most 256. A name is resolved again and again and all of its addresses
    /// count. None: this switch waits to be found.
    #[schemars(example = ["10.0.0.2:7960", "10.0.0.3:7960"])]
    pub(crate) seeds: Texts,
    /// Between two words to the others at least: loads and server sets that have changed are told together. 1ms to 1s.
    pub(crate) period: Span,
    /// A node's load is told when it differs by so many requests from what was told last. Loads that lie closer together
    /// than this, times the other switches, count as equal. 1 to 10,000.
    pub(crate) step: u32,
    /// A switch that is there and has said nothing for so long is taken to have as many requests as the others have. 1s to
    /// 1min.
    pub(crate) unknown_after: Span,
}

impl Default for RawSwitches {
    fn default() -> Self {
        let SwitchesSettings { period, step, unknown_after, .. } = SwitchesSettings::default();
        Self {
            name: String::new(),
            listen: Texts(Vec::new()),
            advertise: None,
            secret: String::new(),
            seeds: Texts(Vec::new()),
            period: Span(period),
            step,
            unknown_after: Span(unknown_after),
        }
    }
}
