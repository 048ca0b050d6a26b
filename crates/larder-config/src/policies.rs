//! `[policies]`: a table for each policy. A key that is missing has the default of its policy.

use crate::ConfigError;
use crate::text::Span;
use larder_core::nodes::Signal;
use larder_core::policy::UtilBy;
use larder_core::policy::hacc::{HaccSettings, SignalWeight};
use larder_core::policy::lard_cost::MissCost;
use larder_core::policy::thresholds::{HighRule, LowRule, TrainingSettings};
use larder_core::{ServiceClass, Settings};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Policies {
    seed: Option<u64>,
    #[serde(rename = "targets_max")]
    targets_max: Option<usize>,
    lard: Lard,
    lard_cost: LardCost,
    lard_util: LardUtil,
    cap_load: CapLoad,
    hacc: Hacc,
    bounded: Bounded,
    maglev: Maglev,
    rendezvous: Rendezvous,
    peak_ewma: PeakEwma,
    prequal: Prequal,
    wrr: Wrr,
    #[serde(rename = "static")]
    fixed: Static,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Lard {
    t_low: Option<LowKey>,
    t_high: Option<HighKey>,
    replication_decay: Option<Span>,
    training: Training,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "t_low is a number of requests or \"learned\"")]
enum LowKey {
    Fixed(u32),
    Word(LowWord),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LowWord {
    Learned,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "t_high is a number of requests, or { delay = \"500ms\" }")]
