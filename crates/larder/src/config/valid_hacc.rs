//! What hacc goes by, checked and laid over what the section above says.

use std::collections::BTreeMap;

use larder_core::nodes::Signal;
use larder_core::policy::hacc::{HaccSettings, Level, SignalWeight};

use super::error::Fault;
use super::explain::suggest;
use super::raw_policy::{RawHacc, RawWeight};
use super::valid_policy::{HOUR, MS, share, within};

pub(super) fn hacc(at: &str, raw: &RawHacc, hacc: &mut HaccSettings) -> Result<(), Fault> {
    let key = |name: &str| format!("{at}.{name}");
    match (raw.preset.as_deref(), &raw.weights) {
        (Some(_), Some(_)) => {
            return Err(Fault::new(key("weights"), "contradicts preset: weights come from one of them")
                .hint("leave preset out"));
        }
        (Some(name), None) => hacc.weights = preset(&key("preset"), name)?.weights,
        (None, Some(raw)) => hacc.weights = weights(&key("weights"), raw)?,
        (None, None) => {}
    }
    if let Some(margin) = raw.margin {
        hacc.margin_permille = share(&key("margin"), margin, (0.001, 1.0))?;
    }
    if let Some(amount) = raw.amount {
        hacc.amount_permille = share(&key("amount"), amount, (0.001, 1.0))?;
    }
    if let Some(period) = raw.period {
        hacc.period = within(&key("period"), period, MS, HOUR)?;
    }
    if let Some(cooldown) = raw.cooldown {
        hacc.cooldown = within(&key("cooldown"), cooldown, MS, HOUR)?;
    }
    match raw.hot_share {
        None => {}
        Some(0.0) => hacc.hot_share_permille = 0,
        Some(hot) => hacc.hot_share_permille = share(&key("hot_share"), hot, (0.005, 1.0))?,
    }
    hacc.hot_nodes = raw.hot_nodes.unwrap_or(hacc.hot_nodes);
    match raw.level {
        None => {}
        Some(0) => hacc.level = Level::Document,
        Some(depth) if depth <= Level::DEPTH_MAX => hacc.level = Level::Subtree(depth),
        Some(depth) => {
            return Err(Fault::new(key("level"), format!("{depth} is out of range")).hint("0 to 16"));
        }
    }
    Ok(())
}

fn preset(key: &str, name: &str) -> Result<HaccSettings, Fault> {
    match name {
        "static-files" => Ok(HaccSettings::STATIC_FILES),
        "domino" => Ok(HaccSettings::DOMINO),
        other => {
            let hint = suggest(other, &["static-files", "domino"]);
            Err(Fault::new(key, format!("unknown value '{other}'")).hint(hint))
        }
    }
}

fn weights(
    key: &str,
    raw: &BTreeMap<String, RawWeight>,
) -> Result<[Option<SignalWeight>; HaccSettings::SIGNALS_MAX], Fault> {
    let mut found = Vec::with_capacity(raw.len());
    for (name, weight) in raw {
        found.push(signal(&format!("{key}.{name}"), name, *weight)?);
    }
    let sum: u64 = found.iter().map(|weight| u64::from(weight.permille)).sum();
    if found.is_empty() {
        let hint = "write weights = { cpu = 0.5, disk = 0.5 }";
        return Err(Fault::new(key, "no signal counts: every node would be equally loaded").hint(hint));
    }
    if sum > 1000 {
        #[expect(clippy::cast_precision_loss, reason = "at most 12 weights of 1000")]
        let what = format!("the weights are {} together", sum as f64 / 1000.0);
        return Err(Fault::new(key, what).hint("at most 1, such as { cpu = 0.5, disk = 0.5 }"));
    }
    HaccSettings::weigh(&found).ok_or_else(|| {
        let what = format!("{} signals are too many", found.len());
        Fault::new(key, what).hint(format!("at most {}", HaccSettings::SIGNALS_MAX))
    })
}

fn signal(key: &str, name: &str, weight: RawWeight) -> Result<SignalWeight, Fault> {
    let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.name() == name) else {
        let hint = suggest(name, &Signal::ALL.map(Signal::name));
        return Err(Fault::new(key, format!("unknown signal '{name}'")).hint(hint));
    };
    let (weight, full) = match weight {
        RawWeight::Share(weight) if signal.is_share() => (weight, 1000),
        RawWeight::Share(weight) => {
            let what = format!("{name} is no share: what is fully loaded?");
            let hint = format!("write {name} = {{ weight = {weight}, full = 64 }}, in the signal's unit");
            return Err(Fault::new(key, what).hint(hint));
        }
        RawWeight::Of(of) => (of.weight, of.full),
    };
    if full == 0 || (signal.is_share() && full > 1000) {
        let hint =
            if signal.is_share() { "1 to 1000, in thousandths" } else { "1 or more, in the signal's unit" };
        return Err(Fault::new(format!("{key}.full"), format!("{full} is out of range")).hint(hint));
    }
    Ok(SignalWeight { signal, permille: share(key, weight, (0.001, 1.0))?, full })
}

/// The key that the level asks for, if the policy is hacc and the level is not the document.
pub(super) fn level_key(settings: &larder_core::Settings) -> Option<String> {
    (settings.policy == larder_core::PolicyKind::Hacc).then(|| settings.policies.hacc.level.key()).flatten()
}
