//! An upper bound on the throughput and the hit ratio of every policy, placement and replacement.
//!
//! The bound holds for a trace and a cluster, whatever is known of the future and wherever requests are sent. It
//! combines two relaxations:
//!
//! * *Balance.* All nodes share all work. A run lasts at least as long as the work of each kind of station takes on
//!   all stations of that kind, and as long as the clients must wait if each has one request at a time.
//! * *Reads.* A request for an item causes no read only if the item was present at every arrival since the item's last
//!   request: in a memory of the cluster, or in the hands of a request in progress, which it shares. Memory has room
//!   for so many bytes at each arrival, and only so many requests are in progress. Both rooms are added up over all
//!   arrivals and given to the intervals that save most for their room, as PFOO-L does with memory (Berger, Beckmann
//!   and Harchol-Balter, "Practical Bounds on Optimal Caching with Variable Object Sizes", SIGMETRICS 2018).
//!
//! ```text
//! l(i), s(i), v(i)   length of interval i in requests, memory of its item, cost of its read
//! M, S, n            memory of all nodes, requests in progress, requests
//! minimise           sum v(i) (1 - x(i))                          work for reads beside first uses
//! subject to         x(i) l(i) <= kept(i) + carried(i),  0 <= x(i) <= 1
//!                    sum s(i) kept(i) <= M n,  sum carried(i) <= (S - 1) n
//! dual               max over p, q >= 0 of  sum min(v(i), l(i) min(p s(i), q)) - p M n - q (S - 1) n
//! ```
//!
//! Every p and q give a valid bound; the best are found by bisection. PFOO-L alone is no bound for this cluster,
//! because requests that share a read take no memory. [The proof](../../../docs/understand/upper-bound.md) is in the
//! documentation.
//!
//! [`Bounds::of`] counts whole runs, to the last reply ([`Outcome::throughput`](crate::Outcome)), without refused requests.
//! Items that a node keeps in parts ([`CostModel::chunk_bytes`](crate::cost::CostModel)) take no memory.
//!
//! Time: O(requests log requests) once, then O(groups log requests) per cluster. Memory: 5 bytes per request and 80
//! per item. Groups are at most some thousands, because sizes are rounded down to a 64th.

mod demand;
mod reuse;
mod shares;
#[cfg(test)]
mod tests;

pub use shares::{BoundCluster, BoundReport, Options, PolicyShare, SCHEMA, compare};

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::cost::Costs;
use crate::scenario::{CacheChoice, Scenario};
use crate::source::Arrivals;
use crate::workload::Workload;
use crate::{SimError, engine};
use demand::{Demand, ItemDemand, KINDS, ModelFacts, kind};
use reuse::{Group, Reuse, Room};

/// The part of the cluster that limits the throughput of every policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundLimit {
    /// The processor of the front-end.
    FrontEnd,
    /// The processors of the nodes.
    Processor,
    /// The disks, by their transfer time.
    Disk,
    /// The disks, by the number of parallel reads.
    ReadSlots,
    /// The network interfaces of the nodes.
    Network,
    /// The back-end servers of the nodes.
    BackEnd,
    /// The number of clients, each of which waits for its reply.
    Clients,
}

impl BoundLimit {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FrontEnd => "front-end",
            Self::Processor => "processors",
            Self::Disk => "disks",
            Self::ReadSlots => "parallel reads",
            Self::Network => "network",
            Self::BackEnd => "back-ends",
            Self::Clients => "clients",
        }
    }
}

impl fmt::Display for BoundLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An upper bound for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Requests per second, at most.
    pub throughput: f64,
    /// Share of the requests that cause no read, at most, 0 to 1.
    pub hit_ratio: f64,
    /// The part of the cluster that limits the throughput.
    pub limit: BoundLimit,
}

/// The bounds of a trace under a cost model, for any cluster.
#[derive(Debug)]
pub struct Bounds {
    reuse: Reuse,
    model: ModelFacts,
    /// Demands of all measured requests that no cluster avoids.
    certain: Demand,
    front: f64,
    steps: f64,
    /// Requests that cause a read on every cluster.
    certain_reads: f64,
    /// For each item the number of its measured requests, and the demand and front-end time of one that reads.
    most: Vec<(u32, Demand, f64)>,
}

