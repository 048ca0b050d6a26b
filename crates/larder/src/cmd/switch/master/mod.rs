//! The master: keeps the process id and the listeners of a switch, and a worker that does its work.
//!
//! ```text
//! SIGHUP, POST /reload ---> read the config -> bind -> start a worker --prepared--> (predecessor yields) --go--> ready
//! SIGUSR2 -> check the new binary -> exec it ------^                                (predecessor retires) <--------'
//! ```
//! What goes wrong on the way leaves the predecessor serving. The master does nothing else: no request passes it, and it has
//! one thread.

mod exec;
mod listeners;
mod staff;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) use self::exec::Checked;
use self::exec::Kept;
use self::listeners::Listeners;
use self::staff::{Heard, Worker};
use super::args::{NO_SECTION, SwitchArgs, choose};
use super::link::{FromWorker, PROTOCOL, Start, ToWorker, blob, monotonic_ns};
use super::notify::Manager;
use super::status::ReloadStatus;
use crate::admin::SWITCH_ADDRESS;
use crate::cmd::reloads::{By, Outcome};
use crate::cmd::{logging, serve};
use crate::config::{Config, Role, RunAs, Written};
use crate::demo::cluster::Ready;
use crate::outcome::{self, usage};
use crate::preflight;

/// Time for a worker to read its config and find its nodes.
const PREPARE: Duration = Duration::from_secs(60);
/// Time for one that serves to say how its nodes stand.
const TELL: Duration = Duration::from_secs(5);
/// Time for it to hand over.
const YIELD: Duration = Duration::from_secs(20);
/// Time for a prepared worker to serve.
const GO: Duration = Duration::from_secs(30);
/// Workers that finish what they have, at once; beyond that the oldest drains.
const RETIRING_MAX: usize = 16;
/// Pause before another worker takes the place of one that has died: doubled each time, up to the longest. None before the
/// first, or if the last has lived for a while.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
const LIVED: Duration = Duration::from_secs(30);

/// What the master goes by.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    origin: String,
    text: String,
    listen: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    run_as: Option<RunAs>,
}

impl Plan {
    /// Reads and checks the config, with policies that were chosen instead of its own.
    fn read(args: &SwitchArgs, policies: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut written = args.written()?;
        choose(&mut written, policies)?;
        let config = args.checked(&written)?;
        Self::of(&written, &config)
    }

    fn of(written: &Written, config: &Config) -> anyhow::Result<Self> {
        let role = config.switch.as_ref().ok_or_else(|| usage(NO_SECTION))?;
        let (origin, text) = written.text();
        Ok(Self {
            origin: origin.to_owned(),
            text: text.to_owned(),
            listen: role.switch.addresses().collect(),
            admin: serve::admin_address(config.admin, Some(SWITCH_ADDRESS)),
            run_as: role.run_as,
        })
    }
}

/// How a change went.
enum Went {
    Done,
    Refused(String),
    Failed { error: String, code: u8 },
}

fn failed(error: impl std::fmt::Display) -> Went {
    Went::Failed { error: error.to_string(), code: 1 }
}

struct Master<'a> {
    args: &'a SwitchArgs,
    plan: Plan,
    listeners: Listeners,
    /// When the first worker began; ns.
    since_ns: u64,
    status: ReloadStatus,
    current: Option<Worker>,
    retiring: Vec<Worker>,
    manager: Manager,
    /// When another worker is to take the place of one that has died, and how many have died one after the other.
    restart: Option<tokio::time::Instant>,
    deaths: u32,
    path: std::path::PathBuf,
}

/// The signals of a master.
struct Signals {
    reload: Signal,
    upgrade: Signal,
    terminate: Signal,
    interrupt: Signal,
    child: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let watch = |kind| signal(kind).context("cannot watch signals");
        Ok(Self {
            reload: watch(SignalKind::hangup())?,
            upgrade: watch(SignalKind::user_defined2())?,
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            child: watch(SignalKind::child())?,
        })
    }
}

