//! The logarithm, the exponential function and rounding, computed from the four basic operations.
//!
//! The standard library takes them from the platform, and their last bits differ between machines. Decisions must
//! not differ: two switches place alike, and a run repeats. IEEE 754 defines the basic operations to the bit, so
//! these functions give the same result everywhere. Their relative error is below 1e-12.

use core::f64::consts::{LN_2, SQRT_2};

/// Returns the natural logarithm of a finite `x` above 0. The result for any other `x` is undefined.
pub(crate) fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    // Subnormal numbers do not occur: all arguments are above 2^-60.
    let exponent = f64::from(u16::try_from(bits >> 52 & 0x7FF).unwrap_or(0)) - 1023.0;
    let mantissa = f64::from_bits(bits & MANTISSA | 1023 << 52);
    let (exponent, mantissa) =
        if mantissa > SQRT_2 { (exponent + 1.0, mantissa / 2.0) } else { (exponent, mantissa) };
    // ln m = 2 artanh z = 2 (z + z^3/3 + z^5/5 + ..), |z| < 0.172: eight terms leave 1e-14.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = ODD.iter().rev().fold(0.0, |sum, part| sum * square + part);
    exponent * LN_2 + 2.0 * z * series
}

/// 1, 1/3, 1/5 and so on.
const ODD: [f64; 8] = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0];

/// 1, 1/1!, 1/2! and so on.
const FACTORIALS: [f64; 12] = {
    let mut parts = [1.0; 12];
    let mut k = 1;
    while k < parts.len() {
        parts[k] = parts[k - 1] / k as f64;
        k += 1;
    }
    parts
};

/// Returns e^-x for x of 0 and more; 0 from 700 on.
pub(super) fn exp_minus(x: f64) -> f64 {
    if x.is_nan() || x >= 700.0 {
        return 0.0;
    }
    let x = x.max(0.0);
    // e^-x = 2^-n e^r with |r| below half of ln 2: twelve terms leave 1e-14.
    let halvings = (x * (1.0 / LN_2) + 0.5) as u64;
    let rest = halvings as f64 * LN_2 - x;
    let series = FACTORIALS.iter().rev().fold(0.0, |sum, part| sum * rest + part);
    series * f64::from_bits((1023 - halvings) << 52)
}

/// Returns the nearest whole number; a half is rounded up. 0 for NaN and below 0, `u64::MAX` from 2^64 on.
pub(crate) fn round(x: f64) -> u64 {
    let whole = x as u64;
    if x - whole as f64 >= 0.5 { whole.saturating_add(1) } else { whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_the_standard_library() {
        let near =
            [0.0, 0.5, 1.0, 2.5, 999.5, 1e9, 4_503_599_627_370_497.5, 9_007_199_254_740_993.0, 1e19, 1e20];
        for x in near.into_iter().flat_map(|x: f64| [x.next_down(), x, x.next_up(), -x]) {
            assert_eq!(round(x), x.round() as u64, "{x}");
        }
        assert_eq!(round(f64::NAN), 0);
        assert_eq!(round(f64::INFINITY), u64::MAX);
    }

    #[test]
    fn results_agree_with_the_platform_to_twelve_digits() {
        for step in 1..20_000_u32 {
            let x = f64::from(step) / 777.0;
            assert!((ln(x) - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1e-3), "ln {x}");
            assert!((exp_minus(x) - (-x).exp()).abs() <= 1e-12 * (-x).exp(), "exp -{x}");
        }
        assert_eq!((ln(1.0), exp_minus(0.0)), (0.0, 1.0));
        assert_eq!([exp_minus(1e9), exp_minus(f64::NAN), exp_minus(-1.0)], [0.0, 0.0, 1.0]);
    }
}
