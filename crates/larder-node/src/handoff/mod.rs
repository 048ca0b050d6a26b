//! Hands clients' connections off to the peer that has the requested contents, where PRESS would relay the
//! reply.
//!
//! This is what the non-portable servers of the PRESS paper do. There is no switch. Each node acts as a small
//! switch for the connections that it accepts, and takes connections that peers hand off.
//!
//! ```text
//!   client --- packets ---> initial node: plane --- same frames, other MAC ---> service node: guard, socket
//!      ^                                                                             |
//!      +-------------------- reply, from the initial node's service address ----------+
//! ```
//!
//! **Addresses.** Clients connect to *service addresses*. Each node has one of them (or one per address family)
//! on the interface that receives clients' packets. It has the service addresses of all other nodes on its
//! loopback interface. It answers no ARP for them, like the real servers of direct routing (LVS-DR). So a
//! restored socket can have the initial node's address, and the client notices nothing. Peers reach each other
//! by other addresses. If a host's loopback interface has an address, the host cannot reach that address
//! elsewhere.
//!
//! **State.** The initial node runs the forwarding plane of `larder_kernel` on its interface, for its own
//! service addresses and without cookies. Its own stack accepts connections; a connection that has moved is a
//! flow entry in the plane. The service node runs the agent for all addresses on its loopback interface. Its
//! guard keeps packets that arrive before their socket. Both sides talk over the agent's control channel. The
//! keys are derived from the cluster's secret and a member's name. The plane's entries and the owners of peer
//! numbers outlive the process, and the next start adopts them.
//!
//! **Decisions.** [`larder_core::peers::handoff`] decides what happens when a peer answers, is silent, leaves
//! or returns. The simulator drives the same code. This module supplies the clock, the lock, the sockets, the
//! plane and the channels ([`channels`]).
//!
//! **Order** ([`transfer`]), as in the switch's `repair` mechanism. [`larder_kernel::repair::RaceFixes`]
//! describes the races R1 to R9:
//!
//! 1. The request's head is read, its target is known, PRESS names a peer, and the [`eligibility`] check
//!    permits a handoff. No reply has begun. The HTTP connection is taken apart, and the bytes that were read
//!    are serialized again.
//! 2. The plane sends the connection's packets to the peer, where they wait. It drops packets that this host's
//!    socket sends.
//! 3. The socket is frozen and read. Its state and those bytes are sent to the peer.
//! 4. The peer restores the socket, delivers the waiting packets, and serves the request itself, whatever it
//!    knows about other nodes: a request is passed on once at most. The peer decides about later requests of
//!    the connection as for any client, but relays those that belong elsewhere. The packets come through the
//!    initial node, and a connection is handed off only once.
//! 5. The frozen socket is closed silently. If the peer has refused, the socket resumes here, and the request
//!    is relayed.
//!
//! If a service node is gone (no member any more, and its channel is down), the clients of its connections are
//! reset. If the node has announced its end, its connections get one minute, in which its kernel sends
//! unacknowledged data. A node that was only stopped or cut off still has the sockets when it returns, and
//! reports them. Packets go to it again, so that the resets of clients' hosts end those sockets.
//!
//! Every packet of a moved connection takes one hop more. Therefore a connection that will carry many more
//! requests stays ([`larder_core::life_table`]). Nodes learn the expected number from the [`request_counter`] of each
//! connection.

mod channels;
mod eligibility;
mod members;
mod relay_reason;
mod request_counter;
mod sizes;
mod start;
mod transfer;
mod view;

pub use relay_reason::RelayReason;
pub use view::PeerHandoffView;

pub(crate) use eligibility::ConnectionStatus;
pub(crate) use request_counter::{HandoffDecision, RequestCounter};
pub(crate) use transfer::TransferOutcome;

use self::members::{Members, MoveReply};
use self::relay_reason::RelayCounts;
use self::sizes::SizeTable;
use crate::lock::lock;
use larder_core::life_table::ConnectionLifeTable;
use larder_core::peers::handoff::{PeerHandoffMachine, PeerHandoffSettings};
use larder_core::{Bytes, Time};
use larder_handoff::agent::AgentError;
use larder_handoff::channel::client::ChannelEvent;
use larder_handoff::channel::identity::{Identity, IdentityError, PublicKey};
use larder_handoff::channel::message::Hello;
use larder_handoff::channel::server::AccessControl;
use larder_kernel::guard::GuardError;
use larder_kernel::plane::{Plane, PlaneError};
use larder_kernel::{FlowKey, repair};
use larder_peers::{ClusterSecret, ClusterSecrets, Name};
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Most service addresses of a cluster.
pub const SERVICES_MAX: usize = 64;
/// Settings of handoffs between peers.
#[derive(Clone, Debug)]
pub struct PeerHandoffConfig {
    /// Smallest request that is handed off; smaller ones are relayed. The limit is higher for connections that
    /// will carry further requests ([`larder_core::life_table`]). 0 sets no lower limit.
    pub min: Bytes,
    /// The service addresses of all nodes, including this one. 1 to [`SERVICES_MAX`].
    pub services: Vec<SocketAddr>,
    /// TCP port of the control channel, the same on all nodes.
    pub port: u16,
    /// Name of the programs in the kernel: 1 to 32 characters of `a-z`, `A-Z`, `0-9`, `-`, `_`. No other
    /// process of this host may use it.
    pub instance: String,
}

