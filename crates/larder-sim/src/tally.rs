//! Counters of a run.

use core::time::Duration;

use larder_core::Time;
use larder_core::policy::Reason;

use crate::cost::LookupOutcome;
use crate::outcome::{DelayLog, Delays, NodeOutcome, Outcome, ReasonCounts};
use crate::scenario::Scenario;

/// The busy times of a node's stations since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusyTimes {
    pub(crate) cpu_ns: u64,
    /// Sum over the disks, in ns.
    pub(crate) disk_ns: u64,
    pub(crate) nic_ns: u64,
    pub(crate) back_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodeTally {
    active: u32,
    requests: u64,
    hits: u64,
    /// The time since which the node is underutilised; `None` if it is not.
    idle_since: Option<Time>,
    idle_ns: u64,
    // Counts of all requests, measured or not, because load reports count from the run's beginning.
    served_all: u64,
    served_ns_all: u64,
    read_all: u64,
}

/// The spread of the nodes' mean delays: the slowest node less the fastest, averaged over time windows.
#[derive(Debug)]
struct DelaySpread {
    ends: Time,
    /// For each node in this window: the sum of delays in ns, and their count.
    delays: Vec<(u64, u64)>,
    sum_s: f64,
    windows: u32,
}

impl DelaySpread {
    /// The length of a window: long enough for hundreds of requests at a slow node, short enough to show one
    /// load.
    const WINDOW: Duration = Duration::from_secs(20);

    fn new(nodes: usize, now: Time) -> Self {
        Self { ends: now + Self::WINDOW, delays: vec![(0, 0); nodes], sum_s: 0.0, windows: 0 }
    }

    fn note(&mut self, now: Time, node: usize, delay_ns: u64) {
        if now >= self.ends {
            self.close();
            self.ends = now + Self::WINDOW;
        }
        let (sum, count) = &mut self.delays[node];
        *sum += delay_ns;
        *count += 1;
    }

    fn close(&mut self) {
        let means = self.delays.iter().filter(|(_, count)| *count > 0);
        let means = means.map(|(sum, count)| *sum as f64 / *count as f64 / 1e9);
        let (least, most) =
            means.fold((f64::INFINITY, 0.0_f64), |(least, most), mean| (mean.min(least), mean.max(most)));
        if least.is_finite() {
            self.sum_s += most - least;
            self.windows += 1;
        }
        self.delays.fill((0, 0));
    }

