//! The grid of a plan: policies, nodes, memory, and the sampled part of the log.

use larder_core::{Bytes, PolicyKind};

use super::result::LogFacts;
use super::run::GridPoint;
use crate::workload::Workload;

/// The six policies compared by default. Round robin and least connections are what most clusters run. `wrr`
/// is the LARD paper's baseline and the best content-blind policy. `hash` is what caches run. `lard` and
/// `lard-r` are the policies to be judged. `random` is left out, because it is round robin with worse
/// balance.
pub const POLICIES: [PolicyKind; 6] = [
    PolicyKind::Rr,
    PolicyKind::LeastConn,
    PolicyKind::Wrr,
    PolicyKind::Hash,
    PolicyKind::Lard,
    PolicyKind::LardR,
];

/// The numbers of nodes compared by default.
pub const NODES: [u16; 5] = [1, 2, 4, 8, 16];

/// Returns the default sizes of a node's memory: four sizes in equal ratios, from a sixteenth of the working
/// set to all of it. Sizes are rounded up to two digits, and are at least 100 KB.
pub(super) fn choose_memories(facts: &LogFacts) -> Vec<Bytes> {
    let all = facts.working_set_bytes as f64;
    let mut sizes: Vec<Bytes> = [16.0, 6.35, 2.52, 1.0].map(|part| round_up(all / part)).to_vec();
    sizes.dedup();
    sizes
}

/// Rounds up to two decimal digits, at least 100 KB.
fn round_up(bytes: f64) -> Bytes {
    let mut unit = 10_000_u64;
    let bytes = (bytes.ceil() as u64).max(100_000);
    while bytes.div_ceil(unit) >= 100 {
        unit = unit.saturating_mul(10);
    }
    Bytes(bytes.div_ceil(unit) * unit)
}

/// Returns every point of the grid, ordered by policy, then nodes, then memory.
pub(super) fn list_points(policies: &[PolicyKind], nodes: &[u16], memory: &[Bytes]) -> Vec<GridPoint> {
    let mut points = Vec::with_capacity(policies.len() * nodes.len() * memory.len());
    for policy in policies {
        for count in nodes {
            points.extend(memory.iter().map(|size| GridPoint {
                policy: *policy,
                nodes: *count,
                memory: *size,
            }));
        }
    }
    points
}

/// The part of the log that is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// The whole log, if all runs together have at most [`EXACT_REQUESTS`] requests. Otherwise samples that
    /// keep the grid within [`SAMPLED_REQUESTS`].
    #[default]
    Auto,
    /// The whole log.
    Exact,
    /// Four samples (two at 0.5, three at 0.33) of this share of the targets, above 0 and at most 0.5.
    Rate(f64),
}

/// The number of requests in all runs of a grid up to which the whole log is replayed.
pub const EXACT_REQUESTS: u64 = 240_000_000;

/// The number of requests in all runs of a sampled grid.
pub const SAMPLED_REQUESTS: u64 = 100_000_000;

/// The number of disjoint samples of a sampled grid.
pub(super) const SAMPLES: u32 = 4;

/// The number of disjoint samples at half the rate.
pub(super) const COARSE_SAMPLES: u32 = 2;

/// The share of requests for objects too large for a sample above which the sample is enlarged, at most
/// twofold.
const TOO_LARGE: f64 = 0.005;

/// The number of requests that a sample needs per outstanding request (S of the largest cluster). In shorter
/// samples the filling of the cluster weighs too much.
const REQUESTS_PER_OUTSTANDING: u64 = 50;

/// The parameters that determine the sampling rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct GridSize {
    /// The number of runs of the grid.
    pub(super) runs: usize,
    /// The smallest memory of a node.
    pub(super) smallest: Bytes,
    /// The largest number of outstanding requests in any run.
    pub(super) outstanding: u64,
}

impl GridSize {
    /// Returns the number of requests that a sample needs.
    pub(super) const fn floor(self) -> u64 {
        self.outstanding.saturating_mul(REQUESTS_PER_OUTSTANDING)
    }

    /// Returns the largest divisor, at most `q`, whose samples have enough requests; 1 if there is none. The
    /// divisor is never so small that the grid exceeds [`EXACT_REQUESTS`].
    fn limit_divisor(self, requests: u64, q: u32) -> u32 {
        let enough = (requests / self.floor().max(1)).max(1);
        let most = requests.saturating_mul(self.runs as u64);
        let affordable = if most <= EXACT_REQUESTS {
            1
        } else {
            most.saturating_mul(u64::from(SAMPLES)).div_ceil(EXACT_REQUESTS).max(u64::from(SAMPLES))
        };
        u64::from(q).min(enough.max(affordable)) as u32
    }
}

/// Returns `1 / rate` of the samples for a grid; 1 for the whole log.
pub(super) fn divisor(workload: &Workload, counts: &[u32], size: GridSize, sampling: Sampling) -> u32 {
    let q = wanted_divisor(workload, counts, size, sampling);
    size.limit_divisor(workload.requests.len() as u64, q)
}

/// Returns the divisor before samples that are too short are enlarged.
pub(super) fn wanted_divisor(workload: &Workload, counts: &[u32], size: GridSize, sampling: Sampling) -> u32 {
    let GridSize { runs, smallest, .. } = size;
    let all = (workload.requests.len() as u64).saturating_mul(runs as u64);
    match sampling {
        Sampling::Exact => 1,
        Sampling::Rate(rate) => (1.0 / rate).round().clamp(2.0, 1e6) as u32,
        Sampling::Auto if all <= EXACT_REQUESTS => 1,
        Sampling::Auto => {
            let least = all.saturating_mul(u64::from(SAMPLES)).div_ceil(SAMPLED_REQUESTS).min(1 << 20) as u32;
            let mut q = least.max(SAMPLES);
            while q > least.div_ceil(2).max(SAMPLES)
                && share_too_large(workload, counts, q, smallest.get()) > TOO_LARGE
            {
                q -= q.div_ceil(8);
            }
            q
        }
    }
}

/// The number of requests that a hot target keeps in a sample. The first request misses and must not weigh
/// too much.
pub(super) const HOT_KEEPS: u32 = 32;

/// Returns whether every sample holds a target with this number of requests.
pub(super) const fn is_hot(count: u32, q: u32) -> bool {
    count / HOT_KEEPS >= q
}

/// Returns the share of the requests for objects that a memory of `bytes` holds and its part in a sample does
/// not.
pub(super) fn share_too_large(workload: &Workload, counts: &[u32], q: u32, bytes: u64) -> f64 {
    let part = bytes / u64::from(q);
    let lost = |at: usize| !is_hot(counts[at], q) && (part + 1..=bytes).contains(&workload.items[at].memory);
    let requests: u64 = (0..counts.len()).filter(|at| lost(*at)).map(|at| u64::from(counts[at])).sum();
    requests as f64 / workload.requests.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_have_two_digits() {
        assert_eq!(round_up(113_200_000.0), Bytes(120_000_000));
        assert_eq!(round_up(7_075_000.0), Bytes(7_100_000));
        assert_eq!(round_up(12.0), Bytes(100_000));
        assert_eq!(round_up(9_999_999.0), Bytes(10_000_000));
    }
}
