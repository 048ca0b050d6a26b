//! The analytic model of PRESS: what a cluster whose nodes relay to one another can reach at most.
//!
//! After Carrera and Bianchini, "Efficiency vs. Portability in Cluster-Based Network Servers", PPoPP 2001, section 2
//! and table 1: an open network of M/M/1 queues. A request reaches any node (*initial*), which parses it; with
//! probability `Q` its file belongs to another node (*service*), which reads it if it has to. A portable server sends
//! the file back through the initial node; a non-portable one hands the connection over.
//!
//! ```text
//! F    from z(C/S, F) = H_lo                      the hit rate of the traditional server stands for the working set
//! C_lc = N (1-R) C + R C                          memory of the cluster; R of each node holds the same hottest files
//! H    = z(min(C_lc/S, F), F), h = z(min(R C/S, F), F), Q = (N-1)(1-h)/N
//! cpu_trad = 1/mu_p + 1/mu_m
//! cpu_port = cpu_trad + Q (1/mu_f + 1/mu_s + 1/mu_g)   [+ Q (1/mu_p + 1/mu_f)]
//! cpu_np   = cpu_trad + Q/mu_f                         [+ Q (1/mu_p + 1/mu_f)]
//! disk     = (1-H) (0.0188 + S/3000)
//! throughput = N / largest demand
//! ```
//!
//! The bracket is the reading [`Reading::M1`]: the service node parses a forwarded request too and pays for its
//! arrival. The paper does not say so. M1 comes nearest to the peaks that it prints, and was chosen for that among
//! several, so its agreement is weaker evidence than it looks; [`Reading::M0`] is the model by the letter.
//!
//! Interfaces: the initial node's takes the request and the reply; a forwarded request and a relayed reply pass one
//! interface at each end, in the slow cluster the same that clients use. With the paper's values they never bind.

pub mod zipf;

use serde::{Deserialize, Serialize};

use crate::SimError;
use zipf::Harmonic;

/// Which text of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// The service node pays nothing for a forwarded request but the file.
    M0,
    /// It parses it too and pays for its arrival.
    #[default]
    M1,
}

/// How nodes talk to one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// User-level communication over its own network of 1 Gb/s.
    #[default]
    Fast,
    /// Kernel TCP over the 100 Mb/s network that clients use.
    Slow,
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Every node for itself.
    Trad,
    /// Relays replies between nodes.
    Portable,
    /// Hands connections over.
    NonPortable,
}

impl Server {
    /// All, in the order of the paper's figures.
    pub const ALL: [Self; 3] = [Self::NonPortable, Self::Portable, Self::Trad];

    /// The name in the paper's figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Portable => "port",
            Self::NonPortable => "non-port",
        }
    }
}

/// The parameters, with the paper's values as defaults. KB are 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Press {
    /// N: nodes, 1 to 65,534. Default 8.
    pub nodes: u32,
    /// Share of requests that one node by itself finds in memory (`H_lo`), above 0 and at most 1. It stands for the
    /// size of the working set. Default 0.75.
    pub hit_rate: f64,
    /// S: mean file in KB, above 0. Default 16.
    pub file_kb: f64,
    /// C: memory of a node in MB of 1,024 KB, above 0. Default 128.
    pub memory_mb: f64,
    /// R: share of the memory that holds the same files on every node, 0 to 1. Default 0.15.
    pub replicated: f64,
    /// Zipf exponent of the files' popularity, 0 to 5. Default 1.
    pub alpha: f64,
    /// How nodes talk to one another. Default fast.
    pub network: Network,
    /// Which text of the model. Default M1.
    pub reading: Reading,
    /// mu_p: requests that a processor reads and parses in a second, above 0. Default 9,000.
    pub parse_per_s: f64,
    /// Time to begin sending a reply to a client, in s. Default 0.0001.
    pub reply_s: f64,
    /// And KB it sends in a second, above 0. Default 11,500.
    pub reply_kb_per_s: f64,
    /// Disk time to the first byte, in s. Default 0.0188.
    pub disk_s: f64,
    /// KB it reads in a second, above 0. Default 3,000.
    pub disk_kb_per_s: f64,
    /// mu_f: requests that a portable server forwards in a second. Default 60,000 fast, 7,000 slow.
    pub forward_per_s: Option<f64>,
    /// The same of a non-portable server. Default 55,000 fast, 6,900 slow.
    pub handoff_per_s: Option<f64>,
    /// Time to begin sending, and to begin receiving, a reply between nodes, in s. Default 0.00001 fast, 0.0001 slow.
    pub relay_s: Option<f64>,
    /// And KB in a second, above 0. Default 80,000 fast, 11,500 slow.
    pub relay_kb_per_s: Option<f64>,
    /// Time of a message at the interface to clients, in s. Default 0.000004.
    pub external_s: f64,
    /// And KB in a second, above 0. Default 12,000.
    pub external_kb_per_s: f64,
    /// Time of a message at the interface between nodes of the fast cluster, in s. Default 0.000003.
    pub internal_s: f64,
    /// And KB in a second, above 0. Default 64,000.
    pub internal_kb_per_s: f64,
    /// Size of a request in KB, from 0; not published, and of no weight. Default 0.25.
    pub request_kb: f64,
}

