//! The switch's side of the control channel. A [`NodeChannel`] connects to one node, reconnects when the connection
//! breaks, and reports both.

use super::identity::{Identity, PublicKey};
use super::message::{CookieKeys, FromNode, Hello, Message as _, MessageError, Service, ToNode, Welcome};
use super::transport::{self, Receiver, Sender, TransportError};
use super::{Timing, retry_delay};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// Maximum number of queued messages to one node.
pub const QUEUE_MAX: usize = 4_096;
/// Maximum size of the queued messages to one node. Bytes.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;
/// A session of at least this length counts as stable: the retry delay starts over.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Number of failed attempts after which a channel that was never up is logged.
const WARN_AFTER: u32 = 4;

/// Address and key of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// The node's slot, which stands in each [`ChannelEvent`].
    pub node: u16,
    /// The node's name, for the log.
    pub name: Arc<str>,
    /// The node's control address.
    pub address: SocketAddr,
    /// The key that the node must prove; see [`NodeChannel::set_identity`].
    pub key: PublicKey,
}

/// An event of a channel, in order. A node's messages come between its `Up` and `Down`.
#[derive(Debug)]
pub struct ChannelEvent {
    /// The node's slot.
    pub node: u16,
    /// Number of the session, counted from 1; see [`NodeChannel::send_in_session`].
    pub session: u64,
    /// The event.
    pub kind: EventKind,
}

/// Kind of a [`ChannelEvent`].
#[derive(Debug)]
pub enum EventKind {
    /// The node is connected and has all settings.
    Up(Box<Welcome>),
    /// A message. Never [`FromNode::Welcome`] or [`FromNode::Pong`], which the channel handles itself.
    Message(FromNode),
    /// The session has ended. Messages without a reply may or may not have arrived.
    Down(ChannelError),
}

/// Reason why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Connecting, the handshake or the connection failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The node sent an invalid message. The node's fault.
    #[error("invalid message from the node: {0}")]
    Message(#[from] MessageError),
    /// The node's first message was not a welcome, or it sent a second one. The node's fault.
    #[error("unexpected message from the node")]
    UnexpectedMessage,
    /// [`NodeChannel::set_identity`] replaced the keys.
    #[error("the keys were replaced")]
    KeysReplaced,
}

/// State of a channel, for status pages. Decisions must use the [`ChannelEvent`]s, which are in order with the
/// messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// An attempt to connect is in progress.
    Connecting,
    /// Connected.
    Up {
        /// See [`Welcome::name`].
        name: String,
        /// See [`Welcome::incarnation`].
        incarnation: u64,
    },
    /// Disconnected until the next attempt.
    Waiting {
        /// Reason why the last session or attempt ended.
        reason: String,
        /// Delay of the next attempt.
        retry: Duration,
    },
}

/// Reason why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The channel is down. Messages are not kept for later.
    #[error("the channel is down")]
    Down,
    /// [`QUEUE_MAX`] messages or [`QUEUE_BYTES_MAX`] are queued, because the node reads too slowly.
    #[error("the send queue is full: the node reads too slowly")]
    Full,
    /// The message breaks a limit. A retry does not help.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// The channel to one node. Closed when dropped.
#[derive(Debug)]
pub struct NodeChannel {
    hello: watch::Sender<Hello>,
    keys: watch::Sender<(Identity, PublicKey)>,
    state: watch::Receiver<ChannelState>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    /// Number and queue of the current session.
    queue: Mutex<Option<(u64, mpsc::Sender<Vec<u8>>)>>,
    queued_bytes: AtomicUsize,
}

impl NodeChannel {
    /// Connects to `node` and reconnects for ever, on the current tokio runtime. Each session starts with `hello`.
    /// Events go to `sink`; while it is full, nothing is read from the node. The channel ends when the receiver of
    /// `sink` is dropped.
    pub fn start(
        node: NodeAddress,
        identity: Identity,
        hello: Hello,
        timing: Timing,
        sink: mpsc::Sender<ChannelEvent>,
    ) -> Self {
        let (hello, hello_receiver) = watch::channel(hello);
        let (keys, keys_receiver) = watch::channel((identity, node.key));
        let (state_sender, state) = watch::channel(ChannelState::Connecting);
        let shared = Arc::new(Shared { queue: Mutex::new(None), queued_bytes: AtomicUsize::new(0) });
        let runner = Runner {
            node,
            keys: keys_receiver,
            timing,
            hello: hello_receiver,
            state: state_sender,
            shared: Arc::clone(&shared),
            session: 0,
            sink,
        };
        Self { hello, keys, state, shared, task: tokio::spawn(runner.run()) }
    }

