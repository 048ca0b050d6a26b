//! The shared state of an upstream as one process uses it: it creates the state where there is none, and keeps its snapshot.

use crate::arena::in_process_memory;
use crate::config::PolicyConfig;
use crate::log;
use crate::record::{ZoneSink, set_file};
use crate::state::{Server, Started, State, Verdict};
use crate::zone::{Locked, Worker, Zone, ZoneError};
use larder_core::{TargetId, Time};
use larder_embed::state_file::{INTERVAL, Owner, StateFile, StateFileError};
use larder_embed::{Feedback, NodeHandle, Outcome};
use serde_json::{Value, json};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two snapshots is at least so many times the time that a snapshot takes, because all workers wait for it.
const SAVE_SHARE: u32 = 1_000;

/// The time after which a process that could not take part tries again.
const JOIN_INTERVAL: Duration = Duration::from_secs(1);

/// A request that the dispatcher has started, with the state in which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFlight {
    pub(crate) started: Started,
    epoch: u64,
}

impl InFlight {
    /// Returns the number of the state in which the request counts.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The shared state of an upstream.
#[derive(Debug)]
pub(crate) struct Shared {
    zone: Zone,
    /// The name of the upstream.
    name: String,
    config: Arc<PolicyConfig>,
    servers: Vec<Server>,
    worker: Cell<Option<Worker>>,
    /// The number of this config among those of the zone.
    generation: u64,
    /// The time of the last attempt to take part.
    joined_at: Cell<Time>,
    /// Whether another process has taken over the state file.
    has_lost_file: Arc<AtomicBool>,
    /// The target whose first request meets a bug, for tests of the whole module.
    bug: Cell<Option<TargetId>>,
}

/// The variable of the environment that provokes a bug: the key of a target. Only debug builds read it.
const BUG: &str = "LARDER_TEST_PANIC";

impl Shared {
    pub(crate) fn new(zone: Zone, name: &str, config: &Arc<PolicyConfig>, servers: Vec<Server>) -> Self {
        if let Some(path) = &config.record_file {
            set_file(zone.id(), path);
        }
        let name = name.to_owned();
        Self {
            zone,
            name,
            config: Arc::clone(config),
            servers,
            worker: Cell::new(None),
            generation: zone.counters().generations.fetch_add(1, Ordering::Relaxed) + 1,
            joined_at: Cell::new(Time::ZERO),
            has_lost_file: Arc::default(),
            bug: Cell::new(None),
        }
    }

    pub(crate) fn zone(&self) -> Zone {
        self.zone
    }

    /// Takes part as a worker: applies the servers of this process's config, and releases the requests of dead workers.
    pub(crate) fn join(&self) -> Result<(), ZoneError> {
        let now = crate::now();
        self.joined_at.set(now);
        let mut locked = self.lock()?;
        self.reap(&mut locked)?;
        let Some((worker, has_died)) = locked.claim_worker()? else {
            log::error(&format!(
                "upstream {}: there are too many workers, so that larder is not used",
                self.name
            ));
            return Ok(());
        };
        if has_died {
            self.release(&mut locked, worker)?;
        }
        if cfg!(debug_assertions) {
            self.bug.set(std::env::var(BUG).ok().map(|key| TargetId::of(key.as_bytes())));
        }
        // A worker of an earlier config may start late.
        if locked.take_generation(self.generation) {
            let applied = self.apply(&mut locked, now);
            if let Err(error) = applied {
                locked.release_worker(worker);
                return Err(error);
            }
        }
        self.worker.set(Some(worker));
        Ok(())
    }

    /// Applies policy and servers of this config.
    fn apply(&self, locked: &mut Locked<'_>, now: Time) -> Result<(), ZoneError> {
        self.reconfigure(locked)?;
        let servers = self.servers.as_slice();
        let left_out = locked.change(|state| state.set_servers(now, servers))?;
        if left_out > 0 {
            log::error(&format!(
                "upstream {}: no room for {left_out} servers; raise limits.nodes_max",
                self.name
            ));
        }
        Ok(())
    }

