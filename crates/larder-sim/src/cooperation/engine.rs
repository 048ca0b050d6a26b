//! The engine of a cooperative cluster: stations, wires, timers, clients and measurement.

use std::collections::{BTreeMap, VecDeque};

use larder_core::cache::{ByteCache, CacheKind};
use larder_core::nodes::mix;
use larder_core::{Bytes, Time};

use super::cluster::{CooperativeCluster, RequestSpread};
use super::messages::MessageTask;
use super::outcome::{CooperationOutcome, CooperationTally, Utilisation};
use super::protocols::{self, ClusterProtocol, ProtocolAction, StateSize};
use super::servers::ServerKind;
use crate::calendar::{Calendar, EventKey};
use crate::station::Station;
use crate::{SimError, Workload};

/// A station of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StationKind {
    Cpu,
    Disk,
    /// The interface to clients.
    Clients,
    /// The interface to other nodes. It is the interface to clients if the cluster has no separate network.
    Nodes,
    /// The processor for protocol messages, if these are handled before requests. Otherwise it is the
    /// processor.
    Messages,
}

/// The number of stations per node, in the order of [`StationKind`].
const STATIONS: usize = 5;
/// The calendar timer of the messages on the wires.
const WIRES: usize = 0;

/// The current activity of a request. Its end at the station or wire starts the next activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// The switch's processor handles the request.
    AtSwitch,
    /// The request arrives through the initial node's interface to clients.
    Arrival,
    /// The initial node parses the request.
    Parse,
    /// The initial node's processor prepares the question to the dispatcher.
    AskPrepare,
    /// The question is sent to the dispatcher.
    AskTransfer,
    /// The dispatcher's processor receives the question, decides and answers.
    Decide,
    /// The answer is sent to the initial node.
    AnswerTransfer,
    /// The initial node's processor prepares the request for the service node.
    ForwardPrepare,
    /// The request is sent to the service node.
    ForwardTransfer,
    /// The service node's processor accepts the request, or the initial node's processor receives the answer.
    Accept,
    /// The service node's disk reads the item.
    DiskRead,
    /// The service node's processor prepares the reply for the initial node.
    ReturnPrepare,
    /// The reply is sent to the initial node.
    ReturnTransfer,
    /// The processor prepares the reply for the client.
    ReplyPrepare,
    /// The reply leaves through the interface to clients.
    ReplyTransmit,
}

/// The state of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestState {
    pub(super) item: u32,
    pub(super) initial: u16,
    pub(super) service: u16,
    pub(super) stage: RequestStage,
    pub(super) keep: bool,
    pub(super) missed: bool,
    pub(super) arrived_at: Time,
    /// The time at which the initial node asked for a placement.
    pub(super) asked_at: Time,
}

/// The work of a task.
#[derive(Debug)]
pub(super) enum TaskBody {
    Free,
    Request(RequestState),
    Message(MessageTask),
}

/// The transfer of a task between two nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) bytes: u64,
    stage: TransferStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferStage {
    Out,
    Wire,
    In,
}

/// A unit of work at stations.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) body: TaskBody,
    transfer: Option<Transfer>,
}

/// The stations, wires and timers of the cluster.
#[derive(Debug)]
struct StationNetwork {
    calendar: Calendar,
    stations: Vec<Station>,
    /// The tasks on the wires. All have the same latency, so they arrive in order.
    wires: VecDeque<(EventKey, u32)>,
    seq: u64,
}

