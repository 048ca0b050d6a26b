//! Thresholds, checked and laid over the settings of the section above.

use std::time::Duration;

use larder_core::Settings;
use larder_core::policy::lard_cost::MissCost;
use larder_core::policy::thresholds::{HighRule, LowRule, Training};

use super::error::Fault;
use super::raw_policy::Parameters;
use super::raw_threshold::{RawCost, RawDelay, RawHigh, RawLow, RawMiss, RawTraining};
use super::valid_policy::{HOUR, MS, share, within};

/// T_low and T_high of lard and lard-r.
pub(super) fn thresholds(at: &str, given: &Parameters<'_>, settings: &mut Settings) -> Result<(), Fault> {
    let training = training(at, given)?;
    match given.t_low {
        Some(RawLow::Fixed(t_low)) => {
            settings.t_low = t_low;
            settings.thresholds.low = LowRule::Fixed;
        }
        Some(RawLow::Word(_)) => settings.thresholds.low = LowRule::Learned(training),
        None if settings.thresholds.low != LowRule::Fixed => {
            settings.thresholds.low = LowRule::Learned(training);
        }
        None => {}
    }
    match given.t_high {
        Some(RawHigh::Fixed(t_high)) => {
            settings.t_high = t_high;
            settings.thresholds.high = HighRule::Fixed;
        }
        Some(RawHigh::Delay(rule)) => settings.thresholds.high = by_delay(&format!("{at}.t_high"), rule)?,
        None => {}
    }
    if settings.t_low >= settings.t_high {
        let what = format!("t_low = {} is not below t_high = {}", settings.t_low, settings.t_high);
        // At a route it may be either of the two that is new.
        let key = if given.t_low.is_some() { "t_low" } else { "t_high" };
        return Err(Fault::new(format!("{at}.{key}"), what).hint("the paper uses t_low = 25, t_high = 65"));
    }
    Ok(())
}

/// How T_low is learned where it is, key by key from the section above. It is checked whether or not anything learns: a
/// route may begin to, and nonsense is nonsense.
fn training(at: &str, given: &Parameters<'_>) -> Result<Training, Fault> {
    let mut training = Training::default();
    let sections = [("switch", given.training_above), (at, given.training)];
    for (at, raw) in sections {
        if let Some(raw) = raw {
            learn(&format!("{at}.training"), raw, &mut training)?;
        }
    }
    Ok(training)
}

fn learn(at: &str, raw: &RawTraining, training: &mut Training) -> Result<(), Fault> {
    if let Some(length) = raw.length {
        training.length = within(&format!("{at}.length"), length, MS, HOUR)?;
    }
    if let Some(busy) = raw.busy {
        training.busy_permille = share(&format!("{at}.busy"), busy, (0.001, 1.0))?;
    }
    training.min = raw.min.unwrap_or(training.min);
    training.max = raw.max.unwrap_or(training.max);
    if training.min == 0 || training.min > training.max || training.max > 99_999 {
        let what = format!("min = {} and max = {} are no range", training.min, training.max);
        let key = if raw.max.is_some_and(|max| max > 99_999) { "max" } else { "min" };
        return Err(Fault::new(format!("{at}.{key}"), what).hint("1 to 99999, min not above max"));
    }
    Ok(())
}

fn by_delay(key: &str, rule: RawDelay) -> Result<HighRule, Fault> {
    let delay = within(&format!("{key}.delay"), rule.delay, MS, HOUR)?;
    let least = Duration::from_micros(1);
    let service = rule.service.map(|service| within(&format!("{key}.service"), service, least, HOUR));
    Ok(HighRule::ByDelay { delay, service: service.transpose()? })
}

/// What lard-cost goes by.
pub(super) fn cost(at: &str, raw: &RawCost, settings: &mut Settings) -> Result<(), Fault> {
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
        Some(RawMiss::Fixed(units)) => cost.miss = MissCost::Fixed(units),
        Some(RawMiss::Word(_)) => cost.miss = MissCost::Measured { default: units },
        None => {}
    }
    Ok(())
}
