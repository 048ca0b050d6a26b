//! `static`: static partitioning, the dedicated servers with which CAP is compared (Casalicchio and Colajanni, WWW
//! 2001,
//! section 4.1).
//!
//! The nodes are divided among the [classes](crate::class::ServiceClass) by given shares, ideally those of their arrivals. A
//! class uses only its own nodes, in turn.
//!
//! ```text
//! nodes[c] = 1 for each class c with a share; every further node goes to the class with the largest
//!            share[c] / (2 nodes[c] + 1)                                    (Sainte-Lague's rule)
//! on request r: c = class(r); the next of c's nodes
//! ```
//!
//! The paper does not define the following. Sainte-Lague's rule keeps the division almost proportional; ties go to the
//! earlier class. Classes take the slots in their order. A node that fails or returns therefore does not change the
//! division; only a slot never used before does. If there are fewer nodes than classes with a share, class number k uses
//! slot k modulo n. A class without a share uses all nodes. If no node of the class takes requests, or all have been
//! tried, the request goes to any node in turn. It is served rather than refused.
//!
//! Parameters: `static_shares`, each 0 to 1,000,000 (all 1: equal parts). State: four counters and the division. Cost: O(1)
//! expected, O(n) if most nodes are closed.

use super::description::PolicyDescription;
use super::membership_cache::MembershipCache;
use super::rr::TurnCounter;
use super::{Choice, LearnedState, Policy, Reason, Request, cap};
use crate::class::ServiceClass;
use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// The description of `static`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("static", "each node in turn among those set aside for the service class");

/// The slots of each class, counted within the route's group.
type Division = [Range<usize>; ServiceClass::COUNT];

/// The parameters of `static`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticSettings {
    /// The shares by which the nodes are divided among the classes, in the order of [`ServiceClass::ALL`]; only
    /// their ratios count. A class of share 0 has no own nodes and uses all of them. Each 0 to 1,000,000; default
    /// all 1.
    pub shares: [u32; ServiceClass::COUNT],
}

impl StaticSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let share = self.shares.into_iter().max().unwrap_or(0);
        in_range("static_shares", share.into(), share <= 1_000_000, "0 to 1000000 each")
    }
}

impl Default for StaticSettings {
    fn default() -> Self {
        Self { shares: [1; ServiceClass::COUNT] }
    }
}

#[derive(Debug)]
pub(super) struct StaticPartition {
    shares: [u32; ServiceClass::COUNT],
    turns: [TurnCounter; ServiceClass::COUNT],
    partition: MembershipCache<ClassPartition>,
}

/// The group's nodes, including closed ones, and the range of each class's own nodes.
#[derive(Debug)]
struct ClassPartition {
    all: Box<[NodeId]>,
    own: Division,
}

impl StaticPartition {
    pub(super) fn new(settings: StaticSettings) -> Self {
        Self { shares: settings.shares, turns: cap::turn_counters(), partition: MembershipCache::default() }
    }

    fn partition(&self, nodes: ClusterView<'_>) -> ClassPartition {
        let slots = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
        let all: Box<[NodeId]> = slots.filter(|node| nodes.rank(*node).is_some()).collect();
        ClassPartition { own: divide(self.shares, all.len()), all }
    }

    fn next(&self, request: &Request, nodes: ClusterView<'_>, take: bool) -> Option<Choice> {
        let turn = &self.turns[request.class.index()];
        let partition = self.partition.get_or_build(nodes, |_| self.partition(nodes));
        let untried = |node| !request.exclude.contains(node);
        let own = &partition.all[partition.own[request.class.index()].clone()];
        // This is checked first, so that a turn is read once.
        let some = own.iter().any(|node| nodes.is_open(*node) && untried(*node));
        let (node, passed) = turn.next_of(if some { own } else { &partition.all }, nodes, untried)?;
        if take {
            turn.advance(nodes, passed);
        }
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }
}

impl Policy for StaticPartition {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.next(request, nodes, true).map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.next(request, nodes, false)
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        TurnCounter::learned_state(&self.turns)
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        TurnCounter::restore(&self.turns, saved);
    }
}

