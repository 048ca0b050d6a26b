//! The master process of a switch. It keeps the process id and the listeners, and runs a worker that serves.
//!
//! ```text
//! SIGHUP, POST /reload ---> read the config -> bind -> start a worker --prepared--> (predecessor yields) --go--> ready
//! SIGUSR2 -> check the new binary -> exec it ------^                                (predecessor retires) <--------'
//! ```
//! If a step fails, the previous worker continues to serve. The master does nothing else. It handles no
//! requests, and has one thread.

mod exec;
mod listeners;
mod worker_process;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(super) use self::exec::BinaryVersion;
use self::exec::InheritedState;
use self::listeners::Listeners;
use self::worker_process::{WorkerEvent, WorkerProcess};
use super::args::{NO_SECTION, SwitchArgs, override_policies};
use super::link::{FromWorker, PROTOCOL, ToWorker, WorkerStart, memory_file, monotonic_ns};
use super::notify::ServiceManager;
use super::status::ReloadStatus;
use crate::admin::SWITCH_ADDRESS;
use crate::cmd::reloads::{ReloadOutcome, ReloadTrigger};
use crate::cmd::{logging, serve};
use crate::config::{Config, Role, RunAs, Written};
use crate::demo::cluster::Ready;
use crate::outcome::{self, usage};
use crate::preflight;

/// Time for a worker to read its config and find its nodes.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a serving worker to report its node states.
const NODE_STATES_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a serving worker to hand over.
const YIELD_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a prepared worker to start serving.
const SERVE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most retiring workers. If there are more, the oldest drain.
const RETIRING_MAX: usize = 16;
/// Pause before a worker that died is replaced. The first replacement starts at once. The pause doubles with
/// each death up to the maximum, and is reset after a worker has lived for `STABLE_AFTER`.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Config, addresses and user of the workers.
#[derive(Clone, Debug)]
pub(super) struct WorkerPlan {
    origin: String,
    text: String,
    listen: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    run_as: Option<RunAs>,
}

impl WorkerPlan {
    /// Reads and validates the config. `policies` override the configured policies.
    fn read(args: &SwitchArgs, policies: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let mut written = args.read_config()?;
        override_policies(&mut written, policies)?;
        let config = args.validate(&written)?;
        Self::new(&written, &config)
    }

    fn new(written: &Written, config: &Config) -> anyhow::Result<Self> {
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

/// Result of a change.
enum ChangeResult {
    Done,
    Refused(String),
    Failed { error: String, code: u8 },
}

fn failed(error: impl std::fmt::Display) -> ChangeResult {
    ChangeResult::Failed { error: error.to_string(), code: 1 }
}

struct Master<'a> {
    args: &'a SwitchArgs,
    plan: WorkerPlan,
    listeners: Listeners,
    /// Time of the first worker's start, ns.
    since_ns: u64,
    status: ReloadStatus,
    current: Option<WorkerProcess>,
    retiring: Vec<WorkerProcess>,
    service_manager: ServiceManager,
    /// Time at which a worker that died is replaced, and the number of consecutive deaths.
    restart: Option<tokio::time::Instant>,
    deaths: u32,
    path: std::path::PathBuf,
}

/// Signals that a master handles.
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

async fn shutdown_signal(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Runs until the switch ends. `successor` is true if this program replaced another one while workers serve.
pub(super) fn run(args: &SwitchArgs, successor: bool) -> anyhow::Result<()> {
    let kept = if successor { Some(InheritedState::receive()?) } else { None };
    let plan = match &kept {
        Some(kept) => {
            logging::start(&kept.log_level(args))?;
            kept.plan()
        }
        None => {
            let written = args.read_config()?;
            let config = written.validate()?;
            logging::start(&config.log)?;
            preflight::start(&written, &config.only(Role::Switch))?;
            WorkerPlan::new(&written, &config)?
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
            status: ReloadStatus::new(0),
            current: None,
            retiring: Vec::new(),
            service_manager: ServiceManager::from_environment(),
            restart: None,
            deaths: 0,
            path: std::env::current_exe().context("cannot find the path of larder itself")?,
        };
        // No worker runs yet, so the generation is 0.
        master.status.counts.generation = 0;
        match kept {
            Some(kept) => {
                let start_time = Instant::now();
                master.resume(kept)?;
                exec::unblock_signals();
                let result = master.replace_worker(ReloadTrigger::Upgrade, BTreeMap::new()).await;
                master.report(ReloadTrigger::Upgrade, &result, start_time, &[]).await;
                master.service_manager.ready();
            }
            None => master.start_first().await?,
        }
        master.serve(signals).await
    })
}

impl Master<'_> {
    /// Starts the first worker, and prints the ready line.
    async fn start_first(&mut self) -> anyhow::Result<()> {
        self.listeners = Listeners::default().rebind(&self.plan)?;
        match self.start_worker().await {
            ChangeResult::Done => {}
            ChangeResult::Refused(error) | ChangeResult::Failed { error, code: 1 } => anyhow::bail!(error),
            ChangeResult::Failed { error, code } if code == outcome::USAGE_EXIT_CODE => {
                return Err(usage(error));
            }
            ChangeResult::Failed { error, .. } => anyhow::bail!(error),
        }
        let (listen, admin) = (self.listeners.addresses(), self.listeners.admin_address());
        self.args.serve.print_ready_line(&Ready { listen, admin, peers: None })?;
        self.service_manager.ready();
        Ok(())
    }

