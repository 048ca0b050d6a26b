//! Messages between switch and node, and their encoding: postcard (wire format 1.0), one message at a time, without
//! trailing bytes. A message that breaks one of the limits below is rejected as a whole; the sender is at fault.

use super::holders::{HolderQuery, HolderReply};
use larder_kernel::abi::SERVICES_MAX;
use larder_kernel::guard::{InboundTunnel, InboundTunnelKind};
use larder_kernel::{CookieKey, FlowKey};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;

/// Maximum length of a message. Bytes. A handed-off connection carries its queues, and the kernel's default limit of a
/// send queue (`net.ipv4.tcp_wmem`) is 4 MiB. A connection with larger queues is not handed off.
pub const MESSAGE_BYTES_MAX: usize = (4 << 20) + (64 << 10);
/// Maximum number of connections in one [`FromNode::Closed`].
pub const CLOSED_MAX: usize = 256;
/// Maximum number of ids in one [`FromNode::Restored`].
pub const RESTORED_MAX: usize = 256;
/// Maximum number of connections in one [`FromNode::Connections`].
pub const PAGE_CONNECTIONS_MAX: usize = 4_096;
/// Largest tag of a node; see [`larder_kernel::guard::Guard::set_tag`].
pub const TAG_MAX: u8 = 127;
/// Maximum length of a name or a detail text. Bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// Messages from a switch to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The switch's name and settings. The first message, sent once.
    Hello(Hello),
    /// Replaces the cookie keys. Answered by [`FromNode::Settings`].
    Keys(CookieKeys),
    /// Replaces all listen addresses. Answered by [`FromNode::Settings`].
    Services(Vec<Service>),
    /// Asks for [`FromNode::Connections`].
    ListConnections,
    /// Hands a connection off to the node. Answered by [`FromNode::Restored`] or [`FromNode::Refused`].
    Handoff(Handoff),
    /// Cancels a handoff: the node drops the packets that it holds for the connection.
    CancelHandoff(Connection),
    /// Asks for [`FromNode::Pong`] with the same number.
    Ping(u64),
    /// Answers [`FromNode::FindHolders`].
    Holders(HolderReply),
    /// Asks the node to release its connections. It sends [`FromNode::Offer`] for each that is idle between two
    /// requests.
    ReleaseIdle,
    /// Answers [`FromNode::Offer`]: the connection's packets now go to another node. Answered by [`FromNode::Transfer`]
    /// or [`FromNode::Withdraw`].
    RequestState(Connection),
    /// Another node has taken the connection. This node must drop its socket.
    Transferred(Connection),
    /// The connection stays with this node, which gets its packets again.
    Keep(Connection),
    /// Answers [`FromNode::ShuttingDown`]: the switch sends no connections that it decides from now on.
    ShutdownAcknowledged,
    /// Replaces the node's tag: 0 for none, at most [`TAG_MAX`]. Answered by [`FromNode::Settings`].
    Tag(u8),
}

/// Messages from a node to a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// Answers [`ToNode::Hello`]. The node's first message, sent once.
    Welcome(Welcome),
    /// Answers [`ToNode::Keys`], [`ToNode::Services`] and [`ToNode::Tag`]. Also sent if another switch changes the
    /// status.
    Settings(SettingsStatus),
    /// Connections that have closed on the node. At most [`CLOSED_MAX`].
    Closed(Vec<ConnectionId>),
    /// A page of the node's connections. Answers [`ToNode::ListConnections`]; also sent after the welcome.
    Connections(ConnectionPage),
    /// Handed-off connections have been restored as sockets. At most [`RESTORED_MAX`].
    Restored {
        /// Ids of the [`Handoff`]s.
        ids: Vec<u64>,
    },
    /// A handoff was refused. The node keeps nothing of the connection.
    Refused {
        /// Id of the [`Handoff`].
        id: u64,
        /// Reason.
        reason: Refusal,
        /// Details for the log. At most [`TEXT_BYTES_MAX`].
        detail: String,
    },
    /// The node's load, sent regularly.
    Load(LoadReport),
    /// Answers [`ToNode::Ping`]. Also sent regularly with 0 as a heartbeat, because pings may wait behind a long
    /// message.
    Pong(u64),
    /// Asks which nodes hold a target. Answered by [`ToNode::Holders`], or not at all.
    FindHolders(HolderQuery),
    /// Offers a connection to other nodes. Answered by [`ToNode::RequestState`], [`ToNode::Transferred`] or
    /// [`ToNode::Keep`].
    Offer(Connection),
    /// The state of an offered connection, which is frozen now. Answered by [`ToNode::Transferred`] or
    /// [`ToNode::Keep`]. If the channel breaks before the answer, the node sends [`FromNode::Offer`] again to learn the
    /// outcome.
    Transfer(Handoff),
    /// Withdraws an offer: the connection stays with this node.
    Withdraw(Connection),
    /// The node's server shuts down: the switch must send no further connections. Answered by
    /// [`ToNode::ShutdownAcknowledged`]. Valid until the end of the session.
    ShuttingDown,
}

