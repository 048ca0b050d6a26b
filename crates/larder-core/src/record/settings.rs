//! The encoding of settings as text: one `name value` per line, the policy by its name and all other settings as
//! numbers.
//!
//! [`SETTINGS`] is the only list of them. A setting that does not apply (a training phase while T_low is fixed) has
//! no line.

use super::RecordError;
use crate::class::ServiceClass;
use crate::dispatch::{Admission, Settings};
use crate::nodes::Signal;
use crate::policy::UtilBy;
use crate::policy::hacc::{Level, SignalWeight};
use crate::policy::lard_cost::MissCost;
use crate::policy::thresholds::{HighRule, LowRule, TrainingSettings};
use crate::wire::WireError;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;
use core::time::Duration;

/// A numeric setting: its name, a function that reads it, and a function that sets it. Both return `None` if the
/// number does not apply.
type NumericSetting = (&'static str, fn(&Settings) -> Option<u64>, fn(&mut Settings, u64) -> Option<()>);

/// The code of [`Admission::Auto`], which is not a number of requests.
const ADMISSION_AUTO: u64 = u64::MAX;

/// Defines a setting that is a whole number.
macro_rules! whole {
    ($name:literal, $($place:tt)+) => {
        (
            $name,
            |s: &Settings| u64::try_from(s.$($place)+).ok(),
            |s: &mut Settings, value: u64| {
                s.$($place)+ = value.try_into().ok()?;
                Some(())
            },
        )
    };
}

/// Defines a setting that is a duration, in nanoseconds.
macro_rules! span {
    ($name:literal, $($place:tt)+) => {
        (
            $name,
            |s: &Settings| ns(s.$($place)+),
            |s: &mut Settings, value: u64| {
                s.$($place)+ = Duration::from_nanos(value);
                Some(())
            },
        )
    };
}

/// Defines a setting of the training phase. Setting it enables the training phase.
macro_rules! training {
    ($name:literal, $read:expr, $set:expr) => {
        (
            $name,
            |s: &Settings| match &s.thresholds.low {
                LowRule::Learned(training) => $read(training),
                LowRule::Fixed => None,
            },
            |s: &mut Settings, value: u64| {
                if s.thresholds.low == LowRule::Fixed {
                    s.thresholds.low = LowRule::Learned(TrainingSettings::default());
                }
                let LowRule::Learned(training) = &mut s.thresholds.low else { return None };
                $set(training, value)
            },
        )
    };
}

/// Defines a signal that `hacc` weighs: its index in [`Signal::ALL`] times 65,536, plus its weight in 1/1000.
macro_rules! signal {
    ($name:literal, $index:literal) => {
        (
            $name,
            |s: &Settings| {
                let SignalWeight { signal, permille, .. } = s.policies.hacc.weights[$index]?;
                let place = Signal::ALL.iter().position(|known| *known == signal)?;
                Some((place as u64) << 16 | u64::from(permille))
            },
            |s: &mut Settings, value: u64| {
                let signal = *Signal::ALL.get(usize::try_from(value >> 16).ok()?)?;
                let permille = (value & 0xFFFF) as u16;
                s.policies.hacc.weights[$index] = Some(SignalWeight { signal, permille, full: 1 });
                Some(())
            },
        )
    };
}

/// Defines the full value of that signal; it comes after the signal.
macro_rules! full {
    ($name:literal, $index:literal) => {
        (
            $name,
            |s: &Settings| s.policies.hacc.weights[$index].map(|weight| weight.full),
            |s: &mut Settings, value: u64| {
                s.policies.hacc.weights[$index].as_mut()?.full = value;
                Some(())
            },
        )
    };
}

/// Every setting except the policy and the routing table.
const SETTINGS: &[NumericSetting] = &[
    whole!("seed", seed),
    whole!("t_low", t_low),
    whole!("t_high", t_high),
    training!("t_low.training_ns", |t: &TrainingSettings| ns(t.length), |t: &mut TrainingSettings, value| {
        t.length = Duration::from_nanos(value);
        Some(())
    }),
    training!(
        "t_low.busy_permille",
        |t: &TrainingSettings| Some(t.busy_permille.into()),
        |t: &mut TrainingSettings, value: u64| {
            t.busy_permille = value.try_into().ok()?;
            Some(())
        }
    ),
    training!(
        "t_low.min",
        |t: &TrainingSettings| Some(t.min.into()),
        |t: &mut TrainingSettings, value: u64| {
            t.min = value.try_into().ok()?;
            Some(())
        }
    ),
    training!(
        "t_low.max",
        |t: &TrainingSettings| Some(t.max.into()),
        |t: &mut TrainingSettings, value: u64| {
            t.max = value.try_into().ok()?;
            Some(())
        }
    ),
    (
        "t_high.delay_ns",
        |s| match s.thresholds.high {
            HighRule::ByDelay { delay, .. } => ns(delay),
            HighRule::Fixed => None,
        },
        |s, value| {
            let delay = Duration::from_nanos(value);
            let service = match s.thresholds.high {
                HighRule::ByDelay { service, .. } => service,
                HighRule::Fixed => None,
            };
            s.thresholds.high = HighRule::ByDelay { delay, service };
            Some(())
        },
    ),
    (
        "t_high.service_ns",
        |s| match s.thresholds.high {
            HighRule::ByDelay { service, .. } => service.and_then(ns),
            HighRule::Fixed => None,
        },
        |s, value| match &mut s.thresholds.high {
            HighRule::ByDelay { service, .. } => {
                *service = Some(Duration::from_nanos(value));
                Some(())
            }
            HighRule::Fixed => None,
        },
    ),
    span!("replication_decay_ns", replication_decay),
    whole!("targets_max", targets_max),
    whole!("nodes_max", nodes_max),
    (
        "admission",
        |s| match s.admission {
            Admission::Derived => None,
            Admission::Unlimited => Some(0),
            Admission::Fixed(limit) => Some(limit.into()),
            Admission::Auto => Some(ADMISSION_AUTO),
        },
        |s, value| {
            s.admission = match value {
                0 => Admission::Unlimited,
                ADMISSION_AUTO => Admission::Auto,
                limit => Admission::Fixed(u32::try_from(limit).ok()?),
            };
            Some(())
        },
    ),
    whole!("long_lived_max", long_lived_max),
    whole!("queue_max", queue_max),
    span!("queue_timeout_ns", queue_timeout),
    whole!("join_targets_per_s", join_targets_per_s),
    whole!("join_warm_targets", join_warm_targets),
    whole!("shards", shards),
    whole!("spread_key", spread_key),
    span!("report_age_max_ns", report_age_max),
    span!("t_gat_ns", t_gat),
    (
        "util_by",
        |s| Some(s.policies.lard_util.by as u64),
        |s, value| {
            let known = [UtilBy::Utilisation, UtilBy::Connections];
            s.policies.lard_util.by = *known.get(usize::try_from(value).ok()?)?;
            Some(())
        },
    ),
    whole!("util_low_permille", policies.lard_util.low_permille),
    whole!("util_high_permille", policies.lard_util.high_permille),
    whole!("static_share_n", policies.static_partition.shares[ServiceClass::N.index()]),
    whole!("static_share_db", policies.static_partition.shares[ServiceClass::Db.index()]),
    whole!("static_share_cb", policies.static_partition.shares[ServiceClass::Cb.index()]),
    whole!("static_share_dcb", policies.static_partition.shares[ServiceClass::Dcb.index()]),
    whole!("cap_load.factor_permille", policies.cap_load.factor_permille),
    whole!("cap_load.slack", policies.cap_load.slack),
    whole!("cost.idle", policies.cost.idle),
    whole!("cost.overload", policies.cost.overload),
    (
        "cost.miss",
        |s| match s.policies.cost.miss {
            MissCost::Fixed(miss) => Some(miss.into()),
            MissCost::Measured { .. } => None,
        },
        |s, value| {
            s.policies.cost.miss = MissCost::Fixed(value.try_into().ok()?);
            Some(())
        },
    ),
    (
        "cost.miss_until_measured",
        |s| match s.policies.cost.miss {
            MissCost::Measured { default } => Some(default.into()),
            MissCost::Fixed(_) => None,
        },
        |s, value| {
            s.policies.cost.miss = MissCost::Measured { default: value.try_into().ok()? };
            Some(())
        },
    ),
    signal!("hacc.signal1", 0),
    full!("hacc.full1", 0),
    signal!("hacc.signal2", 1),
    full!("hacc.full2", 1),
    signal!("hacc.signal3", 2),
    full!("hacc.full3", 2),
    signal!("hacc.signal4", 3),
    full!("hacc.full4", 3),
    signal!("hacc.signal5", 4),
    full!("hacc.full5", 4),
    signal!("hacc.signal6", 5),
    full!("hacc.full6", 5),
    signal!("hacc.signal7", 6),
    full!("hacc.full7", 6),
    signal!("hacc.signal8", 7),
    full!("hacc.full8", 7),
    span!("hacc.period_ns", policies.hacc.period),
    whole!("hacc.margin_permille", policies.hacc.margin_permille),
    whole!("hacc.amount_permille", policies.hacc.amount_permille),
    span!("hacc.cooldown_ns", policies.hacc.cooldown),
    whole!("hacc.hot_share_permille", policies.hacc.hot_share_permille),
    whole!("hacc.hot_nodes", policies.hacc.hot_nodes),
    (
        "hacc.level",
        |s| match s.policies.hacc.level {
            Level::Document => Some(0),
            Level::Subtree(depth) => Some(depth.into()),
        },
        |s, value| {
            s.policies.hacc.level = match value.try_into().ok()? {
                0 => Level::Document,
                depth => Level::Subtree(depth),
            };
            Some(())
        },
    ),
    whole!("bounded.factor_permille", policies.bounded.factor_permille),
    whole!("bounded.points", policies.bounded.points),
    whole!("maglev_size", policies.maglev.size),
    whole!("rendezvous_places", policies.rendezvous.places),
    span!("ewma_decay_ns", policies.peak_ewma.decay),
    whole!("prequal.rif_quantile_permille", policies.prequal.rif_quantile_permille),
];

fn ns(span: Duration) -> Option<u64> {
    u64::try_from(span.as_nanos()).ok()
}

/// Encodes the settings without the routing table.
///
/// # Errors
/// The text would not contain all settings.
pub(super) fn to_text(settings: &Settings) -> Result<String, RecordError> {
    let mut text = format!("policy {}\n", settings.policy);
    for (name, read, _) in SETTINGS {
        if let Some(value) = read(settings) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name} {value}");
        }
    }
    let parsed = from_text(&text).map(|parsed| Settings { table: settings.table.clone(), ..parsed });
    if parsed.as_ref() == Ok(settings) {
        Ok(text)
    } else {
        Err(RecordError::Settings("a setting has no text form"))
    }
}

