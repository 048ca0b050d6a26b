//! Units that must not be mixed up.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` times 1,024 bytes (the papers' KB); saturates.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// `n` times 2^20 bytes; saturates.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        values.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    /// Decimal units, one digit: `16.8 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, name)) => write!(f, "{:.1} {name}", self.0 as f64 / *size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// What reading [`Bytes`] from a text that is no size gives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a size: write a number of bytes, or one with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
)]
pub struct BadSize(String);

impl core::str::FromStr for Bytes {
    type Err = BadSize;

    /// Reads `4096`, `16MB`, `1.5 GiB`. Letters may be in either case; `K`, `M`, `G`, `T` alone are decimal.
    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.chars().take(40).collect());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
        let number: f64 = trimmed[..split].trim().parse().map_err(|_| bad())?;
        let factor: f64 = match trimmed[split..].to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1_048_576.0,
            "gib" => 1_073_741_824.0,
            "tib" => 1_099_511_627_776.0,
            _ => return Err(bad()),
        };
        let bytes = number * factor;
        if !(0.0..18_446_744_073_709_551_615.0).contains(&bytes) {
            return Err(bad());
        }
        Ok(Self(bytes.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in
            [("0", 0), ("16MB", 16_000_000), ("1.5 GiB", 1_610_612_736), ("44 kib", 45_056), ("7 b", 7)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "MB", "-1", "1e400", "12 parsecs", "nan"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(2), Bytes(u64::MAX));
    }
}
