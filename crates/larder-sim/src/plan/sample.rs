//! Samples of a log, for clusters with proportionally smaller memories.
//!
//! Spatial sampling (Waldspurger et al., SHARDS, FAST 2015) keeps all requests of some targets, drawn by
//! hash, and none of the others. A proportionally smaller memory then has the same hit ratio. Three points go
//! beyond the paper, because load balance matters in a cluster besides hits:
//!
//! * *Strata.* Targets are ranked by requests. Of every `q` neighbours in rank, each of the `q` samples gets
//!   one, drawn by hash. A sample therefore has its share of the requests (which SHARDS-adj corrects
//!   afterwards), and samples are disjoint.
//! * *Hot targets.* A target with a hundredth of all requests would distort a sample: it would weigh `q`
//!   times too much or be absent. Targets with enough requests are therefore in every sample, each time with
//!   another `q`-th of their requests and a `q`-th of their size in memory. Costs remain those of the whole
//!   object. Their share of the load, and the balance of nodes, is then right. Under Greedy-Dual-Size the two
//!   reductions cancel, because the credit of one over the size is `q` times as large. Under LRU they cancel
//!   only partly; the check against whole replays measures the deviation.
//! * *Large targets.* An object that fits a node's memory but not its part in the sample is never kept in the
//!   sample. `q` is chosen so that few requests are for such objects, and their share is added to the error.

use std::borrow::Cow;

use larder_core::TargetId;

use super::grid::{HOT_KEEPS, is_hot};
use super::policies::knows_contents;
use super::run::GridPoint;
use crate::workload::{Item, Workload};

/// A sample of a log, or the whole log.
#[derive(Debug)]
pub(super) struct Sample<'w> {
    pub(super) workload: Cow<'w, Workload>,
    /// The number of requests in the warm-up.
    pub(super) warmup: usize,
    /// 1 / rate: memories are smaller by this factor.
    pub(super) q: u32,
    /// The hot targets by their index in the workload, the hottest first.
    hot: Vec<u32>,
}

/// The partition of a log's targets into samples.
#[derive(Debug)]
pub(super) struct Strata<'w> {
    workload: &'w Workload,
    /// The number of requests of each item.
    counts: &'w [u32],
    warmup: usize,
    q: u32,
    /// The sample of each item, or `HOT`.
    member: Vec<u32>,
    /// The seed that draws members, and the first counted request of each hot target.
    seed: u64,
    hot: usize,
}

const HOT: u32 = u32::MAX;

impl<'w> Sample<'w> {
    /// Creates a sample that is the whole log.
    pub(super) fn whole(workload: &'w Workload, warmup: usize) -> Self {
        Self { workload: Cow::Borrowed(workload), warmup, q: 1, hot: Vec::new() }
    }

    /// Creates a sample with the requests of `workload`, a part of this sample.
    pub(super) fn with(&self, workload: &'w Workload, warmup: usize) -> Self {
        Self { workload: Cow::Borrowed(workload), warmup, q: self.q, hot: self.hot.clone() }
    }

    /// Returns the requests to replay at a grid point, and their warm-up. Under a content-blind policy every
    /// node reads a hot target once. This is soon over in the log, but takes `q` times as long in a sample,
    /// which has a `q`-th of the target's requests. Each hot target is therefore first requested once per
    /// node, but no more often than in the log's warm-up. The sample is then as warm at the end of its
    /// warm-up as the log would be.
    pub(super) fn with_hot_warmup(&self, point: GridPoint) -> (Cow<'_, Workload>, usize) {
        let least = (u64::from(self.q) * u64::from(HOT_KEEPS) * self.warmup as u64
            / self.workload.requests.len().max(1) as u64) as usize;
        let times = least.min(point.nodes as usize);
        if times < 2 || self.hot.is_empty() || knows_contents(point.policy.name()) {
            return (Cow::Borrowed(&*self.workload), self.warmup);
        }
        let most = self.workload.requests.len() / 2 / times;
        let mut requests: Vec<u32> =
            self.hot.iter().take(most).flat_map(|item| core::iter::repeat_n(*item, times)).collect();
        let warmup = self.warmup + requests.len();
        requests.extend_from_slice(&self.workload.requests);
        (Cow::Owned(Workload { items: self.workload.items.clone(), requests, times: Vec::new() }), warmup)
    }
}

