//! The replayed requests of a trace. Targets are numbered in the order of their first appearance.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use larder_core::cache::{ByteCache, CacheKind};
use larder_core::{Bytes, Time};
use larder_load::target::request_target;
use larder_trace::{Request, SizeUnit, Target, Trace};

use super::result::TraceInfo;

/// Least memory that an object takes in a node, bytes.
const CHARGE_MIN: u64 = 512;
/// Longest replayed target. Nodes refuse longer ones.
const TARGET_BYTES_MAX: usize = 4096;

/// The requests of a demo.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Path and query of each target.
    pub targets: Arc<[String]>,
    /// Size of each target.
    pub sizes: Arc<[u64]>,
    /// The requests: indices into `targets`.
    pub order: Arc<[u32]>,
    /// Number of leading requests that warm the caches.
    pub warmup: usize,
    /// Description of the requests.
    pub info: TraceInfo,
}

impl Plan {
    /// Takes the first `limit` requests of a trace. The first third of them warms the caches.
    ///
    /// # Errors
    /// Returns an error if fewer than three requests can be replayed.
    pub fn new(trace: &Trace, source: String, limit: usize) -> anyhow::Result<Self> {
        let mut numbers = TargetNumbers::new(trace);
        let order: Vec<u32> =
            trace.requests.iter().filter_map(|request| numbers.number(request.target)).take(limit).collect();
        if order.len() < 3 {
            anyhow::bail!(
                "{source} has {} requests that can be replayed (GET, status 200, with a body); a demo needs at least 3",
                order.len()
            );
        }
        let warmup = order.len() / 3;
        let info = describe(source, &order, warmup, &numbers.sizes);
        Ok(Self {
            targets: numbers.targets.into(),
            sizes: numbers.sizes.into(),
            order: order.into(),
            warmup,
            info,
        })
    }

    /// Repeats all requests, so that the first pass warms the memories of `nodes` nodes that are asked in
    /// turn. In the second pass each request goes to another node, if there is another.
    pub(crate) fn with_full_warmup(self, nodes: usize) -> anyhow::Result<Self> {
        let mut order = self.order.to_vec();
        if order.len().is_multiple_of(nodes.max(1)) {
            order.pop();
        }
        let warmup = order.len();
        order.extend_from_slice(&self.order);
        if u32::try_from(order.len()).is_err() {
            anyhow::bail!("{} has too many requests to be replayed twice", self.info.source);
        }
        let info = describe(format!("{}, twice", self.info.source), &order, warmup, &self.sizes);
        Ok(Self { order: order.into(), warmup, info, ..self })
    }

    /// Returns the first requests as a trace without times.
    pub(super) fn trace(&self, requests: usize) -> Trace {
        let target = |(name, size): (&String, &u64)| Target { name: name.clone(), size: Bytes(*size) };
        let size = |target: u32| Bytes(self.sizes.get(target as usize).copied().unwrap_or(0));
        let request =
            |target: &u32| Request { time: Time::ZERO, target: *target, client: 0, size: size(*target) };
        Trace {
            targets: self.targets.iter().zip(self.sizes.iter()).map(target).collect(),
            requests: self.order.iter().take(requests).map(request).collect(),
            size_unit: SizeUnit::Bytes,
            origin_ns: None,
        }
    }

    /// Returns the contents of a memory after all requests, in reverse order of the last request. An
    /// independent node reaches this state after it has received every request once, at the speed of its
    /// disk.
    pub(crate) fn final_contents(&self, kind: CacheKind, memory: Bytes, object_max: Bytes) -> Vec<u32> {
        let (mut cache, mut evicted) = (ByteCache::new(kind, memory, object_max), Vec::new());
        for target in &*self.order {
            if !cache.touch(target) {
                let size = self.sizes.get(*target as usize).copied().unwrap_or(0);
                cache.insert(*target, Bytes(size), &mut evicted);
                evicted.clear();
            }
        }
        let mut seen = vec![false; self.sizes.len()];
        let mut is_new = |target: &u32| !std::mem::replace(&mut seen[*target as usize], true);
        self.order.iter().rev().copied().filter(|target| is_new(target) && cache.contains(target)).collect()
    }

