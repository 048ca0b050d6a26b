//! The engine of a run: requests pass from the clients through the dispatcher to the nodes, step by step.
//!
//! An event is the end of a step at a station, the end of a pause, an arrival or a load report. The engine
//! calls the dispatcher exactly as the live switch does: `arrive` when a request arrives, `finish` when its
//! last byte is sent.

mod changes;
mod front;
mod reads;
mod tasks;
mod timed_events;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_core::census::Census;
use larder_core::dispatch::{Arrival, DequeuedRequest};
use larder_core::nodes::NodeSpec;
use larder_core::policy::table::RouteTable;
use larder_core::{NodeId, Ticket, Time};

pub use changes::{RequestOutcome, RunHistory};
use front::FrontEnd;
use tasks::ReadTasks;
use timed_events::TimedEvents;

use crate::SimError;
use crate::calendar::{Calendar, EventKey};
use crate::cost::{CostModel, Costs, LookupOutcome, RequestFacts, RequestProgress, ServiceStep};
use crate::memory::NodeMemories;
use crate::outcome::Outcome;
use crate::scenario::Scenario;
use crate::source::{ClientRequest, RequestSource};
use crate::station::{Pool, Station};
use crate::tally::{CompletedRequest, RunTally};
use crate::workload::Workload;

/// Runs a workload through a cluster.
///
/// Time: linear in the requests, logarithmic in the nodes. Memory: the dispatcher's target map, one entry per
/// object in a cache, and about 100 bytes per request in flight.
///
/// # Errors
/// Returns an error for a parameter out of range, or for an inconsistent workload.
pub fn simulate(workload: &Workload, scenario: &Scenario) -> Result<Outcome, SimError> {
    scenario.check()?;
    let limit = admission_limit(scenario)?;
    let source = scenario.arrivals.source(workload, scenario.initial_nodes(), limit)?;
    simulate_with(workload, scenario, source)
}

/// Runs [`simulate`] with the caller's own clients instead of [`Scenario::arrivals`].
///
/// # Errors
/// Fails as [`simulate`] does.
pub fn simulate_with(
    workload: &Workload,
    scenario: &Scenario,
    source: Box<dyn RequestSource + '_>,
) -> Result<Outcome, SimError> {
    run(workload, scenario, source, None).map(|(outcome, _)| outcome)
}

/// Runs [`simulate`] and also returns the outcome of each request. This takes 8 bytes per request more.
///
/// # Errors
/// Fails as [`simulate`] does.
pub fn simulate_with_history(
    workload: &Workload,
    scenario: &Scenario,
) -> Result<(Outcome, RunHistory), SimError> {
    scenario.check()?;
    let limit = admission_limit(scenario)?;
    let source = scenario.arrivals.source(workload, scenario.initial_nodes(), limit)?;
    run(workload, scenario, source, Some(RunHistory::default()))
}

fn run(
    workload: &Workload,
    scenario: &Scenario,
    source: Box<dyn RequestSource + '_>,
    history: Option<RunHistory>,
) -> Result<(Outcome, RunHistory), SimError> {
    scenario.check()?;
    workload.check()?;
    let routes = scenario.routes.len();
    if workload.items.iter().any(|item| usize::from(item.route.0) > routes) {
        return Err(SimError::Workload("an item takes a route that does not exist"));
    }
    let parts = (workload, scenario, front(scenario)?, source);
    Ok(match &scenario.costs {
        Costs::Lard98(model) => Engine::new(parts, &model.times(), history).run(),
        Costs::Ward01(model) => Engine::new(parts, model, history).run(),
        Costs::Cap01(model) => Engine::new(parts, model, history).run(),
        Costs::Hacc99(model) => Engine::new(parts, model, history).run(),
        Costs::Modelled(model) => Engine::new(parts, model, history).run(),
        Costs::Modern(model) => Engine::new(parts, model, history).run(),
    })
}

/// The inputs of an engine.
type EngineParts<'r> = (&'r Workload, &'r Scenario, FrontEnd, Box<dyn RequestSource + 'r>);

fn front(scenario: &Scenario) -> Result<FrontEnd, SimError> {
    let initial = scenario.nodes.iter().enumerate().take(scenario.initial_nodes());
    let specs: Vec<NodeSpec> = initial.map(|(index, node)| spec(index, node)).collect();
    FrontEnd::new(scenario, &specs)
}