impl Default for Press {
    fn default() -> Self {
        Self {
            nodes: 8,
            hit_rate: 0.75,
            file_kb: 16.0,
            memory_mb: 128.0,
            replicated: 0.15,
            alpha: 1.0,
            network: Network::Fast,
            reading: Reading::M1,
            parse_per_s: 9_000.0,
            reply_s: 0.0001,
            reply_kb_per_s: 11_500.0,
            disk_s: 0.0188,
            disk_kb_per_s: 3_000.0,
            forward_per_s: None,
            handoff_per_s: None,
            relay_s: None,
            relay_kb_per_s: None,
            external_s: 0.000_004,
            external_kb_per_s: 12_000.0,
            internal_s: 0.000_003,
            internal_kb_per_s: 64_000.0,
            request_kb: 0.25,
        }
    }
}

/// What a request takes of each kind of resource, mean over all requests and nodes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Processors.
    pub cpu_s: f64,
    /// Disks.
    pub disk_s: f64,
    /// Interfaces to clients.
    pub external_s: f64,
    /// Interfaces between nodes; 0 where there are none.
    pub internal_s: f64,
}

/// A kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Processors.
    Cpu,
    /// Disks.
    Disk,
    /// Interfaces to clients.
    External,
    /// Interfaces between nodes.
    Internal,
}

impl Resource {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::External => "external",
            Self::Internal => "internal",
        }
    }
}

impl Demand {
    /// The resource that is used up first and its demand; the processor if two are equal.
    pub fn largest(&self) -> (Resource, f64) {
        let all = [
            (Resource::Disk, self.disk_s),
            (Resource::External, self.external_s),
            (Resource::Internal, self.internal_s),
        ];
        all.into_iter()
            .fold((Resource::Cpu, self.cpu_s), |most, next| if next.1 > most.1 { next } else { most })
    }

    /// Mean time of a request in an open network at a given throughput of one node, in s: each resource is an M/M/1
    /// queue. `None` if a resource is used up.
    pub fn response_s(&self, per_node_per_s: f64) -> Option<f64> {
        let times = [self.cpu_s, self.disk_s, self.external_s, self.internal_s].map(|demand| {
            let busy = demand * per_node_per_s;
            (busy < 1.0).then(|| demand / (1.0 - busy))
        });
        times.into_iter().sum()
    }
}

/// One server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Which server.
    pub server: Server,
    /// What a request takes.
    pub demand: Demand,
    /// What binds.
    pub binds: Resource,
    /// Requests per second, whole cluster.
    pub throughput: f64,
}

/// The model solved for one set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Solution {
    /// F: files of the working set, not rounded.
    pub files: f64,
    /// H of the cluster as a whole.
    pub hit_rate_cluster: f64,
    /// h: hit rate of the files that every node has.
    pub hit_rate_replicated: f64,
    /// Q: share of the requests that are forwarded.
    pub forwarded: f64,
    /// The servers, in the order of [`Server::ALL`].
    pub servers: [Answer; 3],
}

