//! Measures the processor time of a request that is answered from the node's own memory, and of a forwarded
//! request.
//!
//! Two clusters run with all targets in memory and with disks that take no time. In the first, each node has
//! all targets, so each request is answered locally. In the second, each node has a part of the targets, so
//! all but 1 in N requests are forwarded. The cost of forwarding is the difference, divided by the forwarded
//! share. Both clusters get the same requests, the first of the trace.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_core::Bytes;

use super::bench::{LoadSpec, RunResult, run_load};
use super::cluster::{PeersCluster, PeersClusterSpec, PeersSpec};
use super::result::Rates;
use super::system::System;
use crate::demo::plan::Plan;

/// Largest sum of target sizes, because each node keeps all targets in memory.
const BYTES_MAX: u64 = 32 << 20;
/// Most targets.
const TARGETS_MAX: usize = 4_000;
/// Measured part of a run.
const MEASURED: Duration = Duration::from_millis(2_500);
/// Requests before the measured part.
const WARMUP_REQUESTS: usize = 2_000;
/// Least number of measured requests.
const REQUESTS_MIN: u64 = 200;
/// Clients per node: enough to keep the node busy, and few enough that no peer is overloaded.
const CLIENTS_PER_NODE: u32 = 16;

/// The requests of the measurement.
struct RequestSample {
    targets: Arc<[String]>,
    sizes: Arc<[u64]>,
    /// Requests in the order of the trace.
    order: Arc<[u32]>,
    /// The requested targets without repetition.
    distinct: Vec<u32>,
    bytes: u64,
}

impl RequestSample {
    /// Takes the requests of a trace until their targets reach the limits. Targets that nodes do not keep are
    /// left out.
    fn new(plan: &Plan, large_min: Bytes) -> anyhow::Result<Self> {
        let mut included = vec![false; plan.sizes.len()];
        let mut sample = Self {
            targets: Arc::clone(&plan.targets),
            sizes: Arc::clone(&plan.sizes),
            order: Arc::default(),
            distinct: Vec::new(),
            bytes: 0,
        };
        let mut order = Vec::new();
        for target in plan.order.iter() {
            let (place, size) = (*target as usize, plan.sizes[*target as usize]);
            if size >= large_min.get() {
                continue;
            }
            if !included[place] {
                let full = sample.bytes + size > BYTES_MAX || sample.distinct.len() >= TARGETS_MAX;
                if full {
                    continue;
                }
                included[place] = true;
                sample.bytes += size;
                sample.distinct.push(*target);
            }
            order.push(*target);
        }
        if order.is_empty() {
            bail!("all targets are too large for the nodes to store");
        }
        sample.order = order.into();
        Ok(sample)
    }

    /// Returns a memory size that holds all targets.
    fn memory(&self) -> Bytes {
        Bytes(2 * self.bytes + 4_096 * self.distinct.len() as u64 + (1 << 20))
    }

    fn load(&self, order: Vec<u32>, clients: u32) -> LoadSpec {
        LoadSpec {
            targets: Arc::clone(&self.targets),
            sizes: Arc::clone(&self.sizes),
            order: order.into(),
            warmup: 0,
            repeat: false,
            clients,
            measured: None,
        }
    }

    /// Returns an order that requests every target at every node. Requests go to the nodes in turn.
    fn cover_all_nodes(&self, nodes: usize) -> Vec<u32> {
        self.distinct.iter().flat_map(|target| std::iter::repeat_n(*target, nodes)).collect()
    }

    /// Returns an order that requests every target at one node.
    fn divide_targets(&self) -> Vec<u32> {
        self.distinct.clone()
    }
}

