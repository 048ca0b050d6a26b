//! `maglev`: Maglev hashing (Eisenbud et al., NSDI'16, section 3.4): a table with almost equally many entries per
//! node.
//!
//! ```text
//! for each node i:   offset = h1(name) mod M;  skip = h2(name) mod (M - 1) + 1
//!                    permutation_i[j] = (offset + j skip) mod M
//! in turn, each node takes the first entry of its permutation that is free, until all M are taken
//! on request t:      the node of entry floor(h(t) M / 2^64)
//! ```
//!
//! Shares of the entries differ by at most one, for all names. Consistency is slightly lower than that of a ring: when a node
//! joins or leaves, some entries move between other nodes too (section 5.3: few, if M is at least a hundred times the number of
//! nodes).
//!
//! Differences from the paper, and details it does not define: *weights* give a node more turns, as in Envoy. A node takes its
//! k-th entry in the round in which k reaches the round times its weight over the largest weight. The entry of a hash is found
//! by a multiplication instead of a remainder. Nodes take their turns in the order of their names' hashes, so that switches with
//! the same nodes agree. Only nodes that take requests have entries. A retry, and a request for a node that closed a moment ago,
//! rehashes the target. The paper's connection table is not needed, because a request is decided once.
//!
//! Parameters: `size` M (65,537, the paper's; a prime). State: the table, 2 bytes an entry. Cost: O(1); O(M log M) on a change
//! of membership or weights.

use super::description::PolicyDescription;
use super::membership_cache::{MembershipCache, OpenNode, scale};
use super::{Choice, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, mix};
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The description of `maglev`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_target("maglev", "the node that an evenly filled hash table names (Maglev)");

/// The value of a free entry.
const NONE: u16 = u16::MAX;

/// The parameters of `maglev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaglevSettings {
    /// The number of table entries. A prime, 101 to 5,000,011; default 65,537 (Maglev section 5.3). With a hundred
    /// times the number of nodes, shares are within 1 % of each other.
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

/// Returns the node of the request's table entry. If that node is excluded or closed, the target is rehashed up to
/// 16 times; after that the first usable node from there is returned.
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
    // A node without an entry joined after the table was built.
    places.into_iter().find(usable).or_else(|| nodes.least_without(0, |node| !usable(&node)))
}

/// Builds the table for these nodes; empty if there are none.
fn table(members: &[OpenNode], size: usize) -> Box<[u16]> {
    let heaviest = u64::from(members.iter().map(|member| member.weight_milli).max().unwrap_or(0));
    if heaviest == 0 {
        return Box::default();
    }
    let modulus = size as u64;
    let mut table = vec![NONE; size];
    let mut cursors: Vec<PermutationCursor> =
        members.iter().map(|member| PermutationCursor::new(member, modulus)).collect();
    let mut left = size;
    // The heaviest node takes an entry in every round.
    for round in 1..=modulus {
        for cursor in &mut cursors {
            // The number of turns, times the heaviest weight, may not exceed the number of rounds times the node's
            // weight.
            if (cursor.taken + 1) * heaviest > round * cursor.weight {
                continue;
            }
            let place = cursor.next_free(&table, modulus);
            table[place] = cursor.node.0;
            cursor.taken += 1;
            left -= 1;
            if left == 0 {
                return table.into_boxed_slice();
            }
        }
    }
    table.into_boxed_slice()
}

/// A node's progress through its permutation.
struct PermutationCursor {
    node: NodeId,
    weight: u64,
    at: u64,
    skip: u64,
    taken: u64,
}

impl PermutationCursor {
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

    /// Returns the next free entry of the permutation; there is one.
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

/// Returns whether `n` is a prime. O(sqrt n).
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
    fn table_matches_the_paper() {
        // Table 1 of the paper: M = 7, permutations (offset, skip) = (3, 4), (0, 2), (3, 1) fill as 1 0 1 0 2 2 0.
        let cursor = |slot, at, skip| PermutationCursor { node: NodeId(slot), weight: 1, at, skip, taken: 0 };
        let mut cursors = [cursor(0, 3, 4), cursor(1, 0, 2), cursor(2, 3, 1)];
        let mut table = [NONE; 7];
        for turn in 0..7 {
            let cursor = &mut cursors[turn % 3];
            let place = cursor.next_free(&table, 7);
            table[place] = cursor.node.0;
        }
        assert_eq!(table, [1, 0, 1, 0, 2, 2, 0]);
    }

    #[test]
    fn primes_are_recognised() {
        let primes: Vec<u32> = (0..30).filter(|n| is_prime(*n)).collect();
        assert_eq!(primes, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert!(is_prime(65_537) && is_prime(5_000_011) && !is_prime(65_537 * 3));
    }

    proptest! {
        /// Equal nodes differ by at most one entry; unequal ones are within two of their share by weight.
        #[test]
        fn entries_follow_weights(weights in prop::collection::vec(1_u32..6, 1..40)) {
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