impl Solution {
    /// Throughput of a server, in requests/s.
    pub fn throughput(&self, server: Server) -> f64 {
        self.servers.iter().find(|answer| answer.server == server).map_or(0.0, |answer| answer.throughput)
    }
}

impl Press {
    /// Solves the model. Constant time.
    ///
    /// # Errors
    /// A parameter is out of range, or no working set has so low a hit rate (with an exponent above 1 the hottest
    /// files alone take more).
    pub fn solve(&self) -> Result<Solution, SimError> {
        self.check()?;
        let zipf = Harmonic::new(self.alpha);
        let files = zipf.files_for(self.held(), self.hit_rate).ok_or(SimError::OutOfRange {
            key: "hit_rate",
            range: "higher: with this exponent and memory the hottest files alone take more requests",
        })?;
        Ok(self.solve_for(files, &zipf))
    }

    /// What a server whose cluster finds `hit_rate` of the requests in memory, and forwards `forwarded` of them, can reach:
    /// the model's queues without its memories, for shares that were measured.
    ///
    /// # Errors
    /// A parameter or share is out of range.
    pub fn at(&self, server: Server, hit_rate: f64, forwarded: f64) -> Result<Answer, SimError> {
        self.check()?;
        for (key, share) in [("hit_rate", hit_rate), ("forwarded", forwarded)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(SimError::OutOfRange { key, range: "0 to 1" });
            }
        }
        Ok(self.answer(server, hit_rate, forwarded))
    }

    /// Files that a node's memory holds.
    fn held(&self) -> f64 {
        self.memory_mb * 1_024.0 / self.file_kb
    }

    fn solve_for(&self, files: f64, zipf: &Harmonic) -> Solution {
        let (nodes, held) = (f64::from(self.nodes), self.held());
        let together = nodes * (1.0 - self.replicated) * held + self.replicated * held;
        let hit_rate_cluster = zipf.share(together, files);
        let hit_rate_replicated = zipf.share(self.replicated * held, files);
        let forwarded = (nodes - 1.0) * (1.0 - hit_rate_replicated) / nodes;
        let alone = zipf.share(held, files);
        let answer = |server| {
            let hit_rate = if server == Server::Trad { alone } else { hit_rate_cluster };
            self.answer(server, hit_rate, forwarded)
        };
        Solution { files, hit_rate_cluster, hit_rate_replicated, forwarded, servers: Server::ALL.map(answer) }
    }

    fn answer(&self, server: Server, hit_rate: f64, forwarded: f64) -> Answer {
        let demand = self.demand(server, hit_rate, forwarded);
        let (binds, most) = demand.largest();
        Answer { server, demand, binds, throughput: f64::from(self.nodes) / most }
    }

    fn demand(&self, server: Server, hit_rate: f64, forwarded: f64) -> Demand {
        let parse = 1.0 / self.parse_per_s;
        let external = |kb: f64| self.external_s + kb / self.external_kb_per_s;
        let internal = |kb: f64| match self.network {
            Network::Fast => self.internal_s + kb / self.internal_kb_per_s,
            Network::Slow => external(kb),
        };
        let (mut cpu, mut between) = (parse + self.reply_s + self.file_kb / self.reply_kb_per_s, 0.0);
        if server != Server::Trad {
            let forward = 1.0 / self.forwards_per_s(server);
            cpu += forwarded * forward;
            between += forwarded * 2.0 * internal(self.request_kb);
            if self.reading == Reading::M1 {
                cpu += forwarded * (parse + forward);
            }
        }
        if server == Server::Portable {
            cpu += forwarded * 2.0 * self.relaying_s();
            between += forwarded * 2.0 * internal(self.file_kb);
        }
        let clients = external(self.request_kb) + external(self.file_kb);
        let (external_s, internal_s) = match self.network {
            Network::Fast => (clients, between),
            Network::Slow => (clients + between, 0.0),
        };
        let disk_s = (1.0 - hit_rate) * (self.disk_s + self.file_kb / self.disk_kb_per_s);
        Demand { cpu_s: cpu, disk_s, external_s, internal_s }
    }

    fn forwards_per_s(&self, server: Server) -> f64 {
        let fast = self.network == Network::Fast;
        if server == Server::NonPortable {
            self.handoff_per_s.unwrap_or(if fast { 55_000.0 } else { 6_900.0 })
        } else {
            self.forward_per_s.unwrap_or(if fast { 60_000.0 } else { 7_000.0 })
        }
    }

    /// 1/mu_s, and 1/mu_g: processor time of a file of mean size between nodes, at one end.
    pub fn relaying_s(&self) -> f64 {
        let (start, rate) = match self.network {
            Network::Fast => (0.000_01, 80_000.0),
            Network::Slow => (0.000_1, 11_500.0),
        };
        self.relay_s.unwrap_or(start) + self.file_kb / self.relay_kb_per_s.unwrap_or(rate)
    }

    fn check(&self) -> Result<(), SimError> {
        let above = |value: f64| value > 0.0 && value.is_finite();
        let from = |value: f64| value >= 0.0 && value.is_finite();
        let checks = [
            ((1..=65_534).contains(&self.nodes), "nodes", "1 to 65534"),
            (self.hit_rate > 0.0 && self.hit_rate <= 1.0, "hit_rate", "above 0 and at most 1"),
            (above(self.file_kb), "file_kb", "above 0"),
            (above(self.memory_mb), "memory_mb", "above 0"),
            ((0.0..=1.0).contains(&self.replicated), "replicated", "0 to 1"),
            ((0.0..=5.0).contains(&self.alpha), "alpha", "0 to 5"),
            (above(self.parse_per_s), "parse_per_s", "above 0"),
            (from(self.reply_s), "reply_s", "0 or more"),
            (above(self.reply_kb_per_s), "reply_kb_per_s", "above 0"),
            (from(self.disk_s), "disk_s", "0 or more"),
            (above(self.disk_kb_per_s), "disk_kb_per_s", "above 0"),
            (self.forward_per_s.is_none_or(above), "forward_per_s", "above 0"),
            (self.handoff_per_s.is_none_or(above), "handoff_per_s", "above 0"),
            (self.relay_s.is_none_or(from), "relay_s", "0 or more"),
            (self.relay_kb_per_s.is_none_or(above), "relay_kb_per_s", "above 0"),
            (from(self.external_s), "external_s", "0 or more"),
            (above(self.external_kb_per_s), "external_kb_per_s", "above 0"),
            (from(self.internal_s), "internal_s", "0 or more"),
            (above(self.internal_kb_per_s), "internal_kb_per_s", "above 0"),
            (from(self.request_kb), "request_kb", "0 or more"),
        ];
        match checks.into_iter().find(|(good, _, _)| !good) {
            Some((_, key, range)) => Err(SimError::OutOfRange { key, range }),
            None => Ok(()),
        }
    }
}

