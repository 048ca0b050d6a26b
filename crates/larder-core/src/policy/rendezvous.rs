//! `rendezvous`: highest random weight (Thaler and Ravishankar, IEEE/ACM Transactions on Networking 6(1), 1998):
//! every node has
//! a random weight for every target, and the node with the highest weight serves.
//!
//! ```text
//! place(t) = floor(h(t) S / 2^64)                 S places, a power of two
//! u(n, p)  = 1 - (rank of p in n's own permutation of the places + 1/2) / S
//! score    = -ln(u(n, p)) / weight(n);            the least score serves p, and so the targets of p
//! ```
//!
//! When a node leaves, only its places move, each to its second choice. When a node joins, it takes places from all nodes in
//! proportion, and no other place moves. A change of weight moves places only to or from that node. This is the minimum, and the
//! proven properties of highest random weight apply here to places instead of targets.
//!
//! Places are our addition. Scoring n nodes for each request takes microseconds at a thousand nodes. The winner of a place
//! depends on the membership only, so it is stored in a table that requests read. The scores of all n S pairs need not be
//! computed either: a node's random weights are drawn without replacement, as a permutation of the places derived from its name.
//! From the best rank on, each node offers itself to places in the order of its own scores. The search ends when every place has
//! had an offer below the scores still to come: about S ln S steps, for any n. -ln(u) / w is the usual weighted form (the least
//! of exponential variables, won in proportion to w). It is computed to the same bits on every machine ([`crate::curve`]). Equal
//! scores go to the lower hash of the name.
//!
//! The cost of places is less evenness: with n equal nodes a share varies by sqrt(n / S) of itself, 0.8 % at 16 and 6 % at 1,000
//! nodes with the default, about as much as with a ring of 260 points per node. Retries as in [`super::maglev`].
//!
//! Parameters: `places` S (262,144; a power of two). State: the table, 2 bytes a place. Cost: O(1); O(S log S) on a change of
//! membership or weights.

use super::description::PolicyDescription;
use super::maglev::look_up;
use super::membership_cache::{MembershipCache, OpenNode};
use super::{Choice, Policy, Reason, Request};
use crate::curve::ln;
use crate::nodes::{ClusterView, mix};
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The description of `rendezvous`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_target("rendezvous", "the node with the highest random weight for the target");

/// The parameters of `rendezvous`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousSettings {
    /// The number of places that are shared out among the nodes. A power of two, 256 to 16,777,216; default 262,144.
    /// A share varies by sqrt(nodes / places) of itself.
    pub places: u32,
}

impl RendezvousSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let ok = self.places.is_power_of_two() && (1 << 8..=1 << 24).contains(&self.places);
        in_range("rendezvous_places", self.places.into(), ok, "a power of two from 256 to 16777216")
    }
}

impl Default for RendezvousSettings {
    fn default() -> Self {
        Self { places: 1 << 18 }
    }
}

#[derive(Debug)]
pub(super) struct Rendezvous {
    places: u32,
    table: MembershipCache<Box<[u16]>>,
}

impl Rendezvous {
    pub(super) fn new(settings: RendezvousSettings) -> Self {
        Self { places: settings.places, table: MembershipCache::default() }
    }
}

impl Policy for Rendezvous {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.peek(now, request, nodes).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let table = self.table.get_or_build(nodes, |members| table(&members, self.places.ilog2()));
        let node = look_up(&table, request, nodes)?;
        Some(Choice { node, reason: request.reason_or(Reason::Hash) })
    }
}

/// Returns the winners of 2^`bits` places; empty if there are no nodes.
fn table(members: &[OpenNode], bits: u32) -> Box<[u16]> {
    let sum: f64 = members.iter().map(|member| f64::from(member.weight_milli)).sum();
    if members.is_empty() {
        return Box::default();
    }
    let places = 1_usize << bits;
    let mut scores = Scores { places, known: Vec::new() };
    let mut best = vec![(f64::INFINITY, u16::MAX); places];
    let mut cursors: Vec<(Permutation, u32, f64)> = members
        .iter()
        .map(|member| (Permutation::new(member.identity, bits), 0, f64::from(member.weight_milli)))
        .collect();
    // A round covers a range of scores in which a quarter of the places get an offer.
    let (mut left, mut until) = (places, 0.0);
    while left > 0 {
        until += 0.25 / sum;
        for (member, (permutation, rank, weight)) in members.iter().zip(&mut cursors) {
            while let Some(score) = scores.of(*rank).map(|score| score / *weight).filter(|s| *s < until) {
                let offer = &mut best[permutation.place(*rank)];
                left -= usize::from(offer.1 == u16::MAX);
                if score < offer.0 {
                    *offer = (score, member.node.0);
                }
                *rank += 1;
            }
        }
    }
    best.into_iter().map(|(_, node)| node).collect()
}

/// -ln(u) of each rank, computed on demand.
struct Scores {
    places: usize,
    known: Vec<f64>,
}

