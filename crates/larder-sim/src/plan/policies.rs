//! The order of policies by simplicity, and their scaled settings.

use core::time::Duration;

use larder_core::PolicyKind;
use larder_core::dispatch::Settings;

/// The order of simplicity. Content-blind policies come first: those without load information, then those
/// with loads, then those with node reports. Policies that hash come next, then policies with a target map,
/// then policies that need reports, tables or cache events.
const SIMPLEST: [PolicyKind; PolicyKind::ALL.len()] = [
    PolicyKind::Rr,
    PolicyKind::Random,
    PolicyKind::LeastConn,
    PolicyKind::P2c,
    PolicyKind::Wrr,
    PolicyKind::PeakEwma,
    PolicyKind::Prequal,
    PolicyKind::Cap,
    PolicyKind::CapLoad,
    PolicyKind::Static,
    PolicyKind::WrrNum,
    PolicyKind::WrrTime,
    PolicyKind::Hash,
    PolicyKind::Rendezvous,
    PolicyKind::Maglev,
    PolicyKind::Bounded,
    PolicyKind::BoundedJump,
    PolicyKind::Lard,
    PolicyKind::LardR,
    PolicyKind::LardCost,
    PolicyKind::LardUtil,
    PolicyKind::Hacc,
    PolicyKind::Part,
    PolicyKind::Ward,
    PolicyKind::Lmetric,
    PolicyKind::LbGc,
];

/// Returns whether a policy looks at the requested target, and not only at its class.
pub(super) fn knows_contents(policy: &str) -> bool {
    let hash = simplicity(PolicyKind::Hash.name());
    simplicity(policy) >= hash
}

/// Returns the policy's rank of simplicity; `None` if there is no such policy.
pub(super) fn simplicity(policy: &str) -> Option<usize> {
    SIMPLEST.into_iter().position(|kind| kind.name() == policy)
}

/// Returns the settings for a sample in which all events take a `q`-th of their time. The periods and memory
/// times of the policies are shortened accordingly.
pub(super) fn scale_times(settings: &Settings, q: u32) -> Settings {
    let mut settings = settings.clone();
    let least = Duration::from_millis(1);
    let faster = |span: Duration| (span / q.max(1)).max(least.min(span));
    settings.replication_decay /= q.max(1);
    settings.t_gat = faster(settings.t_gat);
    let own = &mut settings.policies;
    own.hacc.period = faster(own.hacc.period);
    own.hacc.cooldown = faster(own.hacc.cooldown);
    own.peak_ewma.decay = faster(own.peak_ewma.decay).max(Duration::from_millis(100));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_rank() {
        for policy in PolicyKind::ALL {
            assert!(simplicity(policy.name()).is_some(), "{policy}");
        }
        assert_eq!(simplicity("lrad"), None);
        assert!(knows_contents("lard-r") && knows_contents("bounded") && knows_contents("ward"));
        assert!(!knows_contents("p2c") && !knows_contents("cap-load") && !knows_contents("lrad"));
    }

    #[test]
    fn times_are_scaled_with_the_sample_but_stay_positive() {
        let usual = Settings::default();
        assert_eq!(scale_times(&usual, 1), usual);
        let fast = scale_times(&usual, 10);
        assert_eq!((fast.replication_decay, fast.t_gat), (Duration::from_secs(2), Duration::from_secs(1)));
        assert!(scale_times(&usual, 1_000_000).validate().is_ok());
    }
}
