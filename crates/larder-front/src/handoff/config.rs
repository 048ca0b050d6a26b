//! What an edge is told.

use super::mechanism::MechanismSetting;
use crate::config_error::ConfigError;
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_kernel::repair::Mends;
use std::path::PathBuf;
use std::time::Duration;

/// A first packet that is older when it is read is late. A client resends it after 200 ms at the earliest (Linux; RFC 6298 has a
/// second).
pub(super) const RESEND_MIN: Duration = Duration::from_millis(150);

/// How packets reach the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forward {
    /// Same layer 2: the frame's addresses are rewritten.
    #[default]
    L2,
    /// IP in IP (RFC 2003, RFC 2473). 20 or 40 bytes a packet.
    Ipip,
    /// Generic UDP encapsulation to this port. 32 or 52 bytes a packet.
    Gue(u16),
    /// VXLAN (RFC 7348) to this port with this network identifier. 50 or 70 bytes a packet.
    Vxlan {
        /// UDP port; 4789 is usual.
        port: u16,
        /// Network identifier, 24 bits.
        vni: u32,
    },
}

/// Who completes the handshake of a connection that may be moved by `repair`. Cookies are always the forwarding plane's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handshake {
    /// The forwarding plane, with a cookie: this host never has a socket, and the node gets the state that it would have.
    /// Where the forwarding plane cannot, the stack.
    #[default]
    Plane,
    /// This host's stack: every connection is accepted here, then moved. The published scheme.
    Stack,
}

impl Handshake {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Plane, Self::Stack];

    /// The word used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plane => "plane",
            Self::Stack => "stack",
        }
    }
}

/// Handoff at a switch.
#[derive(Clone, Debug)]
pub struct HandoffConfig {
    /// What is asked for. Default relay.
    pub setting: MechanismSetting,
    /// Who completes the handshake under `repair`. Default the forwarding plane.
    pub handshake: Handshake,
    /// Names the instance: what it leaves in the kernel is found under this name. Default `switch`.
    pub name: String,
    /// The interface that clients come by; `None` finds it by the listen address.
    pub interface: Option<String>,
    /// This switch's key, by which nodes know it.
    pub identity: Option<Identity>,
    /// From which cookie keys are made; switches that share connections share it. `None`: one of its own, made from
    /// `identity`, so that a restart makes the same.
    pub secret: Option<PathBuf>,
    /// How packets reach the nodes.
    pub forward: Forward,
    /// Whether the forwarding plane may use a decision again. Default true.
    pub fast: bool,
    /// How long it may. 1 ms to 10 s; default 1 s: the node's load and state hold it back in the meantime.
    pub fast_age: Duration,
    /// Connections the forwarding plane knows; the least recently used are forgotten beyond. 1,024 to 16,777,216;
    /// default 262,144.
    pub flows_max: u32,
    /// Targets whose decisions may be used again. 1,024 to 16,777,216; default 65,536.
    pub targets_max: u32,
    /// Connections that may wait for their decision; more are relayed. 1 to 65,536; default 4,096.
    pub hold_max: usize,
    /// Packets of one that are kept. 1 to 1,024; default 64.
    pub hold_packets: u32,
    /// How long the rest of a request header is waited for before this host accepts the connection itself. 0 to 1 s;
    /// default 2 ms.
    pub header_wait: Duration,
    /// How long a key makes cookies; it is believed for half as long again. A client that connects and asks later than that
    /// is not understood any more, so that it should not be less than clients keep unused connections. 10 s to 1 h; default 5 min.
    pub key_life: Duration,
    /// Without packets for so long a connection counts no more, until its next request. 10 ms to 1 h; default 1 s.
    pub idle_after: Duration,
    /// Replies below this are not worth moving an accepted socket for. Bytes; default 16,384.
    pub repair_bytes_min: u64,
    /// The share of later requests on a kept-alive connection that may belong to other nodes before a route is relayed.
    /// 0 to 1; default 0.2.
    pub locality_lost_max: f64,
    /// Whether TLS is passed through by server name. Default true.
    pub tls: bool,
    /// Which races of moved sockets are mended. Default all; only tests switch one off.
    pub mends: Mends,
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
            forward: Forward::L2,
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
            mends: Mends::default(),
        }
    }
}

impl HandoffConfig {
    /// Whether there is anything to do beside relaying and splicing.
    pub fn moves_connections(&self) -> bool {
        self.setting.allows_cookie() || self.setting.allows_repair()
    }

    /// Whether other switches believe this switch's cookies, so that a client's connection may come by any of them.
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
        if self.moves_connections() && self.identity.is_none() {
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

/// How a node takes connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHandoff {
    /// `host:port` of its control channel.
    pub control: String,
    /// The key it must prove.
    pub key: PublicKey,
}
