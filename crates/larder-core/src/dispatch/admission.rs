//! Admission: at most S requests are outstanding, the rest wait at the front-end (LARD section 2.4), in the order in
//! which they came, up to a limit and a deadline.
//!
//! While nobody waits, the queue's lock is not touched.

use super::Request;
use crate::id::Ticket;
use crate::nodes::outstanding::Outstanding;
use crate::nodes::{GroupId, Sight, lock};
use crate::time::Time;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// No node takes requests. Fault of the cluster; a later try may succeed.
    NoNode,
    /// As many requests as may wait do wait. Fault of the load; a later try may succeed.
    QueueFull,
    /// It has waited as long as it may. Fault of the load; a later try may succeed.
    Deadline,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Self; 3] = [Self::NoNode, Self::QueueFull, Self::Deadline];

    /// The word used in logs and metric labels.
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

/// What became of a request whose client went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// It was taken out of the queue.
    Removed,
    /// It is no longer in the queue: it has been started, refused or expired, and that was reported.
    NotWaiting,
}

/// A request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) request: Request,
    pub(super) deadline: Time,
}

/// What becomes of a request at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    Now,
    Waits(Ticket),
    Full,
}

impl Entered {
    /// The gate's answer, live or as it was recorded.
    #[inline]
    pub(super) fn read(sight: Sight<'_>, live: impl FnOnce() -> Self) -> Self {
        if sight.is_live() { live() } else { Self::read_recorded(sight, live) }
    }

    #[cold]
    fn read_recorded(sight: Sight<'_>, live: impl FnOnce() -> Self) -> Self {
        let word = sight.gate(|| match live() {
            Self::Now => 0,
            Self::Full => 1,
            Self::Waits(ticket) => ticket.0.saturating_add(2),
        });
        match word {
            0 => Self::Now,
            1 => Self::Full,
            ticket => Self::Waits(Ticket(ticket - 2)),
        }
    }
}

/// Counts the requests of a group's routes that are inside, and keeps the others in a queue.
#[derive(Debug)]
pub(super) struct Gate {
    /// Whose gate it is, and how many there are.
    group: GroupId,
    stride: u64,
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    queue_max: usize,
    queue_timeout: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    tickets: u64,
}

impl Gate {
    /// The gate of the group with this index, one of `gates`.
    pub(super) fn new(index: usize, gates: usize, queue_max: usize, queue_timeout: Duration) -> Self {
        let group = u8::try_from(index).ok().and_then(GroupId::new).unwrap_or_default();
        let (waiting, queue) = (AtomicUsize::new(0), Mutex::default());
        Self { group, stride: gates as u64, waiting, queue, queue_max, queue_timeout }
    }

    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    pub(super) fn queued(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn enter(&self, now: Time, request: &Request, inside: &Outstanding) -> Entered {
        if self.waiting.load(Ordering::SeqCst) == 0 && inside.enter() {
            return Entered::Now;
        }
        self.wait(now, request, inside)
    }

    /// Enters after all, or waits.
    fn wait(&self, now: Time, request: &Request, inside: &Outstanding) -> Entered {
        let mut queue = lock(&self.queue);
        if queue.waiters.is_empty() {
            // Whoever leaves from here on sees somebody waiting and looks into the queue; whoever left before has
            // made room that the second try finds.
            self.waiting.store(1, Ordering::SeqCst);
            if inside.enter_surely() {
                self.waiting.store(0, Ordering::SeqCst);
                return Entered::Now;
            }
        }
        if queue.waiters.len() >= self.queue_max {
            self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
            return Entered::Full;
        }
        // The rest of a ticket by the number of gates is the gate's own.
        let ticket = Ticket(queue.tickets * self.stride + self.group.index() as u64);
        queue.tickets += 1;
        queue.waiters.push_back(Waiter { ticket, request: *request, deadline: now + self.queue_timeout });
        self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        Entered::Waits(ticket)
    }

    /// Makes room; true if somebody may be waiting for it, who is then to be fetched with [`Gate::next`].
    #[must_use]
    pub(super) fn leave(&self, inside: &Outstanding) -> bool {
        inside.leave();
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// The next waiting request, if there is room; it is counted as inside.
    pub(super) fn next(&self, inside: &Outstanding) -> Option<Waiter> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut queue = lock(&self.queue);
        if queue.waiters.is_empty() || !inside.enter() {
            return None;
        }
        let waiter = queue.waiters.pop_front();
        self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        waiter
    }

    pub(super) fn cancel(&self, ticket: Ticket) -> Cancel {
        let mut queue = lock(&self.queue);
        let found = queue.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket);
        let Ok(at) = found else { return Cancel::NotWaiting };
        queue.waiters.remove(at);
        self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        Cancel::Removed
    }

    pub(super) fn expire(&self, now: Time, expired: &mut Vec<Ticket>) {
        let mut queue = lock(&self.queue);
        while let Some(waiter) = queue.waiters.front().filter(|waiter| waiter.deadline <= now) {
            expired.push(waiter.ticket);
            queue.waiters.pop_front();
        }
        self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
    }

    /// Empties the queue.
    pub(super) fn clear(&self) -> Vec<Ticket> {
        let mut queue = lock(&self.queue);
        self.waiting.store(0, Ordering::SeqCst);
        queue.waiters.drain(..).map(|waiter| waiter.ticket).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.queued() == 0 {
            return None;
        }
        lock(&self.queue).waiters.front().map(|waiter| waiter.deadline)
    }
}
