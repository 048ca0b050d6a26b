//! Requests that wait for admission: from the ticket the dispatcher gave to the task that waits for it.
//!
//! The dispatcher starts a waiting request in the call by which another one ends, on that one's thread, possibly
//! before the waiting task has registered; and a task may go away while its ticket is being started. Each ticket is
//! therefore settled under its shard's lock: whichever side comes second finds what the first has left.

use larder_core::dispatch::Cancel;
use larder_core::{Decision, Dispatcher, Refusal, Started, Ticket, Time};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// What becomes of a waiting request.
pub(crate) type Outcome = Result<Decision, Refusal>;

const SHARDS: usize = 16;

#[derive(Debug)]
enum Slot {
    /// A task waits.
    Waits(oneshot::Sender<Outcome>),
    /// Settled before the task registered.
    Early(Outcome),
    /// The task went away after the dispatcher had taken the ticket out of its queue.
    Gone,
}

/// The waiting requests.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    shards: [Mutex<HashMap<Ticket, Slot>>; SHARDS],
    /// Rung when a request begins to wait, for whoever watches the deadlines.
    pub(crate) bell: Notify,
}

/// A place in the queue, held by the task that waits.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) ticket: Ticket,
    pub(crate) settled: oneshot::Receiver<Outcome>,
}

impl Waiting {
    fn shard(&self, ticket: Ticket) -> MutexGuard<'_, HashMap<Ticket, Slot>> {
        self.shards[ticket.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the calling task as the one that waits for `ticket`.
    pub(crate) fn register(&self, ticket: Ticket) -> Place {
        let (sender, settled) = oneshot::channel();
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            Some(Slot::Early(outcome)) => drop(sender.send(outcome)),
            _ => drop(shard.insert(ticket, Slot::Waits(sender))),
        }
        drop(shard);
        self.bell.notify_one();
        Place { ticket, settled }
    }

    /// Gives up a place. A request that was started meanwhile is returned: its load must be given back.
    pub(crate) fn give_up(&self, dispatcher: &Dispatcher, mut place: Place) -> Option<Decision> {
        let cancelled = dispatcher.cancel(place.ticket);
        let mut shard = self.shard(place.ticket);
        match (shard.remove(&place.ticket), cancelled) {
            (Some(Slot::Waits(_)), Cancel::NotWaiting) => {
                shard.insert(place.ticket, Slot::Gone);
                None
            }
            (_, Cancel::Removed) => None,
            _ => place.settled.try_recv().ok().and_then(Result::ok),
        }
    }

    /// Tells the tasks what the dispatcher has decided. Started requests whose task is gone are ended at once,
    /// which may start others.
    pub(crate) fn deliver(&self, dispatcher: &Dispatcher, now: Time, mut started: Vec<Started>) {
        let mut next = 0;
        while let Some(&Started { ticket, outcome }) = started.get(next) {
            next += 1;
            if let Some(decision) = self.settle(ticket, outcome) {
                dispatcher.finish(now, decision.node, &mut started);
            }
        }
    }

    /// Refuses the requests whose deadline has passed.
    pub(crate) fn expire(&self, expired: &[Ticket]) {
        for &ticket in expired {
            self.settle(ticket, Err(Refusal::Deadline));
        }
    }

    /// Settles one ticket; returns a decision that nobody takes.
    fn settle(&self, ticket: Ticket, outcome: Outcome) -> Option<Decision> {
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            // The receiver lives until its task has settled the ticket under this lock.
            Some(Slot::Waits(sender)) => sender.send(outcome).err().and_then(Result::ok),
            Some(Slot::Gone) => outcome.ok(),
            Some(Slot::Early(_)) | None => {
                shard.insert(ticket, Slot::Early(outcome));
                None
            }
        }
    }

    /// Tickets that are registered or half settled.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }
}
