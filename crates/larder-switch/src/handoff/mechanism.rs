//! Delivery mechanisms of connections, and the rule that chooses one.
//!
//! There are four mechanisms, the cheapest for the switch first: *cookie* (the node's kernel completes the handshake,
//! the switch only forwards packets), *repair* (the state of a socket is moved to the node), *splice* (two
//! connections, bytes moved in the kernel), *relay* (two connections, bytes pass through this process, a decision for
//! every request).
//!
//! The first row that applies chooses the mechanism and names the reason:
//!
//! | if | then | reason |
//! |---|---|---|
//! | the route's setting is `relay` | that | `configured` |
//! | it is HTTP, and the route edits its requests or replies | relay | `edited` |
//! | it is HTTP, and may bring later requests for a route that edits | relay | `edits_later` |
//! | the route's setting is `splice` | that | `configured` |
//! | the first bytes are HTTP/2's preface | relay | `http2` |
//! | they are neither HTTP/1 nor TLS | relay | `unreadable` |
//! | the request's header did not come in one go | relay | `incomplete` |
//! | the client sends TLS that ends here | relay | `tls` |
//! | the node failed the latest request it got | relay, which can try another node | `shaky` |
//! | later requests of the route's connections lose too much locality | relay | `locality` |
//! | the node's control channel is down | relay, or splice for TLS | `channel` |
//! | the setting allows cookie, the connection has no socket yet, the node's kernel can | cookie | `cookie` |
//! | the setting allows repair, the node can, the connection has a socket, and its reply is known to be small | relay | `small` |
//! | the setting allows repair, the node can | repair | `repair` |
//! | none of these | relay, or splice for TLS | `node` |
//!
//! For a connection without a socket, *relay* and *splice* mean that this host's own stack accepts it first, and
//! *repair* that the node gets the state that the socket would have.

use std::fmt;
use std::str::FromStr;

/// Mechanism that delivers a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// Two connections; bytes pass through this process; every request is decided.
    Relay,
    /// Two connections; the kernel moves the bytes.
    Splice,
    /// The connection's state is moved to the node.
    Repair,
    /// The node's kernel completes the handshake.
    Cookie,
}

impl Mechanism {
    /// Every mechanism.
    pub const ALL: [Self; 4] = [Self::Relay, Self::Splice, Self::Repair, Self::Cookie];

    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Splice => "splice",
            Self::Repair => "repair",
            Self::Cookie => "cookie",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Mechanisms that the operator allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MechanismSetting {
    /// The best mechanism that this machine and the node support: cookie, otherwise repair, otherwise relay.
    Auto,
    /// Cookie, otherwise relay.
    Cookie,
    /// Repair, otherwise relay.
    Repair,
    /// Splice.
    Splice,
    /// Relay.
    #[default]
    Relay,
}

impl MechanismSetting {
    /// Every setting.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Cookie, Self::Repair, Self::Splice, Self::Relay];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cookie => "cookie",
            Self::Repair => "repair",
            Self::Splice => "splice",
            Self::Relay => "relay",
        }
    }

    /// Whether `cookie` is allowed.
    pub const fn allows_cookie(self) -> bool {
        matches!(self, Self::Auto | Self::Cookie)
    }

    /// Whether `repair` is allowed.
    pub const fn allows_repair(self) -> bool {
        matches!(self, Self::Auto | Self::Repair)
    }
}

/// Error: the name is not a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mechanism '{0}': use auto, cookie, repair, splice or relay")]
pub struct UnknownMechanism(String);

impl FromStr for MechanismSetting {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        let found = Self::ALL.into_iter().find(|setting| setting.name() == name);
        found.ok_or_else(|| UnknownMechanism(name.chars().take(40).collect()))
    }
}

/// Protocol of a connection's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstBytes {
    /// A whole HTTP/1.x request header.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// A TLS ClientHello that is passed through.
    Tls,
    /// A TLS ClientHello of a connection that ends here.
    TlsHere,
    /// The beginning of one of these; the rest is missing.
    Partial,
    /// Something else.
    Other,
}

