//! Validation of the settings of hacc, which override those of the section above.

use std::collections::BTreeMap;

use larder_core::nodes::Signal;
use larder_core::policy::hacc::{HaccSettings, Level, SignalWeight};

use crate::config::error::Fault;
use crate::config::sections::policy::{HaccSection, Preset, WeightKey, permille};
use crate::config::suggest::suggest;

pub(crate) fn hacc(at: &str, raw: &HaccSection, hacc: &mut HaccSettings) -> Result<(), Fault> {
    let key = |name: &str| format!("{at}.{name}");
    match (raw.preset, &raw.weights) {
        (Some(_), Some(_)) => {
            return Err(Fault::new(key("weights"), "contradicts preset: weights come from one of them")
                .hint("leave preset out"));
        }
        (Some(Preset::StaticFiles), None) => hacc.weights = HaccSettings::STATIC_FILES.weights,
        (Some(Preset::Domino), None) => hacc.weights = HaccSettings::DOMINO.weights,
        (None, Some(raw)) => hacc.weights = weights(&key("weights"), raw)?,
        (None, None) => {}
    }
    hacc.margin_permille = raw.margin.map_or(hacc.margin_permille, permille);
    hacc.amount_permille = raw.amount.map_or(hacc.amount_permille, permille);
    hacc.hot_share_permille = raw.hot_share.map_or(hacc.hot_share_permille, permille);
    hacc.period = raw.period.map_or(hacc.period, |period| period.0);
    hacc.cooldown = raw.cooldown.map_or(hacc.cooldown, |cooldown| cooldown.0);
    hacc.hot_nodes = raw.hot_nodes.unwrap_or(hacc.hot_nodes);
    match raw.level {
        None => {}
        Some(0) => hacc.level = Level::Document,
        Some(depth) => hacc.level = Level::Subtree(depth),
    }
    Ok(())
}

fn weights(
    key: &str,
    raw: &BTreeMap<String, WeightKey>,
) -> Result<[Option<SignalWeight>; HaccSettings::SIGNALS_MAX], Fault> {
    let mut found = Vec::with_capacity(raw.len());
    for (name, weight) in raw {
        found.push(signal(&format!("{key}.{name}"), name, *weight)?);
    }
    let sum: u64 = found.iter().map(|weight| u64::from(weight.permille)).sum();
    if found.is_empty() {
        let hint = "write weights = { cpu = 0.5, disk = 0.5 }";
        return Err(Fault::new(key, "no signal has a weight: all nodes would have the same load").hint(hint));
    }
    if sum > 1000 {
        #[expect(clippy::cast_precision_loss, reason = "at most 12 weights of 1000")]
        let what = format!("the sum of the weights is {}", sum as f64 / 1000.0);
        return Err(Fault::new(key, what).hint("at most 1, such as { cpu = 0.5, disk = 0.5 }"));
    }
    HaccSettings::weigh(&found).ok_or_else(|| {
        let what = format!("{} signals are too many", found.len());
        Fault::new(key, what).hint(format!("at most {}", HaccSettings::SIGNALS_MAX))
    })
}

fn signal(key: &str, name: &str, weight: WeightKey) -> Result<SignalWeight, Fault> {
    let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.name() == name) else {
        let hint = suggest(name, &Signal::ALL.map(Signal::name));
        return Err(Fault::new(key, format!("unknown signal '{name}'")).hint(hint));
    };
    let (weight, full) = match weight {
        WeightKey::Share(weight) if signal.is_share() => (weight, 1000),
        WeightKey::Share(weight) => {
            let what = format!("{name} is no share: its value at full load is missing");
            let hint = format!("write {name} = {{ weight = {weight}, full = 64 }}, in the signal's unit");
            return Err(Fault::new(key, what).hint(hint));
        }
        WeightKey::Of(of) => (of.weight, of.full),
    };
    if !(0.001..=1.0).contains(&weight) {
        return Err(Fault::new(key, format!("{weight} is out of range")).hint("0.001 to 1"));
    }
    if full == 0 || (signal.is_share() && full > 1000) {
        let hint =
            if signal.is_share() { "1 to 1000, in thousandths" } else { "1 or more, in the signal's unit" };
        return Err(Fault::new(format!("{key}.full"), format!("{full} is out of range")).hint(hint));
    }
    Ok(SignalWeight { signal, permille: permille(weight), full })
}

/// Returns the key that the level requires, if the policy is hacc and the level is not the document.
pub(crate) fn level_key(settings: &larder_core::Settings) -> Option<String> {
    (settings.policy == larder_core::PolicyKind::Hacc).then(|| settings.policies.hacc.level.key()).flatten()
}
