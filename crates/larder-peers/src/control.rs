//! Control links: messages between members, in order, over one connection for each ordered pair.
//!
//! A link carries messages from the side that has made it. What is lost is lost with the link: when it is made anew, both
//! sides are told and start afresh. A queue that runs full drops its link, since news in the wrong order, or half of it,
//! is worse than to be told all again. Nothing can be sent on a link before its user has been told that it is up.
//!
//! A message follows its length in four bytes; the length 0 is a sign of life, from either side.

use crate::config::ControlConfig;
use crate::connect::{Ends, Stream};
use crate::counters::{Counters, Held, add, rise};
use crate::hello::Kind;
use crate::keyring::Keyed;
use crate::member::{Change, Member, Peer};
use crate::name::Name;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use bytes::Bytes;
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
/// How long a link may wait to be used before membership has heard of the one that has made it.
const UNKNOWN_TIMEOUT: Duration = Duration::from_secs(5);

type Gauge = fn(&Counters) -> &AtomicU64;

/// Why a message is not sent. None of it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no link, or the user has not been told yet that it is up. All is told again when it is.
    #[error("no link")]
    Down,
    /// The queue was full: the link is dropped and made anew.
    #[error("too much waits for this member")]
    Overflow,
    /// A message has 1 byte to 64 KiB. The caller's fault.
    #[error("a message has 1 to {MESSAGE_BYTES_MAX} bytes, this has {0}")]
    Length(usize),
}

/// What links tell the network's user.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A link of ours is up.
    OutUp { id: u64, peer: Peer, link: Arc<Outgoing> },
    /// A link of another one is up.
    InUp { id: u64, peer: Peer, epoch: u64 },
    /// A message came on the link `id`.
    Message { id: u64, message: Bytes },
    /// The link `id` is down.
    Down { id: u64 },
    /// Membership has changed; a number for it, never used twice.
    Changed(Change, u64),
}

/// A number for each link, never used twice.
pub(crate) fn link_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A link of ours that is up.
#[derive(Debug)]
pub(crate) struct Outgoing {
    queue: mpsc::Sender<Bytes>,
    queued_bytes: AtomicUsize,
    /// The user has been told.
    open: AtomicBool,
    overflow: Notify,
}

impl Outgoing {
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
            // Nothing more on this link: what comes next would come out of order.
            self.open.store(false, Ordering::Release);
            self.overflow.notify_one();
        }
        queued
    }
}

/// The reason for which a link of ours ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    /// This member sends with another secret.
    #[error("made anew with another secret")]
    Replaced,
    #[error("{0}")]
    Broken(#[from] io::Error),
}

impl Ended {
    /// The reason, from the result of reading or writing.
    fn of(ended: io::Result<()>) -> Self {
        Self::Broken(ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
    }
}

/// Links of ours, one for each member.
#[derive(Debug)]
pub(crate) struct Outbound {
    config: ControlConfig,
    ends: Arc<Ends>,
    heard: mpsc::Sender<Heard>,
    links: Mutex<BTreeMap<Name, Kept>>,
}

/// What makes the link, and the link while it is up.
type Kept = (AbortHandle, watch::Receiver<Option<Arc<Outgoing>>>);

impl Outbound {
    pub(crate) fn new(config: ControlConfig, ends: Arc<Ends>, heard: mpsc::Sender<Heard>) -> Self {
        Self { config, ends, heard, links: Mutex::default() }
    }

    /// Makes a link to a member, again and again, until it has left.
    pub(crate) fn joined(self: &Arc<Self>, member: Member) {
        let (state, stated) = watch::channel(None);
        let name = member.name.clone();
        let task = tokio::spawn(Arc::clone(self).keep(member, state)).abort_handle();
        let before = self.links().insert(name, (task, stated));
        if let Some((before, _)) = before {
            before.abort();
        }
    }

    pub(crate) fn left(&self, name: &Name) {
        if let Some((task, _)) = self.links().remove(name) {
            task.abort();
        }
    }

    /// Ends all of them.
    pub(crate) fn end(&self) {
        for (task, _) in std::mem::take(&mut *self.links()).into_values() {
            task.abort();
        }
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<Name, Kept>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, to: &Name, message: Bytes) -> Result<(), SendError> {
        check(&message)?;
        let link = self.links().get(to).and_then(|(_, link)| link.borrow().clone());
        let sent = link.ok_or(SendError::Down)?.send(message, &self.config);
        self.count(sent)
    }

