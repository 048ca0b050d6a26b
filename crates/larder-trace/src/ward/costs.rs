//! What a handoff and a byte from disk cost: the two prices that ward-analysis weighs against each other.

use serde::{Deserialize, Serialize};

use super::frequency::Frequencies;

/// The prices, and where they come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WardCosts {
    /// Processing time of one handoff in microseconds (the paper's *ForwardOH*), at least 0.
    pub forward_us: f64,
    /// Extra time that a byte takes from disk over memory, in microseconds (the paper's *DiskOH*), at least 0.
    pub disk_us_per_byte: f64,
    /// Where the two come from, for whoever reads a table made with them.
    pub origin: String,
}

impl WardCosts {
    /// The names of [`WardCosts::by_name`].
    pub const NAMES: [&'static str; 2] = ["ward01", "lard98"];

    /// The WARD paper's (section 3.2): a handoff of 276 us, and a disk that serves files of 14.5 KB at 100 a second
    /// where memory serves 1,000, which makes (10,000 - 1,000) / (14.5 * 1,024) = 0.606 us a byte.
    pub fn ward01() -> Self {
        Self { forward_us: 276.0, disk_us_per_byte: 0.606, origin: "ward01".to_owned() }
    }

    /// The LARD paper's (ASPLOS 1998, sections 3.1 and 6.2): a handoff of 194 us, and a disk that takes 28 ms, 410 us
    /// for each 4 KB and 14 ms for each 44 KB beyond the first. Its time is no multiple of the bytes, so the price of
    /// a byte is that of reading every target of the log once, divided by their bytes.
    pub fn lard98(log: &Frequencies) -> Self {
        let (mut micros, mut bytes) = (0.0, 0.0);
        for row in log.rows() {
            let seeks = row.bytes.div_ceil(44 << 10).max(1) - 1;
            micros += 28_000.0 + 14_000.0 * seeks as f64 + 410.0 * row.bytes.div_ceil(4 << 10) as f64;
            bytes += row.bytes as f64;
        }
        let disk_us_per_byte = if bytes > 0.0 { micros / bytes } else { 0.0 };
        Self {
            forward_us: 194.0,
            disk_us_per_byte,
            origin: "lard98, averaged over the log's targets".to_owned(),
        }
    }

    /// The prices of a named cost model; `None` if there is none of that name.
    pub fn by_name(name: &str, log: &Frequencies) -> Option<Self> {
        match name {
            "ward01" => Some(Self::ward01()),
            "lard98" => Some(Self::lard98(log)),
            _ => None,
        }
    }

    /// Whether both prices are finite and not negative.
    pub(crate) fn is_valid(&self) -> bool {
        [self.forward_us, self.disk_us_per_byte].iter().all(|price| price.is_finite() && *price >= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ward::Frequency;

    #[test]
    fn a_byte_of_the_lard_disk_costs_what_its_reads_take() {
        let row = |target, bytes| Frequency { target, requests: 1, bytes };
        let of = |rows: &[Frequency]| {
            WardCosts::lard98(&Frequencies::from_rows(rows.iter().copied())).disk_us_per_byte
        };
        // 8 KB: 28,000 + 2 * 410 us. 64 KB: one more seek and 16 blocks.
        assert_eq!(of(&[row(0, 8_192)]), 28_820.0 / 8_192.0);
        assert_eq!(of(&[row(0, 8_192), row(1, 65_536)]), (28_820.0 + 48_560.0) / 73_728.0);
        assert_eq!(of(&[]), 0.0);
    }

    #[test]
    fn every_name_is_known() {
        let log = Frequencies::from_rows([Frequency { target: 0, requests: 1, bytes: 1 }]);
        for name in WardCosts::NAMES {
            let costs = WardCosts::by_name(name, &log).expect("a known name");
            assert!(costs.is_valid() && costs.origin.starts_with(name));
        }
        assert_eq!(WardCosts::by_name("none", &log), None);
    }
}