pub(super) struct CooperationEngine<'r> {
    pub(super) workload: &'r Workload,
    pub(super) cluster: &'r CooperativeCluster,
    pub(super) now: Time,
    network: StationNetwork,
    pub(super) tasks: Vec<Task>,
    free: Vec<u32>,
    pub(super) protocol: Box<dyn ClusterProtocol>,
    pub(super) caches: Vec<ByteCache<u32>>,
    /// The reads in progress by (node, item), with the tasks that wait for them.
    pub(super) reads: BTreeMap<(u16, u32), Vec<u32>>,
    pub(super) evicted: Vec<(u32, Bytes)>,
    pub(super) out: Vec<ProtocolAction>,
    pub(super) tally: CooperationTally,
    /// The number of requests that have arrived in total, and at each node.
    pub(super) arrived: usize,
    dealt: Vec<usize>,
    warmup: usize,
    /// The start of the measured part, and whether it has begun and not ended.
    since: Option<Time>,
    pub(super) measuring: bool,
    busy_before: Vec<u64>,
    /// The number of cooperating nodes, the time since which that number holds, and the node-nanoseconds of
    /// cooperation so far.
    sharing: (u64, Time, u128),
    result: CooperationOutcome,
}

impl<'r> CooperationEngine<'r> {
    pub(super) fn new(workload: &'r Workload, cluster: &'r CooperativeCluster) -> Result<Self, SimError> {
        let nodes = usize::from(cluster.nodes);
        // One more machine, for a dispatcher.
        let station_count = (nodes + 1) * STATIONS;
        let protocol = protocols::create(cluster, workload)?;
        let cache = |_| ByteCache::new(CacheKind::Lru, cluster.memory, Bytes(u64::MAX));
        let warmup = cluster.warmup.unwrap_or(workload.requests.len() / 3);
        Ok(Self {
            workload,
            cluster,
            now: Time::ZERO,
            network: StationNetwork {
                calendar: Calendar::new(1 + station_count + nodes),
                stations: (0..station_count).map(|index| Station::new(1 + index)).collect(),
                wires: VecDeque::new(),
                seq: 0,
            },
            tasks: Vec::new(),
            free: Vec::new(),
            tally: CooperationTally::new(nodes, protocol.reasons()),
            protocol,
            caches: (0..nodes).map(cache).collect(),
            reads: BTreeMap::new(),
            evicted: Vec::new(),
            out: Vec::new(),
            arrived: 0,
            dealt: vec![0; nodes],
            warmup,
            since: None,
            measuring: false,
            busy_before: Vec::new(),
            sharing: (0, Time::ZERO, 0),
            result: CooperationOutcome::default(),
        })
    }

    pub(super) fn run(mut self) -> CooperationOutcome {
        self.connect_nodes();
        for _ in 0..self.cluster.connections {
            (0..self.cluster.nodes).for_each(|node| self.begin_request(node));
        }
        // Timers expire for ever, so the run ends with the last request.
        let mut ended = 0;
        while ended < self.workload.requests.len() {
            let (clock, key) = self.network.calendar.next();
            if key == EventKey::NEVER {
                unreachable!("a request waits for nothing");
            }
            self.now = key.time();
            let station_count = self.network.stations.len();
            match clock {
                WIRES => self.deliver_next(),
                index if index <= station_count => {
                    let StationNetwork { stations, calendar, .. } = &mut self.network;
                    if let Some(task) = stations[index - 1].pop(calendar) {
                        ended += usize::from(self.finish_work(task));
                    }
                }
                timer => self.expire_timer((timer - station_count - 1) as u16),
            }
        }
        self.result.requests_all = ended as u64;
        self.result
    }

    /// Begins the next request of a connection; of a connection of this node, if connections belong to nodes.
    pub(super) fn begin_request(&mut self, node: u16) {
        let Some((at, initial)) = self.pick_next(node) else { return };
        let Some(item) = self.workload.requests.get(at).copied() else { return };
        if self.arrived == self.warmup {
            self.begin_measuring();
        }
        self.install_preset_table();
        self.arrived += 1;
        let request = RequestState {
            item,
            initial,
            service: initial,
            stage: RequestStage::Arrival,
            keep: false,
            missed: false,
            arrived_at: self.now,
            asked_at: self.now,
        };
        let task = self.add_task(TaskBody::Request(request));
        if self.cluster.server == ServerKind::Switch {
            self.pass_switch(task);
        } else {
            self.enter_node(task, initial);
        }
        if self.arrived == self.workload.requests.len() {
            self.end_measuring();
        }
    }

