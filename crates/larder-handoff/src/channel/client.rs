//! The front-end's side of the control channel: one [`NodeChannel`] a node, which connects, connects again, and says
//! when it is up and down.

use super::Timing;
use super::identity::{Identity, PublicKey};
use super::message::{FromNode, Hello, Keys, Message as _, MessageError, Service, ToNode, Welcome};
use super::transport::{self, Receiver, Sender, TransportError};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

/// Messages that wait to be sent at most, for one node.
pub const QUEUE_MAX: usize = 4_096;
/// Bytes of messages that wait to be sent at most, for one node.
pub const QUEUE_BYTES_MAX: usize = 32 << 20;
/// A connection that lived so long was a good one: the next attempt is the first of a new series.
const PROVEN: Duration = Duration::from_secs(10);

/// How to reach a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's slot; stands in each [`Event`].
    pub node: u16,
    /// Its control address.
    pub address: SocketAddr,
    /// The key it must prove; see [`NodeChannel::set_identity`].
    pub key: PublicKey,
}

/// What a channel tells, in order. Between `Up` and `Down` of a node come its messages.
#[derive(Debug)]
pub struct Event {
    /// The node's slot.
    pub node: u16,
    /// Of the channel's connections, counted from 1, the one that this is of ([`NodeChannel::send_in`]).
    pub session: u64,
    /// What happened.
    pub what: What,
}

/// What happened on a channel.
#[derive(Debug)]
pub enum What {
    /// The node is there and has been told all there is.
    Up(Box<Welcome>),
    /// A message; never [`FromNode::Welcome`] or [`FromNode::Pong`], which the channel takes itself.
    Message(FromNode),
    /// The node is gone, or the way to it. What was sent and not answered may have arrived or not.
    Down(ChannelError),
}

/// Why a channel is down.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// No connection, a handshake that failed, or a connection that broke.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The node said what it should not. Its fault.
    #[error("the node's message: {0}")]
    Message(#[from] MessageError),
    /// The node's first message was no welcome, or there was a second one. Its fault.
    #[error("a message out of order")]
    Order,
    /// The keys of the two sides were replaced ([`NodeChannel::set_identity`]).
    #[error("its keys were replaced")]
    Replaced,
}

/// Whether a channel is up. For status pages; decisions go by the [`Event`]s, which are in order with messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// An attempt is under way.
    Connecting,
    /// Up. The node's name, and its incarnation.
    Up {
        /// See [`Welcome::name`].
        name: String,
        /// See [`Welcome::incarnation`].
        incarnation: u64,
    },
    /// Down, until the next attempt.
    Waiting {
        /// Why the last one ended.
        why: String,
        /// Until the next one.
        retry: Duration,
    },
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The channel is down. Nothing is kept for later.
    #[error("the channel is down")]
    Down,
    /// [`QUEUE_MAX`] messages or [`QUEUE_BYTES_MAX`] wait: the node takes them too slowly.
    #[error("too much waits to be sent")]
    Full,
    /// The message breaks a limit. A retry does not help.
    #[error(transparent)]
    Message(#[from] MessageError),
}

/// The channel to one node. Ends when dropped.
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
    /// The queue of the connection that is up, and which one that is.
    queue: Mutex<Option<(u64, mpsc::Sender<Vec<u8>>)>>,
    queued_bytes: AtomicUsize,
}

impl NodeChannel {
    /// Connects to `peer` and keeps doing so. `hello` is what it is told each time; events go to `sink`, which slows
    /// the node down while it is full. Needs a tokio runtime. When the receiver of `sink` is gone the channel ends.
    pub fn start(
        peer: Peer,
        identity: Identity,
        hello: Hello,
        timing: Timing,
        sink: mpsc::Sender<Event>,
    ) -> Self {
        let (hello, hello_seen) = watch::channel(hello);
        let (keys, keys_seen) = watch::channel((identity, peer.key));
        let (state_set, state) = watch::channel(ChannelState::Connecting);
        let shared = Arc::new(Shared { queue: Mutex::new(None), queued_bytes: AtomicUsize::new(0) });
        let runner = Runner {
            peer,
            keys: keys_seen,
            timing,
            hello: hello_seen,
            state: state_set,
            shared: Arc::clone(&shared),
            session: 0,
            sink,
        };
        Self { hello, keys, state, shared, task: tokio::spawn(runner.run()) }
    }

