//! What policies go by, checked and laid over the settings of the section above.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_core::dispatch::SettingsError;
use larder_core::policy::UtilBy;
use larder_core::{PolicyKind, ServiceClass, Settings};

use super::error::Fault;
use super::explain::suggest;
use super::raw_policy::{Parameters, RawUtil};
use super::text::Span;
use super::valid::{span, word};
use super::valid_hacc::hacc;
use super::valid_threshold::{cost, thresholds};

/// Lays what the section at `at` gives over `settings`, and checks the whole.
pub(super) fn apply(at: &str, given: &Parameters<'_>, settings: &mut Settings) -> Result<(), Fault> {
    if let Some(name) = given.policy {
        settings.policy = word(&format!("{at}.policy"), name, &PolicyKind::ALL.map(PolicyKind::name))?;
    }
    settings.seed = given.seed.unwrap_or(settings.seed);
    thresholds(at, given, settings)?;
    if let Some(decay) = given.replication_decay {
        settings.replication_decay = span(&format!("{at}.replication_decay"), decay)?;
    }
    settings.targets_max = given.targets_max.unwrap_or(settings.targets_max);
    tables(at, given, settings)?;
    settings.validate().map_err(|error| fault(at, &error))
}

/// The tables of single policies.
fn tables(at: &str, given: &Parameters<'_>, settings: &mut Settings) -> Result<(), Fault> {
    if let Some(raw) = given.hacc {
        hacc(&format!("{at}.hacc"), raw, &mut settings.policies.hacc)?;
    }
    if let Some(raw) = given.bounded {
        let bounded = &mut settings.policies.bounded;
        if let Some(factor) = raw.factor {
            let key = format!("{at}.bounded.factor");
            bounded.factor_permille = thousandths(&key, factor, (1.01, 100.0))?;
        }
        bounded.points = raw.points.unwrap_or(bounded.points);
    }
    if let Some(raw) = given.cap {
        let cap = &mut settings.policies.cap_load;
        if let Some(factor) = raw.factor {
            cap.factor_permille = thousandths(&format!("{at}.cap.factor"), factor, (1.0, 100.0))?;
        }
        cap.slack = raw.slack.unwrap_or(cap.slack);
    }
    if let Some(raw) = given.cost {
        cost(&format!("{at}.cost"), raw, settings)?;
    }
    let own = &mut settings.policies;
    own.maglev.size = given.maglev.and_then(|raw| raw.size).unwrap_or(own.maglev.size);
    own.rendezvous.places = given.rendezvous.and_then(|raw| raw.places).unwrap_or(own.rendezvous.places);
    if let Some(decay) = given.ewma.and_then(|raw| raw.decay) {
        own.peak_ewma.decay = within(&format!("{at}.ewma.decay"), decay, 100 * MS, HOUR)?;
    }
    if let Some(gather) = given.wrr.and_then(|raw| raw.gather) {
        settings.t_gat = within(&format!("{at}.wrr.gather"), gather, MS, HOUR)?;
    }
    if let Some(shares) = given.fixed.and_then(|raw| raw.shares.as_ref()) {
        own.static_partition.shares = static_shares(&format!("{at}.static.shares"), shares)?;
    }
    if let Some(raw) = given.util {
        util(&format!("{at}.util"), raw, settings)?;
    }
    let (poll, age_max) = (settings.t_gat, settings.report_age_max);
    if settings.policies.lard_util.by == UtilBy::Connections && poll > age_max {
        let (poll, age_max) = (Span(poll), Span(age_max));
        let key = if given.wrr.is_some() { "wrr.gather" } else { "util.by" };
        let what = format!("polls every {poll}, and what a node says counts for {age_max}");
        let hint = format!("write gather = \"{age_max}\" or less, or a longer signals.missing_after");
        return Err(Fault::new(format!("{at}.{key}"), what).hint(hint));
    }
    Ok(())
}

