//! The engine of a cooperative cluster: stations, wires, timers, clients and measurement.

use std::collections::{BTreeMap, VecDeque};

use larder_core::cache::{ByteCache, CacheKind};
use larder_core::{Bytes, Time};

use super::cluster::{Cooperation, Spread};
use super::draw::draw;
use super::minds::{self, Minds, State, Wish};
use super::outcome::{Busy, Outcome, Tally};
use super::servers::Server;
use super::tell::Note;
use crate::calendar::{Calendar, Key};
use crate::station::Station;
use crate::{SimError, Workload};

/// A station of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Cpu,
    Disk,
    /// The interface to clients.
    Clients,
    /// The interface to other nodes. It is the interface to clients if the cluster has no separate network.
    Nodes,
    /// The processor for protocol messages, if these are handled before requests. Otherwise it is the
    /// processor.
    Talk,
}

/// The number of stations per node, in the order of [`StationKind`].
const STATIONS: usize = 5;
/// The calendar timer of the messages on the wires.
const WIRES: usize = 0;

/// The current activity of a request. Its end at the station or wire starts the next activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The switch's processor handles the request.
    Switching,
    /// The request arrives through the initial node's interface to clients.
    Coming,
    /// The initial node parses the request.
    Parsed,
    /// The initial node's processor prepares the question to the dispatcher.
    Asking,
    /// The question is sent to the dispatcher.
    AskTransfer,
    /// The dispatcher's processor receives the question, decides and answers.
    Deciding,
    /// The answer is sent to the initial node.
    AnswerTransfer,
    /// The initial node's processor prepares the request for the service node.
    Forwarding,
    /// The request is sent to the service node.
    ForwardTransfer,
    /// The service node's processor accepts the request, or the initial node's processor receives the answer.
    Accepting,
    /// The service node's disk reads the item.
    Reading,
    /// The service node's processor prepares the reply for the initial node.
    Returning,
    /// The reply is sent to the initial node.
    ReplyTransfer,
    /// The processor prepares the reply for the client.
    Replying,
    /// The reply leaves through the interface to clients.
    Leaving,
}

/// The state of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) item: u32,
    pub(super) initial: u16,
    pub(super) service: u16,
    pub(super) step: Step,
    pub(super) keep: bool,
    pub(super) missed: bool,
    pub(super) came: Time,
    /// The time at which the initial node asked for a placement.
    pub(super) asked: Time,
}

/// The work of a task.
#[derive(Debug)]
pub(super) enum Body {
    Free,
    Request(Job),
    Note(Note),
}

/// The transfer of a task between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) bytes: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Out,
    Wire,
    In,
}

/// A unit of work at stations.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) body: Body,
    way: Option<Way>,
}

/// The stations, wires and timers of the cluster.
#[derive(Debug)]
struct Machines {
    calendar: Calendar,
    stations: Vec<Station>,
    /// The tasks on the wires. All have the same latency, so they arrive in order.
    wires: VecDeque<(Key, u32)>,
    seq: u64,
}

pub(super) struct Engine<'r> {
    pub(super) workload: &'r Workload,
    pub(super) cluster: &'r Cooperation,
    pub(super) now: Time,
    machines: Machines,
    pub(super) tasks: Vec<Task>,
    free: Vec<u32>,
    pub(super) minds: Box<dyn Minds>,
    pub(super) caches: Vec<ByteCache<u32>>,
    /// The reads in progress by (node, item), with the tasks that wait for them.
    pub(super) reads: BTreeMap<(u16, u32), Vec<u32>>,
    pub(super) evicted: Vec<(u32, Bytes)>,
    pub(super) out: Vec<Wish>,
    pub(super) tally: Tally,
    /// The number of requests that have arrived in total, and at each node.
    pub(super) come: usize,
    dealt: Vec<usize>,
    warmup: usize,
    /// The start of the measured part, and whether it has begun and not ended.
    since: Option<Time>,
    pub(super) measuring: bool,
    busy_before: Vec<u64>,
    /// The number of cooperating nodes, the time since which that number holds, and the node-nanoseconds of
    /// cooperation so far.
    sharing: (u64, Time, u128),
    result: Outcome,
}

