//! Random draws of nodes.
//!
//! A random number is SplitMix64 of the seed and a counter, so that a run repeats.

use super::membership_cache::{OpenNode, scale};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

/// The largest number of draws of a pair in which one node cannot be used.
const TRIES: usize = 16;

/// A sequence of random numbers.
#[derive(Debug)]
pub(super) struct RandomSequence {
    seed: u64,
    count: AtomicU64,
}

impl RandomSequence {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), count: AtomicU64::new(0) }
    }

    /// Draws the next random number.
    pub(super) fn draw(&self, nodes: ClusterView<'_>) -> u64 {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        nodes.record_random_draw(number);
        self.random(number)
    }

    /// Returns the number of draws.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Continues after `count` earlier draws.
    pub(super) fn resume(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
    }

    /// Returns the number that [`RandomSequence::draw`] would return.
    pub(super) fn peek(&self) -> u64 {
        self.random(self.count.load(Ordering::Relaxed))
    }

    fn random(&self, number: u64) -> u64 {
        mix(self.seed ^ mix(number))
    }
}

/// A node that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DrawnNode {
    pub(super) node: NodeId,
    pub(super) weight_milli: u32,
}

/// The nodes that can be drawn, with probabilities proportional to their weights.
#[derive(Debug)]
pub(super) struct WeightedSampler {
    nodes: Box<[DrawnNode]>,
    /// The end of each node's range of the weights; empty if all weights are equal.
    ends: Box<[u64]>,
}

impl WeightedSampler {
    pub(super) fn new(members: &[OpenNode]) -> Self {
        let nodes: Box<[DrawnNode]> = members
            .iter()
            .map(|member| DrawnNode { node: member.node, weight_milli: member.weight_milli })
            .collect();
        let equal = nodes.windows(2).all(|pair| pair[0].weight_milli == pair[1].weight_milli);
        let mut end = 0;
        let widths = nodes.iter().filter(|_| !equal).map(|count| u64::from(count.weight_milli));
        let ends = widths.map(|width| {
            end += width;
            end
        });
        Self { ends: ends.collect(), nodes }
    }

    /// Draws two different usable nodes; one if only one is found; `None` if no node is usable.
    pub(super) fn draw_two(
        &self,
        random: u64,
        usable: impl Fn(NodeId) -> bool,
    ) -> Option<(DrawnNode, Option<DrawnNode>)> {
        let (mut random, mut single) = (random, None);
        for _ in 0..TRIES {
            let (first, second) = self.pair(random)?;
            let (first, second) = (self.nodes[first], second.map(|at| self.nodes[at]));
            match (usable(first.node), second.filter(|count| usable(count.node))) {
                (true, Some(_)) => return Some((first, second)),
                (true, None) if second.is_none() => return Some((first, None)),
                (true, None) => single = single.or(Some(first)),
                (false, Some(other)) => single = single.or(Some(other)),
                (false, None) => {}
            }
            random = mix(random);
        }
        let any = || self.nodes.iter().copied().find(|count| usable(count.node));
        Some((single.or_else(any)?, None))
    }

    /// Returns the indices of two different nodes, or one index if there is only one node.
    fn pair(&self, random: u64) -> Option<(usize, Option<usize>)> {
        let (one, draw_two) = (mix(random), mix(!random));
        let count = self.nodes.len();
        let Some(&sum) = self.ends.last() else {
            let first = (count > 0).then(|| scale(one, count as u64) as usize)?;
            let second = (count > 1).then(|| scale(draw_two, count as u64 - 1) as usize);
            return Some((first, second.map(|at| at + usize::from(at >= first))));
        };
        let at = |point: u64| self.ends.partition_point(|end| *end <= point);
        let first = at(scale(one, sum));
        let width = u64::from(self.nodes[first].weight_milli);
        // This is the rest after the first node's range is removed.
        let point = scale(draw_two, sum - width);
        let begin = self.ends[first] - width;
        Some((first, Some(at(if point >= begin { point + width } else { point }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(weights: &[u32]) -> WeightedSampler {
        let member = |(slot, weight): (u16, &u32)| OpenNode {
            node: NodeId(slot),
            identity: slot.into(),
            weight_milli: *weight,
        };
        WeightedSampler::new(&(0..).zip(weights).map(member).collect::<Vec<_>>())
    }

    #[test]
    fn pairs_are_different_and_follow_weights() {
        for weights in [&[1000, 1000, 1000, 1000][..], &[500, 1000, 1500, 3000]] {
            let (sampler, draws) = (sampler(weights), 60_000);
            let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let (mut first, mut pairs) = ([0_u32; 4], [[0_u32; 4]; 4]);
            for random in 0..draws {
                let (one, draw_two) = sampler.draw_two(mix(random), |_| true).expect("there are four");
                let draw_two = draw_two.expect("there are four");
                first[one.node.index()] += 1;
                pairs[one.node.index()][draw_two.node.index()] += 1;
            }
            for a in 0..4 {
                let p = f64::from(weights[a]) / sum;
                for b in 0..4 {
                    let q = if a == b { 0.0 } else { f64::from(weights[b]) / (sum - f64::from(weights[a])) };
                    let mean = draws as f64 * p * q;
                    assert!((f64::from(pairs[a][b]) - mean).abs() <= 5.0 * mean.sqrt(), "{a} {b}: {pairs:?}");
                }
                let mean = draws as f64 * p;
                assert!((f64::from(first[a]) - mean).abs() <= 5.0 * mean.sqrt(), "{first:?}");
            }
        }
    }

    #[test]
    fn one_or_no_node_can_be_drawn() {
        assert_eq!(sampler(&[]).draw_two(1, |_| true), None);
        let one = sampler(&[2000]).draw_two(1, |_| true).expect("there is one");
        assert_eq!((one.0.node, one.1), (NodeId(0), None));
        for random in 0..100 {
            let left = sampler(&[1000, 3000, 1000])
                .draw_two(random, |node| node == NodeId(2))
                .expect("one is usable");
            assert_eq!((left.0.node, left.1), (NodeId(2), None));
            assert_eq!(sampler(&[1000; 5]).draw_two(random, |_| false), None);
        }
    }
}