    fn mean_s(&self) -> f64 {
        self.sum_s / f64::from(self.windows.max(1))
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRequest {
    /// Delay since the client's request, in ns.
    pub(crate) delay_ns: u64,
    pub(crate) bytes: u64,
    pub(crate) forwarded: bool,
    /// Whether the request is measured; otherwise it only warms the caches.
    pub(crate) measured: bool,
}

/// The counters of a run.
#[derive(Debug)]
pub(crate) struct RunTally {
    nodes: Vec<NodeTally>,
    disks: Vec<u16>,
    warmup: u64,
    idle_below: u32,
    began: Time,
    /// The number of requests that had ended when measuring began.
    ended_before: u64,
    busy_before: Vec<BusyTimes>,
    front_before: u64,
    ended_all: u64,
    requests: u64,
    refused: u64,
    hits: u64,
    shared: u64,
    peer_hits: u64,
    bytes_sent: u64,
    bytes_read: u64,
    forwarded: u64,
    last_end: Time,
    /// The time of the last arrival, and the number of requests ended by then.
    last_arrival: (Time, u64),
    delays: DelayLog,
    delay_spread: DelaySpread,
    reasons: ReasonCounts,
}

impl RunTally {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let idle =
            NodeTally { idle_since: (scenario.idle_below > 0).then_some(Time::ZERO), ..NodeTally::default() };
        Self {
            nodes: vec![idle; scenario.nodes.len()],
            disks: scenario.nodes.iter().map(|node| node.disks).collect(),
            warmup: scenario.warmup as u64,
            idle_below: scenario.idle_below,
            began: Time::ZERO,
            ended_before: 0,
            busy_before: vec![BusyTimes::default(); scenario.nodes.len()],
            front_before: 0,
            ended_all: 0,
            requests: 0,
            refused: 0,
            hits: 0,
            shared: 0,
            peer_hits: 0,
            bytes_sent: 0,
            bytes_read: 0,
            forwarded: 0,
            last_end: Time::ZERO,
            last_arrival: (Time::ZERO, 0),
            delays: DelayLog::new(),
            delay_spread: DelaySpread::new(scenario.nodes.len(), Time::ZERO),
            reasons: ReasonCounts::new(),
        }
    }

    pub(crate) fn note_reason(&mut self, reason: Reason, measured: bool) {
        if measured {
            self.reasons.note(reason);
        }
    }

    pub(crate) fn note_refused(&mut self, measured: bool) {
        self.refused += u64::from(measured);
    }

    pub(crate) fn note_arrival(&mut self, now: Time) {
        self.last_arrival = (now, self.ended_all);
    }

    pub(crate) fn note_start(&mut self, now: Time, node: usize) {
        let node = &mut self.nodes[node];
        node.active += 1;
        if node.active == self.idle_below
            && let Some(since) = node.idle_since.take()
        {
            node.idle_ns += now.as_nanos() - since.as_nanos();
        }
    }

    pub(crate) fn count_lookup(&mut self, found: LookupOutcome, node: usize, bytes: u64, measured: bool) {
        let one = u64::from(measured);
        match found {
            LookupOutcome::Memory => {
                self.hits += one;
                self.nodes[node].hits += one;
            }
            LookupOutcome::Shared => self.shared += one,
            LookupOutcome::Peer => self.peer_hits += one,
            LookupOutcome::Read | LookupOutcome::Never => self.note_read(node, bytes, measured),
            LookupOutcome::Unknown => {}
        }
    }

    /// Counts bytes that are read from disk or origin.
    pub(crate) fn note_read(&mut self, node: usize, bytes: u64, measured: bool) {
        self.bytes_read += if measured { bytes } else { 0 };
        self.nodes[node].read_all += bytes;
    }

    pub(crate) fn note_end(&mut self, now: Time, node: usize, end: &CompletedRequest) {
        if end.measured {
            self.delay_spread.note(now, node, end.delay_ns);
        }
        let node = &mut self.nodes[node];
        if node.active == self.idle_below {
            node.idle_since = Some(now);
        }
        node.active -= 1;
        node.served_all += 1;
        node.served_ns_all += end.delay_ns;
        self.ended_all += 1;
        self.last_end = now;
        if end.measured {
            node.requests += 1;
            self.requests += 1;
            self.bytes_sent += end.bytes;
            self.forwarded += u64::from(end.forwarded);
            self.delays.note(end.delay_ns);
        }
    }

    /// Returns whether request number `number`, from 0, is measured. The first such request begins the
    /// measured part.
    pub(crate) fn is_measured(&self, number: u64) -> bool {
        number >= self.warmup
    }

    /// Begins the measured part.
    pub(crate) fn begin(&mut self, now: Time, busy: Vec<BusyTimes>, front_ns: u64) {
        self.began = now;
        self.ended_before = self.ended_all;
        self.busy_before = busy;
        self.front_before = front_ns;
        for node in &mut self.nodes {
            node.idle_ns = 0;
            node.idle_since = node.idle_since.map(|_| now);
        }
        self.delay_spread = DelaySpread::new(self.nodes.len(), now);
    }

    /// Returns the number of a node's requests in progress.
    pub(crate) fn active(&self, node: usize) -> u32 {
        self.nodes[node].active
    }

    pub(crate) fn served_all(&self, node: usize) -> u64 {
        self.nodes[node].served_all
    }

    pub(crate) fn served_ns_all(&self, node: usize) -> u64 {
        self.nodes[node].served_ns_all
    }

    pub(crate) fn read_all(&self, node: usize) -> u64 {
        self.nodes[node].read_all
    }

    /// Returns the outcome of the run. The measured time ends with the last request.
    pub(crate) fn outcome(&self, busy: &[BusyTimes], front_ns: u64, pages: Option<Delays>) -> Outcome {
        let span_ns = self.last_end.since(self.began).as_nanos().max(1) as f64;
        let nodes: Vec<NodeOutcome> =
            (0..self.nodes.len()).map(|node| self.node_outcome(node, busy[node], span_ns)).collect();
        let count = nodes.len() as f64;
        let share = |part: u64| part as f64 / (self.requests.max(1)) as f64;
        let most = nodes.iter().map(|node| node.requests).max().unwrap_or(0) as f64;
        Outcome {
            requests_all: self.ended_all,
            requests: self.requests,
            refused: self.refused,
            seconds: span_ns / 1e9,
            throughput: self.requests as f64 / (span_ns / 1e9),
            steady_throughput: self.steady_throughput(span_ns),
            hits: self.hits,
            shared: self.shared,
            peer_hits: self.peer_hits,
            miss_ratio: 1.0 - share(self.hits + self.peer_hits),
            bytes_sent: self.bytes_sent,
            bytes_read: self.bytes_read,
            delay: self.delays.delays(),
            delay_apart_s: self.delay_spread.mean_s(),
            page_delay: pages,
            idle_share: nodes.iter().map(|node| node.idle).sum::<f64>() / count,
            forwarded_share: share(self.forwarded),
            imbalance: most * count / (self.requests.max(1)) as f64,
            front_busy: (front_ns - self.front_before) as f64 / span_ns,
            nodes,
            reasons: self.reasons.list(),
        }
    }

    /// Returns the throughput up to the last arrival. At least half of the requests must have ended by then;
    /// otherwise the cluster was never full, and the result is the overall throughput.
    fn steady_throughput(&self, span_ns: f64) -> f64 {
        let (at, ended_all) = self.last_arrival;
        let ended = ended_all.saturating_sub(self.ended_before);
        let until_ns = at.since(self.began).as_nanos() as f64;
        let (ended, span_ns) = if ended * 2 >= self.requests && until_ns > 0.0 {
            (ended, until_ns)
        } else {
            (self.requests, span_ns)
        };
        ended as f64 / (span_ns / 1e9)
    }

    fn node_outcome(&self, index: usize, busy: BusyTimes, span_ns: f64) -> NodeOutcome {
        let (node, before) = (&self.nodes[index], self.busy_before[index]);
        let open_ns = node.idle_since.map_or(0, |since| self.last_end.since(since).as_nanos() as u64);
        let share = |now: u64, before: u64| (now - before) as f64 / span_ns;
        NodeOutcome {
            requests: node.requests,
            hits: node.hits,
            cpu_busy: share(busy.cpu_ns, before.cpu_ns),
            disk_busy: share(busy.disk_ns, before.disk_ns) / f64::from(self.disks[index]),
            nic_busy: share(busy.nic_ns, before.nic_ns),
            back_busy: share(busy.back_ns, before.back_ns),
            idle: (node.idle_ns + open_ns) as f64 / span_ns,
        }
    }
}
