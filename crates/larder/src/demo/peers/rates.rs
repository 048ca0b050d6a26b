//! What a request takes of this machine's processors: answered from the own memory, and forwarded to a peer.
//!
//! Two clusters, with everything in memory and no disk that counts: one whose nodes each have all targets, so that every
//! request is answered where it comes; one whose nodes have a part each, so that all but 1 in N are forwarded. What
//! forwarding takes is the difference, divided by the share forwarded. Both see the same requests, the first of the trace.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use larder_core::Bytes;

use super::bench::{Load, Seen, drive};
use super::cluster::{Cluster, ClusterSpec, PeersSpec};
use super::result::Rates;
use super::system::System;
use crate::demo::plan::Plan;

/// Most bytes of targets asked for: each node has them all in memory.
const BYTES_MAX: u64 = 32 << 20;
/// Most targets asked for.
const TARGETS_MAX: usize = 4_000;
/// Measured part of a run.
const MEASURED: Duration = Duration::from_millis(2_500);
/// Requests before it.
const BEFORE: usize = 2_000;
/// Fewer requests say little.
const REQUESTS_MIN: u64 = 200;
/// Clients for each node: enough to keep it busy, few enough that no peer is overloaded.
const CLIENTS_PER_NODE: u32 = 16;

/// The requests asked for.
struct Sample {
    targets: Arc<[String]>,
    sizes: Arc<[u64]>,
    /// Requests in the order of the trace.
    order: Arc<[u32]>,
    /// The targets among them, each once.
    distinct: Vec<u32>,
    bytes: u64,
}

impl Sample {
    /// The requests of a trace until their targets fill the room; larger targets than nodes keep are left out.
    fn of(plan: &Plan, large_min: Bytes) -> anyhow::Result<Self> {
        let mut taken = vec![false; plan.sizes.len()];
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
            if !taken[place] {
                let full = sample.bytes + size > BYTES_MAX || sample.distinct.len() >= TARGETS_MAX;
                if full {
                    continue;
                }
                taken[place] = true;
                sample.bytes += size;
                sample.distinct.push(*target);
            }
            order.push(*target);
        }
        if order.is_empty() {
            bail!("all targets are as large as nodes keep none");
        }
        sample.order = order.into();
        Ok(sample)
    }

    /// Memory that holds all of it.
    fn memory(&self) -> Bytes {
        Bytes(2 * self.bytes + 4_096 * self.distinct.len() as u64 + (1 << 20))
    }

    fn load(&self, order: Vec<u32>, clients: u32) -> Load {
        Load {
            targets: Arc::clone(&self.targets),
            sizes: Arc::clone(&self.sizes),
            order: order.into(),
            warmup: 0,
            again: false,
            clients,
            measured: None,
        }
    }

    /// Every target at every node. Requests go to the nodes in turn.
    fn everywhere(&self, nodes: usize) -> Vec<u32> {
        self.distinct.iter().flat_map(|target| std::iter::repeat_n(*target, nodes)).collect()
    }

    /// Every target at one node.
    fn apart(&self) -> Vec<u32> {
        self.distinct.clone()
    }
}

/// Measures both.
///
/// # Errors
/// A cluster does not start or answer, or too little could be asked.
pub(super) async fn measure(spec: &ClusterSpec, plan: &Plan, folder: &Path) -> anyhow::Result<Rates> {
    let sample = Sample::of(plan, spec.large_min)?;
    let spec = ClusterSpec {
        memory: sample.memory(),
        disk_speed: 1e6,
        peers: PeersSpec { window: None, ..spec.peers.clone() },
        ..spec.clone()
    };
    let alone = run(System::Trad, &spec, &sample, sample.everywhere(spec.nodes), folder).await?;
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
    let apart = run(System::PRESS, &spec, &sample, sample.apart(), folder).await?;
    let cache = apart.report.cache;
    let forwarded = cache.passed_on as f64 / (cache.hits + cache.misses).max(1) as f64;
    if forwarded < 0.1 {
        bail!("only {:.1} % of the requests were forwarded", forwarded * 100.0);
    }
    let forward_us = ((costs(&apart)?.0 - local_us) / forwarded).max(0.0);
    let requests = requests + apart.report.ok;
    Ok(Rates { local_us, client_us, forward_us, forwarded, requests, reply_bytes_mean })
}

/// Fills the memories with `first`, then measures.
async fn run(
    system: System,
    spec: &ClusterSpec,
    sample: &Sample,
    first: Vec<u32>,
    folder: &Path,
) -> anyhow::Result<Seen> {
    let cluster = Cluster::start(system, spec, folder).await?;
    let clients = CLIENTS_PER_NODE * u32::try_from(spec.nodes).context("too many nodes")?;
    let filled = drive(&cluster, &sample.load(first, clients), &|_| {}).await?;
    if filled.report.failed > 0 {
        bail!("{} requests failed while memories were filled", filled.report.failed);
    }
    if matches!(system, System::Peers(_)) {
        cluster.await_targets(sample.distinct.len()).await?;
    }
    let load = Load {
        order: Arc::clone(&sample.order),
        warmup: BEFORE,
        again: true,
        measured: Some(MEASURED),
        ..sample.load(Vec::new(), clients)
    };
    let seen = drive(&cluster, &load, &|_| {}).await?;
    cluster.stop().await;
    Ok(seen)
}

/// Processor time of the nodes and of the clients for a request, microseconds.
fn costs(seen: &Seen) -> anyhow::Result<(f64, f64)> {
    let served = seen.measured.served;
    if served < REQUESTS_MIN {
        bail!("only {served} requests could be measured");
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / served as f64;
    Ok((each(seen.measured.spent.nodes), seen.report.generator.cpu_us_per_request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::synth::{Recipe, generate};

    #[test]
    fn memories_are_filled_with_all_targets_or_a_part_each() {
        let trace = generate(&Recipe::zipf(50, 600, 0.9), 1, 1.0).unwrap();
        let plan = Plan::new(&trace, "zipf".to_owned(), usize::MAX).unwrap();
        let sample = Sample::of(&plan, Bytes::mib(1_024)).unwrap();
        let targets = sample.distinct.len();
        assert!(targets > 10 && sample.order.len() > targets);
        let everywhere = sample.everywhere(3);
        // Request number i goes to node i % 3.
        for node in 0..3 {
            let mut has: Vec<u32> = everywhere.iter().skip(node).step_by(3).copied().collect();
            has.dedup();
            assert_eq!(has, sample.distinct);
        }
        assert_eq!(sample.apart(), sample.distinct);
        assert!(Sample::of(&plan, Bytes(1)).is_err(), "nothing is kept");
    }
}
