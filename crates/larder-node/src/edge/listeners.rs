//! The listening sockets of a node, without TLS, with TLS, or both.

use socket2::SockRef;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};

/// The kind of socket or handoff that a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionSource {
    /// A listener without TLS.
    Clear,
    /// A listener with TLS.
    Secure,
    /// A handoff from a switch or a peer. Such a connection carries no announcement of a balancer.
    Handoff,
}

/// Listening sockets.
#[derive(Debug)]
pub struct Listeners {
    all: Vec<(TcpListener, ConnectionSource)>,
    /// Index of the listener to poll first. It rotates, so that no listener starves another.
    next: usize,
}

impl Listeners {
    /// Creates the set from an optional listener without TLS and the listeners with TLS. There must be at least
    /// one.
    pub fn new(clear: Option<TcpListener>, secure: Vec<TcpListener>) -> Self {
        let secure = secure.into_iter().map(|listener| (listener, ConnectionSource::Secure));
        Self {
            all: clear
                .map(|listener| (listener, ConnectionSource::Clear))
                .into_iter()
                .chain(secure)
                .collect(),
            next: 0,
        }
    }

    /// Returns the port of the first listener with TLS.
    pub(super) fn secure_port(&self) -> Option<u16> {
        let (secure, _) = self.all.iter().find(|(_, source)| *source == ConnectionSource::Secure)?;
        Some(secure.local_addr().ok()?.port())
    }

    /// Duplicates the sockets for another runtime.
    pub(crate) fn try_clone(&self) -> io::Result<UnregisteredListeners> {
        let cloned = self.all.iter().map(|(listener, source)| {
            let socket = SockRef::from(listener).try_clone()?;
            Ok((socket.into(), *source))
        });
        Ok(UnregisteredListeners(cloned.collect::<io::Result<_>>()?))
    }

    pub(crate) async fn accept(&mut self) -> io::Result<(TcpStream, ConnectionSource)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, ConnectionSource)>> {
        for _ in 0..self.all.len() {
            let (listener, source) = &self.all[self.next];
            self.next = (self.next + 1) % self.all.len();
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                return Poll::Ready(accepted.map(|(stream, _)| (stream, *source)));
            }
        }
        Poll::Pending
    }
}

/// Listening sockets that are not registered with a runtime yet.
#[derive(Debug)]
pub(crate) struct UnregisteredListeners(Vec<(std::net::TcpListener, ConnectionSource)>);

impl UnregisteredListeners {
    /// Registers the sockets with the current runtime.
    pub(crate) fn register(self) -> io::Result<Listeners> {
        let registered =
            self.0.into_iter().map(|(listener, source)| Ok((TcpListener::from_std(listener)?, source)));
        Ok(Listeners { all: registered.collect::<io::Result<_>>()?, next: 0 })
    }
}

impl From<TcpListener> for Listeners {
    fn from(clear: TcpListener) -> Self {
        Self::new(Some(clear), Vec::new())
    }
}