/// Returns the admission limit S of a scenario's front-end.
pub(crate) fn admission_limit(scenario: &Scenario) -> Result<u32, SimError> {
    Ok(front(scenario)?.limit())
}

fn spec(index: usize, node: &crate::SimNode) -> NodeSpec {
    NodeSpec {
        weight: node.weight,
        cache: node.cache,
        groups: node.groups,
        ..NodeSpec::named(format!("n{index}"))
    }
}

/// A request that has arrived and has no node yet.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    request: ClientRequest,
    /// The switch that received the request.
    switch: u16,
    at: Time,
    /// Whether the request is measured; otherwise it only warms the caches.
    measured: bool,
}

/// A request at its node, or a read that runs as a task of its own.
#[derive(Clone, Copy, Debug)]
struct Job {
    request: ClientRequest,
    switch: u16,
    arrived_at: Time,
    /// The time at which the request was sent to its node.
    sent: Time,
    /// The time at which the item was in the node's memory, when the reply began; zero until then.
    ready: Time,
    measured: bool,
    /// Whether the job is a read that runs as a task of its own ([`Stations::tasks`](crate::cost::Stations)).
    read: bool,
    node: u16,
    peer: u16,
    found: LookupOutcome,
    /// The number of the request's record, if the run keeps a history.
    record: u32,
    progress: RequestProgress,
    /// The next job that shares the same read.
    next_sharer: u32,
}

const NO_JOB: u32 = u32::MAX;

/// The stations of a node, as indexes into [`Engine::stations`].
#[derive(Clone, Copy, Debug)]
struct NodeStations {
    /// The processor. If the model has pools, an index into [`Engine::pools`].
    cpu: usize,
    /// The pool of the first disk's reads, if the model has pools: an index into [`Engine::pools`].
    slots: usize,
    nic: usize,
    back: usize,
    disks: usize,
    disk_count: usize,
    cpu_factor: f64,
    disk_factor: f64,
}

struct Engine<'r, M> {
    workload: &'r Workload,
    scenario: &'r Scenario,
    front: FrontEnd,
    source: Box<dyn RequestSource + 'r>,
    model: &'r M,
    now: Time,
    seq: u64,
    calendar: Calendar,
    stations: Vec<Station>,
    /// The front-end's cores, then the cores and reads of each node; empty if the model has none.
    pools: Vec<Pool>,
    node_stations: Vec<NodeStations>,
    ranks: Vec<u32>,
    memories: NodeMemories,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// The reads in progress by (node, item): the job that reads. The jobs that share a read form a list that
    /// starts at this job.
    reads: BTreeMap<(u16, u32), u32>,
    timed_events: TimedEvents,
    tasks: ReadTasks,
    /// The number of requests that have arrived.
    arrived: u64,
    /// The number of changes made so far, and the number of arrivals before the next change.
    changed: usize,
    next_change: u64,
    /// The requests since the last refresh, for each route whose table is refreshed; the default route is
    /// first.
    censuses: Vec<Option<Census>>,
    /// The current table of each route.
    tables: Vec<Option<Arc<RouteTable>>>,
    history: Option<RunHistory>,
    /// The requests that wait at the front-end, by switch and ticket.
    waiting: BTreeMap<(u16, Ticket), PendingRequest>,
    /// An empty buffer, kept for its capacity.
    started: Vec<DequeuedRequest>,
    /// The requests that waited and now have a node.
    ready: VecDeque<(PendingRequest, NodeId)>,
    /// The next requests of the clients, and the number of them that have been sent.
    next_requests: Vec<ClientRequest>,
    taken_requests: usize,
    tally: RunTally,
    cache_events: bool,
}

const SOURCE: usize = 0;
const TIMED_EVENTS: usize = 1;
const STATIONS_BEGIN: usize = 2;