    /// Sends to every member whose link is up. How many those are.
    pub(crate) fn broadcast(&self, message: &Bytes) -> Result<usize, SendError> {
        check(message)?;
        let links: Vec<_> = self.links().values().filter_map(|(_, link)| link.borrow().clone()).collect();
        let sent = |link: &Arc<Outgoing>| self.count(link.send(message.clone(), &self.config)).is_ok();
        Ok(links.iter().filter(|link| sent(link)).count())
    }

    fn count(&self, sent: Result<(), SendError>) -> Result<(), SendError> {
        match sent {
            Ok(()) => rise(&self.ends.counters.messages_out),
            Err(SendError::Overflow) => rise(&self.ends.counters.control_overflows),
            Err(_) => {}
        }
        sent
    }

    async fn keep(self: Arc<Self>, member: Member, state: watch::Sender<Option<Arc<Outgoing>>>) {
        let mut attempt = 0;
        loop {
            match self.ends.connect(&member, Kind::Control).await {
                Ok(stream) => {
                    attempt = 0;
                    let ended = self.carry(stream, &member, &state).await;
                    tracing::debug!(name = %member.name, error = %ended, "a control link ended");
                    if matches!(ended, Ended::Replaced) {
                        // The member is well, so there is no reason for a pause without a link.
                        continue;
                    }
                }
                Err(error) => tracing::debug!(name = %member.name, %error, "no control link"),
            }
            let mut chance = [0];
            // Without randomness, all members try at the same times.
            let _ = SystemRandom::new().fill(&mut chance);
            sleep(self.config.retry(attempt, chance[0])).await;
            attempt += 1;
        }
    }

    /// Carries messages until the link breaks, its queue overflows, or this member sends with another secret.
    async fn carry(
        &self,
        stream: Stream,
        member: &Member,
        state: &watch::Sender<Option<Arc<Outgoing>>>,
    ) -> Ended {
        let (queue, mut queued) = mpsc::channel(self.config.queue_max);
        let (open, overflow) = (AtomicBool::new(false), Notify::new());
        let link = Arc::new(Outgoing { queue, queued_bytes: AtomicUsize::new(0), open, overflow });
        let id = link_id();
        let told = Heard::OutUp { id, peer: member.peer(), link: Arc::clone(&link) };
        let _link = Held::new(&self.ends.counters, (|counters| &counters.control_links) as Gauge);
        let secret = stream.secret().clone();
        state.send_replace(Some(Arc::clone(&link)));
        // A user that takes no events does not keep the link of a replaced secret up.
        tokio::select! {
            // Fails only when nobody listens any more.
            _ = self.heard.send(told) => {}
            () = self.ends.keyring.replaced(&secret) => {
                state.send_replace(None);
                return Ended::Replaced;
            }
        }
        let (mut read, mut write) = tokio::io::split(stream);
        let reading = async {
            loop {
                if !receive(&mut read, self.config.silence).await?.is_empty() {
                    return Err(io::Error::other("a message came the wrong way"));
                }
            }
        };
        let writing = async {
            loop {
                let message =
                    timeout(self.config.sign, queued.recv()).await.ok().flatten().unwrap_or_default();
                self.write(&mut write, &message, &link).await?;
                while let Ok(message) = queued.try_recv() {
                    self.write(&mut write, &message, &link).await?;
                }
                timeout(self.config.silence, write.flush()).await??;
            }
        };
        // A secret that is replaced and removed at one reload breaks the stream too: the first branch makes the link anew at once.
        let ended = tokio::select! {
            biased;
            () = self.ends.keyring.replaced(&secret) => Ended::Replaced,
            ended = reading => Ended::of(ended),
            ended = writing => Ended::of(ended),
            () = link.overflow.notified() => io::Error::other("too much waits for this member").into(),
        };
        // The connection ends before the user takes the event.
        drop((read, write));
        link.open.store(false, Ordering::Release);
        state.send_replace(None);
        let _ = self.heard.send(Heard::Down { id }).await;
        ended
    }

    async fn write(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
        message: &Bytes,
        link: &Outgoing,
    ) -> io::Result<()> {
        timeout(self.config.silence, send(to, message)).await??;
        link.queued_bytes.fetch_sub(message.len(), Ordering::Relaxed);
        add(&self.ends.counters.message_bytes_out, message.len());
        Ok(())
    }
}

/// Members as the network's user has been told of them, each with a number for its coming.
pub(crate) type Table = Arc<BTreeMap<Peer, u64>>;

/// Links of others.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) config: ControlConfig,
    pub(crate) counters: Arc<Counters>,
    pub(crate) table: watch::Receiver<Table>,
    pub(crate) heard: mpsc::Sender<Heard>,
}