/// T_low and T_high of lard-util.
fn util(at: &str, raw: &RawUtil, settings: &mut Settings) -> Result<(), Fault> {
    match raw.by.as_deref() {
        None => {}
        Some("utilisation") => settings.policies.lard_util.by = UtilBy::Utilisation,
        Some("connections") => settings.policies.lard_util.by = UtilBy::Connections,
        Some(other) => {
            let hint = suggest(other, &["utilisation", "connections"]);
            return Err(Fault::new(format!("{at}.by"), format!("unknown value '{other}'")).hint(hint));
        }
    }
    if let Some(low) = raw.low {
        settings.policies.lard_util.low_permille = share(&format!("{at}.low"), low, (0.001, 0.998))?;
    }
    if let Some(high) = raw.high {
        settings.policies.lard_util.high_permille = share(&format!("{at}.high"), high, (0.002, 0.999))?;
    }
    if settings.policies.lard_util.low_permille >= settings.policies.lard_util.high_permille {
        let of = |permille: u16| f64::from(permille) / 1000.0;
        let (low, high) =
            (of(settings.policies.lard_util.low_permille), of(settings.policies.lard_util.high_permille));
        let key = if raw.low.is_some() { "low" } else { "high" };
        let what = format!("low = {low} is not below high = {high}");
        let hint = "the paper uses low = 0.3, high = 0.7";
        return Err(Fault::new(format!("{at}.{key}"), what).hint(hint));
    }
    Ok(())
}

/// Shares by class; a class that is not named has none.
fn static_shares(key: &str, shares: &BTreeMap<String, u32>) -> Result<[u32; ServiceClass::COUNT], Fault> {
    let mut found = [0; ServiceClass::COUNT];
    for (name, share) in shares {
        let key = format!("{key}.{name}");
        let class: ServiceClass = word(&key, name, &ServiceClass::ALL.map(ServiceClass::name))?;
        if *share > 1_000_000 {
            return Err(Fault::new(key, format!("{share} is out of range")).hint("0 to 1000000"));
        }
        found[class.index()] = *share;
    }
    if found == [0; ServiceClass::COUNT] {
        return Err(Fault::new(key, "no class has a share").hint("write shares = { n = 2, db = 1 }"));
    }
    Ok(found)
}

/// A millisecond.
pub(super) const MS: Duration = Duration::from_millis(1);
/// An hour.
pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// A span from `least` to `most`.
pub(super) fn within(key: &str, span: Span, least: Duration, most: Duration) -> Result<Duration, Fault> {
    if (least..=most).contains(&span.0) {
        return Ok(span.0);
    }
    let range = format!("{} to {}", Span(least), Span(most));
    Err(Fault::new(key, format!("{span} is out of range")).hint(range))
}

/// A number from `least` to `most` in thousandths.
fn thousandths(key: &str, value: f64, (least, most): (f64, f64)) -> Result<u32, Fault> {
    if !(least..=most).contains(&value) {
        return Err(Fault::new(key, format!("{value} is out of range")).hint(format!("{least} to {most}")));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the range just checked"
    )]
    let rounded = (value * 1000.0).round() as u32;
    Ok(rounded)
}

/// A share of one in thousandths.
pub(super) fn share(key: &str, value: f64, range: (f64, f64)) -> Result<u16, Fault> {
    thousandths(key, value, range).map(|permille| u16::try_from(permille).unwrap_or(u16::MAX))
}

/// The core's own checks, in the words of the config file.
fn fault(at: &str, error: &SettingsError) -> Fault {
    let SettingsError::OutOfRange { name, value, range } = error else {
        return Fault::new(format!("{at}.nodes"), error.to_string());
    };
    let key = match *name {
        "maglev_size" => "maglev.size",
        "rendezvous_places" => "rendezvous.places",
        "cap_load.slack" => "cap.slack",
        name => name,
    };
    Fault::new(format!("{at}.{key}"), format!("{value} is out of range")).hint(*range)
}
