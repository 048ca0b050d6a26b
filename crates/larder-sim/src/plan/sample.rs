//! Part of a log that behaves like all of it, in a cluster whose memories are as much smaller.
//!
//! Spatial sampling (Waldspurger et al., SHARDS, FAST 2015) keeps all requests of some targets, drawn by hash, and
//! none of the others; a memory smaller by the same factor then hits alike. Three things go beyond the paper, because
//! a cluster is balanced by load and not by hits alone:
//!
//! * *Strata.* Targets are ranked by requests; of every `q` neighbours in rank each of the `q` samples gets one, drawn
//!   by hash. So a sample has its share of the requests (what SHARDS-adj corrects for afterwards), and samples are
//!   disjoint.
//! * *Hot targets.* Drawn or not, a target with a hundredth of all requests would make a sample wrong: it would weigh
//!   `q` times too much or be absent. Targets with enough requests are in every sample, each time with another `q`-th
//!   of their requests and with a `q`-th of their size in memory (costs stay those of the whole object). Their share
//!   of the load is then right, and so is the balance of nodes. Under Greedy-Dual-Size the two cuts cancel: a `q`-th
//!   of the requests to something whose credit, one by its size, is `q` times as large. Under LRU they do not quite,
//!   and the check against whole replays says by how much.
//! * *Large targets.* An object larger than a node's part of memory in the sample, but not than its memory, is never
//!   kept there. `q` is chosen so that few requests ask for such objects, and their share is added to the error.

use std::borrow::Cow;

use larder_core::TargetId;

use super::grid::{HOT_KEEPS, is_hot};
use super::policies::knows_contents;
use super::run::Place;
use crate::workload::{Item, Workload};

/// What is replayed.
#[derive(Debug)]
pub(super) struct Sample<'w> {
    pub(super) workload: Cow<'w, Workload>,
    /// Requests that warm up.
    pub(super) warmup: usize,
    /// 1 / rate: memories are smaller by this.
    pub(super) q: u32,
    /// The hot targets by their number in the workload, the hottest first.
    hot: Vec<u32>,
}

/// How samples are drawn from a log.
#[derive(Debug)]
pub(super) struct Strata<'w> {
    workload: &'w Workload,
    /// Requests by item.
    counts: &'w [u32],
    warmup: usize,
    q: u32,
    /// By item: the sample that has it, or `HOT`.
    member: Vec<u32>,
    /// Draws members, and where the counting of a hot target's requests begins.
    seed: u64,
    hot: usize,
}

const HOT: u32 = u32::MAX;

impl<'w> Sample<'w> {
    /// The whole log.
    pub(super) fn whole(workload: &'w Workload, warmup: usize) -> Self {
        Self { workload: Cow::Borrowed(workload), warmup, q: 1, hot: Vec::new() }
    }

    /// Part of this sample, its requests replaced.
    pub(super) fn with(&self, workload: &'w Workload, warmup: usize) -> Self {
        Self { workload: Cow::Borrowed(workload), warmup, q: self.q, hot: self.hot.clone() }
    }

    /// What is replayed at a place, and its warm-up. Under a policy that does not look at contents every node reads a
    /// hot target once, cold: soon over in the log, but `q` times as long in a sample, where the target has a `q`-th of
    /// its requests. So that the sample is as warm at the end of its warm-up as the log would be, each hot target is
    /// asked for once per node before (as often as the log's warm-up would at the least).
    pub(super) fn warmed(&self, place: Place) -> (Cow<'_, Workload>, usize) {
        let least = (u64::from(self.q) * u64::from(HOT_KEEPS) * self.warmup as u64
            / self.workload.requests.len().max(1) as u64) as usize;
        let times = least.min(place.nodes as usize);
        if times < 2 || self.hot.is_empty() || knows_contents(place.policy.name()) {
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
    /// Deals the targets out to `q` samples, `q` at least 2.
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
            // The last block is short: who gets one of it is drawn too.
            let shift = if block.len() < q as usize { (seed % u64::from(q)) as u32 } else { 0 };
            for (place, item) in (0_u32..).zip(&*block) {
                member[*item as usize] = (place + shift) % q;
            }
        }
        Self { workload, counts, warmup, q, member, seed, hot }
    }

    /// Targets that every sample holds.
    pub(super) const fn hot(&self) -> usize {
        self.hot
    }

    /// The sample of that number, below `q`.
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
    fn samples_are_disjoint_and_together_everything() {
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
    fn a_sample_has_its_share_of_requests_bytes_and_of_the_hottest() {
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
