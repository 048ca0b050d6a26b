//! `[node.peers]` as written, with its defaults.

use std::time::Duration;

use larder_core::peers::PressSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span, Texts};

/// `[node.peers]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPeers {
    /// Where peers connect to, TCP and UDP: "address:port". Required.
    #[schemars(example = "10.0.0.11:7950")]
    pub(crate) listen: Texts,
    /// Where peers reach it, if not at `listen`; needed where that is all addresses.
    #[schemars(example = "10.0.0.11:7950")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// File with the secret that all nodes of the cluster share, for its owner only. Made by `larder keys new FILE`.
    /// Required.
    #[schemars(example = "/etc/larder/cluster.key")]
    pub(crate) secret: String,
    /// Where to look for others: "host:port", at most 256. A name is resolved again and again and all of its addresses
    /// count, such as a headless service of Kubernetes. None: this node waits to be found.
    #[schemars(example = "larder-peers.default.svc:7950")]
    pub(crate) seeds: Texts,
    /// T: connections above which a node is overloaded, so that a target gets a further server. 1 to 1,000,000.
    pub(crate) overload: u32,
    /// Objects of this size and more are served by the node that is asked for them, and no node keeps them in memory. By
    /// default a 64th of `cache.size`.
    #[schemars(example = "16MB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) large_min: Option<Size>,
    /// A node tells its load when it differs by so much from what it told last. 1 to 10,000.
    pub(crate) load_step: u32,
    /// Changes of memory are told together after this time; "0s" tells each at once. At most 10 s.
    pub(crate) gather: Span,
    /// A node takes part when more than this share of its clients' requests are not in its memory; before, and with
    /// memory enough, it works by itself. 0 to 1; 0, with `alone_below` 0 too: always.
    pub(crate) share_above: f64,
    /// It works by itself again when less than this share would be missed. At most `share_above`.
    pub(crate) alone_below: f64,
    /// Requests after which that is judged. 10 to 1,000,000.
    pub(crate) window: u32,
    /// Targets whose servers are known at most; some 60 bytes each. 1,000 to 100,000,000.
    pub(crate) targets_max: usize,
    /// How long the node that has a target may take to begin its reply; then the request is served where it arrived.
    /// 10 ms to 10 min.
    pub(crate) head_timeout: Span,
    /// Whether a connection is handed over to the node that has what it asks for, so that this one answers the client itself:
    /// "off" (replies are relayed), "auto" (where this machine can; `larder doctor` says whether), "required" (or the node does
    /// not start).
    pub(crate) handoff: String,
    /// Requests for less are relayed all the same; "0B" hands all over. Less than `large_min`.
    pub(crate) handoff_min: Size,
    /// Where clients connect to, of all nodes, the same list on each: "address:port", at most 64. A node has its own on the
    /// interface that takes clients' packets, and those of the others on its loopback interface. Required with `handoff`.
    #[schemars(example = "10.0.1.11:80")]
    pub(crate) handoff_services: Texts,
    /// TCP port of the nodes' handoff channels, at the address of `listen`; the same on all nodes. 1 to 65535.
    pub(crate) handoff_port: u16,
}

impl Default for RawPeers {
    fn default() -> Self {
        let press = PressSettings::default();
        Self {
            listen: Texts::default(),
            advertise: None,
            secret: String::new(),
            seeds: Texts::default(),
            overload: press.overload,
            large_min: None,
            load_step: press.load_step,
            gather: Span(press.gather),
            share_above: f64::from(press.sharing.on_permille) / 1_000.0,
            alone_below: f64::from(press.sharing.off_permille) / 1_000.0,
            window: press.sharing.window,
            targets_max: press.targets_max,
            head_timeout: Span(Duration::from_secs(10)),
            handoff: "off".to_owned(),
            handoff_min: Size(larder_core::Bytes::kib(16)),
            handoff_services: Texts::default(),
            handoff_port: 7951,
        }
    }
}