/// Decodes settings from text. A setting without a line has its default.
pub(super) fn from_text(text: &str) -> Result<Settings, RecordError> {
    let mut settings = Settings::default();
    for line in text.lines() {
        let bad = || WireError::Text { what: "setting", text: line.chars().take(60).collect() };
        let (name, value) = line.split_once(' ').ok_or_else(bad)?;
        if name == "policy" {
            settings.policy = value.parse().map_err(|_| bad())?;
            continue;
        }
        let value = value.parse().map_err(|_| bad())?;
        let known = SETTINGS.iter().find(|known| known.0 == name).ok_or_else(bad)?;
        known.2(&mut settings, value).ok_or_else(bad)?;
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::hacc::HaccSettings;
    use crate::policy::{PolicyKind, PolicySettings};

    /// Tests that every line changes the settings when read with another number, so no line is useless. No two lines
    /// have the same effect.
    #[test]
    fn every_setting_has_its_own_line() {
        let learned = Settings {
            admission: Admission::Fixed(9),
            thresholds: crate::policy::thresholds::ThresholdSettings {
                low: LowRule::Learned(TrainingSettings::default()),
                high: HighRule::ByDelay {
                    delay: Duration::from_secs(1),
                    service: Some(Duration::from_millis(5)),
                },
            },
            policies: PolicySettings {
                hacc: HaccSettings {
                    weights: core::array::from_fn(|i| {
                        Some(SignalWeight { signal: Signal::ALL[i], permille: 100, full: 7 })
                    }),
                    ..HaccSettings::DOMINO
                },
                ..PolicySettings::default()
            },
            ..Settings::default()
        };
        let mut measured = learned.clone();
        measured.policies.cost.miss = MissCost::Measured { default: 70 };
        let mut parsed = [0_usize; 2];
        for (settings, parsed) in [learned, measured].iter().zip(&mut parsed) {
            let text = to_text(settings).expect("it can be said");
            assert_eq!(from_text(&text).as_ref(), Ok(settings));
            for line in text.lines().filter(|line| !line.starts_with("policy ")) {
                let (name, value) = line.split_once(' ').expect("two words");
                let other = format!("{name} {}", value.parse::<u64>().expect("a number") + 1);
                let changed = from_text(&text.replace(&format!("{line}\n"), &format!("{other}\n")));
                assert_ne!(changed.as_ref(), Ok(settings), "{line}");
                *parsed += 1;
            }
        }
        assert_eq!(parsed, [SETTINGS.len() - 1; 2], "a miss is fixed or measured, all else is said");
    }

    #[test]
    fn every_policy_is_encoded() {
        for policy in PolicyKind::ALL {
            let settings = Settings { policy, ..Settings::default() };
            let text = to_text(&settings).expect("it can be said");
            assert_eq!(from_text(&text), Ok(settings));
        }
    }

    #[test]
    fn unknown_settings_are_refused() {
        for line in
            ["t_lower 3", "t_low", "t_low -1", "t_low 4294967296", "policy best", "t_high.service_ns 7"]
        {
            let error = from_text(&format!("{line}\n")).expect_err(line).to_string();
            assert_eq!(error, format!("'{line}' is no setting"));
        }
    }
}
