//! Configuration of handoff.

use super::mechanism::MechanismSetting;
use crate::config_error::ConfigError;
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_kernel::repair::RaceFixes;
use std::path::PathBuf;
use std::time::Duration;

/// Age above which a first packet counts as late. A client retransmits it after 200 ms at the earliest (Linux; RFC
/// 6298 says 1 s).
pub(super) const RESEND_MIN: Duration = Duration::from_millis(150);

/// Encapsulation of packets to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// None: nodes share the layer 2 network, and the frame's addresses are rewritten.
    #[default]
    L2,
    /// IP in IP (RFC 2003, RFC 2473). 20 or 40 bytes per packet.
    Ipip,
    /// Generic UDP encapsulation to this port. 32 or 52 bytes per packet.
    Gue(u16),
    /// VXLAN (RFC 7348) to this port with this network identifier. 50 or 70 bytes per packet.
    Vxlan {
        /// UDP port; usually 4789.
        port: u16,
        /// Network identifier, 24 bits.
        vni: u32,
    },
}

/// Party that completes the TCP handshake of connections delivered by `repair`. For `cookie`, it is always the
/// forwarding plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handshake {
    /// The forwarding plane, with a cookie. This host never has a socket, and the node gets the state that the socket
    /// would have. If the forwarding plane is not available, the stack is used.
    #[default]
    Plane,
    /// This host's stack: every connection is accepted here, then moved. This is the published scheme.
    Stack,
}

impl Handshake {
    /// Every value.
    pub const ALL: [Self; 2] = [Self::Plane, Self::Stack];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plane => "plane",
            Self::Stack => "stack",
        }
    }
}

/// Handoff settings of a switch.
#[derive(Clone, Debug)]
pub struct HandoffConfig {
    /// Allowed mechanisms. Default relay.
    pub setting: MechanismSetting,
    /// Party that completes the handshake for `repair`. Default the forwarding plane.
    pub handshake: Handshake,
    /// Name of the instance, under which its kernel objects are found. Default `switch`.
    pub name: String,
    /// Interface that clients use; `None` finds it by the listen address.
    pub interface: Option<String>,
    /// Key that identifies this switch to nodes.
    pub identity: Option<Identity>,
    /// File of the secret that cookie keys are derived from. Switches that share connections share it. `None` derives
    /// it from `identity`, so that a restart gets the same secret.
    pub secret: Option<PathBuf>,
    /// Encapsulation of packets to the nodes.
    pub forward: Encapsulation,
    /// Whether the forwarding plane may reuse a decision for later connections. Default true.
    pub fast: bool,
    /// Time for which a decision may be reused. 1 ms to 10 s; default 1 s. The node's load and state limit the reuse
    /// in the meantime.
    pub fast_age: Duration,
    /// Size of the flow table; the least recently used connections are evicted. 1,024 to 16,777,216; default 262,144.
    pub flows_max: u32,
    /// Number of targets whose decisions may be reused. 1,024 to 16,777,216; default 65,536.
    pub targets_max: u32,
    /// Connections that may be held until their decision; further ones are relayed. 1 to 65,536; default 4,096.
    pub hold_max: usize,
    /// Packets kept per held connection. 1 to 1,024; default 64.
    pub hold_packets: u32,
    /// Time to wait for the rest of a request header before this host accepts the connection itself. 0 to 1 s;
    /// default 2 ms.
    pub header_wait: Duration,
    /// Time for which a key makes cookies. The key is accepted for half as long again. A client that connects and
    /// sends its request later than that is not understood, so the value should cover the idle time of client
    /// connections. 10 s to 1 h; default 5 min.
    pub key_life: Duration,
    /// Time without packets after which a connection no longer counts as load, until its next request. 10 ms to 1 h;
    /// default 1 s.
    pub idle_after: Duration,
    /// Size of a reply below which moving an accepted socket is not worthwhile. Bytes; default 16,384.
    pub repair_bytes_min: u64,
    /// Share of later requests on a kept-alive connection that may belong to other nodes before the route is relayed.
    /// 0 to 1; default 0.2.
    pub locality_lost_max: f64,
    /// Whether TLS is passed through by server name. Default true.
    pub tls: bool,
    /// Workarounds for races of moved sockets. Default all; only tests turn one off.
    pub fixes: RaceFixes,
}

impl Default for HandoffConfig {
    fn default() -> Self {
        Self {
            setting: MechanismSetting::Relay,
            handshake: Handshake::Plane,
            name: "switch".to_owned(),
            interface: None,
            identity: None,
            secret: None,
            forward: Encapsulation::L2,
            fast: true,
            fast_age: Duration::from_secs(1),
            flows_max: 262_144,
            targets_max: 65_536,
            hold_max: 4_096,
            hold_packets: 64,
            header_wait: Duration::from_millis(2),
            key_life: Duration::from_secs(300),
            idle_after: Duration::from_secs(1),
            repair_bytes_min: 16_384,
            locality_lost_max: 0.2,
            tls: true,
            fixes: RaceFixes::default(),
        }
    }
}

impl HandoffConfig {
    /// Whether connections can be handed off, beyond relay and splice.
    pub fn hands_off(&self) -> bool {
        self.setting.allows_cookie() || self.setting.allows_repair()
    }

    /// Whether other switches accept this switch's cookies, so that a client's connection may arrive at any of them.
    pub(crate) fn shares_connections(&self) -> bool {
        self.secret.is_some()
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        use crate::config_error::{range, span};
        span("handoff.fast_age", self.fast_age, 1, 10_000)?;
        range("handoff.flows_max", self.flows_max as usize, 1_024, 1 << 24)?;
        range("handoff.targets_max", self.targets_max as usize, 1_024, 1 << 24)?;
        range("handoff.hold_max", self.hold_max, 1, 65_536)?;
        range("handoff.hold_packets", self.hold_packets as usize, 1, 1_024)?;
        span("handoff.header_wait", self.header_wait, 0, 1_000)?;
        span("handoff.key_life", self.key_life, 10_000, 3_600_000)?;
        span("handoff.idle_after", self.idle_after, 10, 3_600_000)?;
        if self.name.is_empty() || self.name.len() > 32 || !self.name.bytes().all(is_name_byte) {
            return Err(ConfigError::HandoffName(self.name.chars().take(40).collect()));
        }
        if self.hands_off() && self.identity.is_none() {
            return Err(ConfigError::HandoffIdentity);
        }
        if !(0.0..=1.0).contains(&self.locality_lost_max) {
            return Err(ConfigError::HandoffShare(self.locality_lost_max.to_string()));
        }
        Ok(())
    }
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// Handoff settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHandoff {
    /// Address of its control channel, as `host:port`.
    pub control: String,
    /// Key that the node must prove.
    pub key: PublicKey,
}