    /// Queues a message after those before. Returns at once; success does not mean that the message arrived.
    ///
    /// Settings have their own methods ([`Self::set_keys`], [`Self::set_services`], [`Self::set_tag`]) and are repeated
    /// in each session.
    ///
    /// # Errors
    ///
    /// If the channel is down, the queue is full, or the message breaks a limit.
    pub fn send(&self, message: &ToNode) -> Result<(), SendError> {
        self.send_to_session(None, message)
    }

    /// Queues a message if `session` is still current. Use it to answer a message of the node: a newer session may have
    /// started whose [`EventKind::Up`] the caller has not seen yet.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`], and [`SendError::Down`] if another session is current.
    pub fn send_in_session(&self, session: u64, message: &ToNode) -> Result<(), SendError> {
        self.send_to_session(Some(session), message)
    }

    fn send_to_session(&self, session: Option<u64>, message: &ToNode) -> Result<(), SendError> {
        let bytes = message.encode()?;
        let length = bytes.len();
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, queue) = queue.as_ref().ok_or(SendError::Down)?;
        if session.is_some_and(|session| session != *number) {
            return Err(SendError::Down);
        }
        if self.shared.queued_bytes.load(Relaxed) + length > QUEUE_BYTES_MAX {
            return Err(SendError::Full);
        }
        // Counted before it is queued, because the writer may take it at once.
        self.shared.queued_bytes.fetch_add(length, Relaxed);
        queue.try_send(bytes).map_err(|error| {
            self.shared.queued_bytes.fetch_sub(length, Relaxed);
            match error {
                mpsc::error::TrySendError::Full(_) => SendError::Full,
                mpsc::error::TrySendError::Closed(_) => SendError::Down,
            }
        })
    }

    /// Replaces this side's key pair and the key that the node must prove. The current session ends, and the next one
    /// uses the new keys.
    pub fn set_identity(&self, identity: Identity, node: PublicKey) {
        self.keys.send_replace((identity, node));
    }

    /// Sets the cookie keys, now and for all later sessions. The node answers with [`FromNode::Settings`].
    pub fn set_keys(&self, keys: CookieKeys) {
        self.hello.send_if_modified(|hello| std::mem::replace(&mut hello.keys, keys) != keys);
    }

    /// Sets the node's tag, now and for all later sessions. The node answers with [`FromNode::Settings`].
    pub fn set_tag(&self, tag: u8) {
        self.hello.send_if_modified(|hello| std::mem::replace(&mut hello.tag, tag) != tag);
    }

    /// Sets the listen addresses, now and for all later sessions. The node answers with [`FromNode::Settings`].
    pub fn set_services(&self, services: Vec<Service>) {
        self.hello.send_if_modified(|hello| {
            let changed = hello.services != services;
            hello.services = services;
            changed
        });
    }

    /// Returns the channel's state, to read or to wait for.
    pub fn state(&self) -> watch::Receiver<ChannelState> {
        self.state.clone()
    }
}

impl Drop for NodeChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a channel.
struct Runner {
    node: NodeAddress,
    /// The key pair of this side, and the key of the node.
    keys: watch::Receiver<(Identity, PublicKey)>,
    timing: Timing,
    hello: watch::Receiver<Hello>,
    state: watch::Sender<ChannelState>,
    shared: Arc<Shared>,
    /// Number of sessions so far.
    session: u64,
    sink: mpsc::Sender<ChannelEvent>,
}

impl Runner {
    async fn run(mut self) {
        let (mut attempt, mut failures, mut warned) = (0, 0_u32, None);
        while !self.sink.is_closed() {
            self.state.send_replace(ChannelState::Connecting);
            let began = Instant::now();
            let mut up = false;
            let Err(error) = self.run_session(&mut up).await;
            self.set_queue(None);
            if began.elapsed() >= STABLE_AFTER {
                attempt = 0;
            }
            let Timing { retry_min, retry_max, .. } = self.timing;
            let retry = retry_delay(attempt, retry_min, retry_max, random_byte());
            attempt = attempt.saturating_add(1);
            let (node, address, reason) = (&*self.node.name, self.node.address, error.to_string());
            failures = if up { 0 } else { failures.saturating_add(1) };
            if up {
                // The receiver of the events logs the end of a channel that was up.
                warned = None;
            } else if failures >= WARN_AFTER && warned.as_ref() != Some(&reason) {
                tracing::warn!(node, %address, reason, ?retry, "control channel: down");
                warned = Some(reason.clone());
            } else {
                tracing::debug!(node, %address, reason, ?retry, "control channel: attempt failed");
            }
            self.state.send_replace(ChannelState::Waiting { reason, retry });
            if up && self.emit(EventKind::Down(error)).await.is_err() {
                break;
            }
            tokio::select! {
                () = sleep(retry) => {}
                () = self.sink.closed() => {}
            }
        }
    }