    /// Returns the largest miss ratio of a warm independent node in a window of requests for cacheable
    /// targets. The `nodes` nodes get requests in turn.
    pub(crate) fn peak_miss_share(
        &self,
        kind: CacheKind,
        memory: Bytes,
        object_max: Bytes,
        (nodes, window): (usize, usize),
    ) -> f64 {
        let size = |target: u32| Bytes(self.sizes.get(target as usize).copied().unwrap_or(0).max(CHARGE_MIN));
        let (mut cache, mut evicted) = (ByteCache::new(kind, memory, object_max), Vec::new());
        for target in self.final_contents(kind, memory, object_max).into_iter().rev() {
            cache.insert(target, size(target), &mut evicted);
        }
        // In each pass through the trace the node receives other requests.
        let given = (0..nodes.max(1)).flat_map(|first| self.order.iter().skip(first).step_by(nodes.max(1)));
        let (mut most, mut asked, mut missed) = (0.0_f64, 0_u32, 0_u32);
        let share = |missed, asked| f64::from(missed) / f64::from(asked);
        for target in given.copied().filter(|target| size(*target) <= object_max) {
            asked += 1;
            if !cache.touch(&target) {
                missed += 1;
                cache.insert(target, size(target), &mut evicted);
                evicted.clear();
            }
            if asked as usize == window.max(1) {
                most = most.max(share(missed, asked));
                (asked, missed) = (0, 0);
            }
        }
        // A trace that is shorter than a window is repeated, so its ratio counts.
        if asked > 0 && most == 0.0 { share(missed, asked) } else { most }
    }

    /// Writes the targets and sizes for a node's modelled store, beginning with the targets `first`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write_manifest(&self, path: &Path, first: &[u32]) -> anyhow::Result<()> {
        let mut text = String::new();
        let mut written = vec![false; self.sizes.len()];
        for target in first.iter().copied().chain(0..u32::try_from(self.sizes.len())?) {
            let target = target as usize;
            if !std::mem::replace(&mut written[target], true) {
                writeln!(text, "{}\t{}", self.sizes[target], self.targets[target])?;
            }
        }
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Numbers of the requested targets. Names that are sent as the same request target share a number, with the
/// larger size.
struct TargetNumbers<'a> {
    trace: &'a Trace,
    /// The new number by old number: `None` if not looked up yet, `Some(None)` if the target cannot be
    /// replayed.
    numbers: Vec<Option<Option<u32>>>,
    by_name: HashMap<String, u32>,
    targets: Vec<String>,
    sizes: Vec<u64>,
}

impl<'a> TargetNumbers<'a> {
    fn new(trace: &'a Trace) -> Self {
        let numbers = vec![None; trace.targets.len()];
        Self { trace, numbers, by_name: HashMap::new(), targets: Vec::new(), sizes: Vec::new() }
    }

    fn number(&mut self, target: u32) -> Option<u32> {
        let known = self.numbers.get(target as usize)?;
        if let Some(number) = known {
            return *number;
        }
        let number = self.add(&self.trace.targets[target as usize]);
        self.numbers[target as usize] = Some(number);
        number
    }

    fn add(&mut self, target: &Target) -> Option<u32> {
        let name = request_target(&target.name);
        if name.len() > TARGET_BYTES_MAX {
            return None;
        }
        let size = target.size.get();
        if let Some(number) = self.by_name.get(&*name) {
            let largest = &mut self.sizes[*number as usize];
            *largest = size.max(*largest);
            return Some(*number);
        }
        let number = u32::try_from(self.targets.len()).ok()?;
        self.by_name.insert(name.clone().into_owned(), number);
        self.targets.push(name.into_owned());
        self.sizes.push(size);
        Some(number)
    }
}

