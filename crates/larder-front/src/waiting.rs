//! Requests that wait for admission: from the ticket the dispatcher gave to the task that waits for it.
//!
//! The dispatcher starts a waiting request in the call by which another one ends, on that one's thread, possibly
//! before the waiting task has registered; and a task may go away while its ticket is being started. Each ticket is
//! therefore settled under its shard's lock: whichever side comes second finds what the first has left.

use larder_core::dispatch::Cancel;
use larder_core::{Decision, Dispatcher, Refusal, RouteId, Started, Ticket, Time};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// What becomes of a waiting request.
pub(crate) type Outcome = Result<Decision, Refusal>;

const SHARDS: usize = 16;

#[derive(Debug)]
enum Slot {
    /// A task waits, for a request of this route.
    Waits(oneshot::Sender<Outcome>, RouteId),
    /// Settled before the task registered.
    Early(Outcome),
    /// The task went away after the dispatcher had taken the ticket, which is of this route, out of its queue.
    Gone(RouteId),
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
    pub(crate) fn register(&self, ticket: Ticket, route: RouteId) -> Place {
        let (sender, settled) = oneshot::channel();
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            Some(Slot::Early(outcome)) => drop(sender.send(outcome)),
            _ => drop(shard.insert(ticket, Slot::Waits(sender, route))),
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
            (Some(Slot::Waits(_, route)), Cancel::NotWaiting) => {
                shard.insert(place.ticket, Slot::Gone(route));
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
            if let Some((decision, route)) = self.settle(ticket, outcome) {
                dispatcher.finish_on(now, route, decision.node, &mut started);
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
    fn settle(&self, ticket: Ticket, outcome: Outcome) -> Option<(Decision, RouteId)> {
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            // The receiver lives until its task has settled the ticket under this lock.
            Some(Slot::Waits(sender, route)) => {
                let untaken = sender.send(outcome).err().and_then(Result::ok);
                untaken.map(|decision| (decision, route))
            }
            Some(Slot::Gone(route)) => outcome.ok().map(|decision| (decision, route)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::dispatch::Admission;
    use larder_core::{Arrival, NodeId, NodeSpec, Request, Settings, TargetId};

    /// A dispatcher with one request at its only node and one that waits.
    fn one_waits() -> (Dispatcher, Ticket) {
        let settings = Settings { admission: Admission::Fixed(1), ..Settings::default() };
        let dispatcher = Dispatcher::new(settings, &[NodeSpec::named("a")]).expect("valid");
        let request = Request::new(TargetId(1));
        assert!(matches!(dispatcher.arrive(Time::ZERO, request), Arrival::Start(_)));
        let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("must wait") };
        (dispatcher, ticket)
    }

    fn first_ends(dispatcher: &Dispatcher) -> Vec<Started> {
        let mut started = Vec::new();
        dispatcher.finish(Time::ZERO, NodeId(0), &mut started);
        assert_eq!(started.len(), 1);
        started
    }

    fn nothing_is_left(dispatcher: &Dispatcher, waiting: &Waiting) -> bool {
        (dispatcher.outstanding(), dispatcher.nodes().load(NodeId(0)), waiting.len()) == (0, 0, 0)
    }

    #[test]
    fn a_task_that_goes_while_its_ticket_is_being_started_is_ended_for() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiting::default();
        let place = waiting.register(ticket, RouteId::DEFAULT);
        let started = first_ends(&dispatcher);
        assert_eq!(waiting.give_up(&dispatcher, place), None);
        waiting.deliver(&dispatcher, Time::ZERO, started);
        assert!(nothing_is_left(&dispatcher, &waiting));
    }

    #[test]
    fn a_task_that_goes_after_its_ticket_was_started_gets_the_decision_to_end() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiting::default();
        let place = waiting.register(ticket, RouteId::DEFAULT);
        waiting.deliver(&dispatcher, Time::ZERO, first_ends(&dispatcher));
        let decision = waiting.give_up(&dispatcher, place).expect("a decision");
        dispatcher.finish(Time::ZERO, decision.node, &mut Vec::new());
        assert!(nothing_is_left(&dispatcher, &waiting));
    }

    #[test]
    fn a_ticket_that_is_started_before_its_task_registers_waits_for_it() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiting::default();
        waiting.deliver(&dispatcher, Time::ZERO, first_ends(&dispatcher));
        let mut place = waiting.register(ticket, RouteId::DEFAULT);
        let decision = place.settled.try_recv().expect("settled").expect("started");
        dispatcher.finish(Time::ZERO, decision.node, &mut Vec::new());
        assert!(nothing_is_left(&dispatcher, &waiting));
    }
}
