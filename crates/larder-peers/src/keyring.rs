//! The current secrets of a member, which can change at run time, and the number of links that use each.

use crate::counters::{Counters, increment};
use crate::secret::{ClusterSecret, ClusterSecrets};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// The current secrets of a member.
#[derive(Debug)]
pub(crate) struct Keyring {
    secrets: watch::Sender<ClusterSecrets>,
    /// Number of open links by secret.
    links: Mutex<Vec<(ClusterSecret, u64)>>,
    counters: Arc<Counters>,
}

impl Keyring {
    pub(crate) fn new(secrets: ClusterSecrets, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { secrets: watch::Sender::new(secrets), links: Mutex::default(), counters })
    }

    /// The current secrets.
    pub(crate) fn current(&self) -> ClusterSecrets {
        self.secrets.borrow().clone()
    }

    /// A receiver of the current secrets and of each change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<ClusterSecrets> {
        self.secrets.subscribe()
    }

    /// Replaces the secrets. Returns whether they differ from those before.
    pub(crate) fn set(&self, secrets: ClusterSecrets) -> bool {
        let changed = self.secrets.send_if_modified(|current| {
            let changed = *current != secrets;
            *current = secrets;
            changed
        });
        self.update_gauge(&self.links());
        changed
    }

    /// Binds a link's stream to the secret that authenticated the link.
    pub(crate) fn bind<S>(self: &Arc<Self>, stream: S, secret: ClusterSecret) -> KeyedStream<S> {
        let mut links = self.links();
        match links.iter_mut().find(|(one, _)| *one == secret) {
            Some((_, count)) => *count += 1,
            None => links.push((secret.clone(), 1)),
        }
        self.update_gauge(&links);
        drop(links);
        let [read, write] = [(); 2].map(|()| Box::pin(self.revoked(&secret)) as Revocation);
        KeyedStream { stream, read, write, is_counted: false, keyring: Arc::clone(self), secret }
    }

    /// Waits until a secret is no longer accepted. Returns at once if the secret is not accepted now.
    fn revoked(&self, secret: &ClusterSecret) -> impl Future<Output = ()> + Send + Sync + use<> {
        let (mut secrets, secret) = (self.subscribe(), secret.clone());
        async move {
            if secrets.wait_for(|current| !current.contains(&secret)).await.is_err() {
                // Unreachable while a link exists, because the link keeps the sender alive.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this member sends with another secret.
    pub(crate) async fn replaced(&self, secret: &ClusterSecret) {
        // Cannot fail: `self` holds the sender.
        let _ = self.subscribe().wait_for(|current| current.first() != secret).await;
    }

    fn links(&self) -> MutexGuard<'_, Vec<(ClusterSecret, u64)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the gauge of links whose secret is not the first.
    fn update_gauge(&self, links: &[(ClusterSecret, u64)]) {
        let secrets = self.secrets.borrow();
        let others = links.iter().filter(|(secret, _)| secret != secrets.first()).map(|(_, count)| count);
        self.counters.links_other_secret.store(others.sum(), Relaxed);
    }
}

/// Completes when a link's secret is no longer accepted.
type Revocation = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// The stream of a link. Reads and writes fail once the link's secret is no longer accepted.
pub(crate) struct KeyedStream<S> {
    stream: S,
    /// Wakes the reader.
    read: Revocation,
    /// Wakes the writer. A link whose peer reads nothing may have no pending read.
    write: Revocation,
    /// Whether the link has been counted as revoked.
    is_counted: bool,
    keyring: Arc<Keyring>,
    secret: ClusterSecret,
}

impl<S: fmt::Debug> fmt::Debug for KeyedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S> KeyedStream<S> {
    /// Counts the link as revoked, once.
    fn count_revoked(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            increment(&self.keyring.counters.links_revoked);
            tracing::info!("peer link: closed, its cluster secret is no longer accepted");
        }
    }

    /// Waits until the link's secret is no longer accepted.
    pub(crate) fn revoked(&self) -> impl Future<Output = ()> + Send + Sync + use<S> {
        self.keyring.revoked(&self.secret)
    }

    /// Returns an error if the secret is no longer accepted, at this and all later calls.
    fn check(&mut self, cx: &mut Context<'_>, side: fn(&mut Self) -> &mut Revocation) -> io::Result<()> {
        if side(self).as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        self.count_revoked();
        *side(self) = Box::pin(std::future::ready(()));
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "secret revoked"))
    }

    /// The stream, to write to.
    fn writer(&mut self, cx: &mut Context<'_>) -> io::Result<Pin<&mut S>>
    where
        S: Unpin,
    {
        self.check(cx, |keyed| &mut keyed.write)?;
        Ok(Pin::new(&mut self.stream))
    }

    /// The secret that authenticated the link.
    pub(crate) const fn secret(&self) -> &ClusterSecret {
        &self.secret
    }
}

