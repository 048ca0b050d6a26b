//! The threads that serve connections.
//!
//! Each thread accepts connections for itself. Threads share [`Shared`], but no connections.

use crate::accept::{Acceptor, ListenerProtocol};
use crate::request::Requests;
use crate::shared::Shared;
use larder_http::relay::{PoolLimits, StartupSignal, Threads, Worker};
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_local};

/// Stage of a switch's shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ShutdownStage {
    /// Connections are accepted.
    #[default]
    Serving,
    /// No connection is accepted. An idle connection may bring one more request.
    Retiring,
    /// No connection is accepted, and idle connections are closed.
    Draining,
}

/// Threads of a switch. Dropping this value ends them at once.
#[derive(Debug)]
pub(crate) struct Workers {
    stage: watch::Sender<ShutdownStage>,
    threads: Threads,
}

/// State of one thread.
struct WorkerThread {
    shared: Arc<Shared>,
    listeners: Vec<(TcpListener, ListenerProtocol)>,
    stage: watch::Receiver<ShutdownStage>,
    pool: PoolLimits,
}

impl Workers {
    /// Starts `threads` threads that accept connections from all `listeners`.
    ///
    /// # Errors
    /// The system cannot start a thread or its event loop.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        listeners: &[(TcpListener, ListenerProtocol)],
        (threads, pool): (usize, PoolLimits),
    ) -> io::Result<Self> {
        let stage = watch::Sender::default();
        let thread = |_| {
            let cloned =
                listeners.iter().map(|(listener, protocol)| Ok((listener.try_clone()?, protocol.clone())));
            let listeners = cloned.collect::<io::Result<_>>()?;
            let thread = WorkerThread { shared: shared.clone(), listeners, stage: stage.subscribe(), pool };
            Ok(|startup| thread.serve(startup))
        };
        let works = (0..threads).map(thread).collect::<io::Result<_>>()?;
        let threads = Threads::start("requests", works)?;
        Ok(Self { stage, threads })
    }

    /// Sets the stage. The threads end once their connections have ended.
    pub(crate) fn end(&self, stage: ShutdownStage) {
        self.stage.send_replace(stage);
    }

    /// Waits until all threads have ended.
    pub(crate) async fn ended(&mut self) {
        self.threads.ended().await;
    }
}

impl WorkerThread {
    /// Serves until the switch ends and all connections have ended. Reports to `startup` whether the thread can
    /// serve.
    async fn serve(self, startup: StartupSignal) {
        let Self { shared, listeners, mut stage, pool } = self;
        let registered = listeners.into_iter().map(|(listener, protocol)| {
            tokio::net::TcpListener::from_std(listener).map(|listener| (listener, protocol))
        });
        let listeners: Vec<_> = match registered.collect() {
            Ok(listeners) => listeners,
            Err(error) => return startup.tell(Err(error)),
        };
        startup.tell(Ok(()));
        let worker = Worker::new(Requests { shared: shared.clone() }, pool);
        let worker = Rc::new(worker.with_stream_memory(shared.http2_memory.clone()));
        let (stop, stopping) = watch::channel(false);
        let acceptor = Acceptor::new(shared.clone(), stopping, worker.clone());
        let mut accepting = JoinSet::new();
        for (listener, protocol) in listeners {
            accepting.spawn_local(acceptor.at(protocol).accept(listener));
        }
        drop(acceptor);
        let tended = worker.clone();
        spawn_local(async move { tended.run_sweeper().await });
        let all_ended = async { while accepting.join_next().await.is_some() {} };
        let follow = async {
            while stage.changed().await.is_ok() {
                let is_draining = *stage.borrow_and_update() == ShutdownStage::Draining;
                stop.send_replace(true);
                if is_draining {
                    worker.drain();
                } else {
                    worker.retire();
                }
            }
            // The switch was dropped: all connections are cut at once.
        };
        tokio::select! {
            () = all_ended => {}
            () = follow => {}
        }
    }
}
