//! The node's side of the control channel: accepts front-ends that prove a listed key.

use super::Timing;
use super::identity::{Identity, PublicKey};
use super::message::{Hello, Message as _, MessageError, ToNode};
use super::transport::{self, Receiver, Sender, TransportError};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Handshakes under way at most; a further one displaces the oldest, since an honest one is over in a round trip.
pub const HANDSHAKES_MAX: usize = 64;
/// Public keys on the list at most.
pub const SWITCHES_MAX: usize = 64;
/// Keys that are let in at most: while keys change, each front-end may have two.
const ADMITTED_MAX: usize = 2 * SWITCHES_MAX;
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A front-end that has proved its key and said hello.
#[derive(Debug)]
pub struct Peer {
    /// Its key, one of the list.
    pub key: PublicKey,
    /// Where it connects from.
    pub address: SocketAddr,
    /// Its first message.
    pub hello: Hello,
    /// To it.
    pub sender: Sender,
    /// From it.
    pub receiver: Receiver,
}

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A front-end of the list, and its hello.
    Accepted,
    /// It proved a key that is not on the list.
    Stranger,
    /// Its messages were not made with the right keys, were changed, or recorded earlier.
    Forged,
    /// It speaks another protocol, or another version.
    Foreign,
    /// What came was cut off, of an impossible length, or no message.
    Malformed,
    /// It took longer than [`Timing::handshake`].
    Slow,
    /// Too many others came while it was under way.
    Displaced,
    /// The network failed.
    Network,
}

impl Outcome {
    /// All outcomes, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::Accepted,
        Self::Stranger,
        Self::Forged,
        Self::Foreign,
        Self::Malformed,
        Self::Slow,
        Self::Displaced,
        Self::Network,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Stranger => "stranger",
            Self::Forged => "forged",
            Self::Foreign => "foreign",
            Self::Malformed => "malformed",
            Self::Slow => "slow",
            Self::Displaced => "displaced",
            Self::Network => "network",
        }
    }

    fn of(error: &GreetError) -> Self {
        match error {
            GreetError::Message(_) | GreetError::NoHello => Self::Malformed,
            GreetError::Transport(error) => match error {
                TransportError::Io(_) | TransportError::Closed | TransportError::TurnedAway => Self::Network,
                TransportError::Truncated | TransportError::Length(_) => Self::Malformed,
                TransportError::Slow(_) => Self::Slow,
                TransportError::Foreign | TransportError::Version(_) => Self::Foreign,
                TransportError::Stranger(_) => Self::Stranger,
                TransportError::Forged => Self::Forged,
            },
        }
    }
}

/// Counts of attempts to connect by outcome, and of channels that ended because their key was revoked.
#[derive(Debug, Default)]
pub struct Outcomes {
    attempts: [AtomicU64; Outcome::ALL.len()],
    revoked: AtomicU64,
}