    /// Resumes from the state of the previous program.
    fn resume(&mut self, kept: InheritedState) -> anyhow::Result<()> {
        let InheritedState { state, listeners, current, retiring, .. } = kept;
        self.listeners = listeners;
        (self.since_ns, self.status) = (state.since_ns, state.status);
        self.status.version = env!("CARGO_PKG_VERSION").to_owned();
        self.path = state.path;
        self.current = current.map(|(pid, end)| WorkerProcess::adopt(pid, end)).transpose()?;
        self.retiring = retiring
            .into_iter()
            .map(|(pid, end)| WorkerProcess::adopt(pid, end))
            .collect::<Result<_, _>>()?;
        tracing::info!(version = self.status.version, "master process: upgraded");
        Ok(())
    }

    /// Handles events until the switch ends.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        self.remove_ended();
        loop {
            let pause = async {
                match self.restart {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = async {
                match &self.current {
                    Some(worker) => worker.next_event().await,
                    None => std::future::pending().await,
                }
            };
            let mut policies = BTreeMap::new();
            let (by, requests) = tokio::select! {
                () = shutdown_signal(&mut signals.terminate, &mut signals.interrupt) => break,
                _ = signals.child.recv() => {
                    self.remove_ended();
                    continue;
                }
                _ = signals.reload.recv() => (ReloadTrigger::Signal, Vec::new()),
                _ = signals.upgrade.recv() => (ReloadTrigger::Upgrade, Vec::new()),
                () = pause => (ReloadTrigger::Fault, Vec::new()),
                event = event => match event {
                    WorkerEvent::Message(FromWorker::Reload { request, policies: chosen }, _) => {
                        policies = chosen;
                        (ReloadTrigger::Admin, vec![request])
                    }
                    WorkerEvent::Message(..) => continue,
                    WorkerEvent::End => {
                        // A signal reports the worker's death.
                        if let Some(worker) = &mut self.current {
                            worker.stop_listening();
                        }
                        continue;
                    }
                },
            };
            if by == ReloadTrigger::Fault {
                self.restart = None;
            }
            let start_time = Instant::now();
            self.service_manager.reloading();
            let result = tokio::select! {
                result = self.apply_change(by, policies) => result,
                () = shutdown_signal(&mut signals.terminate, &mut signals.interrupt) => break,
            };
            self.report(by, &result, start_time, &requests).await;
            self.service_manager.ready();
            self.remove_ended();
        }
        self.drain(signals).await
    }

    /// Applies a change.
    async fn apply_change(&mut self, by: ReloadTrigger, policies: BTreeMap<String, String>) -> ChangeResult {
        if by != ReloadTrigger::Upgrade {
            return self.replace_worker(by, policies).await;
        }
        match exec::check_binary(&self.path).await {
            Ok(()) => failed(self.exec()),
            Err(error) => ChangeResult::Refused(error),
        }
    }

    /// Replaces the serving worker by one with the current config. After a death, the config in force is
    /// used.
    async fn replace_worker(
        &mut self,
        by: ReloadTrigger,
        policies: BTreeMap<String, String>,
    ) -> ChangeResult {
        if by == ReloadTrigger::Fault {
            return self.start_worker().await;
        }
        let next =
            WorkerPlan::read(self.args, &policies).and_then(|plan| Ok((self.listeners.rebind(&plan)?, plan)));
        let (listeners, plan) = match next {
            Ok(next) => next,
            Err(error) => return ChangeResult::Refused(format!("{error:#}")),
        };
        let before = (
            std::mem::replace(&mut self.listeners, listeners),
            std::mem::replace(&mut self.plan, plan),
            std::mem::replace(&mut self.status.policies, policies),
        );
        let result = self.start_worker().await;
        if !matches!(result, ChangeResult::Done) {
            (self.listeners, self.plan, self.status.policies) = before;
        }
        result
    }

    /// Starts a worker, which replaces the serving one. If the future is dropped early, the serving worker
    /// continues.
    async fn start_worker(&mut self) -> ChangeResult {
        let mut node_states = None;
        if let Some(worker) = &mut self.current {
            let reply = worker
                .request(&ToWorker::SendNodeStates, NODE_STATES_TIMEOUT, |message| {
                    matches!(message, FromWorker::NodeStates)
                })
                .await;
            node_states = reply.ok().and_then(|files| files.into_iter().next());
        }
        let worker = match self.start_and_serve(node_states).await {
            Ok(worker) => worker,
            Err(result) => return result,
        };
        self.status.counts.generation += 1;
        self.status.worker_pid = worker.pid();
        self.restart = None;
        if let Some(before) = self.current.replace(worker) {
            self.retire(before).await;
        }
        ChangeResult::Done
    }

    /// Starts a worker and waits until it serves.
    async fn start_and_serve(&mut self, node_states: Option<OwnedFd>) -> Result<WorkerProcess, ChangeResult> {
        let mut status = self.status.clone();
        status.counts.generation += 1;
        let start = WorkerStart {
            protocol: PROTOCOL,
            origin: self.plan.origin.clone(),
            since_ns: self.since_ns,
            listeners: self.listeners.addresses().len(),
            admin: self.listeners.admin_address(),
            takes_over: node_states.is_some(),
            status,
        };
        let text = memory_file(self.plan.text.as_bytes()).map_err(failed)?;
        let mut files = vec![text.as_fd()];
        files.extend(self.listeners.files());
        files.extend(node_states.as_ref().map(OwnedFd::as_fd));
        let mut worker = WorkerProcess::spawn(self.plan.run_as)
            .map_err(|error| failed(format!("cannot start a worker process: {error}")))?;
        worker.send(&ToWorker::Start(Box::new(start)), &files).await.map_err(failed)?;
        worker.wait_for(PREPARE_TIMEOUT, |message| matches!(message, FromWorker::Prepared)).await?;

        let mut state = Vec::new();
        if let Some(before) = &mut self.current {
            match before
                .request(&ToWorker::Yield, YIELD_TIMEOUT, |message| matches!(message, FromWorker::HandedOver))
                .await
            {
                Ok(files) => state = files,
                Err(error) => {
                    tracing::warn!(
                        error,
                        "reload: no state from the running worker, the new one starts cold"
                    );
                }
            }
        }
        let state: Vec<_> = state.iter().map(OwnedFd::as_fd).collect();
        let result = match worker.send(&ToWorker::Serve, &state).await {
            Ok(()) => {
                worker.wait_for(SERVE_TIMEOUT, |message| matches!(message, FromWorker::Ready)).await.map(drop)
            }
            Err(error) => Err(failed(error)),
        };
        if let (Err(_), Some(before)) = (&result, &self.current) {
            drop(before.send(&ToWorker::Resume, &[]).await);
        }
        result.map(|()| worker)
    }

    /// Retires a worker. It ends after its last connection.
    async fn retire(&mut self, worker: WorkerProcess) {
        self.retiring.push(worker);
        let drains = self.retiring.len().saturating_sub(RETIRING_MAX);
        for worker in &self.retiring[..drains] {
            drop(worker.send(&ToWorker::Drain, &[]).await);
        }
    }

    /// Reports the result of a change to the log, to the requesters, and to the serving worker. The previous
    /// worker retires afterwards, because the admin request came from it.
    async fn report(
        &mut self,
        by: ReloadTrigger,
        result: &ChangeResult,
        start_time: Instant,
        requests: &[u64],
    ) {
        let took_s = start_time.elapsed().as_secs_f64();
        let (outcome, error) = match result {
            ChangeResult::Done => (ReloadOutcome::Done, None),
            ChangeResult::Refused(error) => (ReloadOutcome::Refused, Some(error.as_str())),
            ChangeResult::Failed { error, .. } => (ReloadOutcome::Failed, Some(error.as_str())),
        };
        self.status.record(by, outcome, error, took_s);
        let generation = self.status.counts.generation;
        match (error, by) {
            (None, _) => tracing::info!(
                by = by.to_string(),
                generation,
                took_s,
                "reload: done, a new worker process serves"
            ),
            (Some(error), ReloadTrigger::Fault) => {
                tracing::error!(
                    error,
                    "worker process: start failed, no process serves until the next attempt"
                );
                self.schedule_restart();
            }
            (Some(error), _) => {
                tracing::warn!(
                    by = by.to_string(),
                    error,
                    "reload: refused, the running worker keeps its config"
                );
            }
        }
        self.status.counts.retiring = self.retiring.len() as u64;
        // The previous worker received the request if it was replaced.
        for worker in self.current.iter_mut().chain(self.retiring.last_mut()) {
            let requests = [requests, &worker.take_requests()].concat();
            let message = ToWorker::Status { status: Box::new(self.status.clone()), requests };
            drop(worker.send(&message, &[]).await);
        }
        if outcome == ReloadOutcome::Done
            && let Some(before) = self.retiring.last()
        {
            drop(before.send(&ToWorker::Retire, &[]).await);
        }
    }

    /// Removes workers that have ended.
    fn remove_ended(&mut self) {
        self.retiring.retain_mut(|worker| match worker.exit_reason() {
            None => true,
            Some(how) => {
                tracing::info!(pid = worker.pid(), how, "worker process: ended after its last connection");
                false
            }
        });
        let Some(how) = self.current.as_mut().and_then(WorkerProcess::exit_reason) else { return };
        let Some(worker) = self.current.take() else { return };
        tracing::error!(pid = worker.pid(), how, "worker process: ended unexpectedly, another is started");
        if worker.age() > STABLE_AFTER {
            self.deaths = 0;
        }
        self.schedule_restart();
    }

    /// Schedules the replacement of a worker that died. The pause grows with each death.
    fn schedule_restart(&mut self) {
        let doubled = RESTART_PAUSE
            .saturating_mul(1_u32.checked_shl(self.deaths.saturating_sub(1)).unwrap_or(u32::MAX));
        let pause = if self.deaths == 0 { Duration::ZERO } else { doubled.min(RESTART_PAUSE_MAX) };
        self.deaths = self.deaths.saturating_add(1);
        self.restart = Some(tokio::time::Instant::now() + pause);
    }

    /// Drains all workers. A second signal ends them at once.
    async fn drain(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        tracing::info!("shutdown: signal received, requests in flight finish");
        self.service_manager.announce_stop();
        for worker in self.current.iter().chain(&self.retiring) {
            drop(worker.send(&ToWorker::Drain, &[]).await);
        }
        let mut code = 0;
        loop {
            self.retiring.retain_mut(|worker| worker.exit_reason().is_none());
            if let Some(worker) = &mut self.current
                && worker.exit_reason().is_some()
            {
                code = worker.exit_code();
                self.current = None;
            }
            if self.current.is_none() && self.retiring.is_empty() {
                break;
            }
            tokio::select! {
                _ = signals.child.recv() => {}
                () = shutdown_signal(&mut signals.terminate, &mut signals.interrupt) => {
                    tracing::info!("shutdown: second signal, open connections are reset");
                    // Dropped workers are killed.
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
