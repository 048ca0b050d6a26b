//! Thresholds: given, learned, or found by a rule.

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
    /// From what nodes report, in a training phase.
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
    /// D: how much longer a request may take at one node than at another.
    #[schemars(extend("x-range" = "1ms to 1h"))]
    pub(crate) delay: Span,
    /// R: the mean service time. Unset: measured.
    #[serde(default)]
    #[schemars(extend("x-range" = "1us to 1h"))]
    pub(crate) service: Option<Span>,
}

keys! {
    /// `[switch.policies.lard]`.
    partial LardSection, settings = Settings::default();

    /// T_low: a node of weight 1 with fewer active requests has spare room. Below t_high; or "learned", in a training phase,
    /// from the nodes' load reports.
    t_low: Option<LowKey> = Some(LowKey::Fixed(settings.t_low)), range "1 to 100000", example 25;
    /// T_high: a node of weight 1 with more active requests gives targets away. Above t_low; or by the paper's rule, { delay =
    /// "500ms" }: how much longer a request may take at one node than at another.
    t_high: Option<HighKey> = Some(HighKey::Fixed(settings.t_high)), range "2 to 100000", example 65;
    /// K of LARD/R: a target's server set that did not change for this long shrinks by one.
    replication_decay: Option<Span> = Some(Span(settings.replication_decay)), range "0s to 366d";
    /// How t_low = "learned" is learned.
    training: Option<TrainingSection> = Some(TrainingSection::standard());
}

keys! {
    /// `[switch.policies.lard.training]`.
    partial TrainingSection,
        TrainingSettings { length, busy_permille, min, max } = TrainingSettings::default(),
        busy = f64::from(busy_permille) / 1000.0;

    /// How long loads and reports are watched, from the first report on.
    length: Option<Span> = Some(Span(length)), range "1ms to 1h";
    /// From which utilisation on a device counts as kept busy.
    busy: Option<f64> = Some(busy), range "0.001 to 1";
    /// The least t_low that may come out. Not above max.
    min: Option<u32> = Some(min), range "1 to 99999";
    /// The greatest t_low that may come out.
    max: Option<u32> = Some(max), range "1 to 99999";
}

keys! {
    /// `[switch.policies.lard-cost]`.
    partial CostSection,
        cost = CostSettings::default(),
        miss = match cost.miss { MissCost::Fixed(units) => MissKey::Fixed(units), MissCost::Measured { .. } => MissKey::Word(MissWord::Measured), };

    /// L_idle: a node with fewer active requests is under-used.
    idle: Option<u32> = Some(cost.idle), range "1 to 100000";
    /// L_overload: with more active requests, no more delay is acceptable. Above idle.
    overload: Option<u32> = Some(cost.overload), range "2 to 100000";
    /// What a miss costs, in delays of a request for a cached target, or "measured": 50 until enough are seen.
    miss: Option<MissKey> = Some(miss), range "1 to 1000";
}

/// `lard-cost.miss`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "miss is a number of delays, or \"measured\"")]
pub(crate) enum MissKey {
    /// So many delays.
    Fixed(u32),
    /// "measured".
    Word(MissWord),
}

/// The word of [`MissKey`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MissWord {
    /// From requests that end.
    Measured,
}

/// T_low and T_high of lard and lard-r; `at` is the place of `policies`.
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

/// How T_low is learned where it is, key by key from the section above. It is checked whether or not anything learns: a
/// route may begin to, and nonsense is nonsense.
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
        let what = format!("min = {} and max = {} are no range", training.min, training.max);
        return Err(Fault::new(format!("{at}.min"), what).hint("write min not above max"));
    }
    Ok(())
}

/// Settings of lard-cost.
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