impl Scores {
    /// Returns the score of a rank; `None` beyond the last rank.
    fn of(&mut self, rank: u32) -> Option<f64> {
        while self.known.len() <= rank as usize && self.known.len() < self.places {
            self.known.push(-ln(1.0 - (self.known.len() as f64 + 0.5) / self.places as f64));
        }
        self.known.get(rank as usize).copied()
    }
}

/// A permutation of 2^bits places: three rounds of invertible steps.
struct Permutation {
    mask: u32,
    shift: u32,
    steps: [(u32, u32); 3],
}

impl Permutation {
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a hash")]
    fn new(identity: u64, bits: u32) -> Self {
        let step = |round| {
            let hash = mix(identity ^ mix(round));
            (hash as u32 | 1, (hash >> 32) as u32)
        };
        Self { mask: (1 << bits) - 1, shift: bits.div_ceil(2), steps: [step(1), step(2), step(3)] }
    }

    /// Returns the place of a rank.
    fn place(&self, rank: u32) -> usize {
        let undoable = |x: u32, (factor, summand): (u32, u32)| {
            let x = x.wrapping_mul(factor).wrapping_add(summand) & self.mask;
            x ^ x >> self.shift
        };
        self.steps.into_iter().fold(rank, undoable) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use proptest::prelude::*;

    fn members(weights: &[u32]) -> Vec<OpenNode> {
        let member = |(slot, weight): (u16, &u32)| OpenNode {
            node: NodeId(slot),
            identity: mix(77 + u64::from(slot)),
            weight_milli: *weight,
        };
        (0..).zip(weights).map(member).collect()
    }

    /// Returns the winner of a place by the definition, which computes and compares all scores.
    fn by_definition(members: &[OpenNode], bits: u32) -> Vec<u16> {
        let places = 1_usize << bits;
        let mut best = vec![(f64::INFINITY, u16::MAX); places];
        for member in members {
            let permutation = Permutation::new(member.identity, bits);
            for rank in 0..places as u32 {
                let u = 1.0 - (f64::from(rank) + 0.5) / places as f64;
                let score = -ln(u) / f64::from(member.weight_milli);
                let offer = &mut best[permutation.place(rank)];
                if score < offer.0 {
                    *offer = (score, member.node.0);
                }
            }
        }
        best.into_iter().map(|(_, node)| node).collect()
    }

    #[test]
    fn permutation_reaches_every_place_once() {
        for bits in 8..=18 {
            let permutation = Permutation::new(mix(bits.into()), bits);
            let mut places: Vec<usize> = (0..1 << bits).map(|rank| permutation.place(rank)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..1 << bits), "{bits} bits");
        }
    }

    #[test]
    fn shares_are_even_and_choices_independent() {
        let n = 40;
        let table = table(&members(&[1000; 40]), 16);
        let without_0 = super::table(&members(&[1000; 40])[1..], 16);
        let share = 65_536.0 / f64::from(n);
        // The places of node 0 go to the other nodes evenly: the second choices are as random as the first.
        let lost = table.iter().filter(|node| **node == 0).count() as f64 / 39.0;
        let (mut chi_first, mut chi_second) = (0.0, 0.0);
        for node in 0..n as u16 {
            let count = table.iter().filter(|at| **at == node).count() as f64;
            chi_first += (count - share).powi(2) / share;
            if node > 0 {
                let gained = without_0.iter().filter(|at| **at == node).count() as f64 - count;
                chi_second += (gained - lost).powi(2) / lost;
            }
        }
        // Five standard deviations of chi-square with 39 and 38 degrees of freedom.
        assert!(chi_first < 39.0 + 5.0 * 78.0_f64.sqrt(), "{chi_first}");
        assert!(chi_second < 38.0 + 5.0 * 76.0_f64.sqrt(), "{chi_second}");
    }

    #[test]
    fn shares_follow_weights() {
        let table = table(&members(&[500, 1000, 1500, 3000]), 16);
        for (node, weight) in [(0, 500.0), (1, 1000.0), (2, 1500.0), (3, 3000.0)] {
            let share: f64 = weight / 6000.0;
            let count = table.iter().filter(|at| **at == node).count() as f64;
            let deviation = (65_536.0 * share * (1.0 - share)).sqrt();
            assert!((count - 65_536.0 * share).abs() < 5.0 * deviation, "node {node}: {count}");
        }
    }

    proptest! {
        /// The search finds the winners of the definition, and a change moves places only from or to the changed
        /// node.
        #[test]
        fn table_agrees_with_the_definition(
            weights in prop::collection::vec(1_u32..20, 1..20),
            changed in any::<prop::sample::Index>(),
            to in 1_u32..20,
        ) {
            let mut nodes = members(&weights.iter().map(|weight| weight * 250).collect::<Vec<_>>());
            let before = table(&nodes, 10);
            prop_assert_eq!(&*before, &by_definition(&nodes, 10)[..]);
            let at = changed.index(nodes.len());
            nodes[at].weight_milli = to * 250;
            for (old, new) in before.iter().zip(&table(&nodes, 10)) {
                prop_assert!(old == new || *old == at as u16 || *new == at as u16);
            }
        }
    }
}
