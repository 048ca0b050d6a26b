//! Deterministic random numbers.

/// Hashes a number with the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) const fn draw(value: u64) -> u64 {
    let z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
