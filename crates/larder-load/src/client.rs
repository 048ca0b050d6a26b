//! Clients as they act: sockets, timers, and the two ways of driving them.

pub(crate) mod alarm;
pub(crate) mod closed;
pub(crate) mod connection;
pub(crate) mod deadline;
pub(crate) mod line;
pub(crate) mod open;
pub(crate) mod sender;
pub(crate) mod usage;

/// Waits for tasks that nothing cancels. A panic in one of them goes on in the caller.
pub(crate) async fn join_all(tasks: Vec<tokio::task::JoinHandle<()>>) {
    for task in tasks {
        if let Err(error) = task.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
