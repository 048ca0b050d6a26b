//! Announcement of the node's shutdown: switches learn of it before the server stops accepting, so that they send no
//! further connections.

use super::core::Core;
use crate::channel::identity::PublicKey;
use crate::channel::message::FromNode;
use std::collections::BTreeSet;
use tokio::sync::oneshot;

/// Receives the number of switches that were told, once all of them have acknowledged.
pub(super) type ShutdownAck = oneshot::Sender<usize>;

/// Progress of the announcement.
#[derive(Debug)]
pub(super) struct ShutdownProgress {
    /// Switches that have not acknowledged yet.
    unacknowledged: BTreeSet<PublicKey>,
    announced: usize,
    /// `None` once all switches have acknowledged.
    acknowledged: Option<ShutdownAck>,
}

impl Core {
    /// Announces the shutdown to all switches.
    pub(super) fn announce_shutdown(&mut self, acknowledged: ShutdownAck) {
        self.shutdown = Some(ShutdownProgress {
            unacknowledged: BTreeSet::new(),
            announced: 0,
            acknowledged: Some(acknowledged),
        });
        let keys: Vec<PublicKey> = self.connected.keys().copied().collect();
        keys.into_iter().for_each(|key| self.announce_shutdown_to(key));
        self.complete_shutdown();
    }

    /// Announces the shutdown to one switch, if the node is shutting down.
    pub(super) fn announce_shutdown_to(&mut self, key: PublicKey) {
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.announced += 1;
        shutdown.unacknowledged.insert(key);
        self.send(key, &FromNode::ShuttingDown);
    }

    /// Notes that a switch has acknowledged the shutdown or has disconnected.
    pub(super) fn shutdown_acknowledged(&mut self, key: PublicKey) {
        if self.shutdown.as_mut().is_some_and(|shutdown| shutdown.unacknowledged.remove(&key)) {
            self.complete_shutdown();
        }
    }

    fn complete_shutdown(&mut self) {
        if let Some(shutdown) = self.shutdown.as_mut().filter(|shutdown| shutdown.unacknowledged.is_empty())
            && let Some(acknowledged) = shutdown.acknowledged.take()
        {
            // Fails if the caller no longer waits.
            let _ = acknowledged.send(shutdown.announced);
        }
    }
}
