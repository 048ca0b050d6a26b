//! `[agent]` and `[node.handoff]` as written, with their defaults.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Span, Texts};

/// `[agent]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAgent {
    /// The node's name, unique on its machine: its programs in the kernel carry it.
    pub(crate) name: String,
    /// Where switches connect to, for control: "address:port". Required.
    #[schemars(example = "10.0.0.11:7946")]
    pub(crate) listen: Texts,
    /// File with this node's secret key, for its owner only. Made by `larder keys new FILE`. Required.
    #[schemars(example = "/etc/larder/node.key")]
    pub(crate) identity: String,
    /// Public keys of the switches that it works for, as `larder keys show FILE` prints them. 1 to 64. A reload that removes a
    /// key ends that switch's channel. Required.
    #[schemars(example = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")]
    pub(crate) switches: Texts,
    /// The interface that clients' packets come by from the switch, and leave by to the clients. Required.
    #[schemars(example = &"eth0")]
    pub(crate) interface: String,
    /// The addresses that clients connect to, as "address:port": the switch's, which this machine has too. At most 64.
    /// Required.
    #[schemars(example = "10.9.0.100:80")]
    pub(crate) services: Texts,
}

/// `[node.handoff]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawNodeHandoff {
    /// Where switches connect to, for control: "address:port". Required.
    #[schemars(example = "10.0.0.11:7946")]
    pub(crate) listen: Texts,
    /// File with this node's secret key, for its owner only. Made by `larder keys new FILE`. Required.
    #[schemars(example = "/etc/larder/node.key")]
    pub(crate) identity: String,
    /// Public keys of the switches that it works for, as `larder keys show FILE` prints them. 1 to 64. A reload that removes a
    /// key ends that switch's channel. Required.
    #[schemars(example = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")]
    pub(crate) switches: Texts,
    /// The interface that clients' packets come by from the switch, and leave by to the clients. Required.
    #[schemars(example = &"eth0")]
    pub(crate) interface: String,
    /// The addresses that clients connect to, as "address:port": the switch's, which this machine has too, and which
    /// `node.listen` takes in. At most 64. Required.
    #[schemars(example = "10.9.0.100:80")]
    pub(crate) services: Texts,
    /// Take connections with their state too (TCP_REPAIR), where the machine can: for switches that do so.
    pub(crate) repair: bool,
    /// What is done about a later request on a connection that was handed over, where this node has not its target and its
    /// disk is busy: "forward" asks the switch who has it and may fetch the reply from there (extended LARD); "serve" reads
    /// it here.
    #[schemars(extend("enum" = ["serve", "forward"]))]
    pub(crate) later: String,
    /// How long the switch's answer is waited for; without it the request is served here. 1ms to 1s.
    pub(crate) later_wait: Span,
}

impl Default for RawAgent {
    fn default() -> Self {
        Self {
            name: "node".to_owned(),
            listen: Texts::default(),
            identity: String::new(),
            switches: Texts::default(),
            interface: String::new(),
            services: Texts::default(),
        }
    }
}

impl Default for RawNodeHandoff {
    fn default() -> Self {
        Self {
            listen: Texts::default(),
            identity: String::new(),
            switches: Texts::default(),
            interface: String::new(),
            services: Texts::default(),
            repair: true,
            later: "forward".to_owned(),
            later_wait: Span(Duration::from_millis(2)),
        }
    }
}
