//! Weights of proxies.

use larder_core::Weight;

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