    /// Enters a request at its initial node.
    pub(super) fn enter_node(&mut self, task: u32, initial: u16) {
        let ns = self.cluster.costs.external.ns(self.cluster.costs.request_bytes);
        self.enqueue(initial, StationKind::Clients, ns, task);
    }

    /// Returns the index of the next request, and its initial node.
    fn pick_next(&mut self, node: u16) -> Option<(usize, u16)> {
        let nodes = usize::from(self.cluster.nodes);
        let at = self.arrived;
        match self.cluster.spread {
            RequestSpread::Random => {
                let drawn = mix(mix(self.cluster.seed).wrapping_add(at as u64)) % nodes as u64;
                Some((at, drawn as u16))
            }
            RequestSpread::Dealt if self.cluster.server != ServerKind::Switch => {
                let own = self.dealt.get_mut(usize::from(node))?;
                let at = usize::from(node) + nodes * *own;
                *own += 1;
                Some((at, node))
            }
            RequestSpread::RoundRobin | RequestSpread::Dealt => Some((at, (at % nodes) as u16)),
        }
    }

    pub(super) fn add_task(&mut self, body: TaskBody) -> u32 {
        let task = Task { body, transfer: None };
        if let Some(at) = self.free.pop() {
            self.tasks[at as usize] = task;
            return at;
        }
        self.tasks.push(task);
        (self.tasks.len() - 1) as u32
    }

    pub(super) fn remove_task(&mut self, task: u32) -> TaskBody {
        self.free.push(task);
        core::mem::replace(&mut self.tasks[task as usize].body, TaskBody::Free)
    }

    fn station_index(&self, node: u16, at: StationKind) -> usize {
        let costs = &self.cluster.costs;
        let at = match at {
            StationKind::Nodes if !costs.own_network => StationKind::Clients,
            StationKind::Disk if costs.one_resource => StationKind::Cpu,
            StationKind::Messages if !costs.messages_first => StationKind::Cpu,
            at => at,
        };
        usize::from(node) * STATIONS + at as usize
    }

    /// Enqueues a task at a station.
    pub(super) fn enqueue(&mut self, node: u16, at: StationKind, ns: u64, task: u32) {
        let index = self.station_index(node, at);
        let StationNetwork { calendar, stations, seq, .. } = &mut self.network;
        *seq += 1;
        stations[index].enqueue(calendar, self.now, ns, *seq, task);
    }

    /// Enqueues protocol work at a processor.
    pub(super) fn enqueue_protocol_work(&mut self, node: u16, ns: u64, task: u32) {
        self.count_protocol_time(node, ns);
        if self.cluster.costs.messages_first {
            self.charge(node, StationKind::Cpu, ns);
        }
        self.enqueue(node, StationKind::Messages, ns, task);
    }

    /// Counts the time of protocol work.
    pub(super) fn count_protocol_time(&mut self, node: u16, ns: u64) {
        if self.measuring {
            self.tally.talk_ns[usize::from(node)] += ns;
        }
    }

    /// Adds work to a station that no task waits for.
    pub(super) fn charge(&mut self, node: u16, at: StationKind, ns: u64) {
        let index = self.station_index(node, at);
        self.network.stations[index].charge(self.now, ns);
    }

    /// Sends a task to another node. The sender's interface handles it `times` times.
    pub(super) fn send(&mut self, task: u32, from: u16, to: u16, bytes: u64, times: u64) {
        self.tasks[task as usize].transfer = Some(Transfer { from, to, bytes, stage: TransferStage::Out });
        let ns = self.cluster.costs.node_interface().ns(bytes) * times;
        self.enqueue(from, StationKind::Nodes, ns, task);
    }