/// The largest gain of one server over another, over the whole space of file sizes and hit rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// The ratio of the throughputs.
    pub ratio: f64,
    /// The mean file there, in KB.
    pub file_kb: f64,
    /// The hit rate of one node by itself there.
    pub hit_rate: f64,
}

/// Searches files of 2 to 64 KB in steps of 1 and hit rates of 10 to 99.5 % in steps of a half (the paper's space; it
/// begins at 1 % hits, where nothing peaks) for the largest ratio of `of` to `over`, everything else as in `base`.
///
/// # Errors
/// As [`Press::solve`]; hit rates that no working set has are passed over.
pub fn peak(base: &Press, of: Server, over: Server) -> Result<Peak, SimError> {
    base.check()?;
    let mut most = Peak { ratio: 0.0, file_kb: 0.0, hit_rate: 0.0 };
    for file_kb in (2..=64).map(f64::from) {
        for hit_rate in (20..=199).map(|half| f64::from(half) / 200.0) {
            let point = Press { file_kb, hit_rate, ..*base };
            let Ok(solution) = point.solve() else { continue };
            let ratio = solution.throughput(of) / solution.throughput(over);
            if ratio > most.ratio {
                most = Peak { ratio, file_kb, hit_rate };
            }
        }
    }
    Ok(most)
}

#[cfg(test)]
mod tests;
