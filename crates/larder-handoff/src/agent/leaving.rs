//! Connections that this node gives up, to another one, while it drains.
//!
//! 1. The server gives a socket up that rests between two requests ([`Giver::give`]); the front-end is asked
//!    ([`FromNode::Leave`]).
//! 2. The front-end sends the connection's packets to another node from now on, where they wait, and says so
//!    ([`ToNode::Give`]).
//! 3. The connection is frozen: its packets are kept from the socket and what that sends is dropped, lest it acknowledges
//!    what is not in the state (R4). Then the state is read and sent ([`FromNode::Move`]).
//! 4. [`ToNode::Taken`]: the socket is given up silently. [`ToNode::Keep`]: it goes on here, and gets what was kept.
//!
//! When the channel breaks between 3 and 4 nobody here knows whose the connection is, so it stays frozen; the front-end is
//! asked again when it is back. After [`DOUBT`] the client is told that the connection is gone.

use super::core::Core;
use super::forwarding::Forwarding;
use crate::channel::identity::PublicKey;
use crate::channel::message::{Blob, Connection, FromNode, Handoff, ToNode};
use larder_kernel::FlowKey;
use larder_kernel::plane::now_ns;
use larder_kernel::repair::{self, Mends};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// How long a front-end may take to say where a connection goes; then the server has it back.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long a connection stays frozen while nobody says whose it is.
const DOUBT: Duration = Duration::from_secs(30);
/// Connections that are being given up at most; more stay. The kernel's table of frozen ones has as many places.
pub const LEAVING_MAX: usize = 16_384;
/// Of those, that wait for the agent to look at them.
pub(super) const LEAVERS_MAX: usize = 1_024;

/// A connection that rests between two requests.
#[derive(Debug)]
pub struct Resting {
    /// The client.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// Its socket, of which there is no other descriptor.
    pub socket: OwnedFd,
    /// The client's bytes that have been read and not been answered.
    pub unread: Vec<u8>,
}

/// A resting connection, and where it is given back if nobody takes it.
#[derive(Debug)]
pub(super) struct Leaver {
    resting: Resting,
    back: oneshot::Sender<Option<Resting>>,
}

/// Gives connections up. Made by [`super::Agent::giver`].
#[derive(Clone, Debug)]
pub struct Giver {
    pub(super) leavers: mpsc::Sender<Leaver>,
    pub(super) release: watch::Receiver<u64>,
}

impl Giver {
    /// Gives a connection up. Returns it if no other node takes it; it is then as it was.
    pub async fn give(&self, resting: Resting) -> Option<Resting> {
        let (back, answer) = oneshot::channel();
        if let Err(mpsc::error::SendError(leaver)) = self.leavers.send(Leaver { resting, back }).await {
            return Some(leaver.resting);
        }
        // The agent has ended, and the connection with it.
        answer.await.unwrap_or(None)
    }

    /// Forgets that a front-end wanted this node's connections elsewhere: [`Self::released`] waits until one wants that again.
    pub fn forget_released(&mut self) {
        self.release.mark_unchanged();
    }

