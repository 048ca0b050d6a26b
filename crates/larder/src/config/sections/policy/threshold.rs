//! Thresholds: fixed, learned, or derived by a rule.

use larder_core::Settings;
use larder_core::policy::lard_cost::{CostSettings, MissCost};
use larder_core::policy::thresholds::{HighRule, LowRule, TrainingSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::policy::{Parameters, permille};
use crate::config::text::Span;

/// `t_low`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "t_low is a number of requests or \"learned\"")]
pub(crate) enum LowKey {
    /// A number of requests.
    Fixed(u32),
    /// "learned".
    Word(LowWord),
}

/// The word of [`LowKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LowWord {
    /// Learned from load reports in a training phase.
    Learned,
}

/// `t_high`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "t_high is a number of requests, or { delay = \"500ms\" } for the delay that one node may add over another"
)]
pub(crate) enum HighKey {
    /// A number of requests.
    Fixed(u32),
    /// The paper's rule.
    Delay(DelayRule),
}

/// T_high = (T_low + D / R) / 2.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayRule {
    /// D: additional time that a request may take at one node compared with another. Required.
    #[schemars(extend("x-range" = "1ms to 1h"))]
    pub(crate) delay: Span,
    /// R: mean service time. Unset: measured.
    #[serde(default)]
    #[schemars(extend("x-range" = "1us to 1h"))]
    pub(crate) service: Option<Span>,
}

keys! {
    /// `[switch.policies.lard]`.
    partial LardSection, settings = Settings::default();

    /// T_low: number of active requests below which a node of weight 1 has spare capacity. Below t_high. "learned"
    /// finds it in a training phase from the nodes' load reports.
    t_low: Option<LowKey> = Some(LowKey::Fixed(settings.t_low)), range "1 to 100000", example 25;
    /// T_high: number of active requests above which a node of weight 1 gives targets away. Above t_low. { delay =
    /// "500ms" } finds it by the paper's rule: the additional time that a request may take at one node compared with
    /// another.
    t_high: Option<HighKey> = Some(HighKey::Fixed(settings.t_high)), range "2 to 100000", example 65;
    /// K of LARD/R: time for which a target's server set must be unchanged before it loses a node. For lard-r and
    /// lard-cost.
    replication_decay: Option<Span> = Some(Span(settings.replication_decay)), range "0s to 366d";
    /// Training phase of t_low = "learned".
    training: Option<TrainingSection> = Some(TrainingSection::standard());
}

keys! {
    /// `[switch.policies.lard.training]`.
    partial TrainingSection,
        TrainingSettings { length, busy_permille, min, max } = TrainingSettings::default(),
        busy = f64::from(busy_permille) / 1000.0;

    /// Length of the training phase, from the first report on.
    length: Option<Span> = Some(Span(length)), range "1ms to 1h";
    /// Utilisation from which on a device counts as busy.
    busy: Option<f64> = Some(busy), range "0.001 to 1";
    /// Lowest t_low that may be learned. Not above max.
    min: Option<u32> = Some(min), range "1 to 99999";
    /// Highest t_low that may be learned.
    max: Option<u32> = Some(max), range "1 to 99999";
}

keys! {
    /// `[switch.policies.lard-cost]`.
    partial CostSection,
        cost = CostSettings::default(),
        miss = match cost.miss { MissCost::Fixed(units) => MissKey::Fixed(units), MissCost::Measured { .. } => MissKey::Word(MissWord::Measured), };

    /// L_idle: number of active requests below which a node is under-used.
    idle: Option<u32> = Some(cost.idle), range "1 to 100000";
    /// L_overload: number of active requests above which no more delay is acceptable. Above idle.
    overload: Option<u32> = Some(cost.overload), range "2 to 100000";
    /// Cost of a miss, in units of the delay of a request for a cached target. "measured": 50 until enough requests
    /// have been seen.
    miss: Option<MissKey> = Some(miss), range "1 to 1000";
}