/// A switch's name and settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The switch's name, for logs. At most [`TEXT_BYTES_MAX`].
    pub name: String,
    /// The node's tag in TCP timestamps; 0 for none, at most [`TAG_MAX`].
    pub tag: u8,
    /// The cookie keys.
    pub keys: CookieKeys,
    /// Listen addresses. At most [`SERVICES_MAX`], without duplicate addresses or numbers.
    pub services: Vec<Service>,
    /// The tunnel through which the clients' packets arrive. `None` if switch and node are on the same network. The
    /// remote address must be set.
    pub tunnel: Option<InboundTunnel>,
}

/// The two live cookie keys. Nodes accept cookies of both.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CookieKeys {
    keys: [[u64; 2]; 2],
    current: u8,
}

impl CookieKeys {
    /// Creates the pair. `current` is the index of the key for new cookies; any value but 0 counts as 1.
    pub fn new(keys: [CookieKey; 2], current: usize) -> Self {
        Self { keys: keys.map(|key| key.0), current: u8::from(current != 0) }
    }

    /// Returns the key for new cookies.
    pub fn current(&self) -> CookieKey {
        CookieKey(self.keys[usize::from(self.current != 0)])
    }

    /// Returns the key that is not current.
    pub fn other(&self) -> CookieKey {
        CookieKey(self.keys[usize::from(self.current == 0)])
    }
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// A listen address of the switch, and the rules for its packets on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The switch's number of the address, which identifies it in [`Connection`]. Below [`SERVICES_MAX`].
    pub id: u16,
    /// The address that clients connect to.
    pub address: SocketAddr,
    /// Turn acknowledgements with a valid cookie into connections.
    pub cookie: bool,
    /// Hold packets without a socket until a connection is restored, rather than answer them with a reset.
    pub stash: bool,
    /// Drop packets that belong to no connection, rather than answer them with a reset.
    pub grace: bool,
}

/// A connection, identified by the client and the switch's number of the listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Connection {
    /// The client's address. The scope of a link-local IPv6 address is not carried, so such a client cannot be handed
    /// off.
    pub client: SocketAddr,
    /// The switch's number of the listen address; see [`Service::id`].
    pub service: u16,
}

impl From<FlowKey> for Connection {
    fn from(key: FlowKey) -> Self {
        Self { client: key.client, service: key.service }
    }
}

impl From<Connection> for FlowKey {
    fn from(connection: Connection) -> Self {
        Self::new(connection.client, connection.service)
    }
}

/// A connection together with its first sequence number, which distinguishes successive connections on the same
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId {
    /// The addresses.
    pub connection: Connection,
    /// Sequence number of the client's first byte; 0 if unknown.
    pub first_seq: u32,
}

/// A connection that is handed off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// Chosen by the switch and repeated in the answer.
    pub id: u64,
    /// The connection.
    pub connection: Connection,
    /// Sequence number of the client's first byte, which the node reports when the connection closes; 0 if unknown.
    pub first_seq: u32,
    /// The connection's state, as encoded by [`larder_kernel::repair`].
    pub checkpoint: Blob,
    /// Bytes of the client that have been read already. They precede all bytes that the socket will deliver.
    pub request: Blob,
}