/// The reason why this host cannot hand connections off. The operator must remove it in every case.
#[derive(Debug, thiserror::Error)]
pub enum PeerHandoffError {
    /// No service address belongs to this node.
    #[error(
        "no service address is on an interface other than lo: add this node's service address to an interface"
    )]
    NoneOwn,
    /// This node's service addresses are on several interfaces.
    #[error("this node's service addresses are on {0} and on {1}: put them on one interface")]
    Interfaces(String, String),
    /// TCP_REPAIR cannot be used.
    #[error("connections cannot be moved: {0}")]
    Repair(#[from] repair::RepairUnavailable),
    /// The forwarding plane for outgoing handoffs cannot be started.
    #[error("the forwarding plane: {0}")]
    Plane(#[from] PlaneError),
    /// The guard for incoming handoffs cannot be started.
    #[error("the guard: {0}")]
    Guard(#[from] GuardError),
    /// The agent with the control channel cannot be started.
    #[error("the agent: {0}")]
    Agent(#[from] AgentError),
    /// A key cannot be derived.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A query to the operating system failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The initial node's side of handoffs between peers.
#[derive(Debug)]
pub struct PeerHandoff {
    plane: Plane,
    interface: String,
    /// This node's service addresses, by their numbers in the plane.
    own: Vec<SocketAddr>,
    port: u16,
    min: Bytes,
    secrets: Mutex<Secrets>,
    hello: Hello,
    admitted: AccessControl,
    event_sender: mpsc::Sender<ChannelEvent>,
    settings: PeerHandoffSettings,
    state: Mutex<HandoffState>,
    sizes: Mutex<SizeTable>,
    kept: Mutex<ConnectionLifeTable>,
    counts: RelayCounts,
    moved: AtomicU64,
    taken: AtomicU64,
    began: Instant,
    task: Mutex<Option<AbortHandle>>,
}

/// The cluster's secrets, and the keys that are derived from them.
#[derive(Clone, Debug)]
struct Secrets {
    secrets: ClusterSecrets,
    /// This node's identity for each secret. The first one connects to peers, and peers may expect any of them.
    identities: Vec<Identity>,
}

impl Secrets {
    fn new(secrets: ClusterSecrets, own: &Name) -> Result<Self, IdentityError> {
        let identities = secrets.all().map(|secret| identity_of(secret, own)).collect::<Result<_, _>>()?;
        Ok(Self { secrets, identities })
    }

    /// The keys of a member, that of the first secret first. Never empty.
    fn keys_of(&self, name: &Name) -> Result<Vec<PublicKey>, IdentityError> {
        self.secrets.all().map(|secret| Ok(identity_of(secret, name)?.public())).collect()
    }
}

/// The state under the lock. Dropping a [`HandoffGuard`] may take the lock of its owner, so this lock is never
/// taken under that one.
#[derive(Debug)]
struct HandoffState {
    members: Members,
    /// The owner of each connection, and the moves in progress.
    handoff: PeerHandoffMachine<FlowKey, MoveReply, Box<dyn HandoffGuard>>,
}

/// Dropped when a connection that was handed off no longer belongs to the peer.
pub(crate) trait HandoffGuard: Debug + Send {}

impl PeerHandoff {
    fn state(&self) -> MutexGuard<'_, HandoffState> {
        lock(&self.state)
    }

    /// Returns the time since this process started the handoff.
    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// Returns the flow key of a connection, if its local address is one of this node's service addresses.
    pub(crate) fn flow(&self, client: SocketAddr, local: SocketAddr) -> Option<FlowKey> {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let place = self.own.iter().position(|own| *own == local)?;
        Some(FlowKey::new(client, u16::try_from(place).ok()?))
    }

    /// Records the size of a target.
    pub(crate) fn record_size(&self, target: larder_core::TargetId, size: Bytes) {
        lock(&self.sizes).record(target, size);
    }
}

/// Derives the identity of a member on the control channel. Every holder of the secret can be any member, as in
/// the rest of the network.
fn identity_of(secret: &ClusterSecret, name: &Name) -> Result<Identity, IdentityError> {
    Identity::new(secret.member_key(name))
}
