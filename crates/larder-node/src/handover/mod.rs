//! Handing a client's connection over to the peer that has what it asks for, where PRESS would relay the reply.
//!
//! It is what the non-portable servers of the PRESS paper do. There is no front-end: each node is a small switch for the
//! connections that it accepts, and takes those that others hand over.
//!
//! ```text
//!   client --- packets ---> initial node: plane --- same frames, other Ethernet address ---> service node: guard, socket
//!      ^                                                                                          |
//!      +------------------------- reply, from the initial node's service address -----------------+
//! ```
//!
//! **Addresses.** Clients connect to *service addresses*. Each node has one (or one of each family) on the interface that
//! clients' packets come by, and those of all others on its loopback interface, for which it answers no ARP, as real servers
//! of direct routing do (LVS-DR). So the restored socket can have the initial node's address, and the client notices nothing.
//! Peers reach each other by further addresses: what is on a host's own loopback interface it cannot reach elsewhere.
//!
//! **Who keeps what.** The initial node has the forwarding plane of `larder_kernel` on its interface, for its own service
//! addresses, without cookies: its stack accepts, and a connection that has moved is an entry in the plane. The service node
//! runs the agent, for all addresses on its loopback interface: the guard keeps packets that come before their socket. Both
//! talk over the agent's control channel, with keys made of the cluster's secret and a member's name. What outlives the
//! process (the plane's entries, and whose number is whose) the next start takes over.
//!
//! **Who decides.** What is done when a peer answers, is silent, goes or comes back says [`larder_core::peers::handing`], which the
//! simulator drives too; here are its clock, its lock, the sockets, the plane and the channels ([`channels`]).
//!
//! **Order** ([`moving`]), as the switch has it for `repair`; R1 to R9 are fixed as [`larder_kernel::repair::RaceFixes`] says:
//!
//! 1. The request's head is read, its target is known, PRESS names a peer, and the [`choice`] is to hand over. Nothing has
//!    been answered; the HTTP connection is taken apart, and what was read of it becomes bytes again.
//! 2. The plane sends the connection's packets to the peer, where they wait, and drops what this host's socket sends.
//! 3. The socket is frozen and read, its state and those bytes are sent.
//! 4. The peer restores it, gives it its packets, and serves the request itself, whatever it believes of others: a request
//!    goes one step at most. Later requests of the connection are decided there like any client's, but relayed where they
//!    belong elsewhere: the packets come by the initial node, and a connection is handed over once.
//! 5. The frozen socket is closed without a word. If the peer has refused, it goes on here, and the request is relayed.
//!
//! When a service node is gone (no member any more, and its channel down), clients of its connections are told by resets; those
//! of one that has said that it goes have a minute, in which its kernel sends what they have not taken. One that was only stopped or cut
//! off still has their sockets when it is back, and names them: packets go to it again, so that the resets with which clients'
//! hosts answer what it sends end them.
//!
//! Since every packet of a moved connection takes a way more, one that will bring many requests stays ([`larder_core::kept`]):
//! nodes learn by the [`life`] of each how many that are.

mod channels;
mod choice;
mod life;
mod members;
mod moving;
mod sizes;
mod start;
mod unmoved;
mod view;

pub use unmoved::Unmoved;
pub use view::HandoverView;

pub(crate) use choice::Standing;
pub(crate) use life::{Bound, Life};
pub(crate) use moving::Moved;

use self::members::{Members, Waits};
use self::sizes::Sizes;
use self::unmoved::Counts;
use larder_core::kept::Kept;
use larder_core::peers::handing::{Handing, HandingSettings};
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
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Service addresses of a cluster at most.
pub const SERVICES_MAX: usize = 64;
/// How connections are handed over.
#[derive(Clone, Debug)]
pub struct HandoverConfig {
    /// Requests for less are relayed, and more is asked for of connections that bring further requests
    /// ([`larder_core::kept`]). 0: for nothing.
    pub min: Bytes,
    /// The service addresses of all nodes, this one's included. 1 to [`SERVICES_MAX`].
    pub services: Vec<SocketAddr>,
    /// TCP port of the control channel, the same on all nodes.
    pub port: u16,
    /// What programs are called in the kernel: 1 to 32 of `a-z`, `A-Z`, `0-9`, `-`, `_`; no other process of this host may
    /// have it.
    pub instance: String,
}

/// Why connections cannot be handed over on this host. The operator's to mend, all of them.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// None of the service addresses is this node's.
    #[error(
        "no interface but the loopback one has any of the service addresses: one of them must be this node's"
    )]
    NoneOwn,
    /// They are on several interfaces.
    #[error("this node's service addresses are on {0} and on {1}: one interface takes the clients' packets")]
    Interfaces(String, String),
    /// TCP_REPAIR cannot be used.
    #[error("connections cannot be moved: {0}")]
    Repair(#[from] repair::RepairUnavailable),
    /// The programs for connections that are given away.
    #[error("the forwarding plane: {0}")]
    Plane(#[from] PlaneError),
    /// The programs for connections that are taken.
    #[error("the guard: {0}")]
    Guard(#[from] GuardError),
    /// The control channel.
    #[error("the agent: {0}")]
    Agent(#[from] AgentError),
    /// A key cannot be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The system does not tell.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The initial node's side.
#[derive(Debug)]
pub struct Handover {
    plane: Plane,
    interface: String,
    /// This node's service addresses; their places are their numbers.
    own: Vec<SocketAddr>,
    port: u16,
    min: Bytes,
    secrets: Mutex<Secrets>,
    hello: Hello,
    admitted: AccessControl,
    sink: mpsc::Sender<ChannelEvent>,
    settings: HandingSettings,
    state: Mutex<State>,
    sizes: Mutex<Sizes>,
    kept: Mutex<Kept>,
    counts: Counts,
    moved: AtomicU64,
    taken: AtomicU64,
    began: Instant,
    task: Mutex<Option<AbortHandle>>,
}

/// The cluster's secrets, and the keys that are made of them.
#[derive(Clone, Debug)]
struct Secrets {
    secrets: ClusterSecrets,
    /// This node by each secret: the first one connects to peers, and peers may expect each of them.
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

/// What goes out of the table may take the lock of whoever gave it ([`Hold`]); so this one is never taken under that.
#[derive(Debug)]
struct State {
    members: Members,
    /// Whose each connection is, and what is on its way.
    handing: Handing<FlowKey, Waits, Box<dyn Hold>>,
}

/// Dropped when a connection that was handed over is the peer's no more.
pub(crate) trait Hold: Debug + Send {}

impl Handover {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Since this process began.
    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// A connection by its addresses, if it came to one of this node's own service addresses.
    pub(crate) fn flow(&self, client: SocketAddr, local: SocketAddr) -> Option<FlowKey> {
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        let place = self.own.iter().position(|own| *own == local)?;
        Some(FlowKey::new(client, u16::try_from(place).ok()?))
    }

    /// Notes how large a target is.
    pub(crate) fn note_size(&self, target: larder_core::TargetId, size: Bytes) {
        lock(&self.sizes).note(target, size);
    }
}

/// What a member proves on the control channel. Whoever has the secret can be any member, as in the rest of the network.
fn identity_of(secret: &ClusterSecret, name: &Name) -> Result<Identity, IdentityError> {
    Identity::new(secret.member_key(name))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