/// A node's name and capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's name. At most [`TEXT_BYTES_MAX`].
    pub name: String,
    /// A random number that is new at each start of the node. If it changes, the node's former connections have closed,
    /// unless [`FromNode::Connections`] lists them.
    pub incarnation: u64,
    /// Whether the node's kernel accepts connections by cookie.
    pub cookie: bool,
    /// Whether a server on the node takes restored connections.
    pub repair: bool,
    /// Whether the node's server fetches contents from other nodes, so that later requests on a connection may be for
    /// targets of other nodes.
    pub lateral: bool,
    /// MAC address of the interface that receives the clients' packets, if it has one.
    pub mac: Option<[u8; 6]>,
    /// MTU of that interface in bytes; 0 if there is no interface.
    pub mtu: u32,
    /// Status of the settings in the [`Hello`].
    pub settings: SettingsStatus,
}

/// Status of a switch's settings on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsStatus {
    /// Numbers of the listen addresses that the node serves. The node's config must name them.
    pub services: Vec<u16>,
    /// Whether the switch's current cookie key is in use. False if the keys of other switches take both places.
    pub keys: bool,
    /// Whether the switch's tag is in use. False if another switch gave a different tag: then no tag is used.
    pub tag: bool,
    /// Whether packets through the switch's tunnel are accepted. True if the switch has no tunnel.
    pub tunnel: bool,
    /// Whether the switch uses no cookies at a listen address where the node accepts cookies of the same secret for
    /// another switch. A copy of a connection's first packet could then open a second connection before its state
    /// arrives.
    pub cookie_conflict: bool,
}

/// A page of a node's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionPage {
    /// Connections on the switch's listen addresses. At most [`PAGE_CONNECTIONS_MAX`].
    pub connections: Vec<ConnectionId>,
    /// Whether this is the last page.
    pub last: bool,
}

/// A node's load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Live connections on the switch's listen addresses.
    pub connections: u32,
    /// Use of all processors since the last report, in thousandths. `None` in the first report, or if the system does
    /// not provide it.
    pub cpu_permille: Option<u16>,
    /// Packets that wait for a connection to be restored.
    pub stashed: u32,
}

/// Reason why a node refuses a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// No server on the node takes restored connections. This does not change until the node restarts.
    Unsupported,
    /// The node does not serve the listen address.
    UnknownService,
    /// The checkpoint is invalid or of another connection. The switch's fault.
    Malformed,
    /// The queue of restored connections is full, or the server has no free connection slot. A retry may succeed.
    Full,
    /// The kernel rejected the connection. The details say why.
    Kernel,
}

/// Bytes that are encoded as one string rather than one by one.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// Reason why bytes are not a valid message, or a message cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes are not a message of this protocol version.
    #[error("not a message of this protocol version")]
    Malformed,
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// A list, text or number exceeds its limit.
    #[error("{0} exceeds its limit")]
    Limit(&'static str),
    /// The message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("message of {0} bytes exceeds the limit of {MESSAGE_BYTES_MAX} bytes")]
    TooLong(usize),
}

/// A message that can be encoded and decoded.
pub trait Message: Serialize + for<'de> Deserialize<'de> {
    /// Checks that every list, text and number is within its limit.
    ///
    /// # Errors
    ///
    /// The first limit that is exceeded.
    fn check(&self) -> Result<(), MessageError>;

    /// Encodes the message.
    ///
    /// # Errors
    ///
    /// If it exceeds a limit. The sender's fault.
    fn encode(&self) -> Result<Vec<u8>, MessageError> {
        self.check()?;
        let bytes = postcard::to_allocvec(self).map_err(|_| MessageError::Malformed)?;
        match bytes.len() {
            0..=MESSAGE_BYTES_MAX => Ok(bytes),
            length => Err(MessageError::TooLong(length)),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid message, or it exceeds a limit. The other side's fault.
    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong(bytes.len()));
        }
        let (message, rest) =
            postcard::take_from_bytes::<Self>(bytes).map_err(|_| MessageError::Malformed)?;
        if !rest.is_empty() {
            return Err(MessageError::Trailing(rest.len()));
        }
        message.check()?;
        Ok(message)
    }
}

