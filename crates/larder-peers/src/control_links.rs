//! Control links: ordered messages between members, over one TCP connection for each ordered pair of members.
//!
//! A link carries messages from the side that opened it. Messages are lost only together with the link: when it is
//! reconnected, both sides get an event and send their state again. If the queue of a link is full, the link is closed and
//! reconnected, because a gap in the messages would be worse than a new start. A link accepts messages only after the
//! caller has taken the event that it is up.
//!
//! A message is preceded by its length in four bytes. The length 0 is a keepalive, sent by both sides.

use crate::config::ControlConfig;
use crate::counters::{Counters, GaugeGuard, add, increment};
use crate::handshaker::{Handshaker, LinkStream};
use crate::hello::LinkKind;
use crate::keyring::KeyedStream;
use crate::member::{Change, Member, PeerId};
use crate::name::Name;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use bytes::Bytes;
use larder_handoff::channel::retry_delay;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Longest message. Bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum wait of an incoming link for membership to learn about the peer that opened it.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(5);
/// Why an inbound link ended.
const REPLACED: &str = "a newer link has replaced it";

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no link, or the caller has not taken the event yet that the link is up.
    #[error("no control link to the member")]
    Down,
    /// The queue was full. The link is closed and reconnected.
    #[error("the queue of the control link is full")]
    Overflow,
    /// The message is empty or longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {0} bytes cannot be sent: the limits are 1 and {MESSAGE_BYTES_MAX} bytes")]
    Length(usize),
}

/// An event of a link or of membership, before [`crate::Events`] puts it into order.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// The outbound link `id` is up.
    OutboundUp { id: u64, peer: PeerId, link: Arc<OutboundLink> },
    /// The inbound link `id` is up. `epoch` is the number of the peer's joining.
    InboundUp { id: u64, peer: PeerId, epoch: u64 },
    /// A message arrived on the link `id`.
    Message { id: u64, message: Bytes },
    /// The link `id` is down.
    Down { id: u64 },
    /// Membership changed. The number of the change is unique and rises.
    Membership(Change, u64),
}

/// Returns a new link id, unique in this process.
pub(crate) fn next_link_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An outbound link that is up.
#[derive(Debug)]
pub(crate) struct OutboundLink {
    queue: mpsc::Sender<Bytes>,
    queued_bytes: AtomicUsize,
    /// Whether the caller has taken the event that the link is up.
    open: AtomicBool,
    overflow: Notify,
}

impl OutboundLink {
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    fn send(&self, message: Bytes, config: &ControlConfig) -> Result<(), SendError> {
        if !self.open.load(Ordering::Acquire) {
            return Err(SendError::Down);
        }
        let length = message.len();
        let before = self.queued_bytes.fetch_add(length, Ordering::Relaxed);
        let queued = if before + length > config.queue_bytes_max {
            Err(SendError::Overflow)
        } else {
            self.queue.try_send(message).map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => SendError::Overflow,
                mpsc::error::TrySendError::Closed(_) => SendError::Down,
            })
        };
        if queued.is_err() {
            self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
            // The link accepts no further messages, because there would be a gap before them.
            self.open.store(false, Ordering::Release);
            self.overflow.notify_one();
        }
        queued
    }
}

