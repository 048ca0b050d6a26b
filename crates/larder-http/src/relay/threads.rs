//! The threads that serve connections. Each thread has its own event loop, and serves a connection from its
//! first byte to its last.

use super::clock::runtime;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use std::{io, thread};
use tokio::sync::mpsc;

/// Longest time for blocking work, such as a read from a disk, to end after its thread has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// A group of threads with an event loop each.
#[derive(Debug)]
pub struct Threads {
    /// Each thread holds a sender while it lives.
    alive: mpsc::Receiver<Infallible>,
}

/// The sender with which a thread reports whether it can serve.
#[derive(Debug)]
pub struct StartupSignal(std::sync::mpsc::Sender<io::Result<()>>);

impl StartupSignal {
    /// Reports that the thread serves, or why it cannot.
    pub fn tell(self, result: io::Result<()>) {
        // The receiver waits for this report, or has given up after the failure of another thread.
        let _ = self.0.send(result);
    }
}

impl Threads {
    /// Starts a thread for each of `works` and waits until all can serve. A thread is named `name` with a
    /// number.
    ///
    /// # Errors
    /// The operating system refuses a thread or a resource of its event loop, or a thread cannot serve.
    pub fn start<W, F>(name: &str, works: Vec<W>) -> io::Result<Self>
    where
        W: FnOnce(StartupSignal) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (alive, count) = (mpsc::channel(1), works.len());
        let (startup, results) = std::sync::mpsc::channel();
        for (number, work) in works.into_iter().enumerate() {
            let (startup, alive) = (StartupSignal(startup.clone()), alive.0.clone());
            let serve = move || {
                match runtime() {
                    Ok(runtime) => {
                        runtime.block_on(work(startup));
                        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
                    }
                    Err(error) => startup.tell(Err(error)),
                }
                drop(alive);
            };
            thread::Builder::new().name(format!("{name}-{number}")).spawn(serve)?;
        }
        drop(startup);
        // Each thread reports once, unless it has panicked.
        let serving = results.iter().take(count).collect::<io::Result<Vec<()>>>()?.len();
        if serving < count {
            return Err(io::Error::other("a thread ended before it served"));
        }
        Ok(Self { alive: alive.1 })
    }

    /// Waits until all threads have ended.
    pub async fn ended(&mut self) {
        let _ = self.alive.recv().await;
    }
}
