//! The threads that serve connections. Each has an event loop of its own and serves a connection from its first byte to its last.

use super::clock::runtime;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use std::{io, thread};
use tokio::sync::mpsc;

/// Time that work which blocks, such as a read from a disk, has to end when its thread does.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Threads with an event loop each.
#[derive(Debug)]
pub struct Threads {
    /// Held by each thread while it lives.
    alive: mpsc::Receiver<Infallible>,
}

/// Tells whoever starts a thread whether it can serve.
#[derive(Debug)]
pub struct Begun(std::sync::mpsc::Sender<io::Result<()>>);

impl Begun {
    /// The thread serves, or cannot.
    pub fn tell(self, result: io::Result<()>) {
        // Whoever starts the threads waits for this.
        let _ = self.0.send(result);
    }
}

impl Threads {
    /// Starts a thread for each of `works`, named `name` with a number, and waits until all serve.
    ///
    /// # Errors
    /// The system refuses a thread or what its event loop needs, or a thread cannot serve.
    pub fn start<W, F>(name: &str, works: Vec<W>) -> io::Result<Self>
    where
        W: FnOnce(Begun) -> F + Send + 'static,
        F: Future<Output = ()>,
    {
        let (alive, count) = (mpsc::channel(1), works.len());
        let (begun, begins) = std::sync::mpsc::channel();
        for (number, work) in works.into_iter().enumerate() {
            let (begun, alive) = (Begun(begun.clone()), alive.0.clone());
            let serve = move || {
                match runtime() {
                    Ok(runtime) => {
                        runtime.block_on(work(begun));
                        runtime.shutdown_timeout(LAST_WORK);
                    }
                    Err(error) => begun.tell(Err(error)),
                }
                drop(alive);
            };
            thread::Builder::new().name(format!("{name}-{number}")).spawn(serve)?;
        }
        drop(begun);
        // Each thread says once whether it serves, unless it has panicked.
        let serving = begins.iter().take(count).collect::<io::Result<Vec<()>>>()?.len();
        if serving < count {
            return Err(io::Error::other("a thread ended before it served"));
        }
        Ok(Self { alive: alive.1 })
    }

    /// Waits until all have ended.
    pub async fn ended(&mut self) {
        let _ = self.alive.recv().await;
    }
}