    /// Returns this process as a worker. If it could not take part at its start, it tries again.
    fn worker(&self, now: Time) -> Result<Option<Worker>, ZoneError> {
        if self.worker.get().is_none() && now.since(self.joined_at.get()) >= JOIN_INTERVAL {
            self.join()?;
        }
        Ok(self.worker.get())
    }

    /// Creates the state again if a reload has changed the policy. The learned state remains.
    fn reconfigure(&self, locked: &mut Locked<'_>) -> Result<(), ZoneError> {
        let settings = &self.config.settings;
        if locked.read(|state| state.has(settings))? == Some(true) {
            return Ok(());
        }
        if let Some(learned) = locked.read(State::save)?
            && !locked.store_snapshot(&learned)
        {
            log::warn(&format!(
                "upstream {}: the policy has changed and starts without learned state",
                self.name
            ));
        }
        locked.set_targets_max(self.config.plan.targets_max);
        locked.reset();
        self.create(locked)
    }

    /// Leaves: the process ends in good order. Its requests count no more. The last worker writes the state file and ends the record,
    /// because the master may be another user.
    pub(crate) fn leave(&self) -> Result<(), ZoneError> {
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let now = crate::now();
        let mut locked = self.lock()?;
        locked.change(|state| state.release(now, worker))?;
        locked.release_worker(worker);
        let is_last = !self.reap(&mut locked)?;
        drop(locked);
        if is_last {
            self.finish();
        }
        Ok(())
    }

    /// Decides which server gets a request; see [`State::decide`]. The excluded nodes belong to the state with the number `of`. `None`
    /// if this process is no worker.
    pub(crate) fn decide(
        &self,
        now: Time,
        (target, lasting): (TargetId, bool),
        (of, exclude): (u64, &[NodeHandle]),
    ) -> Result<Option<(Outcome, u64)>, ZoneError> {
        let Some(worker) = self.worker(now)? else { return Ok(None) };
        let mut locked = self.lock()?;
        let epoch = locked.epoch();
        let exclude = if of == epoch { exclude } else { &[] };
        if self.bug.get() == Some(target) {
            self.bug.set(None);
            #[expect(clippy::panic, reason = "a test has asked for it")]
            locked.change(|_| panic!("provoked"))?;
        }
        let outcome = locked.change(|state| state.decide(now, worker, (target, lasting), exclude))?;
        Ok(Some((outcome, epoch)))
    }

    /// Returns the request that a decision has started.
    pub(crate) fn in_flight(now: Time, outcome: Outcome, epoch: u64) -> Option<InFlight> {
        match outcome {
            Outcome::Start(decision) => Some(InFlight { started: Started { decision, at: now }, epoch }),
            Outcome::Refused(_) => None,
        }
    }

    /// Ends a request, and takes a snapshot if one is due.
    pub(crate) fn done(
        &self,
        now: Time,
        request: &InFlight,
        result: (Option<&Feedback>, Verdict),
    ) -> Result<(), ZoneError> {
        let Some(worker) = self.worker.get() else { return Ok(()) };
        let mut locked = self.lock()?;
        if locked.epoch() == request.epoch {
            let started = &request.started;
            if !locked.change(|state| state.done(now, worker, started, result))? {
                log::limited_error!("upstream {}: a request ended that was not in progress", self.name);
            }
        }
        let due = &self.zone.counters().save_at;
        if now.as_nanos() >= due.load(Ordering::Relaxed) {
            due.store((now + INTERVAL).as_nanos(), Ordering::Relaxed);
            self.reap(&mut locked)?;
            self.save(locked, now)?;
        }
        Ok(())
    }

    /// Returns the nodes of these names, with the number of the state to which they belong.
    pub(crate) fn nodes<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<(u64, Vec<Option<NodeHandle>>), ZoneError> {
        let locked = self.lock()?;
        let nodes = locked.read(|state| names.map(|name| state.node(name)).collect())?;
        Ok((locked.epoch(), nodes.unwrap_or_default()))
    }

