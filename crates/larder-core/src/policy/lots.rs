//! Lots: which nodes chance offers.
//!
//! A lot is SplitMix64 of the seed and a counter, so that a run repeats.

use super::membership_cache::{OpenNode, scale};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use core::sync::atomic::{AtomicU64, Ordering};

/// How often a pair is drawn anew because one of it cannot be used.
const TRIES: usize = 16;

/// A sequence of lots.
#[derive(Debug)]
pub(super) struct Lots {
    seed: u64,
    drawn: AtomicU64,
}

impl Lots {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), drawn: AtomicU64::new(0) }
    }

    /// The next lot.
    pub(super) fn take(&self, nodes: ClusterView<'_>) -> u64 {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        nodes.record_random_draw(number);
        self.lot(number)
    }

    /// How many were taken.
    pub(super) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }

    /// So many were taken before.
    pub(super) fn go_on(&self, drawn: u64) {
        self.drawn.store(drawn, Ordering::Relaxed);
    }

    /// What [`Lots::take`] would give.
    pub(super) fn next(&self) -> u64 {
        self.lot(self.drawn.load(Ordering::Relaxed))
    }

    fn lot(&self, number: u64) -> u64 {
        mix(self.seed ^ mix(number))
    }
}

/// A node drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) node: NodeId,
    pub(super) weight_milli: u32,
}

/// The nodes that can be drawn, each as likely as its weight is large.
#[derive(Debug)]
pub(super) struct Urn {
    nodes: Box<[Drawn]>,
    /// Where each node's span of the weights ends; empty if all weights are equal.
    ends: Box<[u64]>,
}

impl Urn {
    pub(super) fn new(members: &[OpenNode]) -> Self {
        let nodes: Box<[Drawn]> = members
            .iter()
            .map(|member| Drawn { node: member.node, weight_milli: member.weight_milli })
            .collect();
        let equal = nodes.windows(2).all(|pair| pair[0].weight_milli == pair[1].weight_milli);
        let mut end = 0;
        let widths = nodes.iter().filter(|_| !equal).map(|drawn| u64::from(drawn.weight_milli));
        let ends = widths.map(|width| {
            end += width;
            end
        });
        Self { ends: ends.collect(), nodes }
    }

    /// Two different usable nodes, or the only one that turns up, or none.
    pub(super) fn two(&self, lot: u64, usable: impl Fn(NodeId) -> bool) -> Option<(Drawn, Option<Drawn>)> {
        let (mut lot, mut single) = (lot, None);
        for _ in 0..TRIES {
            let (first, second) = self.pair(lot)?;
            let (first, second) = (self.nodes[first], second.map(|at| self.nodes[at]));
            match (usable(first.node), second.filter(|drawn| usable(drawn.node))) {
                (true, Some(_)) => return Some((first, second)),
                (true, None) if second.is_none() => return Some((first, None)),
                (true, None) => single = single.or(Some(first)),
                (false, Some(other)) => single = single.or(Some(other)),
                (false, None) => {}
            }
            lot = mix(lot);
        }
        let any = || self.nodes.iter().copied().find(|drawn| usable(drawn.node));
        Some((single.or_else(any)?, None))
    }

    /// The indices of two different nodes; of one if there is no other.
    fn pair(&self, lot: u64) -> Option<(usize, Option<usize>)> {
        let (one, two) = (mix(lot), mix(!lot));
        let count = self.nodes.len();
        let Some(&sum) = self.ends.last() else {
            let first = (count > 0).then(|| scale(one, count as u64) as usize)?;
            let second = (count > 1).then(|| scale(two, count as u64 - 1) as usize);
            return Some((first, second.map(|at| at + usize::from(at >= first))));
        };
        let at = |point: u64| self.ends.partition_point(|end| *end <= point);
        let first = at(scale(one, sum));
        let width = u64::from(self.nodes[first].weight_milli);
        // What is left when the first one's span is cut out.
        let point = scale(two, sum - width);
        let begin = self.ends[first] - width;
        Some((first, Some(at(if point >= begin { point + width } else { point }))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urn(weights: &[u32]) -> Urn {
        let member = |(slot, weight): (u16, &u32)| OpenNode {
            node: NodeId(slot),
            identity: slot.into(),
            weight_milli: *weight,
        };
        Urn::new(&(0..).zip(weights).map(member).collect::<Vec<_>>())
    }

    #[test]
    fn pairs_are_different_and_as_likely_as_weights_say() {
        for weights in [&[1000, 1000, 1000, 1000][..], &[500, 1000, 1500, 3000]] {
            let (urn, draws) = (urn(weights), 60_000);
            let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let (mut first, mut pairs) = ([0_u32; 4], [[0_u32; 4]; 4]);
            for lot in 0..draws {
                let (one, two) = urn.two(mix(lot), |_| true).expect("there are four");
                let two = two.expect("there are four");
                first[one.node.index()] += 1;
                pairs[one.node.index()][two.node.index()] += 1;
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
    fn few_nodes_are_drawn_too() {
        assert_eq!(urn(&[]).two(1, |_| true), None);
        let one = urn(&[2000]).two(1, |_| true).expect("there is one");
        assert_eq!((one.0.node, one.1), (NodeId(0), None));
        for lot in 0..100 {
            let left = urn(&[1000, 3000, 1000]).two(lot, |node| node == NodeId(2)).expect("one is usable");
            assert_eq!((left.0.node, left.1), (NodeId(2), None));
            assert_eq!(urn(&[1000; 5]).two(lot, |_| false), None);
        }
    }
}
