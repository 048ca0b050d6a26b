//! The two prices that ward-analysis compares: of a handoff and of a byte from disk.

use serde::{Deserialize, Serialize};

use super::frequency::Frequencies;

/// The prices and their origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WardCosts {
    /// Processing time of one handoff in us (*ForwardOH* of the paper), at least 0.
    pub forward_us: f64,
    /// Additional time of a byte from disk compared with memory, in us (*DiskOH* of the paper), at least 0.
    pub disk_us_per_byte: f64,
    /// Origin of the prices, for readers of a table.
    pub origin: String,
}

impl WardCosts {
    /// The names for [`WardCosts::by_name`].
    pub const NAMES: [&'static str; 2] = ["ward01", "lard98"];

    /// Returns the prices of the WARD paper (section 3.2). A handoff takes 276 us. The disk serves 100 files
    /// of 14.5 KB per second and the memory 1,000. Therefore a byte costs (10,000 - 1,000) / (14.5 * 1,024) =
    /// 0.606 us.
    pub fn ward01() -> Self {
        Self { forward_us: 276.0, disk_us_per_byte: 0.606, origin: "ward01".to_owned() }
    }

    /// Returns the prices of the LARD paper (ASPLOS 1998, sections 3.1 and 6.2). A handoff takes 194 us. A
    /// disk read takes 28 ms, 410 us for each 4 KB, and 14 ms for each 44 KB after the first.
    ///
    /// This time is not proportional to the bytes. Therefore the price of a byte is the time to read every
    /// target of the log once, divided by their total bytes.
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

    /// Returns the prices of a named cost model, or `None` for an unknown name.
    pub fn by_name(name: &str, log: &Frequencies) -> Option<Self> {
        match name {
            "ward01" => Some(Self::ward01()),
            "lard98" => Some(Self::lard98(log)),
            _ => None,
        }
    }

    /// Returns whether both prices are finite and not negative.
    pub(crate) fn is_valid(&self) -> bool {
        [self.forward_us, self.disk_us_per_byte].iter().all(|price| price.is_finite() && *price >= 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ward::Frequency;

    #[test]
    fn the_lard_disk_price_is_the_read_time_per_byte() {
        let row = |target, bytes| Frequency { target, requests: 1, bytes };
        let of = |rows: &[Frequency]| {
            WardCosts::lard98(&Frequencies::from_rows(rows.iter().copied())).disk_us_per_byte
        };
        // 8 KB take 28,000 + 2 * 410 us. 64 KB take one more seek and 16 blocks.
        assert_eq!(of(&[row(0, 8_192)]), 28_820.0 / 8_192.0);
        assert_eq!(of(&[row(0, 8_192), row(1, 65_536)]), (28_820.0 + 48_560.0) / 73_728.0);
        assert_eq!(of(&[]), 0.0);
    }

    #[test]
    fn every_name_has_costs() {
        let log = Frequencies::from_rows([Frequency { target: 0, requests: 1, bytes: 1 }]);
        for name in WardCosts::NAMES {
            let costs = WardCosts::by_name(name, &log).expect("a known name");
            assert!(costs.is_valid() && costs.origin.starts_with(name));
        }
        assert_eq!(WardCosts::by_name("none", &log), None);
    }
}
