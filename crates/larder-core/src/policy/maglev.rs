//! `maglev`: Maglev hashing (Eisenbud et al., NSDI'16, section 3.4): a table with next to equally many places per node.
//!
//! ```text
//! for each node i:   offset = h1(name) mod M;  skip = h2(name) mod (M - 1) + 1
//!                    permutation_i[j] = (offset + j skip) mod M
//! in turn, each node takes the first place of its permutation that is free, until all M are taken
//! on request t:      the node at place floor(h(t) M / 2^64)
//! ```
//! Shares of the places differ by one at most, whatever the names; consistency is a little less than that of a ring:
//! when a node comes or goes some places change hands between others too (section 5.3: few, if M is at least a hundred
//! times the nodes).
//!
//! Where the paper is silent or we differ: *weights* give a node more turns (a node takes its k-th place in the
//! round in which k reaches the round times its weight over the largest weight), as Envoy does. The place of a hash is
//! a multiplication instead of a remainder. Nodes take their turns in the order of their names' hashes, so that switches
//! with the same nodes agree. Only nodes that take requests have places. A retry, and a request that meets a node
//! that closed a moment ago, steps the hash on. The paper's connection table is not needed: a request is decided once.
//!
//! Parameters: `size` M (65,537, the paper's; a prime). State: the table, 2 bytes a place. Cost: O(1); O(M log M)
//! on a change of membership or weights.

use super::description::PolicyDescription;
use super::membership_cache::{MembershipCache, OpenNode, scale};
use super::{Choice, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use crate::range::{SettingsError, in_range};
use crate::time::Time;

/// The description of `maglev`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_target("maglev", "the node that an evenly filled hash table names (Maglev)");

/// Stands for no node.
const NONE: u16 = u16::MAX;

/// The parameters of `maglev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevSettings {
    /// Places in the table. A prime, 101 to 5,000,011; default 65,537 (Maglev section 5.3). A hundred times the nodes
    /// keeps shares within 1 % of each other.
    pub size: u32,
}

impl MaglevSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let ok = (101..=5_000_011).contains(&self.size) && is_prime(self.size);
        in_range("maglev_size", self.size.into(), ok, "a prime from 101 to 5000011")
    }
}

impl Default for MaglevSettings {
    fn default() -> Self {
        Self { size: 65_537 }
    }
}

#[derive(Debug)]
pub(super) struct Maglev {
    size: u32,
    table: MembershipCache<Box<[u16]>>,
}

impl Maglev {
    pub(super) fn new(settings: MaglevSettings) -> Self {
        Self { size: settings.size, table: MembershipCache::default() }
    }
}

impl Policy for Maglev {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.peek(now, request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let table = self.table.get_or_build(nodes, |members| table(&members, self.size as usize));
        let node = look_up(&table, request, nodes)?;
        Some(Choice { node, reason: request.reason_or(Reason::Hash) })
    }
}

/// The node at the request's place of a table; if that is excluded or closed, at the place of the hash stepped on, and
/// at last the first usable one from there.
pub(super) fn look_up(table: &[u16], request: &Request, nodes: ClusterView<'_>) -> Option<NodeId> {
    let usable = |node: &NodeId| nodes.is_open(*node) && !request.exclude.contains(*node);
    let mut hash = mix(request.target.0);
    for _ in 0..16 {
        let node = NodeId(*table.get(scale(hash, table.len() as u64) as usize)?);
        if usable(&node) {
            return Some(node);
        }
        hash = mix(hash);
    }
    let start = scale(hash, table.len() as u64) as usize;
    let places = table[start..].iter().chain(&table[..start]).map(|node| NodeId(*node));
    // Every node that is in no place is new since the table was made.
    places.into_iter().find(usable).or_else(|| nodes.least_without(0, |node| !usable(&node)))
}

