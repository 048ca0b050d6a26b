//! What front-end and node say to each other, as bytes: postcard (its wire format 1.0), one message each, no bytes
//! behind. A message that breaks a limit below is refused as a whole: the other side has a fault.

use super::whereabouts::{Has, Where};
use larder_kernel::abi::SERVICES_MAX;
use larder_kernel::guard::{Tunnel, TunnelKind};
use larder_kernel::{CookieKey, FlowKey};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;

/// Longest message. A moved connection carries its queues, and the kernel's default limit of a send queue
/// (`net.ipv4.tcp_wmem`) is 4 MiB; one that holds more is not moved, although its checkpoint could be made. Bytes.
pub const MESSAGE_BYTES_MAX: usize = (4 << 20) + (64 << 10);
/// Connections in one [`FromNode::Closed`] at most.
pub const CLOSED_MAX: usize = 256;
/// Connections in one [`FromNode::Restored`] at most.
pub const RESTORED_MAX: usize = 256;
/// Connections in one [`FromNode::Live`] at most.
pub const LIVE_MAX: usize = 4_096;
/// Largest tag of a node; see [`larder_kernel::guard::Guard::set_tag`].
pub const TAG_MAX: u8 = 127;
/// Longest name or explanation. Bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// From the front-end to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// Who speaks, and what is to be accepted. The first message, once.
    Hello(Hello),
    /// The live keys of cookies, in place of those before.
    Keys(Keys),
    /// All listen addresses, in place of those before.
    Services(Vec<Service>),
    /// Asks for [`FromNode::Live`].
    Live,
    /// A connection moves to the node. Answered by [`FromNode::Restored`] or [`FromNode::Refused`].
    Handoff(Handoff),
    /// A connection will not come after all: its packets are waited for no longer.
    Forget(Connection),
    /// Asks for [`FromNode::Pong`] with the same number.
    Ping(u64),
    /// The answer to [`FromNode::Where`].
    Has(Has),
    /// The node is to give its connections up: [`FromNode::Leave`] for each that rests between two requests.
    Release,
    /// The answer to [`FromNode::Leave`]: the connection's packets go to another node from now on. Answered by
    /// [`FromNode::Move`] or [`FromNode::Stay`].
    Give(Connection),
    /// Another node has the connection; what this one still has of it is worth nothing.
    Taken(Connection),
    /// The connection stays with this node, which gets its packets.
    Keep(Connection),
    /// The answer to [`FromNode::Ending`]: nothing that is decided from now on comes to the node.
    Noted,
    /// The front-end's tag for the node, in place of the one before. At most [`TAG_MAX`]; 0: none. Answered by
    /// [`FromNode::Accepted`].
    Tag(u8),
}

/// From a node to the front-end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The answer to [`ToNode::Hello`]; the node's first message, once.
    Welcome(Welcome),
    /// What was accepted of [`ToNode::Keys`] or [`ToNode::Services`].
    Accepted(Accepted),
    /// Connections that have ended on the node. At most [`CLOSED_MAX`].
    Closed(Vec<Socket>),
    /// The node's connections, in pieces.
    Live(Live),
    /// Handed-off connections are in their sockets. At most [`RESTORED_MAX`].
    Restored {
        /// Each of a [`Handoff`].
        ids: Vec<u64>,
    },
    /// A handed-off connection could not be taken; the node keeps nothing of it.
    Refused {
        /// Of the [`Handoff`].
        id: u64,
        /// Why.
        why: Refusal,
        /// For the log. At most [`TEXT_BYTES_MAX`].
        detail: String,
    },
    /// How busy the node is. Unasked, every so often.
    Load(Load),
    /// The answer to [`ToNode::Ping`]; unasked, with 0, a sign of life: a ping may be stuck behind a long message.
    Pong(u64),
    /// Asks which nodes have a target. Answered by [`ToNode::Has`], or not at all.
    Where(Where),
    /// The node wants to give a connection up. Answered by [`ToNode::Give`], [`ToNode::Taken`] or [`ToNode::Keep`].
    Leave(Connection),
    /// A connection that is given up, frozen. Answered by [`ToNode::Taken`] or [`ToNode::Keep`]. When the channel breaks
    /// before that, [`FromNode::Leave`] asks what became of it.
    Move(Handoff),
    /// A connection cannot be given up after all.
    Stay(Connection),
    /// The node's server ends soon: nothing new is to come. Answered by [`ToNode::Noted`]. Holds until the channel is up
    /// anew.
    Ending,
}

/// Who the front-end is and what the node is to do for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The front-end's name, for logs. At most [`TEXT_BYTES_MAX`].
    pub name: String,
    /// The node's tag in timestamps; 0 for none, at most [`TAG_MAX`].
    pub tag: u8,
    /// The live keys of cookies.
    pub keys: Keys,
    /// Listen addresses. At most [`SERVICES_MAX`], each address and number once.
    pub services: Vec<Service>,
    /// How the clients' packets come from the front-end; `None`: as they are, for it is on the same network. Where they
    /// come from is always said.
    pub tunnel: Option<Tunnel>,
}

