//! Execution of a plan: starts the client threads, collects their results, and builds the report.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::client::cpu::{CpuSample, CpuUsage};
use crate::client::sender::SenderContext;
use crate::client::{closed, open};
use crate::file_limit::{FileLimitError, raise_file_limit};
use crate::plan::{Plan, PlanError};
use crate::report::{Report, RunSummary};
use crate::run_state::RunState;
use crate::tally::Tally;

/// Period of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum wait for the probe connection, which checks that there is a server.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Finished requests, including failed ones.
    pub finished: u64,
    /// Failed requests.
    pub failed: u64,
    /// Requests of the whole run; `None` if the run is limited by time only.
    pub total: Option<u64>,
    /// Time since the start.
    pub elapsed: Duration,
    /// Whether the warm-up is over.
    pub measuring: bool,
}

/// Why a run has no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan is invalid. The caller must change it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The limit on open files is too low. The operator must raise it.
    #[error(transparent)]
    Files(#[from] FileLimitError),
    /// The server does not accept connections. A retry may help.
    #[error("cannot connect to {address}")]
    Unreachable {
        /// The server's address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A thread, a timer or a poll set could not be created.
    #[error("cannot start clients")]
    System(#[source] io::Error),
    /// A client thread panicked, which is a bug of this crate.
    #[error("a client thread panicked")]
    Panicked,
}

/// The result of a client thread.
struct ThreadResult {
    tally: Tally,
    cpu_usage: CpuUsage,
}

/// Executes a plan and returns a report. `progress` is called about ten times a second and must not block.
///
/// Dropping the future stops the clients at once; [`Plan::stop`] ends the run early with a report. The future needs a tokio
/// runtime with time and I/O but does almost no work on it, because clients run on their own threads.
///
/// # Errors
/// [`LoadError`]. Failed requests are not errors; the report counts them.
pub async fn run(plan: Plan, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report, LoadError> {
    let job = Arc::new(plan.check()?);
    raise_file_limit(job.plan.connections())?;
    for address in std::iter::once(job.plan.address).chain(job.plan.other_addresses.iter().copied()) {
        probe(address, job.plan.timeout).await?;
    }
    let (cancel, cancelled) = watch::channel(());
    let shared = Arc::new(RunState::new(Arc::clone(&job), Instant::now()));
    let mut results = Vec::new();
    for (index, connections) in split_evenly(job.plan.senders(), job.plan.threads).into_iter().enumerate() {
        let (send, receive) = oneshot::channel();
        let (shared, cancelled) = (Arc::clone(&shared), cancelled.clone());
        std::thread::Builder::new()
            .name(format!("load-{index}"))
            .spawn(move || {
                // An error means that the run was dropped.
                let _ = send.send(run_thread(&shared, connections, cancelled));
            })
            .map_err(LoadError::System)?;
        results.push(receive);
    }
    let mut tally = Tally::new(job.plan.timeline_interval);
    let mut cpu_usage = Vec::with_capacity(results.len());
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for mut receive in results {
        let done = loop {
            tokio::select! {
                done = &mut receive => break done,
                _ = ticks.tick() => progress(current_progress(&shared)),
            }
        };
        let done = done.map_err(|_| LoadError::Panicked)?.map_err(LoadError::System)?;
        tally.merge(&done.tally);
        cpu_usage.push(done.cpu_usage);
    }
    progress(current_progress(&shared));
    drop(cancel);
    Ok(Report::new(RunSummary::new(&shared), &tally, &cpu_usage))
}

fn current_progress(shared: &RunState) -> Progress {
    let (finished, failed) = shared.counts();
    let measuring = shared.measured_from().is_some_and(|from| shared.now() >= from);
    Progress { finished, failed, total: shared.job.total, elapsed: shared.now(), measuring }
}

/// Opens and closes a connection, so that a missing server is an error of the run instead of a fault of every request.
pub(crate) async fn probe(address: SocketAddr, timeout: Duration) -> Result<(), LoadError> {
    let unreachable = |source| LoadError::Unreachable { address, source };
    let limit = timeout.clamp(Duration::from_millis(100), PROBE_MAX);
    match tokio::time::timeout(limit, tokio::net::TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unreachable(error)),
        Err(_) => Err(unreachable(io::ErrorKind::TimedOut.into())),
    }
}

/// Splits `connections` evenly over at most `threads` shares, none of which is empty.
fn split_evenly(connections: u32, threads: u32) -> Vec<u32> {
    let threads = threads.min(connections).max(1);
    (0..threads).map(|index| connections / threads + u32::from(index < connections % threads)).collect()
}

/// Runs the clients of one thread.
fn run_thread(
    shared: &Arc<RunState>,
    connections: u32,
    mut cancelled: watch::Receiver<()>,
) -> io::Result<ThreadResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let bench = Rc::new(SenderContext::new(Arc::clone(shared)));
    let clients = async {
        match &shared.job.pacer {
            None => {
                closed::drive(&bench, connections).await;
                Ok(())
            }
            Some(pacer) => open::drive(&bench, pacer, connections).await,
        }
    };
    let result = local.block_on(&runtime, async {
        tokio::select! {
            result = clients => result,
            // Nothing is ever sent on this channel. It closes when the run is dropped.
            _ = cancelled.changed() => Ok(()),
        }
    });
    result?;
    let now = CpuSample::current_thread();
    let cpu_usage = bench.cpu_start.get().map_or_else(CpuUsage::default, |from| now.since(&from));
    let tally = bench.tally.replace(Tally::new(shared.job.plan.timeline_interval));
    Ok(ThreadResult { tally, cpu_usage })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_split_evenly() {
        assert_eq!(split_evenly(7, 3), [3, 2, 2]);
        assert_eq!(split_evenly(2, 8), [1, 1]);
        assert_eq!(split_evenly(64, 1), [64]);
    }
}