/// Facts that the rule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFacts {
    /// The operator's setting for the route.
    pub setting: MechanismSetting,
    /// Protocol of the client's first bytes.
    pub first_bytes: FirstBytes,
    /// Whether this host has a socket for the connection.
    pub accepted: bool,
    /// Whether the node's control channel is up.
    pub channel: bool,
    /// Whether the node accepts connections by cookie.
    pub node_cookie: bool,
    /// Whether the node accepts moved sockets.
    pub node_repair: bool,
    /// Consecutive failures of requests at the node.
    pub node_failures: u32,
    /// Mean size of the target's replies in bytes; `None` if unknown.
    pub reply_bytes: Option<u64>,
    /// Size of a reply below which relaying is cheaper than moving an accepted socket. Bytes.
    pub repair_bytes_min: u64,
    /// Whether too many later requests on the route's connections belong to other nodes.
    pub locality_lost: bool,
    /// Whether the route edits requests or replies.
    pub edited: bool,
    /// Whether any route edits requests or replies.
    pub edits_later: bool,
    /// Whether any route has a guard, which cannot inspect TLS that is passed through.
    pub guarded: bool,
}

/// Reason for the choice of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryReason {
    /// The operator has configured it, or handoff is off.
    Configured,
    /// The route edits requests or replies, or replies itself.
    Edited,
    /// Another route edits, and the connection may bring requests for it.
    EditsLater,
    /// HTTP/2 requests are decided one by one.
    Http2,
    /// Neither HTTP/1 nor TLS.
    Unreadable,
    /// The header was not complete in the packets that were held for it.
    Incomplete,
    /// TLS ends here.
    Tls,
    /// The node failed recently; a relay can try another node.
    Shaky,
    /// Too many later requests of such connections belong to other nodes.
    Locality,
    /// The node's control channel is down.
    Channel,
    /// The node accepts connections by cookie.
    Cookie,
    /// The forwarding plane reused a decision.
    Fast,
    /// The node accepts moved sockets, and the reply is large enough.
    Repair,
    /// The reply is small.
    Small,
    /// The node accepts neither.
    Node,
    /// The limit of held connections is reached.
    HoldFull,
    /// The dispatcher refused the request; the relay sends the refusal.
    Refused,
    /// The handoff failed and the connection was kept.
    Failed,
    /// The connection is older than this process, or was forgotten.
    Adopted,
    /// The connection continued after it was counted as ended, and its node has it. Counted in addition to its first
    /// delivery.
    Resumed,
    /// Its node drains, and another node has the connection now. Counted in addition to its first delivery.
    Drain,
    /// The connection was held when another process took over the plane.
    Reload,
}

impl DeliveryReason {
    /// Every reason.
    pub const ALL: [Self; 22] = [
        Self::Configured,
        Self::Edited,
        Self::EditsLater,
        Self::Http2,
        Self::Unreadable,
        Self::Incomplete,
        Self::Tls,
        Self::Shaky,
        Self::Locality,
        Self::Channel,
        Self::Cookie,
        Self::Fast,
        Self::Repair,
        Self::Small,
        Self::Node,
        Self::HoldFull,
        Self::Refused,
        Self::Failed,
        Self::Adopted,
        Self::Resumed,
        Self::Drain,
        Self::Reload,
    ];

    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Edited => "edited",
            Self::EditsLater => "edits_later",
            Self::Http2 => "http2",
            Self::Unreadable => "unreadable",
            Self::Incomplete => "incomplete",
            Self::Tls => "tls",
            Self::Shaky => "shaky",
            Self::Locality => "locality",
            Self::Channel => "channel",
            Self::Cookie => "cookie",
            Self::Fast => "fast",
            Self::Repair => "repair",
            Self::Small => "small",
            Self::Node => "node",
            Self::HoldFull => "hold_full",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Adopted => "adopted",
            Self::Resumed => "resumed",
            Self::Drain => "drain",
            Self::Reload => "reload",
        }
    }
}

impl fmt::Display for DeliveryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Chosen mechanism and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Mechanism.
    pub mechanism: Mechanism,
    /// Reason.
    pub reason: DeliveryReason,
}