impl<'r> Engine<'r> {
    pub(super) fn new(workload: &'r Workload, cluster: &'r Cooperation) -> Result<Self, SimError> {
        let nodes = usize::from(cluster.nodes);
        // One more machine, for a dispatcher.
        let places = (nodes + 1) * STATIONS;
        let minds = minds::of(cluster, workload)?;
        let cache = |_| ByteCache::new(CacheKind::Lru, cluster.memory, Bytes(u64::MAX));
        let warmup = cluster.warmup.unwrap_or(workload.requests.len() / 3);
        Ok(Self {
            workload,
            cluster,
            now: Time::ZERO,
            machines: Machines {
                calendar: Calendar::new(1 + places + nodes),
                stations: (0..places).map(|place| Station::new(1 + place)).collect(),
                wires: VecDeque::new(),
                seq: 0,
            },
            tasks: Vec::new(),
            free: Vec::new(),
            tally: Tally::new(nodes, minds.reasons()),
            minds,
            caches: (0..nodes).map(cache).collect(),
            reads: BTreeMap::new(),
            evicted: Vec::new(),
            out: Vec::new(),
            come: 0,
            dealt: vec![0; nodes],
            warmup,
            since: None,
            measuring: false,
            busy_before: Vec::new(),
            sharing: (0, Time::ZERO, 0),
            result: Outcome::default(),
        })
    }

    pub(super) fn run(mut self) -> Outcome {
        self.introduce();
        for _ in 0..self.cluster.connections {
            (0..self.cluster.nodes).for_each(|node| self.come(node));
        }
        // Timers expire for ever, so the run ends with the last request.
        let mut ended = 0;
        while ended < self.workload.requests.len() {
            let (clock, key) = self.machines.calendar.next();
            if key == Key::NEVER {
                unreachable!("a request waits for nothing");
            }
            self.now = key.time();
            let places = self.machines.stations.len();
            match clock {
                WIRES => self.arrive(),
                place if place <= places => {
                    let Machines { stations, calendar, .. } = &mut self.machines;
                    if let Some(task) = stations[place - 1].pop(calendar) {
                        ended += usize::from(self.done(task));
                    }
                }
                timer => self.strike((timer - places - 1) as u16),
            }
        }
        self.result.requests_all = ended as u64;
        self.result
    }

    /// Begins the next request of a connection; of a connection of this node, if connections belong to nodes.
    pub(super) fn come(&mut self, node: u16) {
        let Some((at, initial)) = self.next(node) else { return };
        let Some(item) = self.workload.requests.get(at).copied() else { return };
        if self.come == self.warmup {
            self.begin_measuring();
        }
        self.give();
        self.come += 1;
        let job = Job {
            item,
            initial,
            service: initial,
            step: Step::Coming,
            keep: false,
            missed: false,
            came: self.now,
            asked: self.now,
        };
        let task = self.add(Body::Request(job));
        if self.cluster.server == Server::Switch {
            self.pass_switch(task);
        } else {
            self.enter(task, initial);
        }
        if self.come == self.workload.requests.len() {
            self.end_measuring();
        }
    }

    /// Enters a request at its initial node.
    pub(super) fn enter(&mut self, task: u32, initial: u16) {
        let ns = self.cluster.costs.external.ns(self.cluster.costs.request_bytes);
        self.work(initial, At::Clients, ns, task);
    }