    /// Runs one session from connecting to its end. Sets `up` when the node's welcome has arrived.
    async fn run_session(&mut self, up: &mut bool) -> Result<Infallible, ChannelError> {
        let connecting = timeout(self.timing.handshake, TcpStream::connect(self.node.address)).await;
        let stream =
            connecting.map_err(|_| TransportError::TimedOut("connecting"))?.map_err(TransportError::Io)?;
        let (identity, node) = self.keys.borrow_and_update().clone();
        let mut keys = self.keys.clone();
        let (mut sender, mut receiver) = transport::initiate(stream, &identity, node, &self.timing).await?;
        let hello = self.hello.borrow_and_update().clone();
        sender.send(&ToNode::Hello(hello.clone()).encode()?).await?;
        let first = receiver.receive(self.timing.handshake).await?;
        let FromNode::Welcome(welcome) = FromNode::decode(&first)? else {
            return Err(ChannelError::UnexpectedMessage);
        };
        let (name, incarnation) = (welcome.name.clone(), welcome.incarnation);
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        self.shared.queued_bytes.store(0, Relaxed);
        self.session += 1;
        self.set_queue(Some((self.session, queue)));
        self.state.send_replace(ChannelState::Up { name, incarnation });
        *up = true;
        self.emit(EventKind::Up(Box::new(welcome))).await?;
        tokio::select! {
            ended = self.read(receiver) => ended,
            ended = self.write(sender, queued, hello) => ended,
            _ = keys.changed() => Err(ChannelError::KeysReplaced),
        }
    }

    fn set_queue(&self, queue: Option<(u64, mpsc::Sender<Vec<u8>>)>) {
        *self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner) = queue;
    }

    async fn emit(&self, kind: EventKind) -> Result<(), ChannelError> {
        let event = ChannelEvent { node: self.node.node, session: self.session, kind };
        self.sink.send(event).await.map_err(|_| TransportError::Closed.into())
    }

    async fn read(&self, mut receiver: Receiver) -> Result<Infallible, ChannelError> {
        loop {
            let bytes = receiver.receive(self.timing.silence).await?;
            match FromNode::decode(&bytes)? {
                FromNode::Welcome(_) => return Err(ChannelError::UnexpectedMessage),
                FromNode::Pong(_) => {}
                message => self.emit(EventKind::Message(message)).await?,
            }
        }
    }

    async fn write(
        &self,
        mut sender: Sender,
        mut queued: mpsc::Receiver<Vec<u8>>,
        mut sent: Hello,
    ) -> Result<Infallible, ChannelError> {
        let mut hello = self.hello.clone();
        let mut ping = interval(self.timing.ping);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pings = 0;
        loop {
            // In this order: settings must arrive before the handoffs that need them.
            tokio::select! {
                biased;
                changed = hello.changed() => {
                    changed.map_err(|_| TransportError::Closed)?;
                    let wanted = hello.borrow_and_update().clone();
                    if wanted.keys != sent.keys {
                        sender.send(&ToNode::Keys(wanted.keys).encode()?).await?;
                    }
                    if wanted.services != sent.services {
                        sender.send(&ToNode::Services(wanted.services.clone()).encode()?).await?;
                    }
                    if wanted.tag != sent.tag {
                        sender.send(&ToNode::Tag(wanted.tag).encode()?).await?;
                    }
                    sent = wanted;
                }
                Some(message) = queued.recv() => {
                    self.shared.queued_bytes.fetch_sub(message.len(), Relaxed);
                    sender.send(&message).await?;
                }
                _ = ping.tick() => {
                    pings += 1;
                    sender.send(&ToNode::Ping(pings).encode()?).await?;
                }
            }
        }
    }
}

/// Returns a random byte, or 0 if the system has no random numbers.
fn random_byte() -> u8 {
    let mut byte = [0];
    // It only spreads reconnects; without it they happen at the same time.
    let _ = rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::NONBLOCK);
    byte[0]
}
