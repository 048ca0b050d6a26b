//! Runs cases against a system under test.

use crate::case::{CLIENTS, Case, StartTime};
use crate::client;
use crate::origin::{CaseRegistry, RunningCase, State};
use crate::record::{ClientExchange, Exchange, Record};
use crate::step::StepContext;
use crate::wire::Wire;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Maximum idle time of a reused connection. It is well below the idle timeout of the systems (60 s).
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Maximum time for a leading step to reach the point at which its followers start.
const LEAD_MAX: Duration = Duration::from_secs(10);

/// The system under test.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in reports.
    pub name: &'static str,
    /// Addresses to which clients connect.
    pub entry_points: Vec<SocketAddr>,
    /// Whether all requests go through one cache.
    pub one_cache: bool,
    /// Number of requests that the broken node has read without a reply, if the system has such a node. A request that
    /// must not be repeated is then lost.
    pub dropped: Option<Arc<AtomicU64>>,
    /// How long the origin waits for the second exchange of a hedged request.
    pub hedge: Option<Duration>,
}

/// A finished step.
#[derive(Debug)]
struct FinishedStep {
    step: usize,
    /// Index of the pool to which the connection returns.
    pool: usize,
    result: ClientExchange,
    wire: Option<Wire>,
}

/// Runs one case after another, on its own connections.
#[derive(Debug)]
pub struct CaseRunner {
    number: usize,
    target: Arc<Target>,
    registry: Arc<CaseRegistry>,
    /// Idle connections with the start of their idle time, by client and entry point.
    idle: Vec<Vec<(Instant, Wire)>>,
    /// Time for which the origin holds a reply after the request of a follower was written, unless the request reaches it
    /// before.
    grace: Duration,
}

impl CaseRunner {
    /// Creates a runner with a number that no other runner has.
    pub fn new(number: usize, target: Arc<Target>, registry: Arc<CaseRegistry>, grace: Duration) -> Self {
        let idle = (0..CLIENTS.len() * target.entry_points.len()).map(|_| Vec::new()).collect();
        Self { number, target, registry, idle, grace }
    }

    /// Runs a case. `run` is a unique number of the run.
    pub async fn run(&mut self, case: &Arc<Case>, run: u64) -> Record {
        let running_case = Arc::new(RunningCase::new(Arc::clone(case), run, self.target.hedge));
        self.registry.set(self.number, Some(Arc::clone(&running_case)));
        let mut results: Vec<Option<ClientExchange>> = vec![None; case.steps.len()];
        let mut running = JoinSet::new();
        for step in 0..case.steps.len() {
            match case.leader(step) {
                None => self.collect(&mut running, &mut results).await,
                Some(leader) => {
                    // All followers start at the point at which the origin holds its reply; otherwise it would be held forever.
                    let starts_now = |state: &State| match case.held(leader) {
                        Some(StartTime::DuringBody) => state.half_sent[leader],
                        _ => state.exchanges.iter().any(|exchange| exchange.step == leader),
                    };
                    // If the leader never reaches the origin, its end releases the followers.
                    running_case.wait_until(LEAD_MAX, |state| state.ended[leader] || starts_now(state)).await;
                }
            }
            self.start(&mut running, &running_case, (case, run, step));
            if let Some(leader) = case.leader(step) {
                let is_seen = |exchange: &Exchange| exchange.step == step;
                running_case
                    .wait_until(self.grace, |state| {
                        state.ended[leader] || state.ended[step] || state.exchanges.iter().any(is_seen)
                    })
                    .await;
                let is_last = !(step + 1..case.steps.len()).any(|later| case.leader(later) == Some(leader));
                if is_last {
                    running_case.change(|state| state.released[leader] = true);
                }
            }
        }
        self.collect(&mut running, &mut results).await;
        self.registry.set(self.number, None);
        let results = results.into_iter().flatten().collect();
        Record {
            case: Arc::clone(case),
            clock: running_case.clock(),
            client_exchanges: results,
            exchanges: running_case.exchanges(),
            entry_points: self.target.entry_points.len(),
            one_cache: self.target.one_cache,
            loses_requests: self.target.dropped.is_some(),
        }
    }

    /// Sends the request of a step in a new task.
    fn start(
        &mut self,
        running: &mut JoinSet<FinishedStep>,
        running_case: &Arc<RunningCase>,
        (case, run, step): (&Arc<Case>, u64, usize),
    ) {
        let clock = running_case.clock();
        let scene = StepContext { case, clock: &clock, step };
        let request = scene.request(&CaseRegistry::path(self.number, run), &CaseRegistry::mark(run, step));
        let from = case.steps[step].client;
        let entry_point = case.steps[step].entry_point % self.target.entry_points.len();
        let pool = from * self.target.entry_points.len() + entry_point;
        let kept = self.idle[pool].pop().filter(|(since, _)| since.elapsed() < IDLE_MAX);
        let (to, wire) = (self.target.entry_points[entry_point], kept.map(|(_, wire)| wire));
        let running_case = Arc::clone(running_case);
        running.spawn(async move {
            let (result, wire) = client::send(wire, (from, to), request, clock).await;
            running_case.change(|state| state.ended[step] = true);
            FinishedStep { step, pool, result, wire }
        });
    }

    /// Waits for all running steps.
    async fn collect(&mut self, running: &mut JoinSet<FinishedStep>, results: &mut [Option<ClientExchange>]) {
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(FinishedStep { step, pool, result, wire }) => {
                    self.idle[pool].extend(wire.map(|wire| (Instant::now(), wire)));
                    results[step] = Some(result);
                }
                // A panic of the harness must not look like a case without replies.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}
