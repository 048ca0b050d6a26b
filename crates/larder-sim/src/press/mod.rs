//! The analytic model of PRESS: an upper bound on the throughput of a cluster whose nodes relay or hand off
//! requests.
//!
//! It follows Carrera and Bianchini, "Efficiency vs. Portability in Cluster-Based Network Servers", PPoPP
//! 2001, section 2 and table 1: an open network of M/M/1 queues. A request reaches a random node (the
//! *initial* node), which parses it. With probability `Q` its file belongs to another node (the *service*
//! node), which reads the file if necessary. A portable server sends the file back through the initial node;
//! a non-portable server hands the connection off.
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
//! The bracket is the variant [`PressVariant::M1`]: the service node also parses a forwarded request and pays
//! for its arrival. The paper does not state this. M1 comes nearest to the printed peaks and was chosen for
//! that among several variants, so its agreement is weaker evidence than it looks. [`PressVariant::M0`] is
//! the model as printed.
//!
//! Interfaces: the initial node's interface carries the request and the reply. A forwarded request and a
//! relayed reply pass one interface at each end; in the slow cluster it is the interface of the clients. With
//! the paper's values the interfaces are never the bottleneck.

pub mod zipf;

use serde::{Deserialize, Serialize};

use crate::SimError;
use zipf::HarmonicNumbers;

/// The variant of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PressVariant {
    /// The service node pays only for the file of a forwarded request.
    M0,
    /// The service node also parses a forwarded request and pays for its arrival.
    #[default]
    M1,
}

/// The network between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// User-level communication over a separate network of 1 Gb/s.
    #[default]
    Fast,
    /// Kernel TCP over the clients' network of 100 Mb/s.
    Slow,
}

/// The kind of server in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Traditional: nodes serve all requests themselves.
    Trad,
    /// Portable: nodes relay replies.
    Portable,
    /// Non-portable: nodes hand connections off.
    NonPortable,
}

impl Server {
    /// All servers, in the order of the paper's figures.
    pub const ALL: [Self; 3] = [Self::NonPortable, Self::Portable, Self::Trad];

    /// Returns the name in the paper's figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Portable => "port",
            Self::NonPortable => "non-port",
        }
    }
}

/// The parameters of the model, with the paper's values as defaults. KB are 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Press {
    /// N: the number of nodes, 1 to 65,534. Default 8.
    pub nodes: u32,
    /// H_lo: the hit rate of a single node, above 0 and at most 1. It stands for the size of the working set.
    /// Default 0.75.
    pub hit_rate: f64,
    /// S: the mean file size in KB, above 0. Default 16.
    pub file_kb: f64,
    /// C: the memory of a node in MB of 1,024 KB, above 0. Default 128.
    pub memory_mb: f64,
    /// R: the share of the memory that holds the same files on every node, 0 to 1. Default 0.15.
    pub replicated: f64,
    /// The Zipf exponent of the files' popularity, 0 to 5. Default 1.
    pub alpha: f64,
    /// The network between nodes. Default fast.
    pub network: Network,
    /// The variant of the model. Default M1.
    pub reading: PressVariant,
    /// mu_p: requests that a processor reads and parses per second, above 0. Default 9,000.
    pub parse_per_s: f64,
    /// Fixed time to send a reply to a client, in s. Default 0.0001.
    pub reply_s: f64,
    /// Rate of a reply to a client, in KB/s, above 0. Default 11,500.
    pub reply_kb_per_s: f64,
    /// Fixed time of a disk read, in s. Default 0.0188.
    pub disk_s: f64,
    /// Rate of the disk, in KB/s, above 0. Default 3,000.
    pub disk_kb_per_s: f64,
    /// mu_f: requests that a portable server forwards per second. Default 60,000 fast, 7,000 slow.
    pub forward_per_s: Option<f64>,
    /// mu_f of a non-portable server, per second. Default 55,000 fast, 6,900 slow.
    pub handoff_per_s: Option<f64>,
    /// Fixed time to send or to receive a reply between nodes, in s. Default 0.00001 fast, 0.0001 slow.
    pub relay_s: Option<f64>,
    /// Rate of a reply between nodes, in KB/s, above 0. Default 80,000 fast, 11,500 slow.
    pub relay_kb_per_s: Option<f64>,
    /// Fixed time of a message at the interface to clients, in s. Default 0.000004.
    pub external_s: f64,
    /// Rate of the interface to clients, in KB/s, above 0. Default 12,000.
    pub external_kb_per_s: f64,
    /// Fixed time of a message at the interface between nodes of the fast cluster, in s. Default 0.000003.
    pub internal_s: f64,
    /// Rate of the interface between nodes, in KB/s, above 0. Default 64,000.
    pub internal_kb_per_s: f64,
    /// Size of a request in KB, from 0. It is not published and does not matter for the results. Default
    /// 0.25.
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
            reading: PressVariant::M1,
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

