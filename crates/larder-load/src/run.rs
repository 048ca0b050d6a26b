//! One run: threads out, tallies in, a report.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::client::sender::Bench;
use crate::client::usage::{Spent, Usage};
use crate::client::{closed, open};
use crate::limits::{TooFewFiles, make_room};
use crate::plan::{Plan, PlanError};
use crate::report::{Frame, Report};
use crate::shared::Shared;
use crate::tally::Tally;

/// Longest time a schedule may reach into the future; what is due later is due then.
pub const RUN_MAX: Duration = Duration::from_secs(400 * 86_400);

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the first connection, which shows whether there is a server at all.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Requests finished, well or not.
    pub finished: u64,
    /// How many of them failed.
    pub failed: u64,
    /// Requests of the whole run; `None` if only time limits it.
    pub total: Option<u64>,
    /// Time since the start.
    pub elapsed: Duration,
    /// Whether the warm-up is over.
    pub measuring: bool,
}

/// Why a run gave no report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan is impossible. The caller's fault; trying again does not help.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Too few open files allowed. The operator's to raise.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// Nothing accepts connections. The server's fault; trying again may help.
    #[error("cannot connect to {address}")]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The system refused a thread, a timer or a poll set.
    #[error("cannot start clients")]
    System(#[source] io::Error),
    /// A thread of clients panicked: a bug here.
    #[error("a client thread panicked")]
    Panicked,
}

/// What a thread hands back.
struct Yield {
    tally: Tally,
    spent: Spent,
}

/// Runs a plan to its end and reports. `progress` is called about ten times a second and must not block.
///
/// Dropping the future ends the clients at once; [`Plan::stop`] ends the run early with a report. Needs a tokio
/// runtime with time and I/O, on which almost no work is done: clients have threads of their own.
///
/// # Errors
/// [`LoadError`]. Failing requests are no error; they are in the report.
pub async fn run(plan: Plan, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report, LoadError> {
    let job = Arc::new(plan.check()?);
    make_room(job.plan.connections())?;
    for address in std::iter::once(job.plan.address).chain(job.plan.others.iter().copied()) {
        probe(address, job.plan.timeout).await?;
    }
    let (cancel, cancelled) = watch::channel(());
    let shared = Arc::new(Shared::new(Arc::clone(&job), Instant::now()));
    let mut yields = Vec::new();
    for (place, connections) in shares(job.plan.senders(), job.plan.threads).into_iter().enumerate() {
        let (send, receive) = oneshot::channel();
        let (shared, cancelled) = (Arc::clone(&shared), cancelled.clone());
        std::thread::Builder::new()
            .name(format!("load-{place}"))
            .spawn(move || {
                // Nobody to tell if the run was dropped.
                let _ = send.send(work(&shared, connections, cancelled));
            })
            .map_err(LoadError::System)?;
        yields.push(receive);
    }
    let mut tally = Tally::new(job.plan.timeline_interval);
    let mut spent = Vec::with_capacity(yields.len());
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for mut receive in yields {
        let done = loop {
            tokio::select! {
                done = &mut receive => break done,
                _ = ticks.tick() => progress(progress_of(&shared)),
            }
        };
        let done = done.map_err(|_| LoadError::Panicked)?.map_err(LoadError::System)?;
        tally.merge(&done.tally);
        spent.push(done.spent);
    }
    progress(progress_of(&shared));
    drop(cancel);
    Ok(Report::new(Frame::of(&shared), &tally, &spent))
}

fn progress_of(shared: &Shared) -> Progress {
    let (finished, failed) = shared.counts();
    let measuring = shared.measured_from().is_some_and(|from| shared.now() >= from);
    Progress { finished, failed, total: shared.job.total, elapsed: shared.now(), measuring }
}

/// A connection that is closed at once: says plainly that there is no server, where a run would only count faults.
pub(crate) async fn probe(address: SocketAddr, timeout: Duration) -> Result<(), LoadError> {
    let unreachable = |source| LoadError::Unreachable { address, source };
    let limit = timeout.clamp(Duration::from_millis(100), PROBE_MAX);
    match tokio::time::timeout(limit, tokio::net::TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unreachable(error)),
        Err(_) => Err(unreachable(io::ErrorKind::TimedOut.into())),
    }
}

/// `connections` over at most `threads`, as equal as can be, none without any.
fn shares(connections: u32, threads: u32) -> Vec<u32> {
    let threads = threads.min(connections).max(1);
    (0..threads).map(|place| connections / threads + u32::from(place < connections % threads)).collect()
}

/// The body of a client thread.
fn work(shared: &Arc<Shared>, connections: u32, mut cancelled: watch::Receiver<()>) -> io::Result<Yield> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let bench = Rc::new(Bench::new(Arc::clone(shared)));
    let clients = async {
        match &shared.job.pacer {
            None => {
                closed::drive(&bench, connections).await;
                Ok(())
            }
            Some(pacer) => open::drive(&bench, pacer, connections).await,
        }
    };
    let ended = local.block_on(&runtime, async {
        tokio::select! {
            ended = clients => ended,
            // Nothing is ever sent: this is the run being dropped.
            _ = cancelled.changed() => Ok(()),
        }
    });
    ended?;
    let now = Usage::of_this_thread();
    let spent = bench.usage_from.get().map_or_else(Spent::default, |from| now.since(&from));
    let tally = bench.tally.replace(Tally::new(shared.job.plan.timeline_interval));
    Ok(Yield { tally, spent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_out_evenly() {
        assert_eq!(shares(7, 3), [3, 2, 2]);
        assert_eq!(shares(2, 8), [1, 1]);
        assert_eq!(shares(64, 1), [64]);
    }
}