impl Bounds {
    /// Prepares the bounds of a workload whose first `warmup` requests are not measured.
    ///
    /// # Errors
    /// Returns an error for a cost model out of range, and for an inconsistent workload.
    pub fn new(workload: &Workload, warmup: usize, costs: &Costs) -> Result<Self, SimError> {
        costs.check()?;
        workload.check()?;
        let mut demands = vec![ItemDemand::default(); workload.items.len()];
        let model = demand::for_each_item(costs, &workload.items, |item, found| demands[item] = found);
        let mut reuse = Reuse::new(workload, warmup, model.chunk);
        let (mut certain, mut front, mut steps, mut certain_reads) = ([0.0; KINDS], 0.0, 0.0, 0.0);
        let mut most = Vec::new();
        for (item, demand) in demands.iter().enumerate() {
            let (count, cold) = (f64::from(reuse.counts[item]), f64::from(u8::from(reuse.cold[item])));
            for (sum, (base, read)) in certain.iter_mut().zip(demand.base.iter().zip(&demand.read)) {
                *sum += count * base + cold * read;
            }
            front += count * demand.front;
            steps += count * demand.steps;
            let shares = workload.items[item].cacheable || model.tasks;
            certain_reads += if shares { cold } else { count };
            if reuse.counts[item] > 0 {
                let both = core::array::from_fn(|at| demand.base[at] + demand.read[at]);
                most.push((reuse.counts[item], both, demand.front));
            }
            reuse.note_demand(item, &demand.read);
        }
        Ok(Self { reuse, model, certain, front, steps, certain_reads, most })
    }

    /// Computes the bound of a cluster. The scenario's cost model must be that of [`Bounds::new`]; its warm-up is not
    /// read.
    ///
    /// # Errors
    /// Returns an error for a scenario out of range, and for arrivals per node, whose order depends on the policy.
    pub fn of(&self, scenario: &Scenario) -> Result<Bound, SimError> {
        self.bound(scenario, 0)
    }

    /// Computes the bound of a cluster for the requests that end before the last arrival
    /// ([`Outcome::steady_throughput`](crate::Outcome::steady_throughput)). The requests in progress at that time may
    /// have all of their work before them, and are taken to be the dearest ones.
    ///
    /// # Errors
    /// Fails as [`Bounds::of`] does.
    pub fn of_steady(&self, scenario: &Scenario) -> Result<Bound, SimError> {
        let open = in_progress(scenario)?.unwrap_or(u32::MAX);
        self.bound(scenario, open)
    }

    /// Computes the bound of a run at whose end `open` requests are in progress.
    fn bound(&self, scenario: &Scenario, open: u32) -> Result<Bound, SimError> {
        scenario.check()?;
        let in_progress = in_progress(scenario)?;
        let room = self.room(scenario, in_progress);
        let may_hit = |group: &Group| f64::from(u8::from(group.cacheable || self.model.tasks));
        let misses = self.certain_reads + self.reuse.least_uncovered(&room, may_hit);
        let requests = (self.reuse.requests as f64).max(1.0);
        let (seconds, limit) = self.least_time(scenario, &room, in_progress, open);
        Ok(Bound {
            throughput: self.reuse.requests as f64 / seconds.max(1e-9),
            hit_ratio: (1.0 - misses / requests).max(0.0),
            limit,
        })
    }

    fn room(&self, scenario: &Scenario, in_progress: Option<u32>) -> Room {
        let sizes = || scenario.nodes.iter().map(|node| node.cache.get());
        let (all, largest) = (sizes().map(|bytes| bytes as f64).sum(), sizes().max().unwrap_or(0));
        let (memory, item_max, item_min) = match scenario.cache {
            CacheChoice::Unbounded => (f64::INFINITY, u64::MAX, 0),
            // The global memory keeps items of every size.
            CacheChoice::Global(_) => (all, largest, 0),
            CacheChoice::Kind(_) => (all, largest.min(scenario.object_max.get()), scenario.object_min.get()),
        };
        Room {
            memory,
            item_max,
            item_min,
            in_progress: in_progress.map_or(f64::INFINITY, |most| f64::from(most.saturating_sub(1))),
        }
    }