/// The table for these nodes; empty if there are none.
fn table(members: &[OpenNode], size: usize) -> Box<[u16]> {
    let heaviest = u64::from(members.iter().map(|member| member.weight_milli).max().unwrap_or(0));
    if heaviest == 0 {
        return Box::default();
    }
    let modulus = size as u64;
    let mut table = vec![NONE; size];
    let mut walkers: Vec<Walker> = members.iter().map(|member| Walker::new(member, modulus)).collect();
    let mut left = size;
    // The heaviest node takes a place in every round.
    for round in 1..=modulus {
        for walker in &mut walkers {
            // Turns so far, times the heaviest weight, may not pass the rounds times the node's own.
            if (walker.taken + 1) * heaviest > round * walker.weight {
                continue;
            }
            let place = walker.next_free(&table, modulus);
            table[place] = walker.node.0;
            walker.taken += 1;
            left -= 1;
            if left == 0 {
                return table.into_boxed_slice();
            }
        }
    }
    table.into_boxed_slice()
}

/// A node on its way through its permutation.
struct Walker {
    node: NodeId,
    weight: u64,
    at: u64,
    skip: u64,
    taken: u64,
}

impl Walker {
    fn new(member: &OpenNode, modulus: u64) -> Self {
        let (h1, h2) = (member.identity, mix(member.identity));
        Self {
            node: member.node,
            weight: u64::from(member.weight_milli),
            at: h1 % modulus,
            skip: h2 % (modulus - 1) + 1,
            taken: 0,
        }
    }

    /// The next place of the permutation that is free; there is one.
    fn next_free(&mut self, table: &[u16], modulus: u64) -> usize {
        loop {
            let place = self.at as usize;
            self.at += self.skip;
            if self.at >= modulus {
                self.at -= modulus;
            }
            if table[place] == NONE {
                return place;
            }
        }
    }
}

/// Whether `n` is a prime. O(sqrt n).
fn is_prime(n: u32) -> bool {
    let n = u64::from(n);
    n > 1 && (2..).take_while(|divisor| divisor * divisor <= n).all(|divisor| n % divisor != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(slot: u16, weight_milli: u32) -> OpenNode {
        OpenNode { node: NodeId(slot), identity: mix(1_000 + u64::from(slot)), weight_milli }
    }

    fn counts(table: &[u16], n: usize) -> Vec<usize> {
        (0..n).map(|slot| table.iter().filter(|node| usize::from(**node) == slot).count()).collect()
    }

    #[test]
    fn the_tables_figures_of_the_paper() {
        // Table 1 of the paper: M = 7, permutations (offset, skip) = (3, 4), (0, 2), (3, 1) fill as 1 0 1 0 2 2 0.
        let walker = |slot, at, skip| Walker { node: NodeId(slot), weight: 1, at, skip, taken: 0 };
        let mut walkers = [walker(0, 3, 4), walker(1, 0, 2), walker(2, 3, 1)];
        let mut table = [NONE; 7];
        for turn in 0..7 {
            let walker = &mut walkers[turn % 3];
            let place = walker.next_free(&table, 7);
            table[place] = walker.node.0;
        }
        assert_eq!(table, [1, 0, 1, 0, 2, 2, 0]);
    }

    #[test]
    fn primes_are_told_from_others() {
        let primes: Vec<u32> = (0..30).filter(|n| is_prime(*n)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert!(is_prime(65_537) && is_prime(5_000_011) && !is_prime(65_537 * 3));
    }

    proptest! {
        /// Equal nodes differ by one place at most; unequal ones are within two of their share by weight.
        #[test]
        fn places_follow_weights(weights in prop::collection::vec(1_u32..6, 1..40)) {
            let members: Vec<OpenNode> =
                (0_u16..).zip(&weights).map(|(slot, weight)| member(slot, weight * 1000)).collect();
            let table = table(&members, 4_099);
            let sum: u32 = weights.iter().sum();
            for (count, weight) in counts(&table, weights.len()).into_iter().zip(&weights) {
                let share = 4_099.0 * f64::from(*weight) / f64::from(sum);
                prop_assert!((count as f64 - share).abs() <= f64::from(*weight) + 1.0, "{} of {}", count, share);
            }
        }
    }
}
