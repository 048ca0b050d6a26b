//! The open loop: requests are sent by a schedule, over as many connections as needed.
//!
//! One task per thread waits until the next request is due and gives it to an idle sender. If none is idle, the task creates
//! one, up to the limit. At the limit the request waits; the wait is part of its latency, which counts from the due time. The
//! most recently used sender is taken first, so that no more connections are used than the load needs.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::sender::{RequestSender, SenderContext};
use super::timer::Timer;
use crate::pacer::{Pacer, RUN_MAX};
use crate::run_state::ScheduledRequest;

/// After this number of requests that were due without a wait, the task yields to the senders.
const BURST_MAX: u32 = 32;

/// Passes the next request to a sender.
#[derive(Debug, Default)]
struct Mailbox {
    request: Cell<Option<ScheduledRequest>>,
    filled: Notify,
    closed: Cell<bool>,
}

/// The idle senders of a thread.
#[derive(Debug, Default)]
struct Pool {
    idle: RefCell<Vec<Rc<Mailbox>>>,
    freed: Notify,
}

/// Sends requests by `pacer` over at most `connections_max` connections on this thread, until no request is left.
///
/// # Errors
/// If no timer can be created.
pub(crate) async fn drive(
    context: &Rc<SenderContext>,
    pacer: &Pacer,
    connections_max: u32,
) -> io::Result<()> {
    let mut timer = Timer::new()?;
    let pool = Rc::new(Pool::default());
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    let mut burst = 0;
    while let Some(request) = context.shared.next_scheduled(pacer) {
        let due = context.shared.start() + request.intended.min(RUN_MAX);
        if timer.wait_until(due, &context.shared.job.plan.stop).await? {
            burst = 0;
        } else {
            burst += 1;
            if burst % BURST_MAX == 0 {
                tokio::task::yield_now().await;
            }
        }
        if context.shared.job.plan.stop.is_stopped() {
            continue;
        }
        let mailbox = match pool.idle.borrow_mut().pop() {
            Some(mailbox) => Some(mailbox),
            None if tasks.len() < connections_max as usize => {
                let mailbox = Rc::new(Mailbox::default());
                tasks.push(spawn(context, &pool, &mailbox));
                Some(mailbox)
            }
            None => None,
        };
        let mailbox = match mailbox {
            Some(mailbox) => mailbox,
            None => {
                context.tally.borrow_mut().connections.waits += 1;
                pool.wait().await
            }
        };
        mailbox.request.set(Some(request));
        mailbox.filled.notify_one();
    }
    // Each sender returns its mailbox to the pool when it is idle, and ends then.
    for _ in 0..tasks.len() {
        let mailbox = pool.wait().await;
        mailbox.closed.set(true);
        mailbox.filled.notify_one();
    }
    super::join_all(tasks).await;
    Ok(())
}

impl Pool {
    /// Waits for an idle sender.
    async fn wait(&self) -> Rc<Mailbox> {
        loop {
            if let Some(mailbox) = self.idle.borrow_mut().pop() {
                return mailbox;
            }
            self.freed.notified().await;
        }
    }
}

fn spawn(context: &Rc<SenderContext>, pool: &Rc<Pool>, mailbox: &Rc<Mailbox>) -> JoinHandle<()> {
    let (context, pool, mailbox) = (Rc::clone(context), Rc::clone(pool), Rc::clone(mailbox));
    tokio::task::spawn_local(async move {
        let mut sender = RequestSender::new(&context.shared.job.plan);
        loop {
            mailbox.filled.notified().await;
            if let Some(request) = mailbox.request.take() {
                sender.send(&context, request).await;
                pool.idle.borrow_mut().push(Rc::clone(&mailbox));
                pool.freed.notify_one();
            }
            if mailbox.closed.get() {
                return;
            }
        }
    })
}
