//! The node's side of the control channel. It accepts switches that prove a key on the list.

use super::Timing;
use super::identity::{Identity, PublicKey};
use super::message::{Hello, Message as _, MessageError, ToNode};
use super::transport::{self, Receiver, Sender, TransportError};
use larder_log::LogLimiters;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Maximum number of handshakes in progress. A further one displaces the oldest; a legitimate handshake takes one round
/// trip.
pub const HANDSHAKES_MAX: usize = 64;
/// Maximum number of switches.
pub const SWITCHES_MAX: usize = 64;
/// Maximum number of allowed keys: each switch may have two during key rotation.
const ALLOWED_KEYS_MAX: usize = 2 * SWITCHES_MAX;
/// Pause after a failed accept, for example because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connection to a switch that has completed the handshake and sent its hello.
#[derive(Debug)]
pub struct SwitchConnection {
    /// The switch's key.
    pub key: PublicKey,
    /// The address from which it connects.
    pub address: SocketAddr,
    /// Its first message.
    pub hello: Hello,
    /// Sends to the switch.
    pub sender: Sender,
    /// Receives from the switch.
    pub receiver: Receiver,
}

/// Outcome of a switch's attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// The handshake succeeded and the hello arrived.
    Accepted,
    /// The peer proved a key that is not on the list.
    UnknownKey,
    /// The handshake was made with wrong keys, altered, or replayed.
    Forged,
    /// The peer speaks another protocol or another version of it.
    WrongProtocol,
    /// A message was truncated, had an impossible length, or was invalid.
    Malformed,
    /// The attempt took longer than [`Timing::handshake`].
    TimedOut,
    /// Too many newer attempts displaced it.
    Displaced,
    /// The network failed.
    Network,
}

impl HandshakeOutcome {
    /// All outcomes, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::Accepted,
        Self::UnknownKey,
        Self::Forged,
        Self::WrongProtocol,
        Self::Malformed,
        Self::TimedOut,
        Self::Displaced,
        Self::Network,
    ];

    /// Returns the outcome's label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::UnknownKey => "stranger",
            Self::Forged => "forged",
            Self::WrongProtocol => "foreign",
            Self::Malformed => "malformed",
            Self::TimedOut => "slow",
            Self::Displaced => "displaced",
            Self::Network => "network",
        }
    }

    fn from_error(error: &HandshakeError) -> Self {
        match error {
            HandshakeError::Message(_) | HandshakeError::MissingHello => Self::Malformed,
            HandshakeError::Transport(error) => match error {
                TransportError::Io(_) | TransportError::Closed | TransportError::Rejected => Self::Network,
                TransportError::Truncated | TransportError::Length(_) => Self::Malformed,
                TransportError::TimedOut(_) => Self::TimedOut,
                TransportError::WrongProtocol | TransportError::Version(_) => Self::WrongProtocol,
                TransportError::UnknownKey(_) => Self::UnknownKey,
                TransportError::Forged => Self::Forged,
            },
        }
    }
}

/// Counters of attempts to connect by outcome, and of channels that ended because their key was revoked.
#[derive(Debug, Default)]
pub struct HandshakeCounters {
    attempts: [AtomicU64; HandshakeOutcome::ALL.len()],
    revoked: AtomicU64,
}

impl HandshakeCounters {
    /// Returns the number of attempts with this outcome.
    pub fn count(&self, outcome: HandshakeOutcome) -> u64 {
        self.attempts[outcome as usize].load(Relaxed)
    }

    /// Returns the number of channels that ended because their key was revoked.
    pub fn revoked(&self) -> u64 {
        self.revoked.load(Relaxed)
    }

