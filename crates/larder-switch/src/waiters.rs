//! Tasks that wait for admission, by the ticket that the dispatcher gave to the request.
//!
//! The dispatcher starts a waiting request in the call that ends another request, on the thread of that request. This
//! can happen before the waiting task has registered. A task may also be dropped while its ticket is being started.
//! Each ticket is therefore settled under the lock of its shard, and the second side finds what the first side left.

use larder_core::dispatch::Cancel;
use larder_core::{Decision, DequeuedRequest, Dispatcher, Refusal, RouteId, Ticket, Time};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Outcome of a waiting request.
pub(crate) type AdmissionOutcome = Result<Decision, Refusal>;

const SHARDS: usize = 16;

#[derive(Debug)]
enum TicketState {
    /// A task waits for a request of this route.
    Waiting(oneshot::Sender<AdmissionOutcome>, RouteId),
    /// The ticket was settled before the task registered.
    Settled(AdmissionOutcome),
    /// The task was dropped after the dispatcher had removed the ticket from its queue. The ticket is of this route.
    Abandoned(RouteId),
}

/// All waiting tasks.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    shards: [Mutex<HashMap<Ticket, TicketState>>; SHARDS],
    /// Notified when a request begins to wait, for the task that watches the deadlines.
    pub(crate) queue_changed: Notify,
}

/// Place of a waiting task in the queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) ticket: Ticket,
    pub(crate) settled: oneshot::Receiver<AdmissionOutcome>,
}

impl Waiters {
    fn shard(&self, ticket: Ticket) -> MutexGuard<'_, HashMap<Ticket, TicketState>> {
        self.shards[ticket.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the calling task for `ticket`.
    pub(crate) fn register(&self, ticket: Ticket, route: RouteId) -> QueuePlace {
        let (sender, settled) = oneshot::channel();
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            Some(TicketState::Settled(outcome)) => drop(sender.send(outcome)),
            _ => drop(shard.insert(ticket, TicketState::Waiting(sender, route))),
        }
        drop(shard);
        self.queue_changed.notify_one();
        QueuePlace { ticket, settled }
    }

    /// Cancels a place. If the request was started meanwhile, returns its decision; the caller must return the load.
    pub(crate) fn cancel(&self, dispatcher: &Dispatcher, mut place: QueuePlace) -> Option<Decision> {
        let cancelled = dispatcher.cancel(place.ticket);
        let mut shard = self.shard(place.ticket);
        match (shard.remove(&place.ticket), cancelled) {
            (Some(TicketState::Waiting(_, route)), Cancel::NotWaiting) => {
                shard.insert(place.ticket, TicketState::Abandoned(route));
                None
            }
            (_, Cancel::Removed) => None,
            _ => place.settled.try_recv().ok().and_then(Result::ok),
        }
    }

    /// Wakes the tasks whose requests the dispatcher has started. Requests whose task is gone are finished at once,
    /// which may start others.
    pub(crate) fn deliver(&self, dispatcher: &Dispatcher, now: Time, mut started: Vec<DequeuedRequest>) {
        let mut next = 0;
        while let Some(&DequeuedRequest { ticket, outcome }) = started.get(next) {
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

    /// Settles one ticket. Returns the decision if no task takes it.
    fn settle(&self, ticket: Ticket, outcome: AdmissionOutcome) -> Option<(Decision, RouteId)> {
        let mut shard = self.shard(ticket);
        match shard.remove(&ticket) {
            // The receiver lives until its task has settled the ticket under this lock.
            Some(TicketState::Waiting(sender, route)) => {
                let untaken = sender.send(outcome).err().and_then(Result::ok);
                untaken.map(|decision| (decision, route))
            }
            Some(TicketState::Abandoned(route)) => outcome.ok().map(|decision| (decision, route)),
            Some(TicketState::Settled(_)) | None => {
                shard.insert(ticket, TicketState::Settled(outcome));
                None
            }
        }
    }

    /// Number of tickets that are registered or half settled.
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

    /// Returns a dispatcher with one request at its only node and one waiting request.
    fn one_waits() -> (Dispatcher, Ticket) {
        let settings = Settings { admission: Admission::Fixed(1), ..Settings::default() };
        let dispatcher = Dispatcher::new(settings, &[NodeSpec::named("a")]).expect("valid");
        let request = Request::new(TargetId(1));
        assert!(matches!(dispatcher.arrive(Time::ZERO, request), Arrival::Start(_)));
        let Arrival::Wait(ticket) = dispatcher.arrive(Time::ZERO, request) else { panic!("must wait") };
        (dispatcher, ticket)
    }

    fn first_ends(dispatcher: &Dispatcher) -> Vec<DequeuedRequest> {
        let mut started = Vec::new();
        dispatcher.finish(Time::ZERO, NodeId(0), &mut started);
        assert_eq!(started.len(), 1);
        started
    }

    fn nothing_is_left(dispatcher: &Dispatcher, waiting: &Waiters) -> bool {
        (dispatcher.outstanding(), dispatcher.nodes().load(NodeId(0)), waiting.len()) == (0, 0, 0)
    }

    #[test]
    fn a_task_dropped_while_its_ticket_starts_is_finished() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiters::default();
        let place = waiting.register(ticket, RouteId::DEFAULT);
        let started = first_ends(&dispatcher);
        assert_eq!(waiting.cancel(&dispatcher, place), None);
        waiting.deliver(&dispatcher, Time::ZERO, started);
        assert!(nothing_is_left(&dispatcher, &waiting));
    }

    #[test]
    fn a_task_dropped_after_its_ticket_started_gets_the_decision() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiters::default();
        let place = waiting.register(ticket, RouteId::DEFAULT);
        waiting.deliver(&dispatcher, Time::ZERO, first_ends(&dispatcher));
        let decision = waiting.cancel(&dispatcher, place).expect("a decision");
        dispatcher.finish(Time::ZERO, decision.node, &mut Vec::new());
        assert!(nothing_is_left(&dispatcher, &waiting));
    }

    #[test]
    fn a_ticket_started_before_registration_is_kept() {
        let (dispatcher, ticket) = one_waits();
        let waiting = Waiters::default();
        waiting.deliver(&dispatcher, Time::ZERO, first_ends(&dispatcher));
        let mut place = waiting.register(ticket, RouteId::DEFAULT);
        let decision = place.settled.try_recv().expect("settled").expect("started");
        dispatcher.finish(Time::ZERO, decision.node, &mut Vec::new());
        assert!(nothing_is_left(&dispatcher, &waiting));
    }
}
