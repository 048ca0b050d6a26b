//! Runs a case against a system under test.

use crate::case::{CLIENTS, Case, Start};
use crate::client;
use crate::origin::{Registry, Stage, State};
use crate::record::{Asked, Exchange, Record};
use crate::script::Scene;
use crate::wire::Wire;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long a connection may be idle and still be used. Well below the time after which the systems close it (60 s).
const IDLE_MAX: Duration = Duration::from_secs(20);
/// How long a leading step may take to reach the point at which its followers start.
const LEAD_MAX: Duration = Duration::from_secs(10);

/// A system under test, as the harness reaches it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in reports.
    pub name: &'static str,
    /// Address to which clients connect.
    pub doors: Vec<SocketAddr>,
    /// Whether all requests go through one cache.
    pub one_cache: bool,
    /// Requests that a node has read and not answered, where there is such a node. A request that must not be sent
    /// twice is then lost.
    pub dropped: Option<Arc<AtomicU64>>,
    /// How long the origin waits for the second exchange of a hedged request.
    pub hedge: Option<Duration>,
}

/// A step that has ended.
#[derive(Debug)]
struct Ended {
    step: usize,
    /// Index of the pool that the connection goes back to.
    pool: usize,
    asked: Asked,
    wire: Option<Wire>,
}

/// Runs one case after the other, on connections of its own.
#[derive(Debug)]
pub struct Lane {
    number: usize,
    target: Arc<Target>,
    registry: Arc<Registry>,
    /// Idle connections and the time since when they are idle, by client and door.
    idle: Vec<Vec<(Instant, Wire)>>,
    /// How long the origin holds a reply once the request of a follower is written, unless the origin sees it before.
    grace: Duration,
}

impl Lane {
    /// A lane with this number.
    pub fn new(number: usize, target: Arc<Target>, registry: Arc<Registry>, grace: Duration) -> Self {
        let idle = (0..CLIENTS.len() * target.doors.len()).map(|_| Vec::new()).collect();
        Self { number, target, registry, idle, grace }
    }

    /// Runs a case. `run` is a number that no other run against this system has.
    pub async fn run(&mut self, case: &Arc<Case>, run: u64) -> Record {
        let stage = Arc::new(Stage::new(Arc::clone(case), run, self.target.hedge));
        self.registry.set(self.number, Some(Arc::clone(&stage)));
        let mut asked: Vec<Option<Asked>> = vec![None; case.steps.len()];
        let mut running = JoinSet::new();
        for step in 0..case.steps.len() {
            match case.leader(step) {
                None => self.collect(&mut running, &mut asked).await,
                Some(leader) => {
                    // All followers start where the origin holds its reply, or it would hold it for ever.
                    let starts_now = |state: &State| match case.held(leader) {
                        Some(Start::DuringBody) => state.half_sent[leader],
                        _ => state.exchanges.iter().any(|exchange| exchange.step == leader),
                    };
                    // A leader that never asks the origin holds nobody up.
                    stage.until(LEAD_MAX, |state| state.ended[leader] || starts_now(state)).await;
                }
            }
            self.start(&mut running, &stage, (case, run, step));
            if let Some(leader) = case.leader(step) {
                let is_seen = |exchange: &Exchange| exchange.step == step;
                stage
                    .until(self.grace, |state| {
                        state.ended[leader] || state.ended[step] || state.exchanges.iter().any(is_seen)
                    })
                    .await;
                let is_last = !(step + 1..case.steps.len()).any(|later| case.leader(later) == Some(leader));
                if is_last {
                    stage.change(|state| state.released[leader] = true);
                }
            }
        }
        self.collect(&mut running, &mut asked).await;
        self.registry.set(self.number, None);
        let asked = asked.into_iter().flatten().collect();
        Record {
            case: Arc::clone(case),
            clock: stage.clock(),
            asked,
            exchanges: stage.exchanges(),
            doors: self.target.doors.len(),
            one_cache: self.target.one_cache,
            loses_requests: self.target.dropped.is_some(),
        }
    }

    /// Sends the request of a step in a task of its own.
    fn start(
        &mut self,
        running: &mut JoinSet<Ended>,
        stage: &Arc<Stage>,
        (case, run, step): (&Arc<Case>, u64, usize),
    ) {
        let clock = stage.clock();
        let scene = Scene { case, clock: &clock, step };
        let request = scene.request(&Registry::path(self.number, run), &Registry::mark(run, step));
        let from = case.steps[step].client;
        let door = case.steps[step].door % self.target.doors.len();
        let pool = from * self.target.doors.len() + door;
        let kept = self.idle[pool].pop().filter(|(since, _)| since.elapsed() < IDLE_MAX);
        let (to, wire) = (self.target.doors[door], kept.map(|(_, wire)| wire));
        let stage = Arc::clone(stage);
        running.spawn(async move {
            let (asked, wire) = client::ask(wire, (from, to), request, clock).await;
            stage.change(|state| state.ended[step] = true);
            Ended { step, pool, asked, wire }
        });
    }

    /// Waits for all steps that run.
    async fn collect(&mut self, running: &mut JoinSet<Ended>, asked: &mut [Option<Asked>]) {
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(Ended { step, pool, asked: result, wire }) => {
                    self.idle[pool].extend(wire.map(|wire| (Instant::now(), wire)));
                    asked[step] = Some(result);
                }
                // A fault of the harness itself must not look like a case without replies.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}