    /// Returns the status as JSON.
    pub(crate) fn status(&self, now: Time) -> Result<Value, ZoneError> {
        let locked = self.lock()?;
        let status = locked.read(|state| state.status(now))?;
        let (used, size) = locked.memory();
        let targets_max = locked.targets_max();
        drop(locked);
        let mut status = status.unwrap_or_else(|| json!({}));
        let counters = self.zone.counters();
        status["upstream"] = self.name.as_str().into();
        status["memory"] = json!({ "used": used, "size": size, "targets_max": targets_max });
        status["fallback"] = counters.fallback.load(Ordering::Relaxed).into();
        status["resets"] = counters.resets.load(Ordering::Relaxed).into();
        let record = |state| json!({ "state": state, "frames": counters.record.frames() });
        status["record"] = counters.record.state().map_or(Value::Null, record);
        Ok(status)
    }

    /// Returns the node for a target now, and why, as JSON.
    pub(crate) fn explain(&self, now: Time, target: TargetId) -> Result<Value, ZoneError> {
        // A policy may compute a table that later decisions use, so that this is a change of the state.
        let shown = Cell::new(Value::Null);
        let place = &shown;
        self.lock()?.change(|state| {
            let explained = state.explain(now, target);
            // The copy belongs to this process, and the original to the zone.
            in_process_memory(|| place.set(explained.clone()));
        })?;
        Ok(shown.into_inner())
    }

    /// Marks a request as one that lasts, such as a WebSocket.
    pub(crate) fn become_long_lived(&self, now: Time, request: &mut InFlight) -> Result<(), ZoneError> {
        let Some(worker) = self.worker.get() else { return Ok(()) };
        let mut locked = self.lock()?;
        if locked.epoch() == request.epoch {
            let decision = &request.started.decision;
            if let Some(decision) = locked.change(|state| state.become_long_lived(now, worker, decision))? {
                request.started.decision = decision;
            }
        }
        Ok(())
    }

    /// Returns the learned state; `None` if there is no state.
    pub(crate) fn learned(&self) -> Result<Option<Vec<u8>>, ZoneError> {
        self.zone.lock()?.read(State::save)
    }

    /// Stores learned state for the time when the state is created.
    pub(crate) fn inherit(&self, learned: &[u8]) -> Result<bool, ZoneError> {
        Ok(self.zone.lock()?.store_snapshot(learned))
    }

    /// Ends the use of the zone: writes the state file, and ends the record.
    fn finish(&self) {
        if let Some(path) = &self.config.record_file
            && let Err(error) = self.zone.counters().record.end(path)
        {
            log::error(&format!("upstream {}: cannot end the record {}: {error}", self.name, path.display()));
        }
        let Some(file) = self.state_file().filter(|_| !self.has_lost_file.load(Ordering::Relaxed)) else {
            return;
        };
        match self.learned() {
            Ok(Some(learned)) => write(&self.name, &file, &learned, &self.has_lost_file),
            Ok(None) => {}
            Err(error) => {
                log::error(&format!("upstream {}: cannot save the learned state: {error}", self.name));
            }
        }
    }

    fn state_file(&self) -> Option<StateFile> {
        self.config.state_file.as_ref().map(|path| StateFile::new(path, self.zone.started()))
    }

    /// Takes the lock, with a state.
    fn lock(&self) -> Result<Locked<'_>, ZoneError> {
        let mut locked = self.zone.lock()?;
        if locked.has_lost_owner {
            log::error(&format!(
                "upstream {}: a worker died while it used the shared state, so that the state is created again",
                self.name
            ));
        }
        if !locked.has_state() {
            // A worker of an earlier config must not create the state of the later one.
            if locked.generation() > self.generation {
                return Err(ZoneError::NoState);
            }
            self.create(&mut locked)?;
        }
        Ok(locked)
    }

