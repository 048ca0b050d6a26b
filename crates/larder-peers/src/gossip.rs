//! Who is in the cluster: SWIM (Das, Gupta and Motivala, DSN 2002) by the library foca, over sealed datagrams.
//!
//! foca keeps what is known of members and decides what to tell whom; this drives it with a socket and a clock, and adds
//! what it leaves open:
//!
//! - Whoever knows only an address knocks there, is told who lives there, and introduces itself by name. Seeds are found
//!   so, and members that were lost: a partition heals by itself.
//! - A member that others have declared down comes back as a later renewal of its life, at once the first time and then
//!   ever more slowly, so that two processes with one name cannot drive each other.
//! - Of two processes with one name and different addresses the newer is the member; the older stays outside, says so in
//!   its log, and comes back when the newer has gone. A process whose host's clock has gone back takes the next number
//!   after that of its last life.
//! - A member that leaves tells all others itself.

use crate::config::GossipConfig;
use crate::counters::Counters;
use crate::keyring::Keyring;
use crate::member::{Change, Member, Own};
use crate::seeds::Seed;
use driver::Driver;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};

mod driver;
mod outlet;
#[cfg(test)]
mod tests;

/// Changes given to the receiver before it has taken them; others wait here, and those that cancel out go.
const CHANGES_MAX: usize = 16;

/// Test only: addresses that datagrams neither go to nor come from.
#[cfg(test)]
pub(crate) type Gate = Arc<std::sync::Mutex<std::collections::BTreeSet<SocketAddr>>>;

/// What membership starts with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) own: Arc<Own>,
    pub(crate) address: SocketAddr,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) config: GossipConfig,
    pub(crate) counters: Arc<Counters>,
    #[cfg(test)]
    pub(crate) gate: Gate,
}

/// Membership of a cluster. Dropping it ends it without a word, as a crash does.
#[derive(Debug)]
pub(crate) struct Membership {
    view: watch::Receiver<Arc<[Member]>>,
    leave: mpsc::Sender<oneshot::Sender<()>>,
    task: tokio::task::AbortHandle,
}

impl Membership {
    /// Starts on a socket; changes come out of the receiver.
    pub(crate) fn start(start: Start, socket: UdpSocket) -> io::Result<(Self, mpsc::Receiver<Change>)> {
        let (view, viewed) = watch::channel(Arc::from([]));
        let (leave, left) = mpsc::channel(1);
        let (changes, changed) = mpsc::channel(CHANGES_MAX);
        let driver = Driver::new(start, socket, view)?;
        let task = tokio::spawn(driver.run(changes, left)).abort_handle();
        Ok((Self { view: viewed, leave, task }, changed))
    }

    /// The other members, by name.
    pub(crate) fn members(&self) -> Arc<[Member]> {
        Arc::clone(&self.view.borrow())
    }

    /// Leaves in good order: tells all others, then ends.
    pub(crate) async fn leave(&self) {
        let (done, ended) = oneshot::channel();
        if self.leave.send(done).await.is_ok() {
            // An error says that it has ended already.
            let _ = ended.await;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.task.abort();
    }
}
