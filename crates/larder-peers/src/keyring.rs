//! The secrets of a running member, which can change, and the links that were made with each.

use crate::counters::{Counters, rise};
use crate::secret::{ClusterSecret, ClusterSecrets};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::{fmt, io};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;

/// The secrets of a running member.
#[derive(Debug)]
pub(crate) struct Keyring {
    secrets: watch::Sender<ClusterSecrets>,
    /// Links that are up, by the secret that they were made with.
    links: Mutex<Vec<(ClusterSecret, u64)>>,
    counters: Arc<Counters>,
}

impl Keyring {
    pub(crate) fn new(secrets: ClusterSecrets, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { secrets: watch::Sender::new(secrets), links: Mutex::default(), counters })
    }

    /// The secrets at this time.
    pub(crate) fn now(&self) -> ClusterSecrets {
        self.secrets.borrow().clone()
    }

    /// The secrets, and each change of them.
    pub(crate) fn watch(&self) -> watch::Receiver<ClusterSecrets> {
        self.secrets.subscribe()
    }

    /// Replaces the secrets. Returns whether they differ from those before.
    pub(crate) fn set(&self, secrets: ClusterSecrets) -> bool {
        let changed = self.secrets.send_if_modified(|now| {
            let changed = *now != secrets;
            *now = secrets;
            changed
        });
        self.count(&self.links());
        changed
    }

    /// Binds a link's stream to the secret that the link was made with.
    pub(crate) fn bind<S>(self: &Arc<Self>, stream: S, secret: ClusterSecret) -> Keyed<S> {
        let mut links = self.links();
        match links.iter_mut().find(|(one, _)| *one == secret) {
            Some((_, count)) => *count += 1,
            None => links.push((secret.clone(), 1)),
        }
        self.count(&links);
        drop(links);
        let (mut secrets, of) = (self.watch(), secret.clone());
        let revoked = async move {
            if secrets.wait_for(|now| !now.contains(&of)).await.is_err() {
                // The link keeps the sender alive, so there is no error.
                std::future::pending::<()>().await;
            }
        };
        Keyed { stream, revoked: Box::pin(revoked), is_counted: false, keyring: Arc::clone(self), secret }
    }

    /// Waits until this member sends with another secret.
    pub(crate) async fn replaced(&self, secret: &ClusterSecret) {
        // The sender lives as long as this reference: no error.
        let _ = self.watch().wait_for(|now| now.first() != secret).await;
    }

    fn links(&self) -> MutexGuard<'_, Vec<(ClusterSecret, u64)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, links: &[(ClusterSecret, u64)]) {
        let secrets = self.secrets.borrow();
        let others = links.iter().filter(|(secret, _)| secret != secrets.first()).map(|(_, count)| count);
        self.counters.links_other_secret.store(others.sum(), Relaxed);
    }
}

/// The stream of a link, which fails once the link's secret is no longer accepted.
pub(crate) struct Keyed<S> {
    stream: S,
    revoked: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    /// Whether the link is in the count of revoked links.
    is_counted: bool,
    keyring: Arc<Keyring>,
    secret: ClusterSecret,
}

impl<S: fmt::Debug> fmt::Debug for Keyed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl<S> Keyed<S> {
    /// Counts the link among the revoked links, once.
    fn count_revoked(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            rise(&self.keyring.counters.links_revoked);
            tracing::info!("link to a peer ended: its cluster secret is no longer accepted");
        }
    }

    /// The secret that the link was made with.
    pub(crate) const fn secret(&self) -> &ClusterSecret {
        &self.secret
    }
}

impl<S> Drop for Keyed<S> {
    fn drop(&mut self) {
        // A link can be given up for another reason before its reader sees that the secret has gone.
        if !self.keyring.secrets.borrow().contains(&self.secret) {
            self.count_revoked();
        }
        let mut links = self.keyring.links();
        if let Some((_, count)) = links.iter_mut().find(|(one, _)| *one == self.secret) {
            *count -= 1;
        }
        links.retain(|(_, count)| *count > 0);
        self.keyring.count(&links);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Keyed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.revoked.as_mut().poll(cx).is_ready() {
            this.count_revoked();
            // Polled again only by a reader that goes on after an error.
            this.revoked = Box::pin(std::future::pending());
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "secret revoked")));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Keyed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const OLD: ClusterSecret = ClusterSecret::new([1; 32]);
    const NEW: ClusterSecret = ClusterSecret::new([2; 32]);

    #[tokio::test]
    async fn links_are_counted_by_secret_and_fail_with_its_end() {
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(OLD.into(), Arc::clone(&counters));
        let (mut far, near) = duplex(64);
        let (mut old, new) = (keyring.bind(near, OLD), keyring.bind((), NEW));
        let others = || counters.read().links_other_secret;
        assert_eq!(others(), 1, "only the link of the other side's next secret");
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
}