    /// Sends a message, in order after those before. Returns at once; that it was taken says only that it waits to be
    /// sent. Keys and listen addresses have [`Self::set_keys`] and [`Self::set_services`], which outlive connections.
    ///
    /// # Errors
    /// If the channel is down, too much waits, or the message breaks a limit.
    pub fn send(&self, message: &ToNode) -> Result<(), SendError> {
        self.send_over(None, message)
    }

    /// The same by this one of the channel's connections only. For what is answered by what the node says after its welcome:
    /// a connection may have come up whose [`What::Up`] has not been heard yet.
    ///
    /// # Errors
    /// As [`Self::send`]; [`SendError::Down`] too if that connection is not the one that is up.
    pub fn send_in(&self, session: u64, message: &ToNode) -> Result<(), SendError> {
        self.send_over(Some(session), message)
    }

    fn send_over(&self, session: Option<u64>, message: &ToNode) -> Result<(), SendError> {
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
        // Counted first: the other end may take it at once.
        self.shared.queued_bytes.fetch_add(length, Relaxed);
        queue.try_send(bytes).map_err(|error| {
            self.shared.queued_bytes.fetch_sub(length, Relaxed);
            match error {
                mpsc::error::TrySendError::Full(_) => SendError::Full,
                mpsc::error::TrySendError::Closed(_) => SendError::Down,
            }
        })
    }

    /// Replaces the key that this side proves, and the key that the node must prove. A connection that is up ends, and the
    /// next one uses the new keys.
    pub fn set_identity(&self, identity: Identity, node: PublicKey) {
        self.keys.send_replace((identity, node));
    }

    /// Sets the live keys, now and for each connection to come. The node's answer is [`FromNode::Accepted`].
    pub fn set_keys(&self, keys: Keys) {
        self.hello.send_if_modified(|hello| std::mem::replace(&mut hello.keys, keys) != keys);
    }

    /// Sets the node's tag, now and for each connection to come. The node's answer is [`FromNode::Accepted`].
    pub fn set_tag(&self, tag: u8) {
        self.hello.send_if_modified(|hello| std::mem::replace(&mut hello.tag, tag) != tag);
    }

    /// Sets the listen addresses, now and for each connection to come. The node's answer is [`FromNode::Accepted`].
    pub fn set_services(&self, services: Vec<Service>) {
        self.hello.send_if_modified(|hello| {
            let changed = hello.services != services;
            hello.services = services;
            changed
        });
    }

    /// Whether it is up, to look at and to wait for.
    pub fn state(&self) -> watch::Receiver<ChannelState> {
        self.state.clone()
    }
}

impl Drop for NodeChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What runs for a channel.
struct Runner {
    peer: Peer,
    /// The keys of this side and of the node.
    keys: watch::Receiver<(Identity, PublicKey)>,
    timing: Timing,
    hello: watch::Receiver<Hello>,
    state: watch::Sender<ChannelState>,
    shared: Arc<Shared>,
    /// Connections that have come up.
    session: u64,
    sink: mpsc::Sender<Event>,
}