    /// Creates the state, from the snapshot if there is one.
    fn create(&self, locked: &mut Locked<'_>) -> Result<(), ZoneError> {
        let counters = self.zone.counters();
        // A new zone may have less room than the one whose snapshot it has, and a state that was too large has halved the number.
        let targets_max = locked.targets_max();
        // A record begins with a dispatcher that has learned nothing, and ends with it.
        let starts_empty = locked.snapshot().is_empty() && !counters.record.has_begun();
        let record = (self.config.record_file.is_some() && starts_empty)
            .then(|| ZoneSink::new(self.zone.id(), self.zone.record()));
        if record.is_none() {
            counters.record.abandon();
        }
        let (config, servers) = (&*self.config, self.servers.as_slice());
        if !locked.create(|| State::new(config, servers, targets_max, record))? {
            log::limited_error!("upstream {}: cannot create the dispatcher", self.name);
            return Err(ZoneError::Panic("the dispatcher cannot be created".to_owned()));
        }
        if counters.record.is_recording() {
            return Ok(());
        }
        let learned = match locked.snapshot() {
            [] => self.read_state_file(),
            snapshot => Some(snapshot.to_vec()),
        };
        let Some(learned) = learned else { return Ok(()) };
        match locked.read(|state| state.decode(&learned))? {
            Some(Ok(learned)) => {
                let learned = &learned;
                let targets = locked.change(|state| state.restore(learned))?;
                log::info(&format!("upstream {}: learned state loaded (targets={targets})", self.name));
            }
            Some(Err(error)) => {
                log::warn(&format!("upstream {}: starts without learned state: {error}", self.name));
            }
            None => {}
        }
        Ok(())
    }

    fn read_state_file(&self) -> Option<Vec<u8>> {
        let file = self.state_file()?;
        file.read().unwrap_or_else(|error| {
            let path = file.path().display();
            log::warn(&format!("upstream {}: cannot read the state file {path}: {error}", self.name));
            None
        })
    }

    /// Releases the requests of workers that have died. Returns whether a worker lives.
    fn reap(&self, locked: &mut Locked<'_>) -> Result<bool, ZoneError> {
        let (dead, is_any_alive) = locked.dead_workers()?;
        for worker in dead {
            self.release(locked, worker)?;
        }
        Ok(is_any_alive)
    }

    fn release(&self, locked: &mut Locked<'_>, worker: Worker) -> Result<(), ZoneError> {
        let now = crate::now();
        let requests = locked.change(|state| state.release(now, worker))?;
        log::warn(&format!("upstream {}: a worker has died (requests={requests})", self.name));
        Ok(())
    }

    /// Takes a snapshot into the zone, and writes the state file.
    fn save(&self, mut locked: Locked<'_>, now: Time) -> Result<(), ZoneError> {
        let begun = Instant::now();
        let Some(learned) = locked.read(State::save)? else { return Ok(()) };
        if !locked.store_snapshot(&learned) {
            log::limited_error!("upstream {}: the snapshot does not fit into the shared memory", self.name);
        }
        let next = now + INTERVAL.max(begun.elapsed() * SAVE_SHARE);
        self.zone.counters().save_at.store(next.as_nanos(), Ordering::Relaxed);
        drop(locked);
        let Some(file) = self.state_file().filter(|_| !self.has_lost_file.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        // A file system may take its time, and the worker has requests to serve.
        let (name, has_lost_file) = (self.name.clone(), Arc::clone(&self.has_lost_file));
        let run = move || write(&name, &file, &learned, &has_lost_file);
        if let Err(error) = thread::Builder::new().name("larder-state".to_owned()).spawn(run) {
            log::limited_error!("upstream {}: the state file is not written: {error}", self.name);
        }
        Ok(())
    }
}

/// Writes the state file.
fn write(upstream: &str, file: &StateFile, learned: &[u8], has_lost_file: &AtomicBool) {
    static WRITES: Mutex<()> = Mutex::new(());
    let _one = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    match file.write(learned) {
        Ok(Owner::This) => {}
        Ok(Owner::Later) => {
            has_lost_file.store(true, Ordering::Relaxed);
            let path = file.path().display();
            log::info(&format!("upstream {upstream}: another process writes the state file {path} now"));
        }
        Err(error @ StateFileError::Foreign { .. }) => {
            has_lost_file.store(true, Ordering::Relaxed);
            log::error(&format!("upstream {upstream}: {error}"));
        }
        Err(error @ StateFileError::Write { .. }) => log::limited_error!("upstream {upstream}: {error}"),
    }
}

/// Returns nginx's `fail_timeout`, or the longest time if it is not a time.
pub(crate) fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests;
