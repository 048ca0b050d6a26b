//! The open loop: requests leave by a schedule, over as many connections as it takes.
//!
//! One pace-maker per thread waits for the next due time and hands the request to an idle sender; with none idle it
//! makes a new one, up to the limit. At the limit the request waits, and as its latency counts from its due time,
//! the wait shows. The sender that was idle for the shortest time is taken first, so that no more connections are
//! in use than the load needs.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::alarm::Alarm;
use super::sender::{Bench, Sender};
use crate::pacer::Pacer;
use crate::shared::Claim;

/// After this many requests in a row that are all due, senders get their turn.
const BURST_MAX: u32 = 32;

/// Where a sender gets its next request.
#[derive(Debug, Default)]
struct Mailbox {
    claim: Cell<Option<Claim>>,
    filled: Notify,
    over: Cell<bool>,
}

/// The idle senders of a thread.
#[derive(Debug, Default)]
struct Pool {
    idle: RefCell<Vec<Rc<Mailbox>>>,
    freed: Notify,
}

/// Sends by `pacer` over at most `connections_max` connections on this thread until no request is left.
///
/// # Errors
/// If the system has no timer to give.
pub(crate) async fn drive(bench: &Rc<Bench>, pacer: &Pacer, connections_max: u32) -> io::Result<()> {
    let mut alarm = Alarm::new()?;
    let pool = Rc::new(Pool::default());
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    let mut burst = 0;
    while let Some(claim) = bench.shared.claim_due(pacer) {
        let due = bench.shared.start() + claim.intended.min(crate::run::RUN_MAX);
        if alarm.until(due, &bench.shared.job.plan.stop).await? {
            burst = 0;
        } else {
            burst += 1;
            if burst % BURST_MAX == 0 {
                tokio::task::yield_now().await;
            }
        }
        if bench.shared.job.plan.stop.stopped() {
            continue;
        }
        let mailbox = match pool.idle.borrow_mut().pop() {
            Some(mailbox) => Some(mailbox),
            None if running.len() < connections_max as usize => {
                let mailbox = Rc::new(Mailbox::default());
                running.push(spawn(bench, &pool, &mailbox));
                Some(mailbox)
            }
            None => None,
        };
        let mailbox = match mailbox {
            Some(mailbox) => mailbox,
            None => {
                bench.tally.borrow_mut().connections.waits += 1;
                pool.wait().await
            }
        };
        mailbox.claim.set(Some(claim));
        mailbox.filled.notify_one();
    }
    // The busy ones end when they come back; their mailboxes are found in the pool then.
    for _ in 0..running.len() {
        let mailbox = pool.wait().await;
        mailbox.over.set(true);
        mailbox.filled.notify_one();
    }
    super::join_all(running).await;
    Ok(())
}

impl Pool {
    async fn wait(&self) -> Rc<Mailbox> {
        loop {
            if let Some(mailbox) = self.idle.borrow_mut().pop() {
                return mailbox;
            }
            self.freed.notified().await;
        }
    }
}

fn spawn(bench: &Rc<Bench>, pool: &Rc<Pool>, mailbox: &Rc<Mailbox>) -> JoinHandle<()> {
    let (bench, pool, mailbox) = (Rc::clone(bench), Rc::clone(pool), Rc::clone(mailbox));
    tokio::task::spawn_local(async move {
        let mut sender = Sender::new(&bench.shared.job.plan);
        loop {
            mailbox.filled.notified().await;
            if let Some(claim) = mailbox.claim.take() {
                sender.perform(&bench, claim).await;
                pool.idle.borrow_mut().push(Rc::clone(&mailbox));
                pool.freed.notify_one();
            }
            if mailbox.over.get() {
                return;
            }
        }
    })
}