impl Message for ToNode {
    fn check(&self) -> Result<(), MessageError> {
        match self {
            Self::Hello(hello) => {
                check_text(&hello.name)?;
                check_limit("the tag", hello.tag.into(), TAG_MAX.into())?;
                hello.tunnel.iter().try_for_each(check_tunnel)?;
                check_services(&hello.services)
            }
            Self::Services(list) => check_services(list),
            Self::Handoff(handoff) => check_service(handoff.connection.service),
            Self::CancelHandoff(connection)
            | Self::RequestState(connection)
            | Self::Transferred(connection)
            | Self::Keep(connection) => check_service(connection.service),
            Self::Holders(reply) => reply.check(),
            Self::Tag(tag) => check_limit("the tag", (*tag).into(), TAG_MAX.into()),
            Self::Keys(_)
            | Self::ListConnections
            | Self::Ping(_)
            | Self::ReleaseIdle
            | Self::ShutdownAcknowledged => Ok(()),
        }
    }
}

impl Message for FromNode {
    fn check(&self) -> Result<(), MessageError> {
        match self {
            Self::Welcome(welcome) => {
                check_text(&welcome.name)?;
                check_settings(&welcome.settings)
            }
            Self::Settings(settings) => check_settings(settings),
            Self::Closed(list) => check_limit("the number of closed connections", list.len(), CLOSED_MAX),
            Self::Connections(page) => {
                check_limit("the number of connections", page.connections.len(), PAGE_CONNECTIONS_MAX)
            }
            Self::Refused { detail, .. } => check_text(detail),
            Self::Load(load) => {
                check_limit("the processor use", load.cpu_permille.unwrap_or(0).into(), 1_000)
            }
            Self::FindHolders(query) => query.check(),
            Self::Offer(connection) | Self::Withdraw(connection) => check_service(connection.service),
            Self::Transfer(handoff) => check_service(handoff.connection.service),
            Self::Restored { ids } => {
                check_limit("the number of restored connections", ids.len(), RESTORED_MAX)
            }
            Self::Pong(_) | Self::ShuttingDown => Ok(()),
        }
    }
}

pub(super) fn check_limit(what: &'static str, number: usize, most: usize) -> Result<(), MessageError> {
    if number <= most { Ok(()) } else { Err(MessageError::Limit(what)) }
}

fn check_text(text: &str) -> Result<(), MessageError> {
    check_limit("the length of a text", text.len(), TEXT_BYTES_MAX)
}

fn check_service(id: u16) -> Result<(), MessageError> {
    check_limit("the number of a listen address", id.into(), usize::from(SERVICES_MAX) - 1)
}

/// A host that may send through a tunnel can forge clients. Therefore a switch must not accept tunnels from any
/// address.
fn check_tunnel(tunnel: &InboundTunnel) -> Result<(), MessageError> {
    check_limit("the number of tunnels without a remote address", usize::from(tunnel.remote.is_none()), 0)?;
    let vni = if let InboundTunnelKind::Vxlan { vni, .. } = tunnel.kind { vni } else { 0 };
    check_limit("the VXLAN network identifier", vni as usize, (1 << 24) - 1)
}

fn check_services(list: &[Service]) -> Result<(), MessageError> {
    check_limit("the number of listen addresses", list.len(), SERVICES_MAX.into())?;
    for (at, one) in list.iter().enumerate() {
        check_service(one.id)?;
        let twice = list[..at].iter().any(|other| other.id == one.id || other.address == one.address);
        check_limit("the number of duplicate listen addresses", usize::from(twice), 0)?;
    }
    Ok(())
}

fn check_settings(settings: &SettingsStatus) -> Result<(), MessageError> {
    check_limit("the number of listen addresses", settings.services.len(), SERVICES_MAX.into())?;
    settings.services.iter().try_for_each(|&id| check_service(id))
}

/// Cuts `text` to [`TEXT_BYTES_MAX`] at a character boundary.
pub fn truncate_text(mut text: String) -> String {
    let mut end = TEXT_BYTES_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests;
