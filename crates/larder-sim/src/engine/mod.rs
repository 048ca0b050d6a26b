//! The engine of a run: requests pass from the clients through the dispatcher to the nodes, step by step.
//!
//! An event is the end of a step at a station, the end of a pause, an arrival or a load report. The engine
//! calls the dispatcher exactly as the live switch does: `arrive` when a request arrives, `finish` when its
//! last byte is sent.

mod alarms;
mod changes;
mod front;
mod reading;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_core::census::Census;
use larder_core::dispatch::{Arrival, Started};
use larder_core::nodes::NodeSpec;
use larder_core::policy::table::RouteTable;
use larder_core::{NodeId, Ticket, Time};

use alarms::Alarms;
pub use changes::{Seen, Watched};
use front::Front;
use tasks::Tasks;

use crate::SimError;
use crate::calendar::{Calendar, Key};
use crate::cost::{About, CostModel, Costs, Found, Progress, Step};
use crate::memory::Memories;
use crate::outcome::Outcome;
use crate::scenario::Scenario;
use crate::source::{Ask, Source};
use crate::station::{Pool, Station};
use crate::tally::{Ended, Tally};
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
    let limit = front(scenario)?.limit();
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
    source: Box<dyn Source + '_>,
) -> Result<Outcome, SimError> {
    run(workload, scenario, source, None).map(|(outcome, _)| outcome)
}

/// Runs [`simulate`] and also returns the outcome of each request. This takes 8 bytes per request more.
///
/// # Errors
/// Fails as [`simulate`] does.
pub fn simulate_watched(workload: &Workload, scenario: &Scenario) -> Result<(Outcome, Watched), SimError> {
    scenario.check()?;
    let limit = front(scenario)?.limit();
    let source = scenario.arrivals.source(workload, scenario.initial_nodes(), limit)?;
    run(workload, scenario, source, Some(Watched::default()))
}

fn run(
    workload: &Workload,
    scenario: &Scenario,
    source: Box<dyn Source + '_>,
    watched: Option<Watched>,
) -> Result<(Outcome, Watched), SimError> {
    scenario.check()?;
    workload.check()?;
    let routes = scenario.routes.len();
    if workload.items.iter().any(|item| usize::from(item.route.0) > routes) {
        return Err(SimError::Workload("an item takes a route that does not exist"));
    }
    let parts = (workload, scenario, front(scenario)?, source);
    Ok(match &scenario.costs {
        Costs::Lard98(model) => Engine::new(parts, &model.times(), watched).run(),
        Costs::Ward01(model) => Engine::new(parts, model, watched).run(),
        Costs::Cap01(model) => Engine::new(parts, model, watched).run(),
        Costs::Hacc99(model) => Engine::new(parts, model, watched).run(),
        Costs::Modelled(model) => Engine::new(parts, model, watched).run(),
        Costs::Modern(model) => Engine::new(parts, model, watched).run(),
    })
}

/// The inputs of an engine.
type Parts<'r> = (&'r Workload, &'r Scenario, Front, Box<dyn Source + 'r>);

