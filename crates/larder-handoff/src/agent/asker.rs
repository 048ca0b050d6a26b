//! Questions about who has a target: a server in this process asks, a front-end answers.
//!
//! Questions wait in a queue of [`QUEUE_MAX`] for the agent and in a list of [`WAITING_MAX`] for their answers; beyond, and
//! where no front-end is connected, the answer is that nothing is known.

use crate::channel::identity::PublicKey;
use crate::channel::whereabouts::{Asked, Has};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Questions that wait for the agent at most.
pub const QUEUE_MAX: usize = 1_024;
/// Questions that wait for their answer at most; the oldest is given up beyond.
pub const WAITING_MAX: usize = 4_096;

/// A question on its way to the agent.
#[derive(Debug)]
pub struct Ask {
    /// The listen address that the request came by: a front-end that has it is asked.
    pub service: SocketAddr,
    /// What is asked about.
    pub asked: Asked,
    /// Where the answer goes; dropped if there will be none.
    pub answer: oneshot::Sender<Has>,
}

/// Asks.
#[derive(Clone, Debug)]
pub struct Asker {
    queue: mpsc::Sender<Ask>,
}

impl Asker {
    /// An asker, and where its questions come out.
    pub fn new() -> (Self, mpsc::Receiver<Ask>) {
        let (queue, asks) = mpsc::channel(QUEUE_MAX);
        (Self { queue }, asks)
    }

    /// Asks, and waits no longer than `wait`. `None` if nothing is known: too many questions wait, the request's parts are
    /// too long to be asked about, no front-end is connected, or none answered in time.
    pub async fn ask(&self, service: SocketAddr, asked: Asked, wait: Duration) -> Option<Has> {
        asked.check().ok()?;
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(Ask { service, asked, answer }).ok()?;
        tokio::time::timeout(wait, answered).await.ok()?.ok()
    }
}

/// Questions that wait for their answers.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    next: u64,
    /// By their numbers, oldest first.
    list: BTreeMap<u64, (PublicKey, oneshot::Sender<Has>)>,
}

impl Waiting {
    /// A number for a question to a front-end. The oldest one goes where there is no room.
    pub(super) fn begin(&mut self, front: PublicKey, answer: oneshot::Sender<Has>) -> u64 {
        if self.list.len() >= WAITING_MAX {
            // Most have been given up by those who asked.
            self.list.retain(|_, (_, answer)| !answer.is_closed());
        }
        if self.list.len() >= WAITING_MAX {
            self.list.pop_first();
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.list.insert(id, (front, answer));
        id
    }

    /// A front-end has answered. Only what it was asked itself.
    pub(super) fn answered(&mut self, front: PublicKey, has: Has) {
        if self.list.get(&has.id).is_some_and(|(asked, _)| *asked == front)
            && let Some((_, answer)) = self.list.remove(&has.id)
        {
            // Nobody waits for it any more: it came too late.
            let _ = answer.send(has);
        }
    }

    /// A front-end is gone: it will not answer.
    pub(super) fn gone(&mut self, front: PublicKey) {
        self.list.retain(|_, (asked, _)| *asked != front);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PublicKey = PublicKey([1; 32]);
    const B: PublicKey = PublicKey([2; 32]);

    fn has(id: u64) -> Has {
        Has { id, target: Some(7), here: false, load: 1, holders: Vec::new() }
    }

    #[test]
    fn only_who_was_asked_answers_and_once() {
        let mut waiting = Waiting::default();
        let (answer, mut answered) = oneshot::channel();
        let id = waiting.begin(A, answer);
        waiting.answered(B, has(id));
        waiting.answered(A, has(id + 1));
        assert!(answered.try_recv().is_err());
        waiting.answered(A, has(id));
        assert_eq!(answered.try_recv(), Ok(has(id)));
        waiting.answered(A, has(id));
        let (answer, mut answered) = oneshot::channel();
        waiting.begin(A, answer);
        waiting.gone(B);
        assert_eq!(answered.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        waiting.gone(A);
        assert_eq!(answered.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }

    #[test]
    fn the_oldest_goes_where_there_is_no_room() {
        let mut waiting = Waiting::default();
        let mut all = Vec::new();
        for _ in 0..WAITING_MAX {
            let (answer, answered) = oneshot::channel();
            waiting.begin(A, answer);
            all.push(answered);
        }
        // One that was given up makes room.
        drop(all.remove(5));
        let (answer, _kept) = oneshot::channel();
        waiting.begin(A, answer);
        assert_eq!(all[0].try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let (answer, _kept) = oneshot::channel();
        waiting.begin(A, answer);
        assert_eq!(all[0].try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(waiting.list.len(), WAITING_MAX);
    }

    #[tokio::test]
    async fn without_an_answer_nothing_is_known() {
        let asked = |target: &str| Asked {
            method: "GET".to_owned(),
            host: "h".to_owned(),
            target: target.to_owned(),
        };
        let service = SocketAddr::from(([10, 9, 0, 100], 80));
        let (asker, mut asks) = Asker::new();
        let wait = Duration::from_millis(1);
        assert_eq!(asker.ask(service, asked("/a"), wait).await, None, "in time");
        assert_eq!(asks.recv().await.map(|ask| ask.asked), Some(asked("/a")));
        assert_eq!(asker.ask(service, asked(&"/".repeat(9_999)), wait).await, None);
        assert!(asks.try_recv().is_err(), "too long to be asked about");
        drop(asks);
        assert_eq!(asker.ask(service, asked("/a"), Duration::from_secs(60)).await, None, "nobody listens");
    }
}