    /// Waits until a front-end wants this node's connections elsewhere, once more than before.
    pub async fn released(&mut self) {
        if self.release.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A connection that is being given up.
#[derive(Debug)]
pub(super) struct Leaving {
    leaver: Leaver,
    /// The front-end that was asked.
    front: PublicKey,
    /// Those that may be asked next.
    others: Vec<PublicKey>,
    since: Instant,
    frozen: bool,
}

impl Core {
    /// The server gives a connection up.
    pub(super) fn leave(&mut self, leaver: Leaver) {
        let place = self.switches.place(leaver.resting.server);
        let Some(ours) = place.filter(|_| self.forwarding.is_some() && self.leaving.len() < LEAVING_MAX)
        else {
            return give_back(leaver);
        };
        let flow = FlowKey::new(leaver.resting.client, ours);
        let mut others: Vec<PublicKey> =
            self.fronts.keys().copied().filter(|&key| self.switches.theirs(key, ours).is_some()).collect();
        let Some(front) = others.pop() else { return give_back(leaver) };
        let leaving = Leaving { leaver, front, others, since: Instant::now(), frozen: false };
        if let Some(before) = self.leaving.insert(flow, leaving) {
            // Another connection has the addresses: this one has ended long ago.
            give_back(before.leaver);
        }
        self.ask(flow);
    }

    fn ask(&mut self, flow: FlowKey) {
        let Some(front) = self.leaving.get(&flow).map(|leaving| leaving.front) else { return };
        if let Some(service) = self.switches.theirs(front, flow.service) {
            self.tell(front, &FromNode::Leave(Connection { client: flow.client, service }));
        }
    }

    /// A front-end says something about a connection that is being given up.
    pub(super) fn passed(&mut self, front: PublicKey, message: &ToNode) {
        let (ToNode::Give(connection) | ToNode::Taken(connection) | ToNode::Keep(connection)) = *message
        else {
            return;
        };
        let Some(forwarding) = self.forwarding.clone() else { return };
        let flow = self.flow(front, connection);
        let ours = |flow: &FlowKey| self.leaving.get(flow).is_some_and(|leaving| leaving.front == front);
        let Some(flow) = flow.filter(ours) else {
            if matches!(message, ToNode::Give(_)) {
                self.tell(front, &FromNode::Stay(connection));
            }
            return;
        };
        match message {
            ToNode::Give(_) => self.send_state(&*forwarding, flow, connection),
            ToNode::Taken(_) => {
                if let Some(leaving) = self.leaving.remove(&flow) {
                    close(leaving.leaver);
                    self.stash.take(flow);
                    forwarding.forget(flow);
                    self.numbers.forget(flow);
                    done("thaw", &forwarding.thaw(flow));
                }
            }
            _ => {
                self.thaw(&*forwarding, flow);
                self.ask_next(flow);
            }
        }
    }

    fn ask_next(&mut self, flow: FlowKey) {
        let next = self.leaving.get_mut(&flow).and_then(|leaving| {
            leaving.front = leaving.others.pop()?;
            leaving.since = Instant::now();
            Some(())
        });
        match next {
            Some(()) => self.ask(flow),
            None => {
                if let Some(leaving) = self.leaving.remove(&flow) {
                    give_back(leaving.leaver);
                }
            }
        }
    }

    fn send_state(&mut self, forwarding: &dyn Forwarding, flow: FlowKey, connection: Connection) {
        done("freeze", &forwarding.freeze(flow));
        // What comes for it now is for whoever has it in the end.
        self.stash.begin(flow);
        let Some(leaving) = self.leaving.get_mut(&flow) else { return };
        let socket = leaving.leaver.resting.socket.as_fd();
        let first_seq = self.numbers.of(flow);
        let read = repair::checkpoint(socket, &Mends::default()).map_err(|error| error.to_string());
        let message = read.and_then(|checkpoint| {
            let frame = checkpoint.encode().map_err(|error| error.to_string())?;
            let request = Blob(leaving.leaver.resting.unread.clone());
            Ok(FromNode::Move(Handoff { id: 0, connection, first_seq, checkpoint: Blob(frame), request }))
        });
        (leaving.frozen, leaving.since) = (true, Instant::now());
        let front = leaving.front;
        match message {
            Ok(message) => self.tell(front, &message),
            Err(why) => {
                tracing::debug!(why, %flow, "a connection stays");
                self.tell(front, &FromNode::Stay(connection));
                self.thaw(forwarding, flow);
                leaving_back(self.leaving.remove(&flow));
            }
        }
    }

    /// A frozen connection goes on here.
    fn thaw(&mut self, forwarding: &dyn Forwarding, flow: FlowKey) {
        let Some(leaving) = self.leaving.get_mut(&flow).filter(|leaving| leaving.frozen) else { return };
        leaving.frozen = false;
        let resumed = repair::resume(leaving.leaver.resting.socket.as_fd());
        done("thaw", &forwarding.thaw(flow));
        done("go on with a frozen connection", &resumed);
        for packet in self.stash.restored(Instant::now(), now_ns(), flow) {
            done("give a packet back", &forwarding.give_back(&packet));
        }
    }

    /// A front-end is back: what became of the connections that it was sent?
    pub(super) fn ask_again(&mut self, front: PublicKey) {
        let theirs = |(flow, leaving): (&FlowKey, &Leaving)| (leaving.front == front).then_some(*flow);
        let flows: Vec<FlowKey> = self.leaving.iter().filter_map(theirs).collect();
        flows.into_iter().for_each(|flow| self.ask(flow));
    }

    /// A front-end is gone: those that it was only asked about can stay, or leave by another.
    pub(super) fn unasked(&mut self, front: PublicKey) {
        let only = |(flow, leaving): (&FlowKey, &Leaving)| {
            (leaving.front == front && !leaving.frozen).then_some(*flow)
        };
        let flows: Vec<FlowKey> = self.leaving.iter().filter_map(only).collect();
        flows.into_iter().for_each(|flow| self.ask_next(flow));
    }

    /// Gives back, or up, what has waited for too long.
    pub(super) fn expire_leaving(&mut self, now: Instant) {
        let Some(forwarding) = self.forwarding.clone() else { return };
        let late = |(flow, leaving): (&FlowKey, &Leaving)| {
            let wait = if leaving.frozen { DOUBT } else { ANSWER_WAIT };
            (now.saturating_duration_since(leaving.since) >= wait).then_some(*flow)
        };
        let flows: Vec<FlowKey> = self.leaving.iter().filter_map(late).collect();
        for flow in flows {
            let Some(leaving) = self.leaving.get(&flow) else { continue };
            if !leaving.frozen {
                self.ask_next(flow);
                continue;
            }
            tracing::warn!(client = %flow.client, "nobody said whose a frozen connection is: its client is told");
            let socket = socket2::SockRef::from(&leaving.leaver.resting.socket);
            done("reset a lost connection", &socket.set_linger(Some(Duration::ZERO)));
            self.thaw(&*forwarding, flow);
            if let Some(Leaving { leaver: Leaver { resting, back }, .. }) = self.leaving.remove(&flow) {
                drop(resting);
                let _ = back.send(None);
            }
        }
    }
}

fn leaving_back(leaving: Option<Leaving>) {
    if let Some(leaving) = leaving {
        give_back(leaving.leaver);
    }
}

fn give_back(leaver: Leaver) {
    let Leaver { resting, back } = leaver;
    // A server that has gone closes what it gets by dropping it.
    let _ = back.send(Some(resting));
}

/// Another node has the connection.
fn close(leaver: Leaver) {
    let Leaver { resting, back } = leaver;
    done("close a connection silently", &repair::close_silently(resting.socket));
    let _ = back.send(None);
}

fn done(what: &'static str, done: &std::io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(%error, what, "the kernel refuses");
    }
}

/// The agent's half of [`Giver`].
#[derive(Debug)]
pub(super) struct Leavers {
    pub(super) leavers: mpsc::Receiver<Leaver>,
    pub(super) release: watch::Sender<u64>,
}