    /// Returns the index of the next request, and its initial node.
    fn next(&mut self, node: u16) -> Option<(usize, u16)> {
        let nodes = usize::from(self.cluster.nodes);
        let at = self.come;
        match self.cluster.spread {
            Spread::Random => {
                let drawn = draw(draw(self.cluster.seed).wrapping_add(at as u64)) % nodes as u64;
                Some((at, drawn as u16))
            }
            Spread::Dealt if self.cluster.server != Server::Switch => {
                let own = self.dealt.get_mut(usize::from(node))?;
                let at = usize::from(node) + nodes * *own;
                *own += 1;
                Some((at, node))
            }
            Spread::RoundRobin | Spread::Dealt => Some((at, (at % nodes) as u16)),
        }
    }

    pub(super) fn add(&mut self, body: Body) -> u32 {
        let task = Task { body, way: None };
        if let Some(at) = self.free.pop() {
            self.tasks[at as usize] = task;
            return at;
        }
        self.tasks.push(task);
        (self.tasks.len() - 1) as u32
    }

    pub(super) fn remove(&mut self, task: u32) -> Body {
        self.free.push(task);
        core::mem::replace(&mut self.tasks[task as usize].body, Body::Free)
    }

    fn place(&self, node: u16, at: At) -> usize {
        let costs = &self.cluster.costs;
        let at = match at {
            At::Nodes if !costs.own_network => At::Clients,
            At::Disk if costs.one_resource => At::Cpu,
            At::Talk if !costs.messages_first => At::Cpu,
            at => at,
        };
        usize::from(node) * STATIONS + at as usize
    }

    /// Enqueues a task at a station.
    pub(super) fn work(&mut self, node: u16, at: At, ns: u64, task: u32) {
        let place = self.place(node, at);
        let Machines { calendar, stations, seq, .. } = &mut self.machines;
        *seq += 1;
        stations[place].enqueue(calendar, self.now, ns, *seq, task);
    }

    /// Enqueues protocol work at a processor.
    pub(super) fn talk(&mut self, node: u16, ns: u64, task: u32) {
        self.note_talk(node, ns);
        if self.cluster.costs.messages_first {
            self.charge(node, At::Cpu, ns);
        }
        self.work(node, At::Talk, ns, task);
    }

    /// Counts the time of protocol work.
    pub(super) fn note_talk(&mut self, node: u16, ns: u64) {
        if self.measuring {
            self.tally.talk_ns[usize::from(node)] += ns;
        }
    }

    /// Adds work to a station that no task waits for.
    pub(super) fn charge(&mut self, node: u16, at: At, ns: u64) {
        let place = self.place(node, at);
        self.machines.stations[place].charge(self.now, ns);
    }

    /// Sends a task to another node. The sender's interface handles it `times` times.
    pub(super) fn send(&mut self, task: u32, from: u16, to: u16, bytes: u64, times: u64) {
        self.tasks[task as usize].way = Some(Way { from, to, bytes, stage: Stage::Out });
        let ns = self.cluster.costs.between().ns(bytes) * times;
        self.work(from, At::Nodes, ns, task);
    }

    /// Handles the end of a task's work at a station. Returns whether that ended a request.
    fn done(&mut self, task: u32) -> bool {
        let latency = super::costs::nanos(self.cluster.costs.latency_s);
        let Task { body, way } = &mut self.tasks[task as usize];
        match way {
            Some(way) if way.stage == Stage::Out => {
                way.stage = Stage::Wire;
                let Machines { calendar, wires, seq, .. } = &mut self.machines;
                *seq += 1;
                let key = Key::new(self.now, *seq).later(latency);
                if wires.is_empty() {
                    calendar.set(WIRES, key);
                }
                wires.push_back((key, task));
                return false;
            }
            _ => *way = None,
        }
        match body {
            Body::Request(job) => {
                let job = *job;
                self.advance(task, job)
            }
            Body::Note(_) => {
                self.note_done(task);
                false
            }
            Body::Free => unreachable!("a station works at something"),
        }
    }