    /// Handles the end of a task's work at a station. Returns whether that ended a request.
    fn finish_work(&mut self, task: u32) -> bool {
        let latency = super::costs::nanos(self.cluster.costs.latency_s);
        let Task { body, transfer } = &mut self.tasks[task as usize];
        match transfer {
            Some(transfer) if transfer.stage == TransferStage::Out => {
                transfer.stage = TransferStage::Wire;
                let StationNetwork { calendar, wires, seq, .. } = &mut self.network;
                *seq += 1;
                let key = EventKey::new(self.now, *seq).later(latency);
                if wires.is_empty() {
                    calendar.set(WIRES, key);
                }
                wires.push_back((key, task));
                return false;
            }
            _ => *transfer = None,
        }
        match body {
            TaskBody::Request(request) => {
                let request = *request;
                self.advance(task, request)
            }
            TaskBody::Message(_) => {
                self.advance_message(task);
                false
            }
            TaskBody::Free => unreachable!("a station works at something"),
        }
    }

    /// Handles the next arrival at the end of a wire.
    fn deliver_next(&mut self) {
        let StationNetwork { calendar, wires, .. } = &mut self.network;
        let Some((_, task)) = wires.pop_front() else { return };
        calendar.set(WIRES, wires.front().map_or(EventKey::NEVER, |(key, _)| *key));
        let Some(transfer) = &mut self.tasks[task as usize].transfer else {
            unreachable!("it is on its way")
        };
        transfer.stage = TransferStage::In;
        let transfer = *transfer;
        if matches!(self.tasks[task as usize].body, TaskBody::Message(_)) {
            return self.receive_message(task, transfer);
        }
        let ns = self.cluster.costs.node_interface().ns(transfer.bytes);
        self.enqueue(transfer.to, StationKind::Nodes, ns, task);
    }

    /// Sets the timer of a node's protocol.
    pub(super) fn set_timer(&mut self, node: u16) {
        let clock = 1 + self.network.stations.len() + usize::from(node);
        let due = self.protocol.next_timer(node);
        let key = if due == Time::MAX { EventKey::NEVER } else { EventKey::new(due.max(self.now), 0) };
        self.network.calendar.set(clock, key);
    }

    /// Updates the number of cooperating nodes.
    pub(super) fn update_sharing(&mut self) {
        let (count, since, before) = self.sharing;
        let passed = if self.measuring { self.now.since(since).as_nanos() } else { 0 };
        self.sharing = (self.protocol.sharing(), self.now, before + u128::from(count) * passed);
    }

    fn busy_ns(&self) -> Vec<u64> {
        self.network.stations.iter().map(|station| station.busy_ns(self.now)).collect()
    }

    fn begin_measuring(&mut self) {
        self.update_sharing();
        self.busy_before = self.busy_ns();
        self.since = Some(self.now);
        self.measuring = true;
    }

    fn end_measuring(&mut self) {
        self.update_sharing();
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
        let of = |at: StationKind| {
            (0..nodes).map(|node| busy[node * STATIONS + at as usize]).collect::<Vec<f64>>()
        };
        let mean = |at: StationKind| of(at).iter().sum::<f64>() / nodes as f64;
        let most = of(StationKind::Cpu).into_iter().chain(of(StationKind::Disk)).fold(0.0, f64::max);
        let talk: Vec<f64> = self.tally.talk_ns.iter().map(|of| *of as f64 / ns.max(1) as f64).collect();
        let dispatcher = match self.protocol.leader() {
            Some(leader) => talk[usize::from(leader)],
            None => busy[nodes * STATIONS + StationKind::Cpu as usize],
        };
        let tables = self.protocol.table_stats();
        let of_tables = |bytes: u64| bytes as f64 / (tables.made.max(1) * nodes as u64) as f64;
        let states = self.protocol.state_sizes();
        let state = |of: fn(&StateSize) -> usize| states.iter().map(of).sum::<usize>() as f64 / nodes as f64;
        self.result = CooperationOutcome {
            sharing: self.sharing.2 as f64 / (ns.max(1) as f64 * nodes as f64),
            busy: Utilisation {
                cpu: mean(StationKind::Cpu),
                disk: mean(StationKind::Disk),
                external: mean(StationKind::Clients),
                internal: mean(StationKind::Nodes),
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