/// `lard-cost.miss`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "miss is a number of delays, or \"measured\"")]
pub(crate) enum MissKey {
    /// A number of units.
    Fixed(u32),
    /// "measured".
    Word(MissWord),
}

/// The word of [`MissKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MissWord {
    /// Measured from requests.
    Measured,
}

/// Applies T_low and T_high of lard and lard-r. `at` is the place of `policies`.
pub(crate) fn thresholds(at: &str, given: &Parameters<'_>, settings: &mut Settings) -> Result<(), Fault> {
    let training = training(at, given)?;
    let lard = given.policies.lard();
    match lard.t_low {
        Some(LowKey::Fixed(t_low)) => {
            settings.t_low = t_low;
            settings.thresholds.low = LowRule::Fixed;
        }
        Some(LowKey::Word(_)) => settings.thresholds.low = LowRule::Learned(training),
        None if settings.thresholds.low != LowRule::Fixed => {
            settings.thresholds.low = LowRule::Learned(training);
        }
        None => {}
    }
    match lard.t_high {
        Some(HighKey::Fixed(t_high)) => {
            settings.t_high = t_high;
            settings.thresholds.high = HighRule::Fixed;
        }
        Some(HighKey::Delay(DelayRule { delay, service })) => {
            let service = service.map(|service| service.0);
            settings.thresholds.high = HighRule::ByDelay { delay: delay.0, service };
        }
        None => {}
    }
    if settings.t_low >= settings.t_high {
        let what = format!("t_low = {} is not below t_high = {}", settings.t_low, settings.t_high);
        // At a route it may be either of the two that is new.
        let key = if lard.t_low.is_some() { "t_low" } else { "t_high" };
        return Err(
            Fault::new(format!("{at}.lard.{key}"), what).hint("the paper uses t_low = 25, t_high = 65")
        );
    }
    Ok(())
}

/// Returns the training settings, key by key from the section above. They are validated even if no policy uses training,
/// because a route may begin to use it.
fn training(at: &str, given: &Parameters<'_>) -> Result<TrainingSettings, Fault> {
    let mut training = TrainingSettings::default();
    let own = given.policies.lard.as_ref().and_then(|lard| lard.training.as_ref());
    let sections = [("switch.policies", given.training_above), (at, own)];
    for (at, raw) in sections {
        if let Some(raw) = raw {
            learn(&format!("{at}.lard.training"), raw, &mut training)?;
        }
    }
    Ok(training)
}

fn learn(at: &str, raw: &TrainingSection, training: &mut TrainingSettings) -> Result<(), Fault> {
    training.length = raw.length.map_or(training.length, |length| length.0);
    training.busy_permille = raw.busy.map_or(training.busy_permille, permille);
    training.min = raw.min.unwrap_or(training.min);
    training.max = raw.max.unwrap_or(training.max);
    if training.min > training.max {
        let what = format!("min = {} is above max = {}", training.min, training.max);
        return Err(Fault::new(format!("{at}.min"), what).hint("write a lower min or a higher max"));
    }
    Ok(())
}

/// Applies the settings of lard-cost.
pub(crate) fn cost(at: &str, raw: &CostSection, settings: &mut Settings) -> Result<(), Fault> {
    let cost = &mut settings.policies.cost;
    cost.idle = raw.idle.unwrap_or(cost.idle);
    cost.overload = raw.overload.unwrap_or(cost.overload);
    if cost.idle >= cost.overload {
        let what = format!("idle = {} is not below overload = {}", cost.idle, cost.overload);
        let key = if raw.idle.is_some() { "idle" } else { "overload" };
        return Err(Fault::new(format!("{at}.{key}"), what).hint("the paper uses idle = 30, overload = 130"));
    }
    let (MissCost::Fixed(units) | MissCost::Measured { default: units }) = cost.miss;
    match raw.miss {
        Some(MissKey::Fixed(units)) => cost.miss = MissCost::Fixed(units),
        Some(MissKey::Word(_)) => cost.miss = MissCost::Measured { default: units },
        None => {}
    }
    Ok(())
}