    fn add(&self, outcome: HandshakeOutcome) {
        self.attempts[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn add_revoked(&self) {
        self.revoked.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("invalid first message: {0}")]
    Message(#[from] MessageError),
    #[error("the first message is not a hello")]
    MissingHello,
}

/// Keys of the switches that may connect, and the node's identities. Both can change while the server runs.
#[derive(Clone, Debug)]
pub struct AccessControl(Arc<watch::Sender<AccessState>>);

/// Current state of an [`AccessControl`].
#[derive(Clone, Debug)]
pub(crate) struct AccessState {
    /// Keys of switches that may connect.
    allowed: Vec<PublicKey>,
    /// Keys of switches that may stay connected but not reconnect.
    retained: Vec<PublicKey>,
    /// The node's own keys. A switch may expect any of them.
    identities: Vec<Identity>,
    /// Number of revocations so far.
    pub(crate) revocations: u64,
}

impl AccessState {
    /// Whether a connected switch may stay connected.
    pub(crate) fn may_stay_connected(&self, key: &PublicKey) -> bool {
        self.allowed.contains(key) || self.retained.contains(key)
    }
}

impl AccessControl {
    fn new(identity: Identity, switches: Vec<PublicKey>) -> Self {
        let identities = vec![identity];
        let state = AccessState { allowed: Vec::new(), retained: Vec::new(), identities, revocations: 0 };
        let access = Self(Arc::new(watch::Sender::new(state)));
        access.set_allowed(switches);
        access
    }

    /// Allows these keys to connect, and no others. At most twice [`SWITCHES_MAX`] are used. Connected switches stay
    /// connected.
    pub fn set_allowed(&self, mut keys: Vec<PublicKey>) {
        keys.truncate(ALLOWED_KEYS_MAX);
        self.0.send_modify(|state| state.allowed = keys);
    }

    /// Does the same as [`Self::set_allowed`], and ends at once the channels of all switches that are neither in `keys`
    /// nor in `retained`.
    pub fn set_allowed_and_revoke(&self, mut keys: Vec<PublicKey>, retained: Vec<PublicKey>) {
        keys.truncate(ALLOWED_KEYS_MAX);
        self.0.send_modify(|state| {
            (state.allowed, state.retained) = (keys, retained);
            state.revocations += 1;
        });
    }

    /// Replaces the node's own keys. Connected switches stay connected.
    pub fn set_identities(&self, identities: Vec<Identity>) {
        self.0.send_modify(|state| state.identities = identities);
    }

    pub(crate) fn may_connect(&self, key: &PublicKey) -> bool {
        self.0.borrow().allowed.contains(key)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<AccessState> {
        self.0.subscribe()
    }

    fn current(&self) -> AccessState {
        self.0.borrow().clone()
    }
}

/// Accepts switches.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    access: AccessControl,
    timing: Timing,
    counters: Arc<HandshakeCounters>,
}

impl Server {
    /// Listens on `address` for switches with the keys `switches`. At most [`SWITCHES_MAX`] are expected.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        identity: Identity,
        switches: Vec<PublicKey>,
        timing: Timing,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let access = AccessControl::new(identity, switches);
        let shared = Shared { access, timing, counters: Arc::default() };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    ///
    /// If the system does not return it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the list of allowed keys.
    pub fn access_control(&self) -> AccessControl {
        self.shared.access.clone()
    }

    /// Returns the counters of attempts to connect. They may outlive the server.
    pub fn handshake_counters(&self) -> Arc<HandshakeCounters> {
        Arc::clone(&self.shared.counters)
    }

    /// Accepts switches until the receiver of `switches` is dropped. A switch may connect while an older connection of
    /// it exists; the newer connection replaces it.
    pub async fn run(self, peers: mpsc::Sender<SwitchConnection>) {
        let mut pending = PendingHandshakes::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = peers.closed() => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    if pending.make_room() {
                        self.shared.counters.add(HandshakeOutcome::Displaced);
                    }
                    let handshake = Arc::clone(&self.shared).accept_switch(stream, address, peers.clone());
                    pending.0.push_back(tokio::spawn(handshake).abort_handle());
                }
                Err(error) => {
                    larder_log::limited_warn!(%error, "control channel: accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Shared {
    async fn accept_switch(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        peers: mpsc::Sender<SwitchConnection>,
    ) {
        match self.handshake(stream, address).await {
            Ok(peer) => {
                self.counters.add(HandshakeOutcome::Accepted);
                // Fails if the agent is stopping.
                let _ = peers.send(peer).await;
            }
            Err(error) => {
                let outcome = HandshakeOutcome::from_error(&error);
                self.counters.add(outcome);
                static LIMITERS: LogLimiters<{ HandshakeOutcome::ALL.len() }> = LogLimiters::new();
                if let Some(times) = LIMITERS.due(outcome as usize) {
                    tracing::warn!(times, %address, outcome = outcome.name(), %error, "switch: rejected");
                }
            }
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<SwitchConnection, HandshakeError> {
        let AccessState { allowed, identities, .. } = self.access.current();
        let (key, sender, mut receiver) =
            transport::respond(stream, &identities, &allowed, &self.timing).await?;
        let first = receiver.receive(self.timing.handshake).await?;
        match ToNode::decode(&first)? {
            ToNode::Hello(hello) => Ok(SwitchConnection { key, address, hello, sender, receiver }),
            _ => Err(HandshakeError::MissingHello),
        }
    }
}

/// Handshakes in progress, oldest first. Aborted when dropped.
#[derive(Debug, Default)]
struct PendingHandshakes(VecDeque<AbortHandle>);

impl PendingHandshakes {
    /// Aborts the oldest handshake if the limit is reached. Returns whether one was aborted.
    fn make_room(&mut self) -> bool {
        self.0.retain(|handshake| !handshake.is_finished());
        let full = self.0.len() >= HANDSHAKES_MAX;
        if full && let Some(oldest) = self.0.pop_front() {
            oldest.abort();
        }
        full
    }
}

impl Drop for PendingHandshakes {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
