//! Membership of the cluster: SWIM (Das, Gupta and Motivala, DSN 2002), implemented by the library foca, over encrypted
//! datagrams.
//!
//! foca holds the state of members and decides which messages to send. This module drives foca with a socket and a clock,
//! and adds:
//!
//! - Discovery. A process that knows only an address asks it for its identity, and then joins. Seeds are found in this
//!   way. So are members that were lost, and so a partition heals without intervention.
//! - Rejoining. A member that was declared down rejoins with a higher renewal number: at once the first time, then with
//!   growing delays, so that two processes with one name do not displace each other in a loop.
//! - Name conflicts. Of two processes with one name and different addresses the newer one is the member. The older one
//!   stays outside, logs an error, and rejoins when the newer one has left. A process whose host's clock has gone back
//!   takes the incarnation after that of its predecessor.
//! - Leaving. A member that leaves announces it to all others directly.

use crate::config::GossipConfig;
use crate::counters::Counters;
use crate::keyring::Keyring;
use crate::member::{Change, LocalMember, Member};
use crate::seeds::Seed;
use driver::Driver;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};

mod driver;
mod runtime;
#[cfg(test)]
mod tests;

/// Capacity of the channel of changes. Further changes wait in the driver, where a join and its leave cancel out.
const CHANGES_MAX: usize = 16;

/// Test only: addresses to and from which datagrams are dropped.
#[cfg(test)]
pub(crate) type BlockedAddresses = Arc<std::sync::Mutex<std::collections::BTreeSet<SocketAddr>>>;

/// Arguments of [`Membership::start`].
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) local: Arc<LocalMember>,
    pub(crate) address: SocketAddr,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) config: GossipConfig,
    pub(crate) counters: Arc<Counters>,
    #[cfg(test)]
    pub(crate) blocked: BlockedAddresses,
}

/// Handle to the membership task. Dropping it stops the task without an announcement, as a crash would.
#[derive(Debug)]
pub(crate) struct Membership {
    view: watch::Receiver<Arc<[Member]>>,
    leave: mpsc::Sender<oneshot::Sender<()>>,
    task: tokio::task::AbortHandle,
}

impl Membership {
    /// Starts membership on a socket. Returns the handle and a receiver of changes.
    pub(crate) fn start(start: Start, socket: UdpSocket) -> io::Result<(Self, mpsc::Receiver<Change>)> {
        let (view, view_receiver) = watch::channel(Arc::from([]));
        let (leave, leave_receiver) = mpsc::channel(1);
        let (changes, changes_receiver) = mpsc::channel(CHANGES_MAX);
        let driver = Driver::new(start, socket, view)?;
        let task = tokio::spawn(driver.run(changes, leave_receiver)).abort_handle();
        Ok((Self { view: view_receiver, leave, task }, changes_receiver))
    }

    /// The other members, ordered by name.
    pub(crate) fn members(&self) -> Arc<[Member]> {
        Arc::clone(&self.view.borrow())
    }

    /// Announces to all others that this member leaves, then stops.
    pub(crate) async fn leave(&self) {
        let (done, done_receiver) = oneshot::channel();
        if self.leave.send(done).await.is_ok() {
            // An error means that the task has stopped already.
            let _ = done_receiver.await;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}
