//! The origin: replies to requests of the system under test. The path of a request identifies its case.
//!
//! Events control concurrency. The origin holds its reply to a leading step until the requests of the following steps are in
//! flight.

use crate::case::{Case, StartTime};
use crate::record::{Clock, Exchange, REQUEST_MARK};
use crate::step::{Plan, StepContext};
use crate::wire::{Head, Wire};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

/// Maximum time for which the origin holds a reply.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// A running case, shared by origin and clients.
#[derive(Debug)]
pub struct RunningCase {
    case: Arc<Case>,
    clock: Clock,
    /// Unique number of the run, which is part of the path.
    run: u64,
    /// Time for which the origin waits for the second exchange of a hedged step.
    hedge: Option<Duration>,
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

/// Events of the case so far.
#[derive(Debug, Default)]
pub struct State {
    /// Requests that have reached the origin.
    pub exchanges: Vec<Exchange>,
    /// Whether each step has finished.
    pub ended: Vec<bool>,
    /// Whether the reply to each step has been released.
    pub released: Vec<bool>,
    /// Whether the first half of the body has been sent for each step.
    pub half_sent: Vec<bool>,
}

impl RunningCase {
    /// Starts a case.
    pub fn new(case: Arc<Case>, run: u64, hedge: Option<Duration>) -> Self {
        let none = vec![false; case.steps.len()];
        let state =
            State { exchanges: Vec::new(), ended: none.clone(), released: none.clone(), half_sent: none };
        let hedge = hedge.filter(|_| case.hedged);
        let (version, _) = watch::channel(0);
        Self { case, clock: Clock::start(), run, hedge, state: Mutex::new(state), version }
    }

    /// The clock of the case.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes the exchanges out of the state.
    pub fn exchanges(&self) -> Vec<Exchange> {
        std::mem::take(&mut self.lock().exchanges)
    }

    /// Changes the state and wakes the waiting tasks.
    pub fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = act(&mut self.lock());
        self.version.send_modify(|version| *version += 1);
        result
    }

    /// Waits until the state satisfies a condition. Returns false if it takes longer than `limit`.
    pub async fn wait_until(&self, limit: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let mut versions = self.version.subscribe();
        let wait = async {
            while !condition(&self.lock()) {
                if versions.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(limit, wait).await.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replies to a request of a step. Returns false if the connection must be closed.
    async fn exchange(&self, wire: &mut Wire, step: usize, head: Head) -> io::Result<bool> {
        let (number, plan) = self.begin(step, &head);
        let held = self.case.held(step);
        if held == Some(StartTime::DuringHead) {
            self.wait_until(HOLD_MAX, |state| state.released[step]).await;
        }
        if let Some(limit) = self.hedge.filter(|_| head.method != "POST") {
            let of_step = |state: &State| state.exchanges.iter().filter(|other| other.step == step).count();
            self.wait_until(limit, |state| of_step(state) > 1).await;
        }
        let Some(reply) = &plan.reply else { return Ok(false) };
        let (first, second) = plan.bytes(reply, &head.method);
        let now = self.clock.now();
        self.change(|state| {
            if let Some(exchange) = state.exchanges.get_mut(number) {
                exchange.replied = Some(now);
            }
        });
        wire.write(&first).await?;
        if held == Some(StartTime::DuringBody) {
            self.change(|state| state.half_sent[step] = true);
            self.wait_until(HOLD_MAX, |state| state.released[step]).await;
        }
        if plan.is_cut {
            return Ok(false);
        }
        wire.write(&second).await?;
        let now = self.clock.now();
        self.change(|state| {
            if let Some(exchange) = state.exchanges.get_mut(number) {
                exchange.ended = Some(now);
            }
        });
        Ok(!plan.closes(reply))
    }

    /// Records a request and plans the reply.
    fn begin(&self, step: usize, head: &Head) -> (usize, Plan) {
        let arrived = self.clock.now();
        self.change(|state| {
            let number = state.exchanges.len();
            let scene = StepContext { case: &self.case, clock: &self.clock, step };
            let plan = scene.plan(head, number);
            state.exchanges.push(Exchange {
                step,
                method: head.method.clone(),
                request_fields: head.fields.clone(),
                arrived,
                replied: None,
                ended: None,
                reply: plan.reply.clone(),
            });
            (number, plan)
        })
    }
}

/// The running cases, by runner.
#[derive(Debug)]
pub struct CaseRegistry {
    runners: Vec<Mutex<Option<Arc<RunningCase>>>>,
    strays: AtomicU64,
}

impl CaseRegistry {
    /// Creates a registry for a number of runners.
    pub fn new(runners: usize) -> Self {
        Self { runners: (0..runners).map(|_| Mutex::default()).collect(), strays: AtomicU64::new(0) }
    }

    /// Sets the case of a runner.
    pub fn set(&self, runner: usize, running_case: Option<Arc<RunningCase>>) {
        *self.runners[runner].lock().unwrap_or_else(PoisonError::into_inner) = running_case;
    }

    /// Number of requests for finished cases, such as background refreshes.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// The path of a run.
    pub fn path(runner: usize, run: u64) -> String {
        format!("/c/{runner}/{run}")
    }

    /// The value of [`REQUEST_MARK`] for a step.
    pub fn mark(run: u64, step: usize) -> String {
        format!("{run}.{step}")
    }

    fn find(&self, head: &Head) -> Option<(Arc<RunningCase>, usize)> {
        let path = head.target.split('?').next()?.strip_prefix("/c/")?;
        let (runner, run) = path.split_once('/')?;
        let run: u64 = run.parse().ok()?;
        let runner = self.runners.get(runner.parse::<usize>().ok()?)?;
        let running_case = runner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let running_case = running_case.filter(|running_case| running_case.run == run)?;
        let (marked, step) = head.fields.first(REQUEST_MARK)?.split_once('.')?;
        let step: usize = step.parse().ok()?;
        (marked.parse() == Ok(run) && step < running_case.case.steps.len()).then_some((running_case, step))
    }
}

/// Starts the origin on a free port of the loopback interface. It runs until the runtime ends.
///
/// # Errors
/// If no port can be bound.
pub async fn start(registry: Arc<CaseRegistry>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => {
                    let registry = Arc::clone(&registry);
                    tokio::spawn(async move { serve(Wire::new(tcp), &registry).await });
                }
                // Out of descriptors; closed connections will release some.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    Ok(address)
}

/// Serves a connection until it is closed.
async fn serve(mut wire: Wire, registry: &CaseRegistry) {
    const STRAY: &[u8] = b"HTTP/1.1 503 Stray\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n";
    while let Ok(Some(head)) = wire.request().await {
        if wire.request_body(&head).await.is_err() {
            return;
        }
        let keep_open = match registry.find(&head) {
            Some((running_case, step)) => running_case.exchange(&mut wire, step, head).await,
            None => {
                registry.strays.fetch_add(1, Ordering::Relaxed);
                wire.write(STRAY).await.map(|()| true)
            }
        };
        if !matches!(keep_open, Ok(true)) {
            return;
        }
    }
}
