//! The client side of a run: connections, timers, and the closed and open loops.

pub(crate) mod closed;
pub(crate) mod connection;
pub(crate) mod cpu;
pub(crate) mod deadline;
pub(crate) mod open;
pub(crate) mod sender;
pub(crate) mod slot;
pub(crate) mod timer;

/// Waits for tasks. A panic of a task is resumed in the caller.
pub(crate) async fn join_all(tasks: Vec<tokio::task::JoinHandle<()>>) {
    for task in tasks {
        if let Err(error) = task.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