    /// Handles the next arrival at the end of a wire.
    fn arrive(&mut self) {
        let Machines { calendar, wires, .. } = &mut self.machines;
        let Some((_, task)) = wires.pop_front() else { return };
        calendar.set(WIRES, wires.front().map_or(Key::NEVER, |(key, _)| *key));
        let Some(way) = &mut self.tasks[task as usize].way else { unreachable!("it is on its way") };
        way.stage = Stage::In;
        let way = *way;
        if matches!(self.tasks[task as usize].body, Body::Note(_)) {
            return self.note_arrived(task, way);
        }
        let ns = self.cluster.costs.between().ns(way.bytes);
        self.work(way.to, At::Nodes, ns, task);
    }

    /// Sets the timer of a node's protocol.
    pub(super) fn set_timer(&mut self, node: u16) {
        let clock = 1 + self.machines.stations.len() + usize::from(node);
        let due = self.minds.due(node);
        let key = if due == Time::MAX { Key::NEVER } else { Key::new(due.max(self.now), 0) };
        self.machines.calendar.set(clock, key);
    }

    /// Updates the number of cooperating nodes.
    pub(super) fn count_sharing(&mut self) {
        let (count, since, before) = self.sharing;
        let passed = if self.measuring { self.now.since(since).as_nanos() } else { 0 };
        self.sharing = (self.minds.sharing(), self.now, before + u128::from(count) * passed);
    }

    fn busy_ns(&self) -> Vec<u64> {
        self.machines.stations.iter().map(|station| station.busy_ns(self.now)).collect()
    }

    fn begin_measuring(&mut self) {
        self.count_sharing();
        self.busy_before = self.busy_ns();
        self.since = Some(self.now);
        self.measuring = true;
    }

    fn end_measuring(&mut self) {
        self.count_sharing();
        let Some(since) = self.since.filter(|_| self.measuring) else { return };
        self.measuring = false;
        let ns = self.now.since(since).as_nanos();
        let nodes = usize::from(self.cluster.nodes);
        let busy: Vec<f64> = self
            .busy_ns()
            .iter()
            .zip(&self.busy_before)
            .map(|(after, before)| (after - before) as f64 / ns.max(1) as f64)
            .collect();
        let of = |at: At| (0..nodes).map(|node| busy[node * STATIONS + at as usize]).collect::<Vec<f64>>();
        let mean = |at: At| of(at).iter().sum::<f64>() / nodes as f64;
        let most = of(At::Cpu).into_iter().chain(of(At::Disk)).fold(0.0, f64::max);
        let talk: Vec<f64> = self.tally.talk_ns.iter().map(|of| *of as f64 / ns.max(1) as f64).collect();
        let dispatcher = match self.minds.leader() {
            Some(leader) => talk[usize::from(leader)],
            None => busy[nodes * STATIONS + At::Cpu as usize],
        };
        let tables = self.minds.tables();
        let of_tables = |bytes: u64| bytes as f64 / (tables.made.max(1) * nodes as u64) as f64;
        let states = self.minds.states();
        let state = |of: fn(&State) -> usize| states.iter().map(of).sum::<usize>() as f64 / nodes as f64;
        self.result = Outcome {
            sharing: self.sharing.2 as f64 / (ns.max(1) as f64 * nodes as f64),
            busy: Busy {
                cpu: mean(At::Cpu),
                disk: mean(At::Disk),
                external: mean(At::Clients),
                internal: mean(At::Nodes),
                dispatcher,
                most,
                talk: talk.iter().sum::<f64>() / nodes as f64,
            },
            table_bytes: of_tables(self.tally.table_bytes),
            count_bytes: of_tables(self.tally.count_bytes),
            tables,
            state_bytes_most: states.iter().map(|state| state.bytes).max().unwrap_or(0) as f64,
            state_bytes: state(|state| state.bytes),
            targets_known: state(|state| state.targets),
            ..self.tally.outcome(ns as f64 / 1e9)
        };
    }
}