/// The live keys of cookies: both are believed.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    keys: [[u64; 2]; 2],
    current: u8,
}

impl Keys {
    /// Two live keys; `current`, 0 or 1 (anything else counts as 1), is the one that new cookies are made with.
    pub fn new(keys: [CookieKey; 2], current: usize) -> Self {
        Self { keys: keys.map(|key| key.0), current: u8::from(current != 0) }
    }

    /// The one that new cookies are made with.
    pub fn current(&self) -> CookieKey {
        CookieKey(self.keys[usize::from(self.current != 0)])
    }

    /// The other one.
    pub fn other(&self) -> CookieKey {
        CookieKey(self.keys[usize::from(self.current == 0)])
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// A listen address of the front-end, and what the node does about its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its number at the front-end; connections are named by it. Below [`SERVICES_MAX`].
    pub id: u16,
    /// The address that clients connect to.
    pub address: SocketAddr,
    /// Acknowledgements with a valid cookie become connections.
    pub cookie: bool,
    /// Packets without a socket are kept until a connection is restored, rather than answered with a reset.
    pub stash: bool,
    /// Packets that belong to nothing are dropped, rather than answered with a reset.
    pub grace: bool,
}

/// A connection, by the front-end's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Connection {
    /// The client. The scope of a link-local IPv6 address is not carried: such a client cannot be handed off.
    pub client: SocketAddr,
    /// Number of the listen address, as in [`Service::id`].
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

/// A connection as the node has it, or had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Socket {
    /// Which one.
    pub connection: Connection,
    /// Sequence number of the client's first byte, which tells connections on the same addresses apart; 0 if it is not
    /// known.
    pub first_seq: u32,
}

/// A connection on its way to the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    /// Chosen by the front-end; stands in the answer.
    pub id: u64,
    /// Which connection.
    pub connection: Connection,
    /// Sequence number of the client's first byte, by which the node names the connection when it ends; 0 if it is not known.
    pub first_seq: u32,
    /// Its state, as the `repair` module writes it.
    pub checkpoint: Blob,
    /// What the front-end has read of the client's bytes: they come before all that the socket will deliver.
    pub request: Blob,
}

/// Who the node is and what it can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's name. At most [`TEXT_BYTES_MAX`].
    pub name: String,
    /// Chosen anew at each start of the node: with another number all its former connections are gone, unless
    /// [`FromNode::Live`] names them.
    pub incarnation: u64,
    /// Its kernel accepts connections by cookie.
    pub cookie: bool,
    /// A server here takes restored connections.
    pub repair: bool,
    /// The server here fetches what others have: later requests on a connection lose little by belonging elsewhere.
    pub lateral: bool,
    /// Address of the interface that takes the clients' packets; `None` if it has none.
    pub mac: Option<[u8; 6]>,
    /// Largest packet of that interface; 0 if there is none. Bytes.
    pub mtu: u32,
    /// What of the [`Hello`] holds.
    pub accepted: Accepted,
}

/// What a node does of what it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Numbers of the listen addresses that the node serves: those it was configured with.
    pub services: Vec<u16>,
    /// The front-end's current key is believed. False if other front-ends' keys fill the two places.
    pub keys: bool,
    /// The front-end's tag is used. False if another front-end gave the node another one: then neither is.
    pub tag: bool,
    /// Packets that come by the front-end's tunnel are unwrapped; true if it has none.
    pub tunnel: bool,
    /// The front-end uses no cookies at a listen address where the node takes those of another one, of the same secret: a copy of
    /// a connection's first packet could become a second connection there before its state comes.
    pub mixed: bool,
}

/// Connections of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// On the front-end's listen addresses. At most [`LIVE_MAX`].
    pub connections: Vec<Socket>,
    /// No further piece follows.
    pub last: bool,
}

/// How busy a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Live connections on the front-end's listen addresses.
    pub connections: u32,
    /// How much of all processors' time was spent since the last report, in thousandths; `None` before the second
    /// look, or where the system does not tell.
    pub cpu_permille: Option<u16>,
    /// Packets that wait for a connection to be restored.
    pub stashed: u32,
}

/// Why a node does not take a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// No server on the node takes restored connections. Will not change until the node restarts.
    Unsupported,
    /// The listen address is not one of the node's.
    Service,
    /// The checkpoint is none, or not of that connection. The front-end's fault.
    Malformed,
    /// The node has as many connections on their way as it takes; later there may be room.
    Full,
    /// The kernel refused; the detail says what.
    Kernel,
}