impl Outcomes {
    /// Attempts that ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.attempts[outcome as usize].load(Relaxed)
    }

    /// Channels ended because their key was revoked.
    pub fn revoked(&self) -> u64 {
        self.revoked.load(Relaxed)
    }

    fn add(&self, outcome: Outcome) {
        self.attempts[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn add_revoked(&self) {
        self.revoked.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("the first message: {0}")]
    Message(#[from] MessageError),
    #[error("the first message is no hello")]
    NoHello,
}

/// Keys of the switches that may connect, and the node's identity. Both can change while the server runs.
#[derive(Clone, Debug)]
pub struct Admitted(Arc<watch::Sender<Admission>>);

/// The state of [`Admitted`] at one time.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    /// The keys of front-ends that may connect.
    keys: Vec<PublicKey>,
    /// The keys of front-ends that may not connect but stay connected.
    kept: Vec<PublicKey>,
    /// The node's own keys: a front-end may expect each of them.
    identities: Vec<Identity>,
    /// How often keys have been revoked.
    pub(crate) revocations: u64,
}

impl Admission {
    /// Whether a front-end that is connected may stay so.
    pub(crate) fn keeps(&self, key: &PublicKey) -> bool {
        self.keys.contains(key) || self.kept.contains(key)
    }
}

impl Admitted {
    fn new(identity: Identity, switches: Vec<PublicKey>) -> Self {
        let identities = vec![identity];
        let admission = Admission { keys: Vec::new(), kept: Vec::new(), identities, revocations: 0 };
        let admitted = Self(Arc::new(watch::Sender::new(admission)));
        admitted.set(switches);
        admitted
    }

    /// Lets these front-ends connect from now on, at most twice [`SWITCHES_MAX`] of them, and no others. A front-end that is
    /// connected stays connected.
    pub fn set(&self, mut keys: Vec<PublicKey>) {
        keys.truncate(ADMITTED_MAX);
        self.0.send_modify(|admission| admission.keys = keys);
    }

    /// Does the same as [`Self::set`], and ends at once the channels of all front-ends that are neither in `keys` nor in `kept`.
    pub fn replace(&self, mut keys: Vec<PublicKey>, kept: Vec<PublicKey>) {
        keys.truncate(ADMITTED_MAX);
        self.0.send_modify(|admission| {
            (admission.keys, admission.kept) = (keys, kept);
            admission.revocations += 1;
        });
    }

    /// Replaces the node's own keys. Connections go on.
    pub fn set_identities(&self, identities: Vec<Identity>) {
        self.0.send_modify(|admission| admission.identities = identities);
    }

    pub(crate) fn allows(&self, key: &PublicKey) -> bool {
        self.0.borrow().keys.contains(key)
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Admission> {
        self.0.subscribe()
    }

    fn now(&self) -> Admission {
        self.0.borrow().clone()
    }
}

/// Accepts front-ends.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    admitted: Admitted,
    timing: Timing,
    outcomes: Arc<Outcomes>,
}

impl Server {
    /// Listens on `address` for the front-ends with the keys `switches`, of which [`SWITCHES_MAX`] at most are kept.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn bind(
        address: SocketAddr,
        identity: Identity,
        switches: Vec<PublicKey>,
        timing: Timing,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let admitted = Admitted::new(identity, switches);
        let shared = Shared { admitted, timing, outcomes: Arc::default() };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Who is let in.
    pub fn admitted(&self) -> Admitted {
        self.shared.admitted.clone()
    }

    /// How attempts to connect ended. Lives on when the server has ended.
    pub fn outcomes(&self) -> Arc<Outcomes> {
        Arc::clone(&self.shared.outcomes)
    }

    /// Accepts until nobody takes peers any more. A peer may be one that is there already: the newer connection counts.
    pub async fn run(self, peers: mpsc::Sender<Peer>) {
        let mut under_way = UnderWay::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = peers.closed() => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    if under_way.make_room() {
                        self.shared.outcomes.add(Outcome::Displaced);
                    }
                    let greeting = Arc::clone(&self.shared).greet(stream, address, peers.clone());
                    under_way.0.push_back(tokio::spawn(greeting).abort_handle());
                }
                Err(error) => {
                    tracing::warn!(%error, "control channel: accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Shared {
    async fn greet(self: Arc<Self>, stream: TcpStream, address: SocketAddr, peers: mpsc::Sender<Peer>) {
        match self.handshake(stream, address).await {
            Ok(peer) => {
                self.outcomes.add(Outcome::Accepted);
                // Nobody takes it: the node ends.
                let _ = peers.send(peer).await;
            }
            Err(error) => {
                let outcome = Outcome::of(&error);
                self.outcomes.add(outcome);
                tracing::warn!(%address, outcome = outcome.name(), %error, "switch: rejected");
            }
        }
    }

    async fn handshake(&self, stream: TcpStream, address: SocketAddr) -> Result<Peer, GreetError> {
        let Admission { keys, identities, .. } = self.admitted.now();
        let (key, sender, mut receiver) =
            transport::respond(stream, &identities, &keys, &self.timing).await?;
        let first = receiver.receive(self.timing.handshake).await?;
        match ToNode::decode(&first)? {
            ToNode::Hello(hello) => Ok(Peer { key, address, hello, sender, receiver }),
            _ => Err(GreetError::NoHello),
        }
    }
}

/// Handshakes under way, oldest first. Ends them when dropped.
#[derive(Debug, Default)]
struct UnderWay(VecDeque<AbortHandle>);

impl UnderWay {
    /// Whether the oldest had to go.
    fn make_room(&mut self) -> bool {
        self.0.retain(|one| !one.is_finished());
        let full = self.0.len() >= HANDSHAKES_MAX;
        if full && let Some(oldest) = self.0.pop_front() {
            oldest.abort();
        }
        full
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