impl<S> Drop for KeyedStream<S> {
    fn drop(&mut self) {
        // The link can be dropped for another reason before its reader notices the revocation.
        if !self.keyring.secrets.borrow().contains(&self.secret) {
            self.count_revoked();
        }
        let mut links = self.keyring.links();
        if let Some((_, count)) = links.iter_mut().find(|(one, _)| *one == self.secret) {
            *count -= 1;
        }
        links.retain(|(_, count)| *count > 0);
        self.keyring.update_gauge(&links);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for KeyedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx, |keyed| &mut keyed.read)?;
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for KeyedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writer(cx)?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer(cx)?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer(cx)?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer(cx)?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const OLD: ClusterSecret = ClusterSecret::new([1; 32]);
    const NEW: ClusterSecret = ClusterSecret::new([2; 32]);

    #[tokio::test]
    async fn links_are_counted_by_secret_and_fail_after_its_removal() {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let (mut far, near) = duplex(64);
        let (mut old, new) = (keyring.bind(near, OLD), keyring.bind((), NEW));
        let others = || counters.read().links_other_secret;
        assert_eq!(others(), 1, "only the link with the other secret");
        assert!(keyring.set(ClusterSecrets::new(OLD, Some(NEW))));
        assert!(!keyring.set(ClusterSecrets::new(OLD, Some(NEW))), "nothing has changed");
        assert!(keyring.set(ClusterSecrets::new(NEW, Some(OLD))));
        keyring.replaced(&OLD).await;
        assert_eq!(others(), 1);
        far.write_all(b"said").await.expect("written");
        let mut heard = [0; 4];
        old.read_exact(&mut heard).await.expect("it is accepted");
        let (ended, ()) = tokio::join!(old.read(&mut heard), async {
            tokio::task::yield_now().await;
            assert!(keyring.set(NEW.into()));
        });
        assert_eq!(ended.expect_err("revoked").kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!((others(), counters.read().links_revoked), (1, 1));
        drop(old);
        assert_eq!(others(), 0);
        drop(new);
        assert!(keyring.links().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_only_writes_is_closed_with_its_secret() {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let (_far, near) = duplex(4);
        let mut link = keyring.bind(near, OLD);
        // The pipe takes 4 bytes and then blocks.
        let write = tokio::time::timeout(Duration::from_secs(30), link.write_all(b"more than four"));
        let (ended, ()) = tokio::join!(write, async {
            tokio::task::yield_now().await;
            assert!(keyring.set(NEW.into()));
        });
        assert_eq!(ended.expect("in time").expect_err("revoked").kind(), io::ErrorKind::ConnectionAborted);
        for again in [link.flush().await, link.shutdown().await, link.read_u8().await.map(drop)] {
            assert_eq!(again.expect_err("revoked").kind(), io::ErrorKind::ConnectionAborted);
        }
        assert_eq!(counters.read().links_revoked, 1);
    }

    #[tokio::test]
    async fn a_link_opened_while_its_secret_is_removed_is_closed() {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let (_far, near) = duplex(64);
        // The handshake used the old secret, and the link is bound after the reload.
        assert!(keyring.set(NEW.into()));
        let mut link = keyring.bind(near, OLD);
        link.revoked().await;
        for ended in [link.write_all(b"said").await, link.read_u8().await.map(drop)] {
            assert_eq!(ended.expect_err("revoked").kind(), io::ErrorKind::ConnectionAborted);
        }
        assert_eq!(counters.read().links_revoked, 1);
    }
}