/// Bytes, written as such rather than one by one.
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

/// Why bytes are no message, or a message cannot become bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They are not what the other side writes in this version.
    #[error("not a message of this version")]
    Malformed,
    /// There are bytes behind the message.
    #[error("{0} bytes behind the message")]
    Trailing(usize),
    /// A list, text or number in it is beyond its limit.
    #[error("{0} is beyond its limit")]
    Limit(&'static str),
    /// It is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes; the limit is {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
}

/// One side's messages.
pub trait Message: Serialize + for<'de> Deserialize<'de> {
    /// Whether every list, text and number in it is within its limit.
    ///
    /// # Errors
    /// The first that is not.
    fn check(&self) -> Result<(), MessageError>;

    /// The message as bytes.
    ///
    /// # Errors
    /// If it breaks a limit, the sender's fault.
    fn encode(&self) -> Result<Vec<u8>, MessageError> {
        self.check()?;
        let bytes = postcard::to_allocvec(self).map_err(|_| MessageError::Malformed)?;
        match bytes.len() {
            0..=MESSAGE_BYTES_MAX => Ok(bytes),
            length => Err(MessageError::TooLong(length)),
        }
    }

    /// The message in `bytes`.
    ///
    /// # Errors
    /// If they are none, or it breaks a limit: the other side's fault.
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
                text(&hello.name)?;
                at_most("a tag", hello.tag.into(), TAG_MAX.into())?;
                hello.tunnel.iter().try_for_each(tunnel)?;
                services(&hello.services)
            }
            Self::Services(list) => services(list),
            Self::Handoff(handoff) => service(handoff.connection.service),
            Self::Forget(connection)
            | Self::Give(connection)
            | Self::Taken(connection)
            | Self::Keep(connection) => service(connection.service),
            Self::Has(has) => has.check(),
            Self::Tag(tag) => at_most("a tag", (*tag).into(), TAG_MAX.into()),
            Self::Keys(_) | Self::Live | Self::Ping(_) | Self::Release | Self::Noted => Ok(()),
        }
    }
}

impl Message for FromNode {
    fn check(&self) -> Result<(), MessageError> {
        match self {
            Self::Welcome(welcome) => {
                text(&welcome.name)?;
                accepted(&welcome.accepted)
            }
            Self::Accepted(what) => accepted(what),
            Self::Closed(list) => at_most("the number of ended connections", list.len(), CLOSED_MAX),
            Self::Live(live) => at_most("the number of connections", live.connections.len(), LIVE_MAX),
            Self::Refused { detail, .. } => text(detail),
            Self::Load(load) => at_most("a share", load.cpu_permille.unwrap_or(0).into(), 1_000),
            Self::Where(asked) => asked.check(),
            Self::Leave(connection) | Self::Stay(connection) => service(connection.service),
            Self::Move(handoff) => service(handoff.connection.service),
            Self::Restored { ids } => at_most("the number of restored connections", ids.len(), RESTORED_MAX),
            Self::Pong(_) | Self::Ending => Ok(()),
        }
    }
}

pub(super) fn at_most(what: &'static str, number: usize, most: usize) -> Result<(), MessageError> {
    if number <= most { Ok(()) } else { Err(MessageError::Limit(what)) }
}

fn text(text: &str) -> Result<(), MessageError> {
    at_most("the length of a text", text.len(), TEXT_BYTES_MAX)
}

fn service(id: u16) -> Result<(), MessageError> {
    at_most("the number of a listen address", id.into(), usize::from(SERVICES_MAX) - 1)
}

/// Whoever may wrap packets may forge clients: that anybody may is no front-end's to say.
fn tunnel(tunnel: &Tunnel) -> Result<(), MessageError> {
    at_most("a tunnel from anywhere", usize::from(tunnel.remote.is_none()), 0)?;
    let vni = if let TunnelKind::Vxlan { vni, .. } = tunnel.kind { vni } else { 0 };
    at_most("a VXLAN network", vni as usize, (1 << 24) - 1)
}

fn services(list: &[Service]) -> Result<(), MessageError> {
    at_most("the number of listen addresses", list.len(), SERVICES_MAX.into())?;
    for (at, one) in list.iter().enumerate() {
        service(one.id)?;
        let twice = list[..at].iter().any(|other| other.id == one.id || other.address == one.address);
        at_most("a listen address given twice", usize::from(twice), 0)?;
    }
    Ok(())
}

fn accepted(accepted: &Accepted) -> Result<(), MessageError> {
    at_most("the number of listen addresses", accepted.services.len(), SERVICES_MAX.into())?;
    accepted.services.iter().try_for_each(|&id| service(id))
}

/// `text`, cut to [`TEXT_BYTES_MAX`] at a character's end.
pub fn clipped(mut text: String) -> String {
    let mut end = TEXT_BYTES_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests;
