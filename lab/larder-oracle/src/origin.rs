//! The origin: replies to what the system under test asks, as the case of the request's path says.
//!
//! Concurrency is controlled by events. The origin holds its reply to a leading step until the harness has seen that
//! the requests of the following steps are under way.

use crate::case::{Case, Start};
use crate::record::{Clock, Exchange, REQUEST_MARK};
use crate::script::{Plan, Scene};
use crate::wire::{Head, Wire};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long the origin holds a reply at most, should the harness never release it.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// A case while it runs, as origin and clients share it.
#[derive(Debug)]
pub struct Stage {
    case: Arc<Case>,
    clock: Clock,
    /// Unique number of this run of the case; part of its path.
    run: u64,
    /// How long the origin waits for a second exchange of a step, where the system under test hedges.
    hedge: Option<Duration>,
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

/// Events of the case so far.
#[derive(Debug, Default)]
pub struct State {
    /// Requests that have reached the origin.
    pub exchanges: Vec<Exchange>,
    /// Steps that have ended.
    pub ended: Vec<bool>,
    /// Steps whose replies the origin holds no longer.
    pub released: Vec<bool>,
    /// Steps of which the origin has sent the first half of the body.
    pub half_sent: Vec<bool>,
}

impl Stage {
    /// A case that starts now.
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

    /// Takes what has happened out.
    pub fn exchanges(&self) -> Vec<Exchange> {
        std::mem::take(&mut self.lock().exchanges)
    }

    /// Changes the state and wakes whoever waits for it.
    pub fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = act(&mut self.lock());
        self.version.send_modify(|version| *version += 1);
        result
    }

    /// Waits until the state is so. False if it takes longer than `limit`.
    pub async fn until(&self, limit: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let mut versions = self.version.subscribe();
        let wait = async {
            while !is_so(&self.lock()) {
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

    /// Replies to a request of a step. False if the connection ends.
    async fn exchange(&self, wire: &mut Wire, step: usize, head: Head) -> io::Result<bool> {
        let (number, plan) = self.begin(step, &head);
        let held = self.case.held(step);
        if held == Some(Start::DuringHead) {
            self.until(HOLD_MAX, |state| state.released[step]).await;
        }
        if let Some(limit) = self.hedge.filter(|_| head.method != "POST") {
            let of_step = |state: &State| state.exchanges.iter().filter(|other| other.step == step).count();
            self.until(limit, |state| of_step(state) > 1).await;
        }
        let Some(sent) = &plan.sent else { return Ok(false) };
        let (first, second) = plan.bytes(sent, &head.method);
        let now = self.clock.now();
        self.change(|state| {
            if let Some(exchange) = state.exchanges.get_mut(number) {
                exchange.replied = Some(now);
            }
        });
        wire.write(&first).await?;
        if held == Some(Start::DuringBody) {
            self.change(|state| state.half_sent[step] = true);
            self.until(HOLD_MAX, |state| state.released[step]).await;
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
        Ok(!plan.closes(sent))
    }

    fn begin(&self, step: usize, head: &Head) -> (usize, Plan) {
        let arrived = self.clock.now();
        self.change(|state| {
            let number = state.exchanges.len();
            let scene = Scene { case: &self.case, clock: &self.clock, step };
            let plan = scene.plan(head, number);
            state.exchanges.push(Exchange {
                step,
                method: head.method.clone(),
                asked: head.fields.clone(),
                arrived,
                replied: None,
                ended: None,
                sent: plan.sent.clone(),
            });
            (number, plan)
        })
    }
}

/// The cases that run, each in the place of the lane that runs it.
#[derive(Debug)]
pub struct Registry {
    lanes: Vec<Mutex<Option<Arc<Stage>>>>,
    strays: AtomicU64,
}

impl Registry {
    /// Places for so many cases.
    pub fn new(lanes: usize) -> Self {
        Self { lanes: (0..lanes).map(|_| Mutex::default()).collect(), strays: AtomicU64::new(0) }
    }

    /// Sets the case that a lane runs.
    pub fn set(&self, lane: usize, stage: Option<Arc<Stage>>) {
        *self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Requests for cases that had ended, such as a refresh in the background.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// The path of a case.
    pub fn path(lane: usize, run: u64) -> String {
        format!("/c/{lane}/{run}")
    }

    /// The value of [`REQUEST_MARK`] for a step.
    pub fn mark(run: u64, step: usize) -> String {
        format!("{run}.{step}")
    }

    fn find(&self, head: &Head) -> Option<(Arc<Stage>, usize)> {
        let path = head.target.split('?').next()?.strip_prefix("/c/")?;
        let (lane, run) = path.split_once('/')?;
        let run: u64 = run.parse().ok()?;
        let lane = self.lanes.get(lane.parse::<usize>().ok()?)?;
        let stage = lane.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stage = stage.filter(|stage| stage.run == run)?;
        let (marked, step) = head.fields.first(REQUEST_MARK)?.split_once('.')?;
        let step: usize = step.parse().ok()?;
        (marked.parse() == Ok(run) && step < stage.case.steps.len()).then_some((stage, step))
    }
}

/// Starts the origin on a free port of the loopback interface. It runs as long as the runtime.
///
/// # Errors
/// The port cannot be bound.
pub async fn start(registry: Arc<Registry>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => {
                    let registry = Arc::clone(&registry);
                    tokio::spawn(async move { serve(Wire::new(tcp), &registry).await });
                }
                // Out of descriptors: connections that end give some back.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    Ok(address)
}

/// Serves a connection to its end.
async fn serve(mut wire: Wire, registry: &Registry) {
    const STRAY: &[u8] = b"HTTP/1.1 503 Stray\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n";
    while let Ok(Some(head)) = wire.request().await {
        if wire.request_body(&head).await.is_err() {
            return;
        }
        let goes_on = match registry.find(&head) {
            Some((stage, step)) => stage.exchange(&mut wire, step, head).await,
            None => {
                registry.strays.fetch_add(1, Ordering::Relaxed);
                wire.write(STRAY).await.map(|()| true)
            }
        };
        if !matches!(goes_on, Ok(true)) {
            return;
        }
    }
}
