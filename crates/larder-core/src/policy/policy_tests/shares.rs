//! Tests of shares: of requests that stay, on nodes of different weight, and of keys, by chi-square.

use super::{dispatcher, dispatcher_of, started, target};
use crate::nodes::{NodeSpec, Weight};
use crate::policy::PolicyKind;
use crate::time::Time;

/// The rule by which requests for targets that are requested once are distributed, while none of them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShareRule {
    /// By weight, since load is divided by weight: within a few requests.
    ByLoad,
    /// By weight, in turn: within a few requests.
    ByTurn,
    /// By weight, at random or by hash: within five standard deviations.
    Drawn,
    /// Within the bound on loads, which is proportional to weight.
    Bounded,
    /// Equally in turn, regardless of weight.
    EqualTurns,
    /// Equally at random or by hash, regardless of weight.
    EqualDrawn,
}

/// Returns every policy's rule. The match has no default arm, so that a new policy must state its rule.
const fn shares(kind: PolicyKind) -> ShareRule {
    match kind {
        PolicyKind::Wrr
        | PolicyKind::LeastConn
        | PolicyKind::Lard
        | PolicyKind::LardR
        | PolicyKind::LardCost
        | PolicyKind::LardUtil
        | PolicyKind::Hacc
        | PolicyKind::Ward
        | PolicyKind::Part
        | PolicyKind::P2c
        | PolicyKind::PeakEwma
        | PolicyKind::Prequal
        | PolicyKind::Lmetric => ShareRule::ByLoad,
        PolicyKind::WrrNum | PolicyKind::WrrTime => ShareRule::ByTurn,
        PolicyKind::Maglev | PolicyKind::Rendezvous => ShareRule::Drawn,
        PolicyKind::Bounded | PolicyKind::BoundedJump | PolicyKind::CapLoad => ShareRule::Bounded,
        PolicyKind::Rr | PolicyKind::Cap | PolicyKind::Static => ShareRule::EqualTurns,
        PolicyKind::Random | PolicyKind::Hash | PolicyKind::LbGc => ShareRule::EqualDrawn,
    }
}

#[test]
fn shares_of_lasting_requests_follow_the_policys_rule() {
    const REQUESTS: u32 = 8_000;
    let weights = [0.5, 1.0, 1.0, 2.5];
    for kind in PolicyKind::ALL {
        let spec = |(i, weight): (usize, f64)| NodeSpec {
            weight: Weight::from_f64(weight).expect("in range"),
            ..NodeSpec::named(format!("n{i}"))
        };
        let specs: Vec<NodeSpec> = weights.into_iter().enumerate().map(spec).collect();
        let dispatcher = dispatcher_of(kind, &specs);
        let mut counts = [0_u32; 4];
        for i in 0..u64::from(REQUESTS) {
            // These targets are not in the tests' routing table.
            counts[started(dispatcher.arrive(Time::ZERO, target(40 + i))).index()] += 1;
        }
        let shares = shares(kind);
        for (count, weight) in counts.into_iter().zip(weights) {
            let equal = matches!(shares, ShareRule::EqualTurns | ShareRule::EqualDrawn);
            let share = if equal { 0.25 } else { weight / 5.0 };
            let (count, mean) = (f64::from(count), f64::from(REQUESTS) * share);
            let ok = match shares {
                // Pairs keep nodes within a few requests of each other, and the rest within one.
                ShareRule::ByLoad => (count - mean).abs() <= 8.0 * weight.max(1.0),
                ShareRule::ByTurn | ShareRule::EqualTurns => (count - mean).abs() <= 4.0,
                ShareRule::Drawn | ShareRule::EqualDrawn => {
                    (count - mean).abs() <= 5.0 * (mean * (1.0 - share)).sqrt() + 0.01 * mean
                }
                // The default of both factors; `cap-load` has a slack of two in addition, by weight.
                ShareRule::Bounded => {
                    count <= (1.25 * mean + 2.0 * weight).ceil() + 1.0 && count >= 0.5 * mean
                }
            };
            assert!(ok, "{kind}: {counts:?}");
        }
    }
}

#[test]
fn keys_are_evenly_distributed_by_chi_square() {
    // Chi-square of 100,000 keys over 16 nodes; 15 degrees of freedom: mean 15, deviation sqrt 30.
    const KEYS: u64 = 100_000;
    for kind in [PolicyKind::Hash, PolicyKind::Maglev, PolicyKind::Rendezvous, PolicyKind::Random] {
        let dispatcher = dispatcher(kind, 16);
        let mut counts = [0_u32; 16];
        for key in 0..KEYS {
            let node = started(dispatcher.arrive(Time::ZERO, target(40 + key)));
            counts[node.index()] += 1;
            dispatcher.finish(Time::ZERO, node, &mut Vec::new());
        }
        let mean = KEYS as f64 / 16.0;
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - mean).powi(2) / mean).sum();
        // The places of a table are drawn before the keys: their own variance adds keys / places.
        let places =
            if kind == PolicyKind::Rendezvous { 1.0 + KEYS as f64 / f64::from(1 << 18) } else { 1.0 };
        assert!(chi < (15.0 + 5.0 * 30.0_f64.sqrt()) * places, "{kind}: {chi} of {counts:?}");
    }
}