    /// Returns the least time of a run in seconds, and the part that needs it.
    fn least_time(
        &self,
        scenario: &Scenario,
        room: &Room,
        clients: Option<u32>,
        open: u32,
    ) -> (f64, BoundLimit) {
        let nodes = &scenario.nodes;
        let total = |of: fn(&crate::SimNode) -> f64| nodes.iter().map(of).sum::<f64>();
        let most = |of: fn(&crate::SimNode) -> f64| nodes.iter().map(of).fold(0.0, f64::max);
        let (cpu, disk) = (most(|node| node.cpu_speed), most(|node| node.disk_speed));
        let disks = total(|node| node.disk_speed * f64::from(node.disks));
        let one = |at: usize| core::array::from_fn(|other| f64::from(u8::from(other == at)));
        let count = nodes.len() as f64;
        let mut wait = [1.0 / cpu, 1.0 / disk, 1.0 / disk, 1.0, 1.0, 1.0];
        if self.model.tasks {
            // A read of its own overlaps with its request.
            wait[kind::DISK] = 0.0;
        }
        let stations: [(BoundLimit, Demand, f64); 6] = [
            (BoundLimit::Processor, one(kind::CPU), total(|node| node.cpu_speed) * self.model.cores),
            (BoundLimit::Disk, one(kind::DISK), disks),
            (BoundLimit::ReadSlots, one(kind::SLOT), disks * self.model.read_slots),
            (BoundLimit::Network, one(kind::NIC), count),
            (BoundLimit::BackEnd, one(kind::BACK), count),
            (BoundLimit::Clients, wait, clients.map_or(f64::INFINITY, f64::from)),
        ];
        // The engine rounds each scaled time down to whole ns.
        let scaled = nodes.iter().any(|node| node.cpu_speed != 1.0 || node.disk_speed != 1.0);
        let lost = if scaled { self.steps * cpu.max(disk).max(1.0) } else { 0.0 };
        let front = (self.front - self.dearest(open, |_, front| front)).max(0.0);
        let mut least = (front / self.model.front_cores, BoundLimit::FrontEnd);
        for (limit, weights, capacity) in stations {
            let weigh =
                |demand: &Demand| demand.iter().zip(&weights).map(|(ns, weight)| ns * weight).sum::<f64>();
            let own = if limit == BoundLimit::Clients { 1.0 } else { 0.0 };
            let undone = lost + self.dearest(open, |demand, front| weigh(demand) + own * front);
            let certain = weigh(&self.certain) + own * self.front - undone;
            let read = |group: &Group| weigh(&group.read);
            if (certain + self.reuse.all(read)) / capacity <= least.0 {
                continue;
            }
            let time = (certain + self.reuse.least_uncovered(room, read)) / capacity;
            if time > least.0 {
                least = (time, limit);
            }
        }
        (least.0 / 1e9, least.1)
    }

    /// Returns the sum of the `count` largest costs of measured requests.
    fn dearest(&self, count: u32, cost: impl Fn(&Demand, f64) -> f64) -> f64 {
        if count == 0 {
            return 0.0;
        }
        let mut costs: Vec<(f64, u32)> =
            self.most.iter().map(|(count, demand, front)| (cost(demand, *front), *count)).collect();
        costs.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let mut left = count;
        let mut sum = 0.0;
        for (cost, count) in costs {
            let taken = count.min(left);
            sum += f64::from(taken) * cost;
            left -= taken;
        }
        sum
    }
}

/// Returns the largest number of requests in progress; `None` without a limit.
fn in_progress(scenario: &Scenario) -> Result<Option<u32>, SimError> {
    Ok(match scenario.arrivals {
        Arrivals::Closed { clients: 0 } => Some(engine::admission_limit(scenario)?),
        Arrivals::Closed { clients } => Some(clients),
        Arrivals::Open { .. } => None,
        Arrivals::Subtraces { .. } => {
            let range = "closed or open: the order of other arrivals depends on the policy";
            return Err(SimError::OutOfRange { key: "arrivals", range });
        }
    })
}
