//! The parameters of `hacc`.

use crate::nodes::{LoadReport, Signal, Weight};
use crate::range::{SettingsError, in_range, period};
use alloc::format;
use alloc::string::String;
use core::time::Duration;

/// The weight of a signal in a node's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalWeight {
    /// The signal.
    pub signal: Signal,
    /// The weight, in 1/1000. 1 to 1000; all weights together at most 1000.
    pub permille: u16,
    /// The value, in the signal's unit, that counts as fully loaded; larger values count the same. For a share of
    /// time or memory 1 to 1000, usually 1000. For a count or a rate 1 and up, for a node of weight 1; other nodes
    /// in proportion to their weight.
    pub full: u64,
}

/// The unit of assignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Each document separately.
    #[default]
    Document,
    /// All documents below the same directory of this depth: 1 for `/a/`, 2 for `/a/b/`, up to [`Level::DEPTH_MAX`].
    Subtree(u8),
}

impl Level {
    /// The largest depth.
    pub const DEPTH_MAX: u8 = 16;

    /// Returns the template of the target key for this level, for routes without their own template. `None` for
    /// documents, whose key is the route's usual one.
    pub fn key(self) -> Option<String> {
        match self {
            Self::Document => None,
            Self::Subtree(depth) => Some(format!("{{host}}{{path:{depth}}}")),
        }
    }
}

/// The parameters of `hacc`. The weights and the period are the paper's (section 3.3), the rest is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaccSettings {
    /// The signals that form a node's load, each at most once, at least one, none after a `None`.
    pub weights: [Option<SignalWeight>; HaccSettings::SIGNALS_MAX],
    /// The period of load comparisons. 1 ms to 1 h; default 200 ms.
    pub period: Duration,
    /// The difference to the least loaded node above which a node sheds documents, in 1/1000. 1 to 1000; default
    /// 200.
    pub margin_permille: u16,
    /// The part of the load difference that is moved, in 1/1000; at 500 the two loads become equal. 1 to 1000;
    /// default 500.
    pub amount_permille: u16,
    /// The duration of an offload, during which its two nodes take part in no other. 1 ms to 1 h; default 2 s, ten
    /// periods.
    pub cooldown: Duration,
    /// The share of all requests from which a document is hot and goes to several nodes, in 1/1000. 0 for never, or
    /// 5 to 1000; default 0.
    pub hot_share_permille: u16,
    /// The largest number of nodes for a hot document. 2 to 16; default 4.
    pub hot_nodes: u8,
    /// The unit of assignment. Read by the caller, which makes the keys. Default: documents.
    pub level: Level,
}

impl HaccSettings {
    /// The largest number of signals that can be weighed.
    pub const SIGNALS_MAX: usize = 8;

    /// The settings for a site of static files: only the disk counts (the paper's weights 0 and 1).
    pub const STATIC_FILES: Self = Self {
        weights: [Some(share(Signal::Disk, 1000)), None, None, None, None, None, None, None],
        period: Duration::from_millis(200),
        margin_permille: 200,
        amount_permille: 500,
        cooldown: Duration::from_secs(2),
        hot_share_permille: 0,
        hot_nodes: 4,
        level: Level::Document,
    };

    /// The settings for Domino, a server of database views: CPU and disk count equally (the paper's weights 1/2 and
    /// 1/2).
    pub const DOMINO: Self = Self {
        weights: [
            Some(share(Signal::Cpu, 500)),
            Some(share(Signal::Disk, 500)),
            None,
            None,
            None,
            None,
            None,
            None,
        ],
        ..Self::STATIC_FILES
    };

    /// Returns the `weights` for these signals; `None` if there are more than [`HaccSettings::SIGNALS_MAX`].
    pub fn weigh(signals: &[SignalWeight]) -> Option<[Option<SignalWeight>; Self::SIGNALS_MAX]> {
        let mut weights = [None; Self::SIGNALS_MAX];
        if signals.len() > weights.len() {
            return None;
        }
        for (place, signal) in weights.iter_mut().zip(signals) {
            *place = Some(*signal);
        }
        Some(weights)
    }

    /// Returns the signals and their weights.
    pub fn signals(&self) -> impl Iterator<Item = SignalWeight> {
        self.weights.into_iter().flatten()
    }

    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        self.validate_weights()?;
        let share = |name, value: u16| in_range(name, value.into(), (1..=1000).contains(&value), "1 to 1000");
        share("hacc.margin_permille", self.margin_permille)?;
        share("hacc.amount_permille", self.amount_permille)?;
        period("hacc.period", self.period)?;
        period("hacc.cooldown", self.cooldown)?;
        let hot = self.hot_share_permille;
        let ok = hot == 0 || (5..=1000).contains(&hot);
        in_range("hacc.hot_share_permille", hot.into(), ok, "0, or 5 to 1000")?;
        in_range("hacc.hot_nodes", self.hot_nodes.into(), (2..=16).contains(&self.hot_nodes), "2 to 16")?;
        let depth = if let Level::Subtree(depth) = self.level { depth } else { 1 };
        in_range("hacc.level", depth.into(), (1..=Level::DEPTH_MAX).contains(&depth), "1 to 16")
    }

    fn validate_weights(&self) -> Result<(), SettingsError> {
        let count = self.signals().count();
        let gap = self.weights[..count].iter().any(Option::is_none);
        in_range("hacc.weights", count as u64, count > 0 && !gap, "at least one signal, without gaps")?;
        for (index, SignalWeight { signal, permille, full }) in self.signals().enumerate() {
            let twice = self.signals().take(index).any(|other| other.signal == signal);
            in_range("hacc.weights", index as u64, !twice, "one weight per signal")?;
            let ok = (1..=1000).contains(&permille);
            in_range("hacc.weights.permille", permille.into(), ok, "1 to 1000")?;
            let ok = full >= 1 && (full <= 1000 || !signal.is_share());
            in_range("hacc.weights.full", full, ok, "1 to 1000 for a share, 1 and up for a count or rate")?;
        }
        let sum: u64 = self.signals().map(|weight| u64::from(weight.permille)).sum();
        in_range("hacc.weights", sum, sum <= 1000, "at most 1000 together")
    }

    /// Returns the load, in 1/1000, that a report of a node of this weight represents: 0 to 1000. `None` if one of
    /// the signals is missing.
    pub(super) fn load(&self, report: &LoadReport, weight: Weight) -> Option<u32> {
        let mut load = 0;
        for SignalWeight { signal, permille, full } in self.signals() {
            let capacity = if signal.is_share() { 1000 } else { weight.milli() };
            let part = u128::from(report.get(signal)?) * 1_000_000
                / (u128::from(full) * u128::from(capacity)).max(1);
            load += u64::try_from(part.min(1000)).unwrap_or(1000) * u64::from(permille);
        }
        Some(u32::try_from(load / 1000).unwrap_or(u32::MAX))
    }
}

impl Default for HaccSettings {
    fn default() -> Self {
        Self::STATIC_FILES
    }
}

const fn share(signal: Signal, permille: u16) -> SignalWeight {
    SignalWeight { signal, permille, full: 1000 }
}
