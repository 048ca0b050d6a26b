//! The connection to one front-end: what it says goes to the core, what the core says goes to it.

use crate::channel::Timing;
use crate::channel::identity::PublicKey;
use crate::channel::message::{Message as _, MessageError, ToNode};
use crate::channel::transport::{Receiver, Sender, TransportError};
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Messages that wait for one front-end at most; one that takes them slower is cut, and told everything when it comes
/// back.
const QUEUE_MAX: usize = 1_024;

/// What a link tells the core.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) key: PublicKey,
    /// Which of the front-end's connections, since it may have a newer one by now.
    pub(super) number: u64,
    /// `None`: it is gone.
    pub(super) message: Option<ToNode>,
}

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("the front-end's message: {0}")]
    Message(#[from] MessageError),
    #[error("a second hello")]
    Order,
}

/// A front-end that is connected. Dropped, the connection is cut.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) number: u64,
    pub(super) address: SocketAddr,
    queue: mpsc::Sender<Vec<u8>>,
    task: JoinHandle<()>,
}

impl Link {
    /// Begins to talk to a front-end.
    pub(super) fn new(
        address: SocketAddr,
        sender: Sender,
        receiver: Receiver,
        timing: Timing,
        from: From,
    ) -> Self {
        let number = from.number;
        let (queue, queued) = mpsc::channel(QUEUE_MAX);
        let talk = async move {
            let ended = tokio::select! {
                ended = from.read(receiver, timing) => ended,
                ended = write(sender, queued) => ended,
            };
            let Err(error) = ended;
            tracing::info!(%address, %error, "switch: disconnected");
            from.tell(None).await;
        };
        Self { number, address, queue, task: tokio::spawn(talk) }
    }

    /// Ends the link once what waits has been written.
    pub(super) async fn finish(mut self) {
        // The writer ends with its queue.
        self.queue = mpsc::channel(1).0;
        // Fails only if the task has panicked, and then it is over too.
        let _ = (&mut self.task).await;
    }

    /// Whether there was room for a message.
    pub(super) fn send(&self, message: Vec<u8>) -> bool {
        // Closed: the link is over, and its end is on its way to the core.
        !matches!(self.queue.try_send(message), Err(mpsc::error::TrySendError::Full(_)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where a link's inputs come from and go to.
pub(super) struct From {
    pub(super) key: PublicKey,
    pub(super) number: u64,
    pub(super) core: mpsc::Sender<Input>,
}

impl From {
    async fn tell(&self, message: Option<ToNode>) {
        // The core is gone: so is this soon.
        let _ = self.core.send(Input { key: self.key, number: self.number, message }).await;
    }

    async fn read(&self, mut receiver: Receiver, timing: Timing) -> Result<Infallible, LinkError> {
        loop {
            let bytes = receiver.receive(timing.silence).await?;
            match ToNode::decode(&bytes)? {
                ToNode::Hello(_) => return Err(LinkError::Order),
                message => self.tell(Some(message)).await,
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