/// Why an outbound link ended.
#[derive(Debug, thiserror::Error)]
enum LinkEnd {
    /// This member sends with another secret now.
    #[error("the cluster secret was replaced")]
    SecretReplaced,
    #[error("{0}")]
    Broken(#[from] io::Error),
}

impl LinkEnd {
    fn from_io(result: io::Result<()>) -> Self {
        Self::Broken(result.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
    }
}

/// The outbound links of this member, one to each other member.
#[derive(Debug)]
pub(crate) struct OutboundLinks {
    config: ControlConfig,
    handshaker: Arc<Handshaker>,
    events: mpsc::Sender<LinkEvent>,
    links: Mutex<BTreeMap<Name, LinkTask>>,
}

/// The task that keeps a link to a member connected.
#[derive(Debug)]
struct LinkTask {
    task: AbortHandle,
    /// The link while it is up.
    link: watch::Receiver<Option<Arc<OutboundLink>>>,
}

impl OutboundLinks {
    pub(crate) fn new(
        config: ControlConfig,
        handshaker: Arc<Handshaker>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Self {
        Self { config, handshaker, events, links: Mutex::default() }
    }

    /// Starts a task that keeps a link to the member connected until [`Self::remove`].
    pub(crate) fn add(self: &Arc<Self>, member: Member) {
        let (state, link) = watch::channel(None);
        let name = member.name.clone();
        let task = tokio::spawn(Arc::clone(self).maintain(member, state)).abort_handle();
        let previous = self.links().insert(name, LinkTask { task, link });
        if let Some(previous) = previous {
            previous.task.abort();
        }
    }

    /// Closes the link to a member.
    pub(crate) fn remove(&self, name: &Name) {
        if let Some(removed) = self.links().remove(name) {
            removed.task.abort();
        }
    }

    pub(crate) fn close_all(&self) {
        for closed in std::mem::take(&mut *self.links()).into_values() {
            closed.task.abort();
        }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<Name, LinkTask>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, to: &Name, message: Bytes) -> Result<(), SendError> {
        check_length(&message)?;
        let link = self.links().get(to).and_then(|entry| entry.link.borrow().clone());
        let sent = link.ok_or(SendError::Down)?.send(message, &self.config);
        self.count(sent)
    }

    /// Queues a message on every link that is up. Returns the number of links that accepted it.
    pub(crate) fn broadcast(&self, message: &Bytes) -> Result<usize, SendError> {
        check_length(message)?;
        let links: Vec<_> = self.links().values().filter_map(|entry| entry.link.borrow().clone()).collect();
        let sent = |link: &Arc<OutboundLink>| self.count(link.send(message.clone(), &self.config)).is_ok();
        Ok(links.iter().filter(|link| sent(link)).count())
    }

    fn count(&self, sent: Result<(), SendError>) -> Result<(), SendError> {
        match sent {
            Ok(()) => increment(&self.handshaker.counters.messages_out),
            Err(SendError::Overflow) => increment(&self.handshaker.counters.control_overflows),
            Err(_) => {}
        }
        sent
    }

    /// Connects, runs the link, and reconnects with backoff, until the task is aborted.
    async fn maintain(self: Arc<Self>, member: Member, state: watch::Sender<Option<Arc<OutboundLink>>>) {
        let mut attempt = 0;
        loop {
            match self.handshaker.connect(&member, LinkKind::Control).await {
                Ok(stream) => {
                    attempt = 0;
                    let end = self.run_link(stream, &member, &state).await;
                    tracing::debug!(name = %member.name, reason = %end, "control link: closed");
                    if matches!(end, LinkEnd::SecretReplaced) {
                        // The member is up, so there is no reason to wait.
                        continue;
                    }
                }
                Err(error) => tracing::debug!(name = %member.name, %error, "control link: connect failed"),
            }
            let mut jitter = [0];
            // If this fails, the delay has no jitter.
            let _ = SystemRandom::new().fill(&mut jitter);
            let ControlConfig { retry_min, retry_max, .. } = self.config;
            sleep(retry_delay(attempt, retry_min, retry_max, jitter[0])).await;
            attempt += 1;
        }
    }

    /// Sends queued messages until the link breaks, its queue overflows, or this member sends with another secret.
    async fn run_link(
        &self,
        stream: LinkStream,
        member: &Member,
        state: &watch::Sender<Option<Arc<OutboundLink>>>,
    ) -> LinkEnd {
        let (queue, mut queued) = mpsc::channel(self.config.queue_max);
        let (open, overflow) = (AtomicBool::new(false), Notify::new());
        let link = Arc::new(OutboundLink { queue, queued_bytes: AtomicUsize::new(0), open, overflow });
        let id = next_link_id();
        let up = LinkEvent::OutboundUp { id, peer: member.id(), link: Arc::clone(&link) };
        let _link = GaugeGuard::new(&self.handshaker.counters, |counters| &counters.control_links);
        let secret = stream.secret().clone();
        state.send_replace(Some(Arc::clone(&link)));
        // The wait for the caller must not keep a link with a replaced secret up.
        tokio::select! {
            // An error means that the receiver was dropped; the link is of no use then, but harmless.
            _ = self.events.send(up) => {}
            () = self.handshaker.keyring.replaced(&secret) => {
                state.send_replace(None);
                return LinkEnd::SecretReplaced;
            }
        }
        let (mut read, mut write) = tokio::io::split(stream);
        let reader = async {
            loop {
                if !read_message(&mut read, self.config.idle_timeout).await?.is_empty() {
                    return Err(io::Error::other("unexpected message from the receiving side"));
                }
            }
        };
        let writer = async {
            loop {
                let message = timeout(self.config.keepalive_interval, queued.recv())
                    .await
                    .ok()
                    .flatten()
                    .unwrap_or_default();
                self.write(&mut write, &message, &link).await?;
                while let Ok(message) = queued.try_recv() {
                    self.write(&mut write, &message, &link).await?;
                }
                timeout(self.config.idle_timeout, write.flush()).await??;
            }
        };
        // A secret that is replaced and removed by one reload also breaks the stream. `biased` reports it as replaced, so that
        // the link is reconnected without a delay.
        let end = tokio::select! {
            biased;
            () = self.handshaker.keyring.replaced(&secret) => LinkEnd::SecretReplaced,
            result = reader => LinkEnd::from_io(result),
            result = writer => LinkEnd::from_io(result),
            () = link.overflow.notified() => io::Error::other("the queue is full").into(),
        };
        // The connection is closed before the caller can take the event.
        drop((read, write));
        link.open.store(false, Ordering::Release);
        state.send_replace(None);
        let _ = self.events.send(LinkEvent::Down { id }).await;
        end
    }

    async fn write(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        message: &Bytes,
        link: &OutboundLink,
    ) -> io::Result<()> {
        timeout(self.config.idle_timeout, write_message(to, message)).await??;
        link.queued_bytes.fetch_sub(message.len(), Ordering::Relaxed);
        add(&self.handshaker.counters.message_bytes_out, message.len());
        Ok(())
    }
}

/// The members whose joining has been reported, each with the number of its joining.
pub(crate) type MemberTable = Arc<BTreeMap<PeerId, u64>>;

/// The inbound links of this member, one from each other member.
#[derive(Debug)]
pub(crate) struct InboundLinks {
    config: ControlConfig,
    counters: Arc<Counters>,
    table: watch::Receiver<MemberTable>,
    events: mpsc::Sender<LinkEvent>,
    /// The id of the newest link from each peer that has one.
    newest: watch::Sender<BTreeMap<PeerId, u64>>,
}

impl InboundLinks {
    pub(crate) fn new(
        config: ControlConfig,
        counters: Arc<Counters>,
        table: watch::Receiver<MemberTable>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Self {
        Self { config, counters, table, events, newest: watch::Sender::default() }
    }

    /// Returns an id for a link, which replaces the earlier link from the peer.
    fn register(&self, peer: &PeerId) -> u64 {
        let mut id = 0;
        self.newest.send_modify(|newest| {
            // Within the lock, so that the newest link has the highest id.
            id = next_link_id();
            newest.insert(peer.clone(), id);
        });
        id
    }

    fn unregister(&self, peer: &PeerId, id: u64) {
        self.newest.send_if_modified(|newest| {
            let is_newest = newest.get(peer) == Some(&id);
            if is_newest {
                newest.remove(peer);
            }
            is_newest
        });
    }

    /// Receives messages until the link breaks, its secret is no longer accepted, the peer has left, or a newer link from it
    /// replaces this one.
    pub(crate) async fn receive<S>(&self, stream: KeyedStream<S>, peer: PeerId)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut table = self.table.clone();
        // The link is not read while the caller takes no events, so the reader alone would notice a revocation too late.
        let revoked = stream.revoked();
        tokio::pin!(revoked);
        // The peer may learn about this member before this member learns about the peer.
        let known = timeout(MEMBERSHIP_TIMEOUT, table.wait_for(|table| table.contains_key(&peer)));
        let epoch = tokio::select! {
            biased;
            () = &mut revoked => return,
            known = known => match known {
                Ok(Ok(table)) => table.get(&peer).copied(),
                Ok(Err(_)) | Err(_) => None,
            },
        };
        let Some(epoch) = epoch else {
            increment(&self.counters.links_refused);
            tracing::debug!(name = %peer.name, "control link: refused, the peer is not a member");
            return;
        };
        let _link = GaugeGuard::new(&self.counters, |counters| &counters.control_links);
        let id = self.register(&peer);
        self.run(stream, (id, &peer, epoch), revoked).await;
        self.unregister(&peer, id);
    }

