//! Units as types, so that they cannot be confused.

use crate::curve::round;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// Returns `n` times 1,024 bytes (the papers' KB); saturates.
    pub const fn kib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 10))
    }

    /// Returns `n` times 2^20 bytes; saturates.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns a display of the size for a text that repeats user input.
    pub const fn exact(self) -> ExactBytes {
        ExactBytes(self)
    }
}

/// A size that is displayed as a user would write it: the shortest exact number with its unit, `256 MiB` or `1.5
/// GB`. The alternate form has no space, as in log fields and config files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactBytes(Bytes);

/// The largest number of characters of a number that is displayed exactly.
const EXACT_CHARS: usize = 5;

impl ExactBytes {
    /// Returns the shortest number with at most three digits after the point, and its unit. The larger unit wins a
    /// tie.
    fn shortest(self) -> Option<(String, &'static str)> {
        const UNITS: [(u64, &str); 8] = [
            (1 << 40, "TiB"),
            (1_000_000_000_000, "TB"),
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "KB"),
        ];
        let bytes = self.0.get();
        let exact = |(unit, name): (u64, &'static str)| {
            let thousandths = u128::from(bytes) * 1_000;
            let fits = bytes >= unit && thousandths.is_multiple_of(u128::from(unit));
            fits.then(|| (decimal(thousandths / u128::from(unit)), name))
        };
        UNITS.into_iter().filter_map(exact).min_by_key(|(number, _)| number.len())
    }
}

/// Formats thousandths as a decimal number: `1500` is `1.5`.
fn decimal(thousandths: u128) -> String {
    let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Display for ExactBytes {
    /// Writes the size. A size without a short exact text is rounded, as by [`Bytes`]; in the alternate form it is
    /// the plain number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.0.get().to_string();
        match (self.shortest(), f.alternate()) {
            (Some((number, unit)), true) if number.len() + unit.len() <= plain.len() => {
                write!(f, "{number}{unit}")
            }
            (_, true) => f.write_str(&plain),
            (Some((number, unit)), false) if number.len() <= EXACT_CHARS => write!(f, "{number} {unit}"),
            (_, false) => self.0.fmt(f),
        }
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
    /// Writes the size in decimal units with one digit: `16.8 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] =
            [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")];
        match UNITS.iter().find(|(size, _)| self.0 >= *size) {
            Some((size, name)) => write!(f, "{:.1} {name}", self.0 as f64 / *size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// The error of parsing a text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is not a size: write a number of bytes, or one with KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)",
    .0.escape_debug()
)]
pub struct ParseBytesError(String);

impl core::str::FromStr for Bytes {
    type Err = ParseBytesError;

    /// Parses `4096`, `16MB`, `1.5 GiB`. Letters may have either case; `K`, `M`, `G`, `T` alone are decimal.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let bad = || ParseBytesError(text.chars().take(40).collect());
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
        Ok(Self(round(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
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
    fn exact_display_repeats_the_written_size() {
        for text in ["256 MiB", "1.5 GiB", "18 MB", "1 GB", "4 KiB", "0.5 KB", "1000 MiB", "2.25 TB", "7 B"] {
            let bytes: Bytes = text.parse().unwrap();
            let expected = if text == "0.5 KB" { "500 B" } else { text };
            assert_eq!(bytes.exact().to_string(), expected);
        }
        assert_eq!(Bytes(113_244_563).exact().to_string(), "113.2 MB");
        let fields = [(1 << 28, "256MiB"), (1_001_000_000, "1001MB"), (113_244_563, "113244563"), (0, "0")];
        for (bytes, text) in fields {
            assert_eq!(format!("{:#}", Bytes(bytes).exact()), text);
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes(u64::MAX) + Bytes(2), Bytes(u64::MAX));
    }
}
