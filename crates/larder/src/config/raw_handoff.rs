//! `[switch.handoff]` as written, with its defaults, and what a node says of it.

use larder_core::Bytes;
use larder_front::{HandoffConfig, Handshake, MechanismSetting};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Size, Span};

/// `[switch.handoff]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHandoff {
    /// How connections reach nodes: "relay"; "splice" (whole connections, moved in the kernel); "cookie" (the node's
    /// kernel completes the handshake and answers the client directly); "repair" (the state of the connection's socket
    /// is moved to the node); "auto", the best that this machine and the node can. What cannot be done is relayed.
    #[schemars(extend("enum" = MechanismSetting::ALL.map(MechanismSetting::name)))]
    pub(crate) mechanism: String,
    /// Who completes the handshake of connections that are moved by repair: "plane", the forwarding plane, with a cookie,
    /// so that this host never has a socket for them; "stack", this host's stack, from whose socket the state is read.
    #[schemars(extend("enum" = Handshake::ALL.map(Handshake::name)))]
    pub(crate) handshake: String,
    /// Names what is left in the kernel by this switch, unique on its machine. 1 to 32 letters, digits, "-" and "_".
    pub(crate) name: String,
    /// The interface that clients come by. Unset: the one with the first listen address, or the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"eth0")]
    pub(crate) interface: Option<String>,
    /// File with this switch's secret key, for its owner only. Made by `larder keys new FILE`. Required for cookie,
    /// repair and auto.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/switch.key")]
    pub(crate) identity: Option<String>,
    /// File with 32 secret bytes in base64, made by `larder keys new FILE`, from which the keys of cookies are made.
    /// Switches that may get each other's connections share it. Unset: one made from the
    /// identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/etc/larder/cookies.key")]
    pub(crate) secret: Option<String>,
    /// How packets reach the nodes: "l2" (same network), or wrapped: "ipip", "gue", "vxlan".
    #[schemars(extend("enum" = ["l2", "ipip", "gue", "vxlan"]))]
    pub(crate) forward: String,
    /// UDP port of the nodes for gue and vxlan.
    pub(crate) forward_port: u16,
    /// Network identifier for vxlan. 0 to 16777215.
    pub(crate) vni: u32,
    /// Let the forwarding plane use a decision again for the same target.
    pub(crate) fast: bool,
    /// How long it may. 1ms to 10s.
    pub(crate) fast_age: Span,
    /// Connections the forwarding plane knows; beyond, the least recently used is forgotten. 1024 to 16777216.
    pub(crate) flows_max: u32,
    /// Targets whose decisions may be used again. 1024 to 16777216.
    pub(crate) targets_max: u32,
    /// Connections that may wait for their decision; more are relayed. 1 to 65536.
    pub(crate) hold_max: usize,
    /// Packets kept of one connection that waits. 1 to 1024.
    pub(crate) hold_packets: u32,
    /// How long the rest of a request header is waited for before the switch accepts the connection itself. 0s to 1s.
    pub(crate) header_wait: Span,
    /// How long a key makes cookies. 10s to 1h.
    pub(crate) key_life: Span,
    /// A handed-off connection without packets for so long counts no more, until its next request. 10ms to 1h.
    pub(crate) idle_after: Span,
    /// Replies below this are relayed rather than an accepted socket moved.
    pub(crate) repair_min: Size,
    /// The share of later requests on kept-alive connections that may belong to other nodes, before a route is relayed.
    /// 0 to 1.
    pub(crate) locality_lost_max: f64,
    /// Pass TLS through, by server name.
    pub(crate) tls: bool,
}

impl Default for RawHandoff {
    fn default() -> Self {
        let handoff = HandoffConfig::default();
        Self {
            mechanism: handoff.setting.name().to_owned(),
            handshake: handoff.handshake.name().to_owned(),
            name: handoff.name,
            interface: None,
            identity: None,
            secret: None,
            forward: "l2".to_owned(),
            forward_port: 4789,
            vni: 0,
            fast: handoff.fast,
            fast_age: Span(handoff.fast_age),
            flows_max: handoff.flows_max,
            targets_max: handoff.targets_max,
            hold_max: handoff.hold_max,
            hold_packets: handoff.hold_packets,
            header_wait: Span(handoff.header_wait),
            key_life: Span(handoff.key_life),
            idle_after: Span(handoff.idle_after),
            repair_min: Size(Bytes(handoff.repair_bytes_min)),
            locality_lost_max: handoff.locality_lost_max,
            tls: handoff.tls,
        }
    }
}

/// `handoff` of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPeerHandoff {
    /// Where its agent listens, for control: "address:port" or "name:port".
    #[schemars(example = "10.0.0.11:7946")]
    pub(crate) control: String,
    /// Its public key, as `larder keys show FILE` prints it.
    #[schemars(example = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")]
    pub(crate) key: String,
}