impl<'r, M: CostModel> Engine<'r, M> {
    fn new(parts: EngineParts<'r>, model: &'r M, history: Option<RunHistory>) -> Self {
        let (workload, scenario, front, source) = parts;
        let mut stations = 1;
        let mut take = |count: usize| {
            stations += count;
            stations - count
        };
        let mut pools = Vec::new();
        if M::STATIONS.front_pool {
            pools.push(Pool::new(model.front_cores()));
        }
        let node_stations: Vec<NodeStations> = scenario
            .nodes
            .iter()
            .map(|node| NodeStations {
                cpu: if M::STATIONS.pools { add_pools(&mut pools, 1, model.cores()) } else { take(1) },
                slots: if M::STATIONS.pools {
                    add_pools(&mut pools, node.disks, model.read_slots())
                } else {
                    0
                },
                nic: if M::STATIONS.nic { take(1) } else { 0 },
                back: if M::STATIONS.back { take(1) } else { 0 },
                disks: take(node.disks as usize),
                disk_count: node.disks as usize,
                cpu_factor: 1.0 / node.cpu_speed,
                disk_factor: 1.0 / node.disk_speed,
            })
            .collect();
        let tasks = ReadTasks::new(workload, model);
        let several_disks = node_stations.iter().any(|node_stations| node_stations.disk_count > 1);
        Self {
            now: Time::ZERO,
            seq: 0,
            calendar: Calendar::new(STATIONS_BEGIN + stations),
            stations: (0..stations).map(|station| Station::new(STATIONS_BEGIN + station)).collect(),
            ranks: if several_disks { workload.ranks() } else { Vec::new() },
            memories: NodeMemories::new(scenario, tasks.keys()),
            pools,
            tasks,
            arrived: 0,
            changed: 0,
            next_change: scenario.changes.first().map_or(u64::MAX, |planned| planned.after),
            censuses: Self::create_censuses(scenario),
            tables: Self::initial_tables(scenario),
            history,
            jobs: Vec::new(),
            free: Vec::new(),
            reads: BTreeMap::new(),
            timed_events: TimedEvents::default(),
            waiting: BTreeMap::new(),
            started: Vec::new(),
            ready: VecDeque::new(),
            next_requests: Vec::new(),
            taken_requests: 0,
            tally: RunTally::new(scenario),
            cache_events: front.first().mirrors_caches(),
            workload,
            scenario,
            front,
            source,
            model,
            node_stations,
        }
    }

    fn run(mut self) -> (Outcome, RunHistory) {
        self.set_source_timer();
        self.schedule_report();
        self.schedule_refresh();
        self.connect_switches();
        loop {
            let (clock, key) = self.calendar.next();
            if key == EventKey::NEVER {
                break;
            }
            self.now = key.time();
            match clock {
                SOURCE => {
                    let request = self.source.next_request(self.now);
                    self.set_source_timer();
                    if let Some(request) = request {
                        self.arrive(request);
                    }
                }
                TIMED_EVENTS => self.handle_timed_event(),
                station => {
                    let station = station - STATIONS_BEGIN;
                    match self.stations[station].pop(&mut self.calendar) {
                        Some(job) if M::STATIONS.timer && station > 0 => self.schedule_wake(station, job),
                        Some(job) => self.advance(job),
                        None => {}
                    }
                }
            }
            self.follow_up();
        }
        let pages = self.source.page_delays();
        let busy = self.busy_times();
        let outcome = self.tally.outcome(&busy, self.front_busy_ns(), pages);
        (outcome, self.history.unwrap_or_default())
    }

    /// Handles the consequences of an event in order: first requests that waited at the front-end, then the
    /// clients' next requests. Ends are therefore never nested, however many there are at one time.
    fn follow_up(&mut self) {
        loop {
            if let Some((pending, node)) = self.ready.pop_front() {
                self.start(pending, node);
            } else if let Some(request) = self.next_requests.get(self.taken_requests).copied() {
                self.taken_requests += 1;
                self.arrive(request);
            } else {
                break;
            }
        }
        self.next_requests.clear();
        self.taken_requests = 0;
    }

