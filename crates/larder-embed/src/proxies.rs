//! Common parts of modules for proxies: policies that no proxy can serve, and weights.

use larder_core::{PolicyKind, Weight};

/// Returns what a policy needs and a proxy cannot supply; `None` if requests, replies and membership are enough.
pub const fn unavailable_input(policy: PolicyKind) -> Option<&'static str> {
    match policy {
        PolicyKind::Cap | PolicyKind::CapLoad | PolicyKind::Static => {
            Some("it needs the service class of each request")
        }
        PolicyKind::Ward | PolicyKind::Part => {
            Some("it needs a routing table, and the node at which a request arrived")
        }
        PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc => {
            Some("it needs load reports of the nodes")
        }
        PolicyKind::LbGc => Some("it needs each change of the nodes' caches"),
        PolicyKind::Random
        | PolicyKind::Rr
        | PolicyKind::Wrr
        | PolicyKind::LeastConn
        | PolicyKind::Hash
        | PolicyKind::Lard
        | PolicyKind::LardR
        | PolicyKind::LardCost
        | PolicyKind::Bounded
        | PolicyKind::Maglev
        | PolicyKind::Rendezvous
        | PolicyKind::P2c
        | PolicyKind::PeakEwma => None,
    }
}

/// The largest weight, in 1/1000; see [`Weight::from_milli`].
const WEIGHT_MILLI_MAX: u64 = 100_000;

/// Returns a node's weight. The weights of proxies have no upper bound, and only their ratio counts. Where they exceed the range of
/// [`Weight`], the heaviest node gets its maximum.
pub fn relative_weight(weight: u32, heaviest: u32) -> Weight {
    let (weight, heaviest) = (u64::from(weight), u64::from(heaviest));
    let most = WEIGHT_MILLI_MAX;
    let milli = if heaviest * 1_000 <= most { weight * 1_000 } else { (weight * most / heaviest).max(1) };
    u32::try_from(milli).ok().and_then(Weight::from_milli).unwrap_or(Weight::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_their_ratio() {
        assert_eq!(relative_weight(1, 1), Weight::ONE);
        assert_eq!(relative_weight(3, 100).milli(), 3_000);
        let [half, whole] = [500, 1_000].map(|weight| relative_weight(weight, 1_000).milli());
        assert_eq!((half, whole), (50_000, 100_000));
        assert_eq!(relative_weight(1, u32::MAX).milli(), 1);
    }
}