impl<'w> Strata<'w> {
    /// Deals the targets to `q` samples; `q` is at least 2.
    pub(super) fn new(workload: &'w Workload, counts: &'w [u32], warmup: usize, q: u32, seed: u64) -> Self {
        let mut order: Vec<u32> = (0..workload.items.len() as u32).collect();
        let bytes = |item: u32| workload.items[item as usize].bytes;
        order.sort_unstable_by_key(|item| {
            (core::cmp::Reverse(counts[*item as usize]), core::cmp::Reverse(bytes(*item)), *item)
        });
        let hot = order.partition_point(|item| is_hot(counts[*item as usize], q));
        let mut member = vec![HOT; order.len()];
        let drawn = |item: u32| draw(seed, workload.items[item as usize].id);
        for block in order[hot..].chunks_mut(q as usize) {
            block.sort_unstable_by_key(|item| (drawn(*item), *item));
            // The last block is short, so its samples are drawn as well.
            let shift = if block.len() < q as usize { (seed % u64::from(q)) as u32 } else { 0 };
            for (place, item) in (0_u32..).zip(&*block) {
                member[*item as usize] = (place + shift) % q;
            }
        }
        Self { workload, counts, warmup, q, member, seed, hot }
    }

    /// Returns the number of targets that every sample holds.
    pub(super) const fn hot(&self) -> usize {
        self.hot
    }

    /// Creates the sample with this number, below `q`.
    pub(super) fn sample(&self, number: u32) -> Sample<'static> {
        let (q, items) = (self.q, &self.workload.items);
        let mut seen: Vec<u32> = (0..items.len())
            .map(|at| {
                if self.member[at] == HOT {
                    (draw(self.seed, items[at].id) as u32 % q + number) % q
                } else {
                    0
                }
            })
            .collect();
        let mut new_number = vec![u32::MAX; items.len()];
        let (mut kept, mut requests, mut warmup) = (Vec::<Item>::new(), Vec::new(), 0);
        let mut hottest = Vec::new();
        for (at, item) in self.workload.requests.iter().map(|item| *item as usize).enumerate() {
            let hot = self.member[item] == HOT;
            if hot {
                seen[item] = (seen[item] + 1) % q;
            }
            if (hot && seen[item] != 0) || (!hot && self.member[item] != number) {
                continue;
            }
            if new_number[item] == u32::MAX {
                new_number[item] = kept.len() as u32;
                let memory =
                    if hot { (items[item].memory / u64::from(q)).max(1) } else { items[item].memory };
                if hot {
                    hottest.push((core::cmp::Reverse(self.counts[item]), kept.len() as u32));
                }
                kept.push(Item { memory, ..items[item] });
            }
            warmup += usize::from(at < self.warmup);
            requests.push(new_number[item]);
        }
        let workload = Workload { items: kept, requests, times: Vec::new() };
        hottest.sort_unstable();
        let hot = hottest.into_iter().map(|(_, number)| number).collect();
        Sample { workload: Cow::Owned(workload), warmup, q, hot }
    }
}

fn draw(seed: u64, id: TargetId) -> u64 {
    TargetId::of_parts(&[&seed.to_le_bytes(), b"plan sample", &id.0.to_le_bytes()]).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::synth::{Recipe, generate};

    fn zipf() -> Workload {
        Workload::from_trace(&generate(&Recipe::zipf(2_000, 100_000, 0.9), 3, 1.0).expect("possible"))
    }

    #[test]
    fn samples_partition_the_requests() {
        let workload = zipf();
        let counts = workload.counts();
        let strata = Strata::new(&workload, &counts, 30_000, 5, 7);
        let samples: Vec<Sample<'_>> = (0..5).map(|number| strata.sample(number)).collect();
        let requests: usize = samples.iter().map(|sample| sample.workload.requests.len()).sum();
        let warmup: usize = samples.iter().map(|sample| sample.warmup).sum();
        let items: usize = samples.iter().map(|sample| sample.workload.items.len()).sum();
        let asked = counts.iter().filter(|count| **count > 0).count();
        assert_eq!((requests, warmup), (workload.requests.len(), 30_000));
        assert_eq!(items, asked + 4 * strata.hot());
        assert!(strata.hot() > 20);
    }

    #[test]
    fn samples_have_their_share_of_requests_and_bytes() {
        let workload = zipf();
        let counts = workload.counts();
        let strata = Strata::new(&workload, &counts, 0, 8, 1);
        for number in 0..8 {
            let sample = strata.sample(number);
            let share = sample.workload.requests.len() as f64 * 8.0 / workload.requests.len() as f64;
            assert!((share - 1.0).abs() < 0.02, "{share}");
            let memory: u64 = sample.workload.items.iter().map(|item| item.memory).sum();
            let share = memory as f64 * 8.0 / workload.bytes() as f64;
            assert!((share - 1.0).abs() < 0.35, "{share}");
            let most = f64::from(*sample.workload.counts().iter().max().expect("some"));
            let all = f64::from(*counts.iter().max().expect("some"));
            assert!((most * 8.0 / all - 1.0).abs() < 0.01);
        }
    }
}