fn front(scenario: &Scenario) -> Result<Front, SimError> {
    let initial = scenario.nodes.iter().enumerate().take(scenario.initial_nodes());
    let specs: Vec<NodeSpec> = initial.map(|(index, node)| spec(index, node)).collect();
    Front::new(scenario, &specs)
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
struct Arrived {
    ask: Ask,
    /// The switch that received the request.
    switch: u16,
    at: Time,
    /// Whether the request is measured; otherwise it only warms the caches.
    measured: bool,
}

/// A request at its node, or a read that runs as a task of its own.
#[derive(Clone, Copy, Debug)]
struct Job {
    ask: Ask,
    switch: u16,
    asked: Time,
    /// The time at which the request was sent to its node.
    sent: Time,
    /// The time at which the item was in the node's memory, when the reply began; zero until then.
    ready: Time,
    measured: bool,
    /// Whether the job is a read that runs as a task of its own ([`Stations::tasks`](crate::cost::Stations)).
    read: bool,
    node: u16,
    peer: u16,
    found: Found,
    /// The number of the request's record, if the run keeps a history.
    seen: u32,
    progress: Progress,
    /// The next job that shares the same read.
    next_sharer: u32,
}

const NOBODY: u32 = u32::MAX;

/// The stations of a node, as indexes into [`Engine::stations`].
#[derive(Clone, Copy, Debug)]
struct Places {
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
    front: Front,
    source: Box<dyn Source + 'r>,
    model: &'r M,
    now: Time,
    seq: u64,
    calendar: Calendar,
    stations: Vec<Station>,
    /// The front-end's cores, then the cores and reads of each node; empty if the model has none.
    pools: Vec<Pool>,
    places: Vec<Places>,
    ranks: Vec<u32>,
    memories: Memories,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// The reads in progress by (node, item): the job that reads. The jobs that share a read form a list that
    /// starts at this job.
    reads: BTreeMap<(u16, u32), u32>,
    alarms: Alarms,
    tasks: Tasks,
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
    watched: Option<Watched>,
    /// The requests that wait at the front-end, by switch and ticket.
    waiting: BTreeMap<(u16, Ticket), Arrived>,
    /// An empty buffer, kept for its capacity.
    started: Vec<Started>,
    /// The requests that waited and now have a node.
    ready: VecDeque<(Arrived, NodeId)>,
    /// The next requests of the clients, and the number of them that have been sent.
    asks: Vec<Ask>,
    asked: usize,
    tally: Tally,
    cache_events: bool,
}

const SOURCE: usize = 0;
const ALARMS: usize = 1;
const FRONT: usize = 2;

impl<'r, M: CostModel> Engine<'r, M> {
    fn new(parts: Parts<'r>, model: &'r M, watched: Option<Watched>) -> Self {
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
        let places: Vec<Places> = scenario
            .nodes
            .iter()
            .map(|node| Places {
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
        let tasks = Tasks::new(workload, model);
        let several_disks = places.iter().any(|places| places.disk_count > 1);
        Self {
            now: Time::ZERO,
            seq: 0,
            calendar: Calendar::new(FRONT + stations),
            stations: (0..stations).map(|station| Station::new(FRONT + station)).collect(),
            ranks: if several_disks { workload.ranks() } else { Vec::new() },
            memories: Memories::new(scenario, tasks.keys()),
            pools,
            tasks,
            arrived: 0,
            changed: 0,
            next_change: scenario.changes.first().map_or(u64::MAX, |planned| planned.after),
            censuses: Self::censuses(scenario),
            tables: Self::tables(scenario),
            watched,
            jobs: Vec::new(),
            free: Vec::new(),
            reads: BTreeMap::new(),
            alarms: Alarms::default(),
            waiting: BTreeMap::new(),
            started: Vec::new(),
            ready: VecDeque::new(),
            asks: Vec::new(),
            asked: 0,
            tally: Tally::new(scenario),
            cache_events: front.first().mirrors_caches(),
            workload,
            scenario,
            front,
            source,
            model,
            places,
        }
    }

    fn run(mut self) -> (Outcome, Watched) {
        self.set_source_clock();
        self.plan_report();
        self.plan_refresh();
        self.meet();
        loop {
            let (clock, key) = self.calendar.next();
            if key == Key::NEVER {
                break;
            }
            self.now = key.time();
            match clock {
                SOURCE => {
                    let ask = self.source.take(self.now);
                    self.set_source_clock();
                    if let Some(ask) = ask {
                        self.arrive(ask);
                    }
                }
                ALARMS => self.strike(),
                station => {
                    let station = station - FRONT;
                    match self.stations[station].pop(&mut self.calendar) {
                        Some(job) if M::STATIONS.timer && station > 0 => self.wake_later(station, job),
                        Some(job) => self.advance(job),
                        None => {}
                    }
                }
            }
            self.follow_up();
        }
        let pages = self.source.pages();
        let busy = self.busy();
        let outcome = self.tally.outcome(&busy, self.front_busy_ns(), pages);
        (outcome, self.watched.unwrap_or_default())
    }

    /// Handles the consequences of an event in order: first requests that waited at the front-end, then the
    /// clients' next requests. Ends are therefore never nested, however many there are at one time.
    fn follow_up(&mut self) {
        loop {
            if let Some((arrived, node)) = self.ready.pop_front() {
                self.start(arrived, node);
            } else if let Some(ask) = self.asks.get(self.asked).copied() {
                self.asked += 1;
                self.arrive(ask);
            } else {
                break;
            }
        }
        self.asks.clear();
        self.asked = 0;
    }

    fn set_source_clock(&mut self) {
        // Arrivals precede every other event at the same time.
        let key = self.source.next_at().map_or(Key::NEVER, |time| Key::new(time.max(self.now), 0));
        self.calendar.set(SOURCE, key);
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    fn arrive(&mut self, ask: Ask) {
        if self.arrived >= self.next_change {
            self.change();
        }
        let switch = self.front.deal(self.arrived);
        let arrived = Arrived { ask, switch, at: self.now, measured: self.tally.counts(self.arrived) };
        if arrived.measured && self.arrived > 0 && !self.tally.counts(self.arrived - 1) {
            let busy = self.busy();
            self.tally.begin(self.now, busy, self.front_busy_ns());
        }
        self.arrived += 1;
        self.tally.note_arrival(self.now);
        if let Some(node) = ask.link.bound {
            return self.start(arrived, node);
        }
        self.count(ask.item);
        match self.front.dispatchers[usize::from(switch)].arrive(self.now, self.request(&ask)) {
            Arrival::Start(decision) => {
                self.tally.note_reason(decision.reason, arrived.measured);
                self.start(arrived, decision.node);
            }
            Arrival::Wait(ticket) => {
                self.waiting.insert((switch, ticket), arrived);
                self.plan_deadline();
            }
            Arrival::Refused(_) => self.refuse(arrived),
        }
    }

    fn refuse(&mut self, arrived: Arrived) {
        self.tally.note_refused(arrived.measured);
        self.source.ended(self.now, arrived.ask.tag, None, &mut self.asks);
        self.set_source_clock();
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

    fn start(&mut self, arrived: Arrived, node: NodeId) {
        let ask = arrived.ask;
        let seen = self.watch_start(ask.item, node.0);
        let number = self.add_job(Job {
            ask,
            switch: arrived.switch,
            asked: arrived.at,
            sent: self.now,
            ready: Time::ZERO,
            measured: arrived.measured,
            read: false,
            node: node.0,
            peer: 0,
            found: Found::Unknown,
            seen,
            progress: Progress::default(),
            next_sharer: NOBODY,
        });
        self.tally.note_start(self.now, node.index());
        let front = self.model.front(&self.workload.items[ask.item as usize], &ask.link);
        let kib_ns = front.kib_ns.saturating_mul(self.workload.items[ask.item as usize].bytes) >> 10;
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
                return self.land(number);
            }
            let item = &self.workload.items[job.ask.item as usize];
            let forwarded = job.ask.origin.is_some_and(|origin| origin.0 != job.node);
            let about = About { item, found: job.found, forwarded, link: job.ask.link };
            let step = self.model.next(&mut job.progress, &about);
            let (node, peer, origin) = (job.node as usize, job.peer as usize, job.ask.origin);
            let places = &self.places[node];
            let (station, time_ns) = match step {
                Step::Slot(ns) => {
                    let (pool, time_ns) = (self.slot(node, number), scaled(ns, places.disk_factor));
                    return self.enqueue_pool(pool, time_ns, number);
                }
                Step::Cpu(ns) => return self.enqueue_cpu(node, ns, number),
                Step::Turn => return self.enqueue_cpu(node, 0, number),
                Step::Serve(ns) => return self.serve(node, ns, number),
                Step::Disk(ns) => (self.disk(node, number), scaled(ns, places.disk_factor)),
                Step::Nic(ns) => (places.nic, ns),
                Step::Back(ns) => (places.back, ns),
                Step::PeerCpu(ns) => return self.enqueue_cpu(peer, ns, number),
                Step::OriginCpu(ns) => {
                    return self.enqueue_cpu(origin.map_or(node, NodeId::index), ns, number);
                }
                Step::Lookup => {
                    self.look(number);
                    continue;
                }
                Step::Stored => {
                    self.store(number);
                    continue;
                }
                Step::Pause(ns) => return self.pause(ns, number),
                Step::Await => {
                    if self.share(number) {
                        return;
                    }
                    continue;
                }
                Step::NextPart => {
                    if self.next_part(number) {
                        return;
                    }
                    continue;
                }
                Step::Done => return self.finish(number),
            };
            return self.enqueue(station, time_ns, number);
        }
    }

    fn enqueue_cpu(&mut self, node: usize, ns: u64, number: u32) {
        let places = &self.places[node];
        let (place, time_ns) = (places.cpu, scaled(ns, places.cpu_factor));
        if M::STATIONS.pools {
            return self.enqueue_pool(place, time_ns, number);
        }
        self.enqueue(place, time_ns, number);
    }

    fn serve(&mut self, node: usize, ns: u64, number: u32) {
        debug_assert!(!M::STATIONS.pools && !M::STATIONS.timer, "these fix a job's end when it comes");
        let (seq, places) = (self.next_seq(), &self.places[node]);
        let (place, time_ns) = (places.cpu, scaled(ns, places.cpu_factor));
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
        self.places[node].disks + self.disk_number(node, number)
    }

    fn slot(&self, node: usize, number: u32) -> usize {
        self.places[node].slots + self.disk_number(node, number)
    }

    /// Returns the number of the node's disk that holds the item.
    fn disk_number(&self, node: usize, number: u32) -> usize {
        let places = &self.places[node];
        if places.disk_count == 1 {
            return 0;
        }
        let rank = self.ranks[self.jobs[number as usize].ask.item as usize];
        rank as usize % places.disk_count
    }

    fn finish(&mut self, number: u32) {
        let job = self.jobs[number as usize];
        self.free.push(number);
        let item = &self.workload.items[job.ask.item as usize];
        let forwarded = job.ask.origin.is_some_and(|origin| origin.0 != job.node);
        let delay_ns = self.now.as_nanos() - job.asked.as_nanos();
        let ended = Ended { delay_ns, bytes: item.bytes, forwarded, measured: job.measured };
        self.tally.note_end(self.now, job.node as usize, &ended);
        if job.ask.link.bound.is_none() {
            self.tell_served(&job);
            let dispatcher = &self.front.dispatchers[usize::from(job.switch)];
            let mut started = core::mem::take(&mut self.started);
            dispatcher.finish_on(self.now, item.route, NodeId(job.node), &mut started);
            self.started_at(job.switch, &mut started);
            self.started = started;
        }
        self.watch_end(&job);
        self.source.ended(self.now, job.ask.tag, Some(NodeId(job.node)), &mut self.asks);
        self.set_source_clock();
    }
}

/// Adds `count` pools of `servers` servers each, and returns the index of the first.
fn add_pools(pools: &mut Vec<Pool>, count: u16, servers: u32) -> usize {
    let first = pools.len();
    pools.extend((0..count).map(|_| Pool::new(servers)));
    first
}

fn scaled(ns: u64, factor: f64) -> u64 {
    if factor == 1.0 { ns } else { (ns as f64 * factor) as u64 }
}

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
