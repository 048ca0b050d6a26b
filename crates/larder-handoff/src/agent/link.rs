//! The connection to one switch: passes its messages to the core and the core's messages to it.

use crate::channel::Timing;
use crate::channel::identity::PublicKey;
use crate::channel::message::{Message as _, MessageError, ToNode};
use crate::channel::transport::{Receiver, Sender, TransportError};
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Maximum number of messages that wait for one switch. A switch that reads more slowly is disconnected, and gets the
/// full state when it reconnects.
const QUEUE_MAX: usize = 1_024;

/// A message from a link to the core.
#[derive(Debug)]
pub(super) struct LinkInput {
    pub(super) key: PublicKey,
    /// Number of the link. The switch may have a newer link by the time the core reads this.
    pub(super) number: u64,
    /// `None` if the link has ended.
    pub(super) message: Option<ToNode>,
}

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("invalid message from the switch: {0}")]
    Message(#[from] MessageError),
    #[error("unexpected second hello from the switch")]
    UnexpectedHello,
}

/// The connection to a switch. Closed when dropped.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) number: u64,
    pub(super) address: SocketAddr,
    queue: mpsc::Sender<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Link {
    /// Starts to read from and write to a switch.
    pub(super) fn new(
        address: SocketAddr,
        sender: Sender,
        receiver: Receiver,
        timing: Timing,
        inputs: InputSender,
    ) -> Self {
        let number = inputs.number;
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let transfer = async move {
            let ended = tokio::select! {
                ended = inputs.read(receiver, timing) => ended,
                ended = write(sender, queued) => ended,
            };
            let Err(error) = ended;
            tracing::info!(%address, %error, "switch: disconnected");
            inputs.send(None).await;
        };
        Self { number, address, queue, task: tokio::spawn(transfer) }
    }

    /// Writes the waiting messages, then closes the link.
    pub(super) async fn finish(mut self) {
        // The writer ends when its queue is closed.
        self.queue = mpsc::channel(1).0;
        // An error means that the task has panicked, so it has ended too.
        let _ = (&mut self.task).await;
    }

    /// Queues a message. Returns false if the queue is full.
    pub(super) fn send(&self, message: Vec<u8>) -> bool {
        // If the queue is closed, the link has ended, and the core is about to learn it.
        !matches!(self.queue.try_send(message), Err(mpsc::error::TrySendError::Full(_)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends a link's inputs to the core.
pub(super) struct InputSender {
    pub(super) key: PublicKey,
    pub(super) number: u64,
    pub(super) core: mpsc::Sender<LinkInput>,
}

impl InputSender {
    async fn send(&self, message: Option<ToNode>) {
        // An error means that the core has ended; it then drops this link.
        let _ = self.core.send(LinkInput { key: self.key, number: self.number, message }).await;
    }

    async fn read(&self, mut receiver: Receiver, timing: Timing) -> Result<Infallible, LinkError> {
        loop {
            let bytes = receiver.receive(timing.silence).await?;
            match ToNode::decode(&bytes)? {
                ToNode::Hello(_) => return Err(LinkError::UnexpectedHello),
                message => self.send(Some(message)).await,
            }
        }
    }
}

async fn write(mut sender: Sender, mut queued: mpsc::Receiver<Vec<u8>>) -> Result<Infallible, LinkError> {
    while let Some(message) = queued.recv().await {
        sender.send(&message).await?;
    }
    Err(TransportError::Closed.into())
}