impl Delivery {
    /// Returns a relay for this reason.
    pub const fn relay(reason: DeliveryReason) -> Self {
        Self { mechanism: Mechanism::Relay, reason }
    }
}

impl ConnectionFacts {
    /// Returns the delivery if it does not depend on the node.
    pub fn before_node(&self) -> Option<Delivery> {
        let chosen = |mechanism, reason| Some(Delivery { mechanism, reason });
        match (self.setting, self.first_bytes) {
            // The relay refuses it, because it can read no request.
            (_, FirstBytes::Tls) if self.guarded => chosen(Mechanism::Relay, DeliveryReason::Edited),
            (MechanismSetting::Relay, FirstBytes::Tls) => {
                chosen(Mechanism::Splice, DeliveryReason::Configured)
            }
            (MechanismSetting::Relay, _) => chosen(Mechanism::Relay, DeliveryReason::Configured),
            // Encrypted requests cannot be edited, by handoff or by a relay.
            (_, FirstBytes::Http1) if self.edited => chosen(Mechanism::Relay, DeliveryReason::Edited),
            (_, FirstBytes::Http1) if self.edits_later => {
                chosen(Mechanism::Relay, DeliveryReason::EditsLater)
            }
            (MechanismSetting::Splice, _) => chosen(Mechanism::Splice, DeliveryReason::Configured),
            (_, FirstBytes::Http2) => chosen(Mechanism::Relay, DeliveryReason::Http2),
            (_, FirstBytes::Other) => chosen(Mechanism::Relay, DeliveryReason::Unreadable),
            (_, FirstBytes::Partial) => chosen(Mechanism::Relay, DeliveryReason::Incomplete),
            (_, FirstBytes::TlsHere) => chosen(Mechanism::Relay, DeliveryReason::Tls),
            (_, FirstBytes::Http1 | FirstBytes::Tls) => None,
        }
    }