enum HighKey {
    Fixed(u32),
    Delay(DelayRule),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DelayRule {
    delay: Span,
    #[serde(default)]
    service: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Training {
    length: Option<Span>,
    busy: Option<f64>,
    min: Option<u32>,
    max: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LardCost {
    idle: Option<u32>,
    overload: Option<u32>,
    miss: Option<MissKey>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "miss is a number of delays, or \"measured\"")]
enum MissKey {
    Fixed(u32),
    Word(MissWord),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MissWord {
    Measured,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LardUtil {
    by: Option<ByWord>,
    low: Option<f64>,
    high: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ByWord {
    Utilisation,
    Connections,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CapLoad {
    factor: Option<f64>,
    slack: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Hacc {
    preset: Option<Preset>,
    weights: Option<BTreeMap<String, WeightKey>>,
    period: Option<Span>,
    margin: Option<f64>,
    amount: Option<f64>,
    cooldown: Option<Span>,
    hot_share: Option<f64>,
    hot_nodes: Option<u8>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Preset {
    StaticFiles,
    Domino,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "a weight is a number from 0.001 to 1, or { weight = 0.5, full = 64 }")]
enum WeightKey {
    Share(f64),
    Of(WeightTable),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightTable {
    weight: f64,
    full: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Bounded {
    factor: Option<f64>,
    points: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Maglev {
    size: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Rendezvous {
    places: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PeakEwma {
    decay: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Prequal {
    rif_quantile: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wrr {
    gather: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Static {
    shares: Option<BTreeMap<String, u32>>,
}

/// Sets a setting if its key is given.
fn set<T>(setting: &mut T, key: Option<T>) {
    if let Some(value) = key {
        *setting = value;
    }
}

/// Sets a time if its key is given.
fn set_span(setting: &mut std::time::Duration, key: Option<Span>) {
    set(setting, key.map(|span| span.0));
}

/// Sets a share in thousandths if its key is given. The dispatcher checks the range.
fn set_permille(name: &str, setting: &mut u16, key: Option<f64>) -> Result<(), ConfigError> {
    let Some(share) = key else { return Ok(()) };
    let permille = thousandths(share).and_then(|permille| u16::try_from(permille).ok());
    *setting = permille.ok_or_else(|| ConfigError::value(name, format!("{share} is out of range")))?;
    Ok(())
}

/// Sets a factor in thousandths if its key is given. The dispatcher checks the range.
fn set_factor(name: &str, setting: &mut u32, key: Option<f64>) -> Result<(), ConfigError> {
    let Some(factor) = key else { return Ok(()) };
    *setting =
        thousandths(factor).ok_or_else(|| ConfigError::value(name, format!("{factor} is out of range")))?;
    Ok(())
}

fn thousandths(value: f64) -> Option<u32> {
    let rounded = (value * 1000.0).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
    (0.0..=1e9).contains(&rounded).then_some(rounded as u32)
}

impl Policies {
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        set(&mut settings.seed, self.seed);
        set(&mut settings.targets_max, self.targets_max);
        self.lard.apply(settings)?;
        self.lard_cost.apply(settings);
        let policies = &mut settings.policies;
        let by = self.lard_util.by.map(|by| match by {
            ByWord::Utilisation => UtilBy::Utilisation,
            ByWord::Connections => UtilBy::Connections,
        });
        set(&mut policies.lard_util.by, by);
        set_permille("policies.lard-util.low", &mut policies.lard_util.low_permille, self.lard_util.low)?;
        set_permille("policies.lard-util.high", &mut policies.lard_util.high_permille, self.lard_util.high)?;
        set_factor("policies.cap-load.factor", &mut policies.cap_load.factor_permille, self.cap_load.factor)?;
        set(&mut policies.cap_load.slack, self.cap_load.slack);
        self.hacc.apply(&mut policies.hacc)?;
        set_factor("policies.bounded.factor", &mut policies.bounded.factor_permille, self.bounded.factor)?;
        set(&mut policies.bounded.points, self.bounded.points);
        set(&mut policies.maglev.size, self.maglev.size);
        set(&mut policies.rendezvous.places, self.rendezvous.places);
        set_span(&mut policies.peak_ewma.decay, self.peak_ewma.decay);
        let quantile = &mut policies.prequal.rif_quantile_permille;
        set_permille("policies.prequal.rif_quantile", quantile, self.prequal.rif_quantile)?;
        set_span(&mut settings.t_gat, self.wrr.gather);
        if let Some(shares) = &self.fixed.shares {
            settings.policies.static_partition.shares = static_shares(shares)?;
        }
        if settings.policies.lard_util.by == UtilBy::Connections && settings.t_gat > settings.report_age_max {
            let what = "is longer than signals.missing_after: nodes would count as missing between two polls";
            return Err(ConfigError::value("policies.wrr.gather", what));
        }
        Ok(())
    }
}

impl Lard {
    fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        let mut training = TrainingSettings::default();
        set_span(&mut training.length, self.training.length);
        set_permille("policies.lard.training.busy", &mut training.busy_permille, self.training.busy)?;
        set(&mut training.min, self.training.min);
        set(&mut training.max, self.training.max);
        match self.t_low {
            Some(LowKey::Fixed(t_low)) => settings.t_low = t_low,
            Some(LowKey::Word(LowWord::Learned)) => settings.thresholds.low = LowRule::Learned(training),
            None => {}
        }
        match self.t_high {
            Some(HighKey::Fixed(t_high)) => settings.t_high = t_high,
            Some(HighKey::Delay(DelayRule { delay, service })) => {
                let service = service.map(|service| service.0);
                settings.thresholds.high = HighRule::ByDelay { delay: delay.0, service };
            }
            None => {}
        }
        set_span(&mut settings.replication_decay, self.replication_decay);
        Ok(())
    }
}

impl LardCost {
    fn apply(&self, settings: &mut Settings) {
        let cost = &mut settings.policies.cost;
        set(&mut cost.idle, self.idle);
        set(&mut cost.overload, self.overload);
        let (MissCost::Fixed(units) | MissCost::Measured { default: units }) = cost.miss;
        let miss = self.miss.map(|miss| match miss {
            MissKey::Fixed(units) => MissCost::Fixed(units),
            MissKey::Word(MissWord::Measured) => MissCost::Measured { default: units },
        });
        set(&mut cost.miss, miss);
    }
}

impl Hacc {
    fn apply(&self, hacc: &mut HaccSettings) -> Result<(), ConfigError> {
        match (self.preset, &self.weights) {
            (Some(_), Some(_)) => {
                let what = "contradicts preset: weights come from one of them; leave preset out";
                return Err(ConfigError::value("policies.hacc.weights", what));
            }
            (Some(Preset::StaticFiles), None) => hacc.weights = HaccSettings::STATIC_FILES.weights,
            (Some(Preset::Domino), None) => hacc.weights = HaccSettings::DOMINO.weights,
            (None, Some(weights)) => hacc.weights = signal_weights(weights)?,
            (None, None) => {}
        }
        set_permille("policies.hacc.margin", &mut hacc.margin_permille, self.margin)?;
        set_permille("policies.hacc.amount", &mut hacc.amount_permille, self.amount)?;
        set_permille("policies.hacc.hot_share", &mut hacc.hot_share_permille, self.hot_share)?;
        set_span(&mut hacc.period, self.period);
        set_span(&mut hacc.cooldown, self.cooldown);
        set(&mut hacc.hot_nodes, self.hot_nodes);
        Ok(())
    }
}

type SignalWeights = [Option<SignalWeight>; HaccSettings::SIGNALS_MAX];

fn signal_weights(weights: &BTreeMap<String, WeightKey>) -> Result<SignalWeights, ConfigError> {
    let key = |name: &str| format!("policies.hacc.weights.{name}");
    let mut found = Vec::with_capacity(weights.len());
    for (name, weight) in weights {
        let signal: Signal = name.parse().map_err(|error: larder_core::nodes::UnknownSignal| {
            ConfigError::value(key(name), error.to_string())
        })?;
        let (weight, full) = match weight {
            WeightKey::Share(weight) if signal.is_share() => (*weight, 1000),
            WeightKey::Share(weight) => {
                let what = format!("{name} is not a share: write {{ weight = {weight}, full = 64 }}");
                return Err(ConfigError::value(key(name), what));
            }
            WeightKey::Of(table) => (table.weight, table.full),
        };
        let mut permille = 0;
        set_permille(&key(name), &mut permille, Some(weight))?;
        found.push(SignalWeight { signal, permille, full });
    }
    if found.iter().map(|weight| u32::from(weight.permille)).sum::<u32>() > 1000 {
        return Err(ConfigError::value("policies.hacc.weights", "the sum is above 1"));
    }
    HaccSettings::weigh(&found).ok_or_else(|| {
        let what = format!("{} signals are too many: at most {}", found.len(), HaccSettings::SIGNALS_MAX);
        ConfigError::value("policies.hacc.weights", what)
    })
}

fn static_shares(shares: &BTreeMap<String, u32>) -> Result<[u32; ServiceClass::COUNT], ConfigError> {
    let mut found = [0; ServiceClass::COUNT];
    for (name, share) in shares {
        let class: ServiceClass = name.parse().map_err(|error: larder_core::class::UnknownClass| {
            ConfigError::value("policies.static.shares", error.to_string())
        })?;
        found[class.index()] = *share;
    }
    if found == [0; ServiceClass::COUNT] {
        return Err(ConfigError::value(
            "policies.static.shares",
            "no class has a share: write { n = 2, db = 1 }",
        ));
    }
    Ok(found)
}