fn describe(source: String, order: &[u32], warmup: usize, sizes: &[u64]) -> TraceInfo {
    let mut counts = vec![0_u64; sizes.len()];
    let mut cold_misses = 0;
    let mut bytes = 0.0;
    for (i, target) in order.iter().enumerate() {
        let target = *target as usize;
        if counts[target] == 0 && i >= warmup {
            cold_misses += 1;
        }
        counts[target] += 1;
        bytes += sizes[target] as f64;
    }
    let requests = order.len();
    TraceInfo {
        source,
        requests,
        warmup_requests: warmup,
        targets: sizes.len(),
        working_set_bytes: sizes.iter().copied().map(Bytes).sum::<Bytes>().get(),
        reply_bytes_mean: bytes / requests as f64,
        hottest_share: counts.iter().max().map_or(0.0, |most| *most as f64 / requests as f64),
        cold_misses,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(names: &[&str], asked: &[u32]) -> Trace {
        let target = |name: &&str| Target { name: (*name).to_owned(), size: Bytes(name.len() as u64) };
        let request = |target: &u32| Request { time: Time::ZERO, target: *target, client: 0, size: Bytes(1) };
        Trace {
            targets: names.iter().map(target).collect(),
            requests: asked.iter().map(request).collect(),
            size_unit: SizeUnit::Bytes,
            origin_ns: None,
        }
    }

    #[test]
    fn the_second_pass_goes_to_other_nodes() {
        let trace = trace(&["/a", "/b", "/c"], &[0, 1, 2, 0, 1, 2]);
        let plan = || Plan::new(&trace, "t".into(), usize::MAX).unwrap();
        let twice = plan().with_full_warmup(3).unwrap();
        assert_eq!((*twice.order).to_vec(), [0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2]);
        assert_eq!((twice.warmup, twice.info.warmup_requests, twice.info.cold_misses), (5, 5, 0));
        for nodes in [1, 2, 3, 4, 7] {
            let plan = plan().with_full_warmup(nodes).unwrap();
            assert!(nodes == 1 || !plan.warmup.is_multiple_of(nodes), "{nodes}");
        }
    }

    #[test]
    fn a_memory_contains_the_last_requested_targets() {
        let trace = trace(&["/a", "/b", "/c", "/d"], &[0, 1, 2, 0, 3]);
        let plan = Plan::new(&trace, "t".into(), usize::MAX).unwrap();
        let (lru, all) = ("lru".parse().unwrap(), Bytes(u64::MAX));
        let room = |targets: u64| Bytes(plan.sizes[..4].iter().sum::<u64>() / 4 * targets + 6);
        assert_eq!(plan.final_contents(lru, room(9), all), [3, 0, 2, 1]);
        assert_eq!(plan.final_contents(lru, Bytes(plan.sizes[3] + plan.sizes[0]), all), [3, 0]);
        assert_eq!(plan.final_contents(lru, room(9), Bytes(0)), [0; 0]);
        let one_of = |memory, nodes| plan.peak_miss_share(lru, memory, all, (nodes, 5));
        assert_eq!((one_of(Bytes(4 * CHARGE_MIN), 1), one_of(Bytes(4 * CHARGE_MIN), 2)), (0.0, 0.0));
        assert_eq!(one_of(Bytes(2 * CHARGE_MIN), 1), 0.8, "two fit, and /a is asked for again at once");
        let path = tempfile::NamedTempFile::new().unwrap();
        plan.write_manifest(path.path(), &[3, 0]).unwrap();
        let text = std::fs::read_to_string(path.path()).unwrap();
        let names: Vec<_> = text.lines().map(|line| line.split_once('\t').unwrap().1).collect();
        assert_eq!(names, ["/d", "/a", "/b", "/c"]);
    }

    #[test]
    fn targets_are_numbered_as_they_appear() {
        let trace =
            trace(&["/a", "/bb", "/x y", "/ccc", "/x%20y", &"/z".repeat(3_000)], &[3, 2, 5, 3, 0, 3, 1, 4]);
        let plan = Plan::new(&trace, "t".into(), usize::MAX).unwrap();
        assert_eq!(*plan.targets, ["/ccc", "/x%20y", "/a", "/bb"]);
        assert_eq!((&*plan.sizes, &*plan.order), (&[4, 6, 2, 3][..], &[0, 1, 0, 2, 0, 3, 1][..]));
        let info = &plan.info;
        assert_eq!((plan.warmup, info.cold_misses, info.working_set_bytes), (2, 2, 15));
        assert!((info.hottest_share - 3.0 / 7.0).abs() < 1e-9);
        assert_eq!(*Plan::new(&trace, "t".into(), 3).unwrap().order, [0, 1, 0]);
    }

    #[test]
    fn a_trace_without_requests_is_refused() {
        assert!(Plan::new(&trace(&["/a"], &[0, 0]), "t".into(), 100).is_err());
    }
}