/// Measures both costs.
///
/// # Errors
/// Returns an error if a cluster does not start or answer, or too few requests were measured.
pub(super) async fn measure(spec: &PeersClusterSpec, plan: &Plan, folder: &Path) -> anyhow::Result<Rates> {
    let sample = RequestSample::new(plan, spec.large_min)?;
    let spec = PeersClusterSpec {
        memory: sample.memory(),
        disk_speed: 1e6,
        peers: PeersSpec { window: None, ..spec.peers.clone() },
        ..spec.clone()
    };
    let alone = run(System::Trad, &spec, &sample, sample.cover_all_nodes(spec.nodes), folder).await?;
    let (local_us, client_us) = costs(&alone)?;
    let reply_bytes_mean = alone.report.body_bytes as f64 / alone.report.ok.max(1) as f64;
    let requests = alone.report.ok;
    if spec.nodes < 2 {
        return Ok(Rates {
            local_us,
            client_us,
            forward_us: 0.0,
            forwarded: 0.0,
            requests,
            reply_bytes_mean,
        });
    }
    let apart = run(System::PRESS, &spec, &sample, sample.divide_targets(), folder).await?;
    let cache = apart.report.cache;
    let forwarded = cache.passed_on as f64 / (cache.hits + cache.misses).max(1) as f64;
    if forwarded < 0.1 {
        bail!("only {:.1} % of the requests were forwarded", forwarded * 100.0);
    }
    let forward_us = ((costs(&apart)?.0 - local_us) / forwarded).max(0.0);
    let requests = requests + apart.report.ok;
    Ok(Rates { local_us, client_us, forward_us, forwarded, requests, reply_bytes_mean })
}

/// Fills the memories with the targets `first`, and then measures.
async fn run(
    system: System,
    spec: &PeersClusterSpec,
    sample: &RequestSample,
    first: Vec<u32>,
    folder: &Path,
) -> anyhow::Result<RunResult> {
    let cluster = PeersCluster::start(system, spec, folder).await?;
    let clients = CLIENTS_PER_NODE * u32::try_from(spec.nodes).context("too many nodes")?;
    let filled = run_load(&cluster, &sample.load(first, clients), &|_| {}).await?;
    if filled.report.failed > 0 {
        bail!("{} requests failed while the caches were filled", filled.report.failed);
    }
    if matches!(system, System::Peers(_)) {
        cluster.await_targets(sample.distinct.len()).await?;
    }
    let load = LoadSpec {
        order: Arc::clone(&sample.order),
        warmup: WARMUP_REQUESTS,
        repeat: true,
        measured: Some(MEASURED),
        ..sample.load(Vec::new(), clients)
    };
    let result = run_load(&cluster, &load, &|_| {}).await?;
    cluster.stop().await;
    Ok(result)
}

/// Returns the processor time of the nodes and of the clients per request, microseconds.
fn costs(result: &RunResult) -> anyhow::Result<(f64, f64)> {
    let served = result.measured.served;
    if served < REQUESTS_MIN {
        bail!("only {served} requests could be measured");
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / served as f64;
    Ok((each(result.measured.cpu.nodes), result.report.generator.cpu_us_per_request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::synth::{Recipe, generate};

    #[test]
    fn memories_are_filled_with_all_targets_or_with_a_part() {
        let trace = generate(&Recipe::zipf(50, 600, 0.9), 1, 1.0).unwrap();
        let plan = Plan::new(&trace, "zipf".to_owned(), usize::MAX).unwrap();
        let sample = RequestSample::new(&plan, Bytes::mib(1_024)).unwrap();
        let targets = sample.distinct.len();
        assert!(targets > 10 && sample.order.len() > targets);
        let everywhere = sample.cover_all_nodes(3);
        // Request i goes to node i % 3.
        for node in 0..3 {
            let mut has: Vec<u32> = everywhere.iter().skip(node).step_by(3).copied().collect();
            has.dedup();
            assert_eq!(has, sample.distinct);
        }
        assert_eq!(sample.divide_targets(), sample.distinct);
        assert!(RequestSample::new(&plan, Bytes(1)).is_err(), "nothing is kept");
    }
}