    /// Receives messages on a link with this id.
    async fn run<S>(
        &self,
        stream: KeyedStream<S>,
        (id, peer, epoch): (u64, &PeerId, u64),
        revoked: impl Future<Output = ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::pin!(revoked);
        let (mut table, mut newest) = (self.table.clone(), self.newest.subscribe());
        // The peer may have opened the newer link before this one, and closed it since. If this link stayed open, the peer would
        // go on to use it, while its messages are ignored. Once this link is closed, the peer opens another one.
        let replaced = newest.wait_for(|newest| newest.get(peer) != Some(&id));
        tokio::pin!(replaced);
        tokio::select! {
            sent = self.events.send(LinkEvent::InboundUp { id, peer: peer.clone(), epoch }) => {
                if sent.is_err() {
                    return;
                }
            }
            () = &mut revoked => return,
            _ = &mut replaced => {
                tracing::debug!(name = %peer.name, error = REPLACED, "control link: closed");
                return;
            }
        }
        let (mut read, mut write) = tokio::io::split(stream);
        let reader = async {
            loop {
                let message = read_message(&mut read, self.config.idle_timeout).await?;
                if message.is_empty() {
                    continue;
                }
                increment(&self.counters.messages_in);
                add(&self.counters.message_bytes_in, message.len());
                let sent = self.events.send(LinkEvent::Message { id, message }).await;
                sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
        };
        let keepalives = async {
            loop {
                write_message(&mut write, &Bytes::new()).await?;
                timeout(self.config.idle_timeout, write.flush()).await??;
                sleep(self.config.keepalive_interval).await;
            }
        };
        let result: io::Result<()> = tokio::select! {
            result = reader => result,
            result = keepalives => result,
            () = revoked => Err(io::ErrorKind::ConnectionAborted.into()),
            // The peer has left, or the network was dropped.
            _ = table.wait_for(|table| table.get(peer) != Some(&epoch)) => Ok(()),
            _ = replaced => Err(io::Error::other(REPLACED)),
        };
        if let Err(error) = result {
            tracing::debug!(name = %peer.name, %error, "control link: closed");
        }
        // The connection is closed before the caller can take the event.
        drop((read, write));
        let _ = self.events.send(LinkEvent::Down { id }).await;
    }
}

fn check_length(message: &Bytes) -> Result<(), SendError> {
    let valid = (1..=MESSAGE_BYTES_MAX).contains(&message.len());
    if valid { Ok(()) } else { Err(SendError::Length(message.len())) }
}

async fn write_message(to: &mut (impl AsyncWrite + Unpin), message: &Bytes) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&length.to_be_bytes()).await?;
    to.write_all(message).await
}

/// Reads the next message; a keepalive is an empty message.
///
/// # Errors
/// If the length or the rest of the message takes longer than `idle_timeout`, or the message is too long.
async fn read_message(from: &mut (impl AsyncRead + Unpin), idle_timeout: Duration) -> io::Result<Bytes> {
    let length = timeout(idle_timeout, from.read_u32()).await??;
    let length = usize::try_from(length).ok().filter(|&length| length <= MESSAGE_BYTES_MAX);
    let length =
        length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "control message too long"))?;
    let mut message = vec![0; length];
    timeout(idle_timeout, from.read_exact(&mut message)).await??;
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{Event, Events};
    use crate::keyring::Keyring;
    use crate::secret::ClusterSecret;
    use larder_testkit::eventually_async;