impl Runner {
    async fn run(mut self) {
        let mut attempt = 0;
        while !self.sink.is_closed() {
            self.state.send_replace(ChannelState::Connecting);
            let began = Instant::now();
            let mut up = false;
            let Err(error) = self.connection(&mut up).await;
            self.set_queue(None);
            if began.elapsed() >= PROVEN {
                attempt = 0;
            }
            let retry = self.timing.retry(attempt, chance());
            attempt = attempt.saturating_add(1);
            let peer = self.peer;
            tracing::info!(node = peer.node, address = %peer.address, %error, ?retry, "control channel: down");
            let why = error.to_string();
            self.state.send_replace(ChannelState::Waiting { why, retry });
            if up && self.tell(What::Down(error)).await.is_err() {
                break;
            }
            tokio::select! {
                () = sleep(retry) => {}
                () = self.sink.closed() => {}
            }
        }
    }

    /// One connection, from its start to its end; sets `up` when the node has been welcomed.
    async fn connection(&mut self, up: &mut bool) -> Result<Infallible, ChannelError> {
        let connecting = timeout(self.timing.handshake, TcpStream::connect(self.peer.address)).await;
        let stream =
            connecting.map_err(|_| TransportError::Slow("connecting"))?.map_err(TransportError::Io)?;
        let (identity, node) = self.keys.borrow_and_update().clone();
        let mut keys = self.keys.clone();
        let (mut sender, mut receiver) = transport::initiate(stream, &identity, node, &self.timing).await?;
        let hello = self.hello.borrow_and_update().clone();
        sender.send(&ToNode::Hello(hello.clone()).encode()?).await?;
        let first = receiver.receive(self.timing.handshake).await?;
        let FromNode::Welcome(welcome) = FromNode::decode(&first)? else { return Err(ChannelError::Order) };
        let (name, incarnation) = (welcome.name.clone(), welcome.incarnation);
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        self.shared.queued_bytes.store(0, Relaxed);
        self.session += 1;
        self.set_queue(Some((self.session, queue)));
        self.state.send_replace(ChannelState::Up { name, incarnation });
        *up = true;
        self.tell(What::Up(Box::new(welcome))).await?;
        tokio::select! {
            ended = self.read(receiver) => ended,
            ended = self.write(sender, queued, hello) => ended,
            _ = keys.changed() => Err(ChannelError::Replaced),
        }
    }

    fn set_queue(&self, queue: Option<(u64, mpsc::Sender<Vec<u8>>)>) {
        *self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner) = queue;
    }

    async fn tell(&self, what: What) -> Result<(), ChannelError> {
        let event = Event { node: self.peer.node, session: self.session, what };
        self.sink.send(event).await.map_err(|_| TransportError::Closed.into())
    }

    async fn read(&self, mut receiver: Receiver) -> Result<Infallible, ChannelError> {
        loop {
            let bytes = receiver.receive(self.timing.silence).await?;
            match FromNode::decode(&bytes)? {
                FromNode::Welcome(_) => return Err(ChannelError::Order),
                FromNode::Pong(_) => {}
                message => self.tell(What::Message(message)).await?,
            }
        }
    }

    async fn write(
        &self,
        mut sender: Sender,
        mut queued: mpsc::Receiver<Vec<u8>>,
        mut told: Hello,
    ) -> Result<Infallible, ChannelError> {
        let mut hello = self.hello.clone();
        let mut ping = interval(self.timing.ping);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pings = 0;
        loop {
            // In this order: what a handoff needs is said before it.
            tokio::select! {
                biased;
                changed = hello.changed() => {
                    changed.map_err(|_| TransportError::Closed)?;
                    let wanted = hello.borrow_and_update().clone();
                    if wanted.keys != told.keys {
                        sender.send(&ToNode::Keys(wanted.keys).encode()?).await?;
                    }
                    if wanted.services != told.services {
                        sender.send(&ToNode::Services(wanted.services.clone()).encode()?).await?;
                    }
                    if wanted.tag != told.tag {
                        sender.send(&ToNode::Tag(wanted.tag).encode()?).await?;
                    }
                    told = wanted;
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

/// A byte of chance; always the same where the system has none.
fn chance() -> u8 {
    let mut byte = [0];
    // Only spreads attempts: without it they come all at once.
    let _ = rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::NONBLOCK);
    byte[0]
}