/// The demand of a request at each kind of resource, as the mean over all requests and nodes, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// Processors.
    pub cpu_s: f64,
    /// Disks.
    pub disk_s: f64,
    /// Interfaces to clients.
    pub external_s: f64,
    /// Interfaces between nodes; 0 if there are none.
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
    /// Returns the resource's name.
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
    /// Returns the bottleneck and its demand; the processor if two demands are equal.
    pub fn largest(&self) -> (Resource, f64) {
        let all = [
            (Resource::Disk, self.disk_s),
            (Resource::External, self.external_s),
            (Resource::Internal, self.internal_s),
        ];
        all.into_iter()
            .fold((Resource::Cpu, self.cpu_s), |most, next| if next.1 > most.1 { next } else { most })
    }

    /// Returns the mean response time of a request in an open network at a throughput of one node, in s. Each
    /// resource is an M/M/1 queue. `None` if a resource is saturated.
    pub fn response_s(&self, per_node_per_s: f64) -> Option<f64> {
        let times = [self.cpu_s, self.disk_s, self.external_s, self.internal_s].map(|demand| {
            let busy = demand * per_node_per_s;
            (busy < 1.0).then(|| demand / (1.0 - busy))
        });
        times.into_iter().sum()
    }
}

/// The solution for one server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServerSolution {
    /// The kind of server.
    pub server: Server,
    /// The demand of a request.
    pub demand: Demand,
    /// The bottleneck.
    pub binds: Resource,
    /// Requests per second of the whole cluster.
    pub throughput: f64,
}

/// The solution of the model for one set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Solution {
    /// F: the number of files of the working set, not rounded.
    pub files: f64,
    /// H: the hit rate of the whole cluster.
    pub hit_rate_cluster: f64,
    /// h: the hit rate of the files that every node has.
    pub hit_rate_replicated: f64,
    /// Q: the share of the requests that are forwarded.
    pub forwarded: f64,
    /// The servers, in the order of [`Server::ALL`].
    pub servers: [ServerSolution; 3],
}

impl Solution {
    /// Returns the throughput of a server, in requests/s.
    pub fn throughput(&self, server: Server) -> f64 {
        self.servers.iter().find(|answer| answer.server == server).map_or(0.0, |answer| answer.throughput)
    }
}

impl Press {
    /// Solves the model in constant time.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of range, or if no working set has so low a hit rate. With an
    /// exponent above 1 the hottest files alone may take more requests.
    pub fn solve(&self) -> Result<Solution, SimError> {
        self.check()?;
        let zipf = HarmonicNumbers::new(self.alpha);
        let files = zipf.files_for(self.held(), self.hit_rate).ok_or(SimError::OutOfRange {
            key: "hit_rate",
            range: "higher: with this exponent and memory the hottest files alone take more requests",
        })?;
        Ok(self.solve_for(files, &zipf))
    }

    /// Solves the queues of the model for a measured hit rate and a measured share of forwarded requests,
    /// without the model's memories.
    ///
    /// # Errors
    /// Returns an error if a parameter or share is out of range.
    pub fn at(&self, server: Server, hit_rate: f64, forwarded: f64) -> Result<ServerSolution, SimError> {
        self.check()?;
        for (key, share) in [("hit_rate", hit_rate), ("forwarded", forwarded)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(SimError::OutOfRange { key, range: "0 to 1" });
            }
        }
        Ok(self.answer(server, hit_rate, forwarded))
    }

    /// Returns the number of files that a node's memory holds.
    fn held(&self) -> f64 {
        self.memory_mb * 1_024.0 / self.file_kb
    }

    fn solve_for(&self, files: f64, zipf: &HarmonicNumbers) -> Solution {
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

    fn answer(&self, server: Server, hit_rate: f64, forwarded: f64) -> ServerSolution {
        let demand = self.demand(server, hit_rate, forwarded);
        let (binds, most) = demand.largest();
        ServerSolution { server, demand, binds, throughput: f64::from(self.nodes) / most }
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
            if self.reading == PressVariant::M1 {
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

    /// Returns 1/mu_s, which equals 1/mu_g: the processor time to send or receive a file of mean size between
    /// nodes, in s.
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

/// The largest gain of one server over another, over all file sizes and hit rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// The ratio of the throughputs.
    pub ratio: f64,
    /// The mean file size at the peak, in KB.
    pub file_kb: f64,
    /// The hit rate of a single node at the peak.
    pub hit_rate: f64,
}

/// Searches the largest ratio of the throughputs of `of` and `over`, with all other parameters as in `base`.
/// The space is files of 2 to 64 KB in steps of 0.5 KB, and hit rates of 10 to 99.5 % in steps of 0.5 %. The
/// paper's space begins at 1 %, where no ratio peaks.
///
/// # Errors
/// Fails as [`Press::solve`] does, but skips hit rates that no working set has.
pub fn find_peak(base: &Press, of: Server, over: Server) -> Result<Peak, SimError> {
    base.check()?;
    let mut most = Peak { ratio: 0.0, file_kb: 0.0, hit_rate: 0.0 };
    for file_kb in (4..=128).map(|half| f64::from(half) / 2.0) {
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