    /// Applies the whole rule.
    pub fn choose(&self) -> Delivery {
        if let Some(delivery) = self.before_node() {
            return delivery;
        }
        let tls = self.first_bytes == FirstBytes::Tls;
        let relay_or_splice =
            |reason| Delivery { mechanism: if tls { Mechanism::Splice } else { Mechanism::Relay }, reason };
        if self.node_failures > 0 {
            return relay_or_splice(DeliveryReason::Shaky);
        }
        if self.locality_lost && !tls {
            return relay_or_splice(DeliveryReason::Locality);
        }
        if !self.channel {
            return relay_or_splice(DeliveryReason::Channel);
        }
        if self.setting.allows_cookie() && !self.accepted && self.node_cookie {
            return Delivery { mechanism: Mechanism::Cookie, reason: DeliveryReason::Cookie };
        }
        // TLS can be moved only while its first bytes are unread, which holds for `repair`.
        if self.setting.allows_repair() && self.node_repair {
            if self.accepted && self.reply_bytes.is_some_and(|bytes| bytes < self.repair_bytes_min) {
                return relay_or_splice(DeliveryReason::Small);
            }
            return Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair };
        }
        relay_or_splice(DeliveryReason::Node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEST: ConnectionFacts = ConnectionFacts {
        setting: MechanismSetting::Auto,
        first_bytes: FirstBytes::Http1,
        accepted: false,
        channel: true,
        node_cookie: true,
        node_repair: true,
        node_failures: 0,
        reply_bytes: None,
        repair_bytes_min: 16_384,
        locality_lost: false,
        edited: false,
        edits_later: false,
        guarded: false,
    };

    fn of(facts: ConnectionFacts) -> (&'static str, &'static str) {
        let Delivery { mechanism, reason } = facts.choose();
        (mechanism.name(), reason.name())
    }

    #[test]
    fn the_best_supported_mechanism_is_chosen() {
        assert_eq!(of(BEST), ("cookie", "cookie"));
        assert_eq!(of(ConnectionFacts { node_cookie: false, ..BEST }), ("repair", "repair"));
        assert_eq!(of(ConnectionFacts { node_cookie: false, node_repair: false, ..BEST }), ("relay", "node"));
        assert_eq!(of(ConnectionFacts { accepted: true, ..BEST }), ("repair", "repair"));
        assert_eq!(of(ConnectionFacts { channel: false, ..BEST }), ("relay", "channel"));
    }

    #[test]
    fn each_line_of_the_rule_has_its_reason() {
        for (facts, expected) in [
            (ConnectionFacts { setting: MechanismSetting::Relay, ..BEST }, ("relay", "configured")),
            (ConnectionFacts { setting: MechanismSetting::Splice, ..BEST }, ("splice", "configured")),
            (
                ConnectionFacts { setting: MechanismSetting::Relay, first_bytes: FirstBytes::Tls, ..BEST },
                ("splice", "configured"),
            ),
            (ConnectionFacts { setting: MechanismSetting::Repair, ..BEST }, ("repair", "repair")),
            (
                ConnectionFacts { setting: MechanismSetting::Cookie, accepted: true, ..BEST },
                ("relay", "node"),
            ),
            (ConnectionFacts { edited: true, ..BEST }, ("relay", "edited")),
            (
                ConnectionFacts { edited: true, setting: MechanismSetting::Splice, ..BEST },
                ("relay", "edited"),
            ),
            (
                ConnectionFacts { edited: true, setting: MechanismSetting::Relay, ..BEST },
                ("relay", "configured"),
            ),
            (ConnectionFacts { edits_later: true, ..BEST }, ("relay", "edits_later")),
            (
                ConnectionFacts { edits_later: true, setting: MechanismSetting::Splice, ..BEST },
                ("relay", "edits_later"),
            ),
            (ConnectionFacts { edited: true, first_bytes: FirstBytes::Tls, ..BEST }, ("cookie", "cookie")),
            (ConnectionFacts { first_bytes: FirstBytes::Http2, ..BEST }, ("relay", "http2")),
            (ConnectionFacts { first_bytes: FirstBytes::Other, ..BEST }, ("relay", "unreadable")),
            (ConnectionFacts { first_bytes: FirstBytes::Partial, ..BEST }, ("relay", "incomplete")),
            (ConnectionFacts { first_bytes: FirstBytes::TlsHere, ..BEST }, ("relay", "tls")),
            (ConnectionFacts { first_bytes: FirstBytes::Tls, ..BEST }, ("cookie", "cookie")),
            (ConnectionFacts { guarded: true, first_bytes: FirstBytes::Tls, ..BEST }, ("relay", "edited")),
            (
                ConnectionFacts {
                    guarded: true,
                    first_bytes: FirstBytes::Tls,
                    setting: MechanismSetting::Relay,
                    ..BEST
                },
                ("relay", "edited"),
            ),
            (
                ConnectionFacts {
                    guarded: true,
                    first_bytes: FirstBytes::Tls,
                    setting: MechanismSetting::Splice,
                    ..BEST
                },
                ("relay", "edited"),
            ),
            (ConnectionFacts { first_bytes: FirstBytes::Tls, channel: false, ..BEST }, ("splice", "channel")),
            (ConnectionFacts { node_failures: 1, ..BEST }, ("relay", "shaky")),
            (ConnectionFacts { locality_lost: true, ..BEST }, ("relay", "locality")),
            (
                ConnectionFacts { locality_lost: true, first_bytes: FirstBytes::Tls, ..BEST },
                ("cookie", "cookie"),
            ),
            (ConnectionFacts { accepted: true, reply_bytes: Some(16_383), ..BEST }, ("relay", "small")),
            (ConnectionFacts { accepted: true, reply_bytes: Some(16_384), ..BEST }, ("repair", "repair")),
            (ConnectionFacts { reply_bytes: Some(1), ..BEST }, ("cookie", "cookie")),
            (ConnectionFacts { node_cookie: false, reply_bytes: Some(1), ..BEST }, ("repair", "repair")),
        ] {
            assert_eq!(of(facts), expected, "{facts:?}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for setting in MechanismSetting::ALL {
            assert_eq!(setting.name().parse(), Ok(setting));
        }
        assert!("sockmap".parse::<MechanismSetting>().is_err());
    }
}