    fn set_source_timer(&mut self) {
        // Arrivals precede every other event at the same time.
        let key =
            self.source.next_time().map_or(EventKey::NEVER, |time| EventKey::new(time.max(self.now), 0));
        self.calendar.set(SOURCE, key);
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    fn arrive(&mut self, request: ClientRequest) {
        if self.arrived >= self.next_change {
            self.apply_changes();
        }
        let switch = self.front.pick_switch(self.arrived);
        let pending =
            PendingRequest { request, switch, at: self.now, measured: self.tally.is_measured(self.arrived) };
        if pending.measured && self.arrived > 0 && !self.tally.is_measured(self.arrived - 1) {
            let busy = self.busy_times();
            self.tally.begin(self.now, busy, self.front_busy_ns());
        }
        self.arrived += 1;
        self.tally.note_arrival(self.now);
        if let Some(node) = request.connection.bound {
            return self.start(pending, node);
        }
        self.count_request(request.item);
        match self.front.dispatchers[usize::from(switch)].arrive(self.now, self.dispatcher_request(&request))
        {
            Arrival::Start(decision) => {
                self.tally.note_reason(decision.reason, pending.measured);
                self.start(pending, decision.node);
            }
            Arrival::Wait(ticket) => {
                self.waiting.insert((switch, ticket), pending);
                self.schedule_expiry();
            }
            Arrival::Refused(_) => self.refuse(pending),
        }
    }

    fn refuse(&mut self, pending: PendingRequest) {
        self.tally.note_refused(pending.measured);
        self.source.handle_end(self.now, pending.request.tag, None, &mut self.next_requests);
        self.set_source_timer();
    }

    fn add_job(&mut self, job: Job) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.jobs[number as usize] = job;
                number
            }
            None => {
                self.jobs.push(job);
                (self.jobs.len() - 1) as u32
            }
        }
    }

    fn start(&mut self, pending: PendingRequest, node: NodeId) {
        let request = pending.request;
        let record = self.record_start(request.item, node.0);
        let number = self.add_job(Job {
            request,
            switch: pending.switch,
            arrived_at: pending.at,
            sent: self.now,
            ready: Time::ZERO,
            measured: pending.measured,
            read: false,
            node: node.0,
            peer: 0,
            found: LookupOutcome::Unknown,
            record,
            progress: RequestProgress::default(),
            next_sharer: NO_JOB,
        });
        self.tally.note_start(self.now, node.index());
        let front = self.model.front_cost(&self.workload.items[request.item as usize], &request.connection);
        let kib_ns = front.kib_ns.saturating_mul(self.workload.items[request.item as usize].bytes) >> 10;
        if front.request_ns + kib_ns > 0 {
            if M::STATIONS.front_pool {
                self.enqueue_pool(0, front.request_ns + kib_ns, number);
            } else {
                self.enqueue(0, front.request_ns + kib_ns, number);
            }
        } else if front.delay_ns > 0 {
            self.pause(front.delay_ns, number);
        } else {
            self.advance(number);
        }
    }

    /// Advances a job to its next step that takes time.
    fn advance(&mut self, number: u32) {
        loop {
            let job = &mut self.jobs[number as usize];
            if M::STATIONS.tasks && job.read {
                return self.finish_read(number);
            }
            let item = &self.workload.items[job.request.item as usize];
            let forwarded = job.request.origin.is_some_and(|origin| origin.0 != job.node);
            let facts =
                RequestFacts { item, found: job.found, forwarded, connection: job.request.connection };
            let step = self.model.next_step(&mut job.progress, &facts);
            let (node, peer, origin) = (job.node as usize, job.peer as usize, job.request.origin);
            let node_stations = &self.node_stations[node];
            let (station, time_ns) = match step {
                ServiceStep::Slot(ns) => {
                    let (pool, time_ns) = (self.slot(node, number), scale(ns, node_stations.disk_factor));
                    return self.enqueue_pool(pool, time_ns, number);
                }
                ServiceStep::Cpu(ns) => return self.enqueue_cpu(node, ns, number),
                ServiceStep::Turn => return self.enqueue_cpu(node, 0, number),
                ServiceStep::Serve(ns) => return self.serve(node, ns, number),
                ServiceStep::Disk(ns) => (self.disk(node, number), scale(ns, node_stations.disk_factor)),
                ServiceStep::Nic(ns) => (node_stations.nic, ns),
                ServiceStep::Back(ns) => (node_stations.back, ns),
                ServiceStep::PeerCpu(ns) => return self.enqueue_cpu(peer, ns, number),
                ServiceStep::OriginCpu(ns) => {
                    return self.enqueue_cpu(origin.map_or(node, NodeId::index), ns, number);
                }
                ServiceStep::Lookup => {
                    self.look_up(number);
                    continue;
                }
                ServiceStep::Stored => {
                    self.store_read(number);
                    continue;
                }
                ServiceStep::Pause(ns) => return self.pause(ns, number),
                ServiceStep::Await => {
                    if self.join_read(number) {
                        return;
                    }
                    continue;
                }
                ServiceStep::NextChunk => {
                    if self.next_chunk(number) {
                        return;
                    }
                    continue;
                }
                ServiceStep::Done => return self.finish(number),
            };
            return self.enqueue(station, time_ns, number);
        }
    }

    fn enqueue_cpu(&mut self, node: usize, ns: u64, number: u32) {
        let node_stations = &self.node_stations[node];
        let (place, time_ns) = (node_stations.cpu, scale(ns, node_stations.cpu_factor));
        if M::STATIONS.pools {
            return self.enqueue_pool(place, time_ns, number);
        }
        self.enqueue(place, time_ns, number);
    }

    fn serve(&mut self, node: usize, ns: u64, number: u32) {
        debug_assert!(!M::STATIONS.pools && !M::STATIONS.timer, "these fix a job's end when it comes");
        let (seq, node_stations) = (self.next_seq(), &self.node_stations[node]);
        let (place, time_ns) = (node_stations.cpu, scale(ns, node_stations.cpu_factor));
        self.stations[place].serve(&mut self.calendar, self.now, time_ns, seq, number);
    }

    fn enqueue_pool(&mut self, pool: usize, time_ns: u64, number: u32) {
        let end = self.pools[pool].enqueue(self.now, time_ns);
        self.pause(end.as_nanos() - self.now.as_nanos(), number);
    }

    fn front_busy_ns(&self) -> u64 {
        if M::STATIONS.front_pool {
            self.pools[0].busy_ns(self.now)
        } else {
            self.stations[0].busy_ns(self.now)
        }
    }

    fn enqueue(&mut self, station: usize, time_ns: u64, number: u32) {
        let seq = self.next_seq();
        if M::STATIONS.timer && station > 0 {
            let station = &mut self.stations[station];
            let end_ns = station.enqueue_late(&mut self.calendar, self.now, time_ns, seq, number);
            return self.tasks.note_end(number, end_ns);
        }
        self.stations[station].enqueue(&mut self.calendar, self.now, time_ns, seq, number);
    }

    fn disk(&self, node: usize, number: u32) -> usize {
        self.node_stations[node].disks + self.disk_number(node, number)
    }

    fn slot(&self, node: usize, number: u32) -> usize {
        self.node_stations[node].slots + self.disk_number(node, number)
    }

    /// Returns the number of the node's disk that holds the item.
    fn disk_number(&self, node: usize, number: u32) -> usize {
        let node_stations = &self.node_stations[node];
        if node_stations.disk_count == 1 {
            return 0;
        }
        let rank = self.ranks[self.jobs[number as usize].request.item as usize];
        rank as usize % node_stations.disk_count
    }

    fn finish(&mut self, number: u32) {
        let job = self.jobs[number as usize];
        self.free.push(number);
        let item = &self.workload.items[job.request.item as usize];
        let forwarded = job.request.origin.is_some_and(|origin| origin.0 != job.node);
        let delay_ns = self.now.as_nanos() - job.arrived_at.as_nanos();
        let ended = CompletedRequest { delay_ns, bytes: item.bytes, forwarded, measured: job.measured };
        self.tally.note_end(self.now, job.node as usize, &ended);
        if job.request.connection.bound.is_none() {
            self.report_served(&job);
            let dispatcher = &self.front.dispatchers[usize::from(job.switch)];
            let mut started = core::mem::take(&mut self.started);
            dispatcher.finish_on(self.now, item.route, NodeId(job.node), &mut started);
            self.collect_started(job.switch, &mut started);
            self.started = started;
        }
        self.record_end(&job);
        self.source.handle_end(self.now, job.request.tag, Some(NodeId(job.node)), &mut self.next_requests);
        self.set_source_timer();
    }
}

/// Adds `count` pools of `servers` servers each, and returns the index of the first.
fn add_pools(pools: &mut Vec<Pool>, count: u16, servers: u32) -> usize {
    let first = pools.len();
    pools.extend((0..count).map(|_| Pool::new(servers)));
    first
}

fn scale(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor) as u64 }
}

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