async fn asked_to_end(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Runs until the switch ends. `successor`: the program has been replaced by this one while workers serve.
pub(super) fn run(args: &SwitchArgs, successor: bool) -> anyhow::Result<()> {
    let kept = if successor { Some(Kept::take()?) } else { None };
    let plan = match &kept {
        Some(kept) => {
            logging::start(&kept.log_level(args))?;
            kept.plan()
        }
        None => {
            let written = args.written()?;
            let config = written.validate()?;
            logging::start(&config.log)?;
            preflight::start(&written, &config.only(Role::Switch))?;
            Plan::of(&written, &config)?
        }
    };
    serve::raise_open_files();
    let runtime = serve::runtime(1)?;
    runtime.block_on(async {
        let signals = Signals::new()?;
        let mut master = Master {
            args,
            plan,
            listeners: Listeners::default(),
            since_ns: monotonic_ns(),
            status: ReloadStatus::first(0),
            current: None,
            retiring: Vec::new(),
            manager: Manager::of_environment(),
            restart: None,
            deaths: 0,
            path: std::env::current_exe().context("cannot find the path of larder itself")?,
        };
        // Zero workers would be counted as the first generation otherwise.
        master.status.counts.generation = 0;
        match kept {
            Some(kept) => {
                let begun = Instant::now();
                master.go_on(kept)?;
                exec::unblock();
                let went = master.change(By::Upgrade, BTreeMap::new()).await;
                master.settle(By::Upgrade, &went, begun, &[]).await;
                master.manager.ready();
            }
            None => master.first().await?,
        }
        master.serve(signals).await
    })
}

impl Master<'_> {
    /// Starts the first worker, and says where it is.
    async fn first(&mut self) -> anyhow::Result<()> {
        self.listeners = Listeners::default().next(&self.plan)?;
        match self.start().await {
            Went::Done => {}
            Went::Refused(error) | Went::Failed { error, code: 1 } => anyhow::bail!(error),
            Went::Failed { error, code } if code == outcome::USAGE_EXIT_CODE => return Err(usage(error)),
            Went::Failed { error, .. } => anyhow::bail!(error),
        }
        let (listen, admin) = (self.listeners.addresses(), self.listeners.admin_address());
        self.args.serve.say_ready(&Ready { listen, admin, peers: None })?;
        self.manager.ready();
        Ok(())
    }

    /// Takes up what the program before had.
    fn go_on(&mut self, kept: Kept) -> anyhow::Result<()> {
        let Kept { state, listeners, current, retiring, .. } = kept;
        self.listeners = listeners;
        (self.since_ns, self.status) = (state.since_ns, state.status);
        self.status.version = env!("CARGO_PKG_VERSION").to_owned();
        self.path = state.path;
        self.current = current.map(|(pid, end)| Worker::adopt(pid, end)).transpose()?;
        self.retiring =
            retiring.into_iter().map(|(pid, end)| Worker::adopt(pid, end)).collect::<Result<_, _>>()?;
        tracing::info!(version = self.status.version, "master process upgraded");
        Ok(())
    }

    /// Does what it is told until the switch ends.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        self.reap();
        loop {
            let pause = async {
                match self.restart {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let heard = async {
                match &self.current {
                    Some(worker) => worker.hear().await,
                    None => std::future::pending().await,
                }
            };
            let mut policies = BTreeMap::new();
            let (by, asks) = tokio::select! {
                () = asked_to_end(&mut signals.terminate, &mut signals.interrupt) => break,
                _ = signals.child.recv() => {
                    self.reap();
                    continue;
                }
                _ = signals.reload.recv() => (By::Signal, Vec::new()),
                _ = signals.upgrade.recv() => (By::Upgrade, Vec::new()),
                () = pause => (By::Fault, Vec::new()),
                heard = heard => match heard {
                    Heard::Word(FromWorker::Reload { ask, policies: chosen }, _) => {
                        policies = chosen;
                        (By::Admin, vec![ask])
                    }
                    Heard::Word(..) => continue,
                    Heard::End => {
                        // Its death is told by a signal of its own.
                        if let Some(worker) = &mut self.current {
                            worker.mute();
                        }
                        continue;
                    }
                },
            };
            if by == By::Fault {
                self.restart = None;
            }
            let begun = Instant::now();
            self.manager.reloading();
            let went = tokio::select! {
                went = self.replace(by, policies) => went,
                () = asked_to_end(&mut signals.terminate, &mut signals.interrupt) => break,
            };
            self.settle(by, &went, begun, &asks).await;
            self.manager.ready();
            self.reap();
        }
        self.drain(signals).await
    }

    /// Carries out a change, whoever wanted it.
    async fn replace(&mut self, by: By, policies: BTreeMap<String, String>) -> Went {
        if by != By::Upgrade {
            return self.change(by, policies).await;
        }
        match exec::check(&self.path).await {
            Ok(()) => failed(self.exec()),
            Err(error) => Went::Refused(error),
        }
    }

    /// A worker by the config as it is now takes the place of the one that serves; after a death, by the config in force.
    async fn change(&mut self, by: By, policies: BTreeMap<String, String>) -> Went {
        if by == By::Fault {
            return self.start().await;
        }
        let next = Plan::read(self.args, &policies).and_then(|plan| Ok((self.listeners.next(&plan)?, plan)));
        let (listeners, plan) = match next {
            Ok(next) => next,
            Err(error) => return Went::Refused(format!("{error:#}")),
        };
        let before = (
            std::mem::replace(&mut self.listeners, listeners),
            std::mem::replace(&mut self.plan, plan),
            std::mem::replace(&mut self.status.policies, policies),
        );
        let went = self.start().await;
        if !matches!(went, Went::Done) {
            (self.listeners, self.plan, self.status.policies) = before;
        }
        went
    }

    /// Starts a worker by the plan, which takes the place of the one that serves. May be dropped on the way: the one that
    /// serves stays.
    async fn start(&mut self) -> Went {
        let mut stood = None;
        if let Some(worker) = &mut self.current {
            let told = worker.ask(&ToWorker::Tell, TELL, |word| matches!(word, FromWorker::Told)).await;
            stood = told.ok().and_then(|files| files.into_iter().next());
        }
        let worker = match self.come_up(stood).await {
            Ok(worker) => worker,
            Err(went) => return went,
        };
        self.status.counts.generation += 1;
        self.status.worker_pid = worker.pid();
        self.restart = None;
        if let Some(before) = self.current.replace(worker) {
            self.retire(before).await;
        }
        Went::Done
    }

    /// A worker that serves.
    async fn come_up(&mut self, stood: Option<OwnedFd>) -> Result<Worker, Went> {
        let mut status = self.status.clone();
        status.counts.generation += 1;
        let start = Start {
            protocol: PROTOCOL,
            origin: self.plan.origin.clone(),
            since_ns: self.since_ns,
            listeners: self.listeners.addresses().len(),
            admin: self.listeners.admin_address(),
            takes_over: stood.is_some(),
            status,
        };
        let text = blob(self.plan.text.as_bytes()).map_err(failed)?;
        let mut files = vec![text.as_fd()];
        files.extend(self.listeners.files());
        files.extend(stood.as_ref().map(OwnedFd::as_fd));
        let mut worker = Worker::spawn(self.plan.run_as)
            .map_err(|error| failed(format!("a process cannot be started: {error}")))?;
        worker.send(&ToWorker::Start(Box::new(start)), &files).await.map_err(failed)?;
        worker.expect(PREPARE, |word| matches!(word, FromWorker::Prepared)).await?;

        let mut learned = Vec::new();
        if let Some(before) = &mut self.current {
            match before.ask(&ToWorker::Yield, YIELD, |word| matches!(word, FromWorker::Yielded)).await {
                Ok(files) => learned = files,
                Err(error) => tracing::warn!(
                    error,
                    "running worker did not hand over its state: the new worker starts cold"
                ),
            }
        }
        let learned: Vec<_> = learned.iter().map(OwnedFd::as_fd).collect();
        let went = match worker.send(&ToWorker::Go, &learned).await {
            Ok(()) => worker.expect(GO, |word| matches!(word, FromWorker::Ready)).await.map(drop),
            Err(error) => Err(failed(error)),
        };
        if let (Err(_), Some(before)) = (&went, &self.current) {
            drop(before.send(&ToWorker::Resume, &[]).await);
        }
        went.map(|()| worker)
    }

    /// A worker ends when its clients have gone.
    async fn retire(&mut self, worker: Worker) {
        self.retiring.push(worker);
        let drains = self.retiring.len().saturating_sub(RETIRING_MAX);
        for worker in &self.retiring[..drains] {
            drop(worker.send(&ToWorker::Drain, &[]).await);
        }
    }

    /// Says how a change went: to the log, to who asked, and to the worker that serves. Only then does the one before
    /// retire, since it was the one that was asked.
    async fn settle(&mut self, by: By, went: &Went, begun: Instant, asks: &[u64]) {
        let took_s = begun.elapsed().as_secs_f64();
        let (outcome, error) = match went {
            Went::Done => (Outcome::Done, None),
            Went::Refused(error) => (Outcome::Refused, Some(error.as_str())),
            Went::Failed { error, .. } => (Outcome::Failed, Some(error.as_str())),
        };
        self.status.note(by, outcome, error, took_s);
        let generation = self.status.counts.generation;
        match (error, by) {
            (None, _) => tracing::info!(%by, generation, took_s, "reload done: a new worker process serves"),
            (Some(error), By::Fault) => {
                tracing::error!(error, "worker start failed: no process serves until the next attempt");
                self.died();
            }
            (Some(error), _) => {
                tracing::error!(%by, error, "reload refused: the running worker keeps its config");
            }
        }
        self.status.counts.retiring = self.retiring.len() as u64;
        // The one that was asked is the one before, if there is another now.
        for worker in self.current.iter_mut().chain(self.retiring.last_mut()) {
            let asks = [asks, &worker.take_asks()].concat();
            let word = ToWorker::Status { status: Box::new(self.status.clone()), asks };
            drop(worker.send(&word, &[]).await);
        }
        if outcome == Outcome::Done
            && let Some(before) = self.retiring.last()
        {
            drop(before.send(&ToWorker::Retire, &[]).await);
        }
    }

    /// Notes which workers have ended.
    fn reap(&mut self) {
        self.retiring.retain_mut(|worker| match worker.ended() {
            None => true,
            Some(how) => {
                tracing::info!(
                    pid = worker.pid(),
                    how,
                    "replaced worker process ended: its last connection closed"
                );
                false
            }
        });
        let Some(how) = self.current.as_mut().and_then(Worker::ended) else { return };
        let Some(worker) = self.current.take() else { return };
        tracing::error!(pid = worker.pid(), how, "worker process ended unexpectedly: starting another");
        if worker.age() > LIVED {
            self.deaths = 0;
        }
        self.died();
    }

    /// Another worker is due, the later the more have died.
    fn died(&mut self) {
        let doubled =
            PAUSE.saturating_mul(1_u32.checked_shl(self.deaths.saturating_sub(1)).unwrap_or(u32::MAX));
        let pause = if self.deaths == 0 { Duration::ZERO } else { doubled.min(PAUSE_MAX) };
        self.deaths = self.deaths.saturating_add(1);
        self.restart = Some(tokio::time::Instant::now() + pause);
    }

    /// Lets the workers finish what they have. A second signal ends all at once.
    async fn drain(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        tracing::info!("signal received: finishing requests in flight; a second signal ends at once");
        self.manager.stopping();
        for worker in self.current.iter().chain(&self.retiring) {
            drop(worker.send(&ToWorker::Drain, &[]).await);
        }
        let mut code = 0;
        loop {
            self.retiring.retain_mut(|worker| worker.ended().is_none());
            if let Some(worker) = &mut self.current
                && worker.ended().is_some()
            {
                code = worker.code();
                self.current = None;
            }
            if self.current.is_none() && self.retiring.is_empty() {
                break;
            }
            tokio::select! {
                _ = signals.child.recv() => {}
                () = asked_to_end(&mut signals.terminate, &mut signals.interrupt) => {
                    tracing::warn!("second signal received: open connections are reset");
                    // Workers are killed when they are dropped.
                    self.current = None;
                    self.retiring.clear();
                    code = 1;
                    break;
                }
            }
        }
        if code == 0 { Ok(()) } else { std::process::exit(code) }
    }
}