    const OLD: ClusterSecret = ClusterSecret::new([1; 32]);
    const NEW: ClusterSecret = ClusterSecret::new([2; 32]);

    /// Removes the secret of a link whose caller takes only `events_taken` events. Returns when the connection is closed.
    async fn revoke_with_events_untaken(events_taken: usize) {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let peer = PeerId { name: "b".parse().expect("a name"), incarnation: 1 };
        let (sender, mut events) = mpsc::channel(1);
        let (_table, table) = watch::channel(Arc::new(BTreeMap::from([(peer.clone(), 1)])));
        let filler = LinkEvent::Down { id: next_link_id() };
        sender.send(filler).await.expect("room for an event");
        let inbound = InboundLinks::new(ControlConfig::default(), Arc::clone(&counters), table, sender);
        let (mut far, near) = tokio::io::duplex(64);
        let link = keyring.bind(near, OLD);
        let receiving = tokio::spawn(async move { inbound.receive(link, peer).await });
        far.write_all(&[0, 0, 0, 1, 7, 0, 0, 0, 1, 8]).await.expect("two messages");
        for _ in 0..events_taken {
            events.recv().await.expect("an event");
        }
        let up = || (counters.read().control_links == 1).then_some(());
        eventually_async("the link is up", up).await;
        assert!(keyring.set(NEW.into()));
        let mut rest = Vec::new();
        timeout(Duration::from_secs(30), far.read_to_end(&mut rest))
            .await
            .expect("in time")
            .expect("the end");
        assert_eq!(counters.read().links_revoked, 1);
        receiving.abort();
    }