/// Divides `slots` slots among the classes.
fn divide(shares: [u32; ServiceClass::COUNT], slots: usize) -> Division {
    let sharing: Vec<usize> = (0..shares.len()).filter(|class| shares[*class] > 0).collect();
    let mut division: Division = core::array::from_fn(|_| 0..slots);
    if slots < sharing.len() {
        for (place, class) in sharing.into_iter().enumerate().filter(|_| slots > 0) {
            division[class] = place % slots..place % slots + 1;
        }
        return division;
    }
    let mut counts = [0_u64; ServiceClass::COUNT];
    sharing.iter().for_each(|class| counts[*class] = 1);
    for _ in sharing.len()..slots {
        // share / (2 count + 1), compared without a division; the first of equals wins.
        let better = |best: usize, class: usize| {
            let left = u64::from(shares[class]) * (2 * counts[best] + 1);
            let right = u64::from(shares[best]) * (2 * counts[class] + 1);
            if left > right { class } else { best }
        };
        let Some(next) = sharing.iter().copied().reduce(better) else { break };
        counts[next] += 1;
    }
    let mut from = 0;
    for class in sharing {
        let to = from + counts[class] as usize;
        division[class] = from..to;
        from = to;
    }
    division
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher, Settings};
    use crate::id::TargetId;
    use crate::nodes::NodeSpec;
    use crate::policy::policy_tests::started;
    use crate::policy::{PolicyKind, PolicySettings};
    use ServiceClass::{Cb, Db, Dcb, N};

    fn counts(shares: [u32; 4], slots: usize) -> [usize; 4] {
        divide(shares, slots).map(|range| range.len())
    }

    #[test]
    fn nodes_are_divided_by_share_and_every_class_gets_one() {
        assert_eq!(counts([60, 40, 0, 0], 10), [6, 4, 10, 10], "without a share: all");
        assert_eq!(counts([1, 1, 1, 1], 8), [2, 2, 2, 2]);
        assert_eq!(counts([90, 5, 5, 0], 16), [14, 1, 1, 16], "14.4, 0.8, 0.8 would be exact");
        assert_eq!(counts([1, 0, 0, 0], 3), [3, 3, 3, 3]);
        assert_eq!(counts([0; 4], 3), [3; 4]);
    }

    #[test]
    fn partition_is_disjoint_and_complete() {
        for slots in 4..70 {
            let partition = divide([600, 200, 100, 100], slots);
            let ends: Vec<usize> = partition.iter().flat_map(|part| [part.start, part.end]).collect();
            assert_eq!((ends[0], ends[7]), (0, slots));
            assert!(
                ends[1..7].chunks(2).all(|pair| pair[0] == pair[1])
                    && partition.iter().all(|part| !part.is_empty())
            );
        }
    }

    #[test]
    fn fewer_nodes_than_classes_are_shared() {
        assert_eq!(divide([1, 1, 1, 1], 3), [0..1, 1..2, 2..3, 0..1]);
        assert_eq!(divide([1, 1, 1, 1], 0), [0..0, 0..0, 0..0, 0..0]);
    }

    #[test]
    fn class_uses_its_own_nodes_and_others_only_if_none_is_usable() {
        let settings = Settings {
            policy: PolicyKind::Static,
            admission: Admission::Unlimited,
            policies: PolicySettings {
                static_partition: StaticSettings { shares: [2, 1, 1, 0] },
                ..PolicySettings::default()
            },
            ..Settings::default()
        };
        let specs = ["a", "b", "c", "d"].map(NodeSpec::named);
        let dispatcher = Dispatcher::new(settings, &specs).expect("the settings are in range");
        let send = |class| {
            started(dispatcher.arrive(Time::ZERO, Request::new(TargetId(1)).with_class(class))).index()
        };
        assert_eq!([N, N, N, Db, Cb, Db, N].map(send), [0, 1, 0, 2, 3, 2, 1]);
        assert_eq!([Dcb, Dcb, Dcb, Dcb].map(send), [0, 1, 2, 3]);
        dispatcher.fail(Time::ZERO, NodeId(2), &mut Vec::new());
        assert_eq!([Db, N, N].map(send), [3, 0, 1], "DB's only node is down; N keeps its own");
        dispatcher.recover(Time::ZERO, NodeId(2), &mut Vec::new());
        assert_eq!([Db, Db].map(send), [2, 2]);
    }
}
