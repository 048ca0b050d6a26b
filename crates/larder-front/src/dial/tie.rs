//! Connections to nodes that announce a client end with the client's: nobody else may use them.
//!
//! The engine keeps idle connections by what they announce, so that the client's next request finds its own. What is left when
//! the client goes would wait there for nobody. A second descriptor of each socket is held for as long as the engine holds the
//! first, to shut it down with; the engine then drops it.

use pingora_core::upstreams::peer::{Tracer, Tracing};
use socket2::SockRef;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A connection to a node. The engine tells it that it has let go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tie(Arc<Mutex<Option<OwnedFd>>>);

impl Tie {
    pub(super) fn tracer(&self) -> Tracer {
        Tracer(Box::new(self.clone()))
    }

    /// Notes the socket. Where there is no descriptor left the connection lasts until it has been idle for too long.
    fn hold(&self, socket: &impl AsFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = socket.as_fd().try_clone_to_owned().ok();
    }
}

impl Tracing for Tie {
    fn on_connected(&self) {}

    fn on_disconnected(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn boxed_clone(&self) -> Box<dyn Tracing> {
        Box::new(self.clone())
    }
}

/// Those of a client; cut when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Ties(Mutex<Vec<Weak<Mutex<Option<OwnedFd>>>>>);

impl Ties {
    pub(super) fn add(&self, tie: &Tie, socket: &impl AsFd) {
        tie.hold(socket);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|tie| tie.strong_count() > 0);
        all.push(Arc::downgrade(&tie.0));
    }
}

impl Drop for Ties {
    fn drop(&mut self) {
        let all = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for tie in all.iter().filter_map(Weak::upgrade) {
            if let Some(socket) = &*tie.lock().unwrap_or_else(PoisonError::into_inner) {
                // One that is closed already needs no more.
                let _ = SockRef::from(socket).shutdown(Shutdown::Both);
            }
        }
    }
}
