//! The threads that serve connections.
//!
//! Each accepts connections for itself. Threads share what all requests share ([`Shared`]), and no connection.

use crate::accept::{Entry, Front};
use crate::request::Requests;
use crate::shared::Shared;
use larder_http::relay::{Begun, PoolLimits, Threads, Worker};
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_local};

/// The progress of a switch's end, as its threads know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Connections are accepted.
    #[default]
    Serving,
    /// None is accepted any more. Idle ones may bring one more request.
    Retiring,
    /// None is accepted any more, and idle ones end.
    Draining,
}

/// The threads of a switch. They end at once when this is dropped.
#[derive(Debug)]
pub(crate) struct Workers {
    stage: watch::Sender<Stage>,
    threads: Threads,
}

/// A thread's share of the switch.
struct Thread {
    shared: Arc<Shared>,
    listeners: Vec<(TcpListener, Entry)>,
    stage: watch::Receiver<Stage>,
    pool: PoolLimits,
}

impl Workers {
    /// Starts `threads` threads that accept connections from all `listeners`.
    ///
    /// # Errors
    /// The system refuses a thread, or what its event loop needs.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        listeners: &[(TcpListener, Entry)],
        (threads, pool): (usize, PoolLimits),
    ) -> io::Result<Self> {
        let stage = watch::Sender::default();
        let thread = |_| {
            let cloned = listeners.iter().map(|(listener, entry)| Ok((listener.try_clone()?, entry.clone())));
            let listeners = cloned.collect::<io::Result<_>>()?;
            let thread = Thread { shared: shared.clone(), listeners, stage: stage.subscribe(), pool };
            Ok(|begun| thread.serve(begun))
        };
        let works = (0..threads).map(thread).collect::<io::Result<_>>()?;
        let threads = Threads::start("requests", works)?;
        Ok(Self { stage, threads })
    }

    /// Has the threads end, once their connections have.
    pub(crate) fn end(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// Waits until all threads have ended.
    pub(crate) async fn ended(&mut self) {
        self.threads.ended().await;
    }
}

impl Thread {
    /// Serves until the switch ends and all connections have. `begun` learns whether it can.
    async fn serve(self, begun: Begun) {
        let Self { shared, listeners, mut stage, pool } = self;
        let registered = listeners.into_iter().map(|(listener, entry)| {
            tokio::net::TcpListener::from_std(listener).map(|listener| (listener, entry))
        });
        let listeners: Vec<_> = match registered.collect() {
            Ok(listeners) => listeners,
            Err(error) => return begun.tell(Err(error)),
        };
        begun.tell(Ok(()));
        let worker = Worker::new(Requests { shared: shared.clone() }, pool);
        let worker = Rc::new(worker.with_stream_memory(shared.http2_memory.clone()));
        let (stop, stopping) = watch::channel(false);
        let front = Front::new(shared.clone(), stopping, worker.clone());
        let mut accepting = JoinSet::new();
        for (listener, entry) in listeners {
            accepting.spawn_local(front.at(entry).accept(listener));
        }
        drop(front);
        let tended = worker.clone();
        spawn_local(async move { tended.tend().await });
        let all_ended = async { while accepting.join_next().await.is_some() {} };
        let follow = async {
            while stage.changed().await.is_ok() {
                let is_draining = *stage.borrow_and_update() == Stage::Draining;
                stop.send_replace(true);
                if is_draining {
                    worker.drain();
                } else {
                    worker.retire();
                }
            }
            // The switch is gone: everything is cut at once.
        };
        tokio::select! {
            () = all_ended => {}
            () = follow => {}
        }
    }
}
