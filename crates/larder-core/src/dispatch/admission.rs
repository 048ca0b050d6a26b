//! The admission queue of a group: at most S requests are outstanding, and the rest wait (LARD section 2.4).
//!
//! Requests wait in order of arrival, up to a queue limit and a deadline. While no request waits, the queue's lock
//! is not touched.

use super::Request;
use crate::id::Ticket;
use crate::nodes::admission_counter::AdmissionCounter;
use crate::nodes::{ClusterView, GroupId};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// No node takes requests. The cause is the cluster; a later attempt may succeed.
    NoNode,
    /// The queue is full. The cause is the load; a later attempt may succeed.
    QueueFull,
    /// The request waited until its deadline. The cause is the load; a later attempt may succeed.
    Deadline,
}

impl Refusal {
    /// All refusals.
    pub const ALL: [Self; 3] = [Self::NoNode, Self::QueueFull, Self::Deadline];

    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoNode => "no_node",
            Self::QueueFull => "queue_full",
            Self::Deadline => "queue_deadline",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The result of a cancellation: the client of a queued request has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The request was removed from the queue.
    Removed,
    /// The request is not in the queue. It has been started, refused or expired, and that was reported.
    NotWaiting,
}

/// A request in the admission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedRequest {
    pub(super) ticket: Ticket,
    pub(super) request: Request,
    pub(super) deadline: Time,
}

/// The answer of the admission queue to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionOutcome {
    Admitted,
    Queued(Ticket),
    QueueFull,
}

impl AdmissionOutcome {
    /// Returns the queue's answer. If a decision is replayed, the answer comes from its read log.
    #[inline]
    pub(super) fn read(view: ClusterView<'_>, live: impl FnOnce() -> Self) -> Self {
        if view.is_live() { live() } else { Self::read_recorded(view, live) }
    }

    #[cold]
    fn read_recorded(view: ClusterView<'_>, live: impl FnOnce() -> Self) -> Self {
        let word = view.admission_answer(|| match live() {
            Self::Admitted => 0,
            Self::QueueFull => 1,
            Self::Queued(ticket) => ticket.0.saturating_add(2),
        });
        match word {
            0 => Self::Admitted,
            1 => Self::QueueFull,
            ticket => Self::Queued(Ticket(ticket - 2)),
        }
    }
}

/// Counts the admitted requests of a group's routes, and queues the requests that exceed the limit.
#[derive(Debug)]
pub(super) struct AdmissionQueue {
    /// The group of this queue, and the number of queues.
    group: GroupId,
    stride: u64,
    waiting: AtomicUsize,
    queue: Mutex<QueueState>,
    queue_max: usize,
    queue_timeout: Duration,
}

#[derive(Debug, Default)]
struct QueueState {
    requests: VecDeque<QueuedRequest>,
    tickets: u64,
}

impl AdmissionQueue {
    /// Creates the queue of the group with this index; there are `queues` queues.
    pub(super) fn new(index: usize, queues: usize, queue_max: usize, queue_timeout: Duration) -> Self {
        let group = u8::try_from(index).ok().and_then(GroupId::new).unwrap_or_default();
        let (waiting, queue) = (AtomicUsize::new(0), Mutex::default());
        Self { group, stride: queues as u64, waiting, queue, queue_max, queue_timeout }
    }

    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    pub(super) fn queued(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn admit(&self, now: Time, request: &Request, counter: &AdmissionCounter) -> AdmissionOutcome {
        if self.waiting.load(Ordering::SeqCst) == 0 && counter.try_acquire() {
            return AdmissionOutcome::Admitted;
        }
        self.admit_or_queue(now, request, counter)
    }

    /// Admits the request if that is possible after all, or queues it.
    fn admit_or_queue(&self, now: Time, request: &Request, counter: &AdmissionCounter) -> AdmissionOutcome {
        let mut queue = self.queue.lock();
        if queue.requests.is_empty() {
            // From here on, a request that ends sees that the queue is not empty and looks into it. A request that
            // ended before has made room, which the second attempt finds.
            self.waiting.store(1, Ordering::SeqCst);
            if counter.try_acquire_exact() {
                self.waiting.store(0, Ordering::SeqCst);
                return AdmissionOutcome::Admitted;
            }
        }
        if queue.requests.len() >= self.queue_max {
            self.waiting.store(queue.requests.len(), Ordering::SeqCst);
            return AdmissionOutcome::QueueFull;
        }
        // The remainder of a ticket divided by the number of queues is the index of its queue.
        let ticket = Ticket(queue.tickets * self.stride + self.group.index() as u64);
        queue.tickets += 1;
        queue.requests.push_back(QueuedRequest {
            ticket,
            request: *request,
            deadline: now + self.queue_timeout,
        });
        self.waiting.store(queue.requests.len(), Ordering::SeqCst);
        AdmissionOutcome::Queued(ticket)
    }

    /// Releases an admitted request. Returns true if requests may be waiting; then call [`AdmissionQueue::next`].
    #[must_use]
    pub(super) fn release(&self, counter: &AdmissionCounter) -> bool {
        counter.release();
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Removes and returns the first queued request if there is room. The request then counts as admitted.
    pub(super) fn next(&self, counter: &AdmissionCounter) -> Option<QueuedRequest> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut queue = self.queue.lock();
        if queue.requests.is_empty() || !counter.try_acquire() {
            return None;
        }
        let request = queue.requests.pop_front();
        self.waiting.store(queue.requests.len(), Ordering::SeqCst);
        request
    }

    pub(super) fn cancel(&self, ticket: Ticket) -> Cancel {
        let mut queue = self.queue.lock();
        let found = queue.requests.binary_search_by_key(&ticket, |request| request.ticket);
        let Ok(at) = found else { return Cancel::NotWaiting };
        queue.requests.remove(at);
        self.waiting.store(queue.requests.len(), Ordering::SeqCst);
        Cancel::Removed
    }

    pub(super) fn expire(&self, now: Time, expired: &mut Vec<Ticket>) {
        let mut queue = self.queue.lock();
        while let Some(request) = queue.requests.front().filter(|request| request.deadline <= now) {
            expired.push(request.ticket);
            queue.requests.pop_front();
        }
        self.waiting.store(queue.requests.len(), Ordering::SeqCst);
    }

    /// Empties the queue and returns the tickets of its requests.
    pub(super) fn clear(&self) -> Vec<Ticket> {
        let mut queue = self.queue.lock();
        self.waiting.store(0, Ordering::SeqCst);
        queue.requests.drain(..).map(|request| request.ticket).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.queued() == 0 {
            return None;
        }
        self.queue.lock().requests.front().map(|request| request.deadline)
    }
}