    /// A member has restarted. A peer's connection to its predecessor, which the peer has already closed, and the peer's next
    /// connection both wait until the peer is known here.
    async fn receive_two_links(is_closed_first: bool) {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let address = "127.0.0.1:1".parse().expect("an address");
        let member = Member { name: "b".parse().expect("a name"), incarnation: 1, address };
        let peer = member.id();
        let (sender, receiver) = mpsc::channel(100);
        let mut events = Events::new(receiver);
        let (table, known) = watch::channel(MemberTable::default());
        let links = Arc::new(InboundLinks::new(ControlConfig::default(), counters, known, sender.clone()));
        let receive = move |stream| {
            let (links, peer) = (Arc::clone(&links), peer.clone());
            tokio::spawn(async move { links.receive(stream, peer).await })
        };
        let open = move || {
            let (far, near) = tokio::io::duplex(64);
            (far, keyring.bind(near, OLD))
        };
        let ((closed, closed_near), (mut far, near)) = (open(), open());
        drop(closed);
        let mut streams = vec![closed_near, near];
        if !is_closed_first {
            streams.reverse();
        }
        for stream in streams {
            receive(stream);
            // Each task waits for the table before the next one begins. The runtime wakes them in any order.
            tokio::task::yield_now().await;
        }
        let joined = LinkEvent::Membership(Change::Joined(member.clone()), 1);
        sender.send(joined).await.expect("room for an event");
        table.send_replace(Arc::new(BTreeMap::from([(member.id(), 1)])));
        // The peer opens another link whenever this one is closed, and sends on the current one.
        let sending = tokio::spawn(async move {
            loop {
                while far.write_all(&[0, 0, 0, 1, 7]).await.is_ok() {
                    sleep(Duration::from_millis(10)).await;
                }
                let (next_far, next_near) = open();
                receive(next_near);
                far = next_far;
            }
        });
        let message = async { while !matches!(events.next().await, Some(Event::Message(..))) {} };
        timeout(Duration::from_secs(30), message).await.expect("a message arrives");
        sending.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn messages_arrive_after_a_restart_in_whichever_order_links_come() {
        for is_closed_first in [true, false].repeat(10) {
            receive_two_links(is_closed_first).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_is_closed_with_its_secret_even_if_no_events_are_taken() {
        revoke_with_events_untaken(0).await;
        revoke_with_events_untaken(1).await;
        revoke_with_events_untaken(2).await;
    }
}