impl Inbound {
    /// Receives messages until the link breaks, its secret is no longer accepted, or the member has left.
    pub(crate) async fn receive<S>(&self, stream: Keyed<S>, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut table = self.table.clone();
        // Nothing is read while a user takes no events, so the link does not wait for its reader to fail.
        let revoked = stream.revoked();
        tokio::pin!(revoked);
        // The other side may know of this one before this one knows of it.
        let known = timeout(UNKNOWN_TIMEOUT, table.wait_for(|table| table.contains_key(&peer)));
        let epoch = tokio::select! {
            known = known => match known {
                Ok(Ok(table)) => table.get(&peer).copied(),
                Ok(Err(_)) | Err(_) => None,
            },
            () = &mut revoked => return,
        };
        let Some(epoch) = epoch else {
            rise(&self.counters.links_refused);
            tracing::debug!(name = %peer.name, "a control link of one who is no member");
            return;
        };
        let _link = Held::new(&self.counters, (|counters| &counters.control_links) as Gauge);
        let id = link_id();
        tokio::select! {
            told = self.heard.send(Heard::InUp { id, peer: peer.clone(), epoch }) => {
                if told.is_err() {
                    return;
                }
            }
            () = &mut revoked => return,
        }
        let (mut read, mut write) = tokio::io::split(stream);
        let reading = async {
            loop {
                let message = receive(&mut read, self.config.silence).await?;
                if message.is_empty() {
                    continue;
                }
                rise(&self.counters.messages_in);
                add(&self.counters.message_bytes_in, message.len());
                let told = self.heard.send(Heard::Message { id, message }).await;
                told.map_err(|_| io::ErrorKind::BrokenPipe)?;
            }
        };
        let signing = async {
            loop {
                send(&mut write, &Bytes::new()).await?;
                timeout(self.config.silence, write.flush()).await??;
                sleep(self.config.sign).await;
            }
        };
        let ended: io::Result<()> = tokio::select! {
            ended = reading => ended,
            ended = signing => ended,
            () = revoked => Err(io::ErrorKind::ConnectionAborted.into()),
            // An error says that the network was dropped.
            _ = table.wait_for(|table| table.get(&peer) != Some(&epoch)) => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(name = %peer.name, %error, "a control link ended");
        }
        // The connection ends before the user takes the event.
        drop((read, write));
        let _ = self.heard.send(Heard::Down { id }).await;
    }
}

fn check(message: &Bytes) -> Result<(), SendError> {
    let sound = (1..=MESSAGE_BYTES_MAX).contains(&message.len());
    if sound { Ok(()) } else { Err(SendError::Length(message.len())) }
}

async fn send(to: &mut (impl AsyncWrite + Unpin), message: &Bytes) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    to.write_all(&length.to_be_bytes()).await?;
    to.write_all(message).await
}

/// The next message, or a sign of life, which is empty. Neither its head nor its rest may take longer than `silence`.
async fn receive(from: &mut (impl AsyncRead + Unpin), silence: Duration) -> io::Result<Bytes> {
    let length = timeout(silence, from.read_u32()).await??;
    let length = usize::try_from(length).ok().filter(|&length| length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message is too long"))?;
    let mut message = vec![0; length];
    timeout(silence, from.read_exact(&mut message)).await??;
    Ok(message.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyring::Keyring;
    use crate::secret::ClusterSecret;
    use larder_testkit::eventually_async;

    const OLD: ClusterSecret = ClusterSecret::new([1; 32]);
    const NEW: ClusterSecret = ClusterSecret::new([2; 32]);

    /// Removes the secret of a link whose user takes no events. Returns when the connection has ended.
    async fn revoked_unheard(events_taken: usize) {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let peer = Peer { name: "b".parse().expect("a name"), incarnation: 1 };
        let (heard, mut events) = mpsc::channel(1);
        let (_table, told) = watch::channel(Arc::new(BTreeMap::from([(peer.clone(), 1)])));
        let fill = Heard::Down { id: link_id() };
        heard.send(fill).await.expect("room for an event");
        let inbound =
            Inbound { config: ControlConfig::default(), counters: Arc::clone(&counters), table: told, heard };
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

    #[tokio::test(start_paused = true)]
    async fn a_link_ends_with_its_secret_although_its_user_takes_no_events() {
        revoked_unheard(0).await;
        revoked_unheard(1).await;
        revoked_unheard(2).await;
    }
}
