//! What `hacc` goes by.

use crate::dispatch::SettingsError;
use crate::dispatch::settings::{in_range, period};
use crate::nodes::LoadReport;
use crate::unit::Bytes;
use core::time::Duration;

/// The parameters of `hacc`. The weights and the period are the paper's (section 3.3), the rest is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaccSettings {
    /// Weight of the CPU in a node's load, in 1/1000. 0 to 1000; the paper: 0 for static files, 500 for Domino.
    pub w_cpu_permille: u16,
    /// Weight of the disk in a node's load, in 1/1000. 0 to 1000, not 0 with `w_cpu_permille`; the paper: 1000 for
    /// static files, 500 for Domino.
    pub w_disk_permille: u16,
    /// Bytes per second to and from disk that count as a fully loaded disk; 0 takes the share of time in which the disk
    /// was busy instead. Default 0.
    pub disk_full: Bytes,
    /// How often loads are compared. 1 ms to 1 h; default 200 ms.
    pub period: Duration,
    /// How much more loaded than the least loaded a node must be to shed documents, in 1/1000. 1 to 1000; default 200.
    pub margin_permille: u16,
    /// How much of the difference in load is moved, in 1/1000; at 500 the two loads meet. 1 to 1000; default 500.
    pub amount_permille: u16,
    /// How long an offload lasts, and how long its two nodes then take part in no other. 1 ms to 1 h; default 2 s, ten
    /// periods.
    pub cooldown: Duration,
}

impl HaccSettings {
    /// For a site of static files: the disk alone counts.
    pub const STATIC_FILES: Self = Self {
        w_cpu_permille: 0,
        w_disk_permille: 1000,
        disk_full: Bytes::ZERO,
        period: Duration::from_millis(200),
        margin_permille: 200,
        amount_permille: 500,
        cooldown: Duration::from_secs(2),
    };

    /// For Domino, a server of database views: CPU and disk count alike.
    pub const DOMINO: Self = Self { w_cpu_permille: 500, w_disk_permille: 500, ..Self::STATIC_FILES };

    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let weight = |name, value: u16| in_range(name, value.into(), value <= 1000, "0 to 1000");
        let share = |name, value: u16| in_range(name, value.into(), (1..=1000).contains(&value), "1 to 1000");
        weight("hacc.w_cpu_permille", self.w_cpu_permille)?;
        weight("hacc.w_disk_permille", self.w_disk_permille)?;
        let both = self.w_cpu_permille == 0 && self.w_disk_permille == 0;
        in_range("hacc.w_disk_permille", 0, !both, "above 0 where hacc.w_cpu_permille is 0")?;
        share("hacc.margin_permille", self.margin_permille)?;
        share("hacc.amount_permille", self.amount_permille)?;
        period("hacc.period", self.period)?;
        period("hacc.cooldown", self.cooldown)
    }

    /// The load that a report stands for, in 1/1000, at most 2000; `None` if a number that it needs is missing.
    pub(super) fn load(&self, report: &LoadReport) -> Option<u32> {
        let weighed = |weight: u16, share: Option<u64>| match weight {
            0 => Some(0),
            weight => share.map(|share| u64::from(weight) * share.min(1000)),
        };
        let rate = |rate: u64| rate.saturating_mul(1000).checked_div(self.disk_full.get());
        let disk = match self.disk_full {
            Bytes::ZERO => report.disk_permille.map(u64::from),
            _ => report.disk_bytes_per_s.and_then(rate),
        };
        let cpu = weighed(self.w_cpu_permille, report.cpu_permille.map(u64::from))?;
        u32::try_from((cpu + weighed(self.w_disk_permille, disk)?) / 1000).ok()
    }
}

impl Default for HaccSettings {
    fn default() -> Self {
        Self::STATIC_FILES
    }
}
