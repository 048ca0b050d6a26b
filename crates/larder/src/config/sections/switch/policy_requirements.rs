//! Checks across sections of `[switch]`: whether the classes and signals that a policy requires are configured.

use larder_core::nodes::Signal;
use larder_core::policy::UtilBy;
use larder_core::policy::thresholds::LowRule;
use larder_core::rules::ClassRules;
use larder_core::{PolicyKind, Settings};
use larder_switch::{SignalSource, SwitchConfig};

use crate::config::error::Fault;
use crate::config::sections::switch::signals::provides;

/// A section with a policy: its place, its settings, and its classes.
struct Section<'a> {
    at: String,
    settings: &'a Settings,
    classes: &'a ClassRules,
}

/// Refuses combinations that cannot work, and warns of probable mistakes.
pub(crate) fn check_policy_requirements(
    switch: &SwitchConfig,
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let standard = Section { at: "switch".to_owned(), settings: &switch.settings, classes: &switch.classes };
    let routes = switch.routes.iter().enumerate().map(|(i, route)| Section {
        at: format!("switch.routes[{i}]"),
        settings: &route.settings,
        classes: route.classes.as_ref().unwrap_or(&switch.classes),
    });
    let sections: Vec<_> = std::iter::once(standard).chain(routes).collect();
    let source = switch.signals.source.unwrap_or(SignalSource::Larder);
    for section in &sections {
        let policy = section.settings.policy;
        if goes_by_class(policy) && section.classes.rules().is_empty() {
            let what =
                format!("'{policy}' uses service classes, and there are none: all requests are of class n");
            let hint = "write [[switch.classes]] with class = \"db\", path = \"/cgi-bin/*\"";
            warnings.push(Fault::new(format!("{}.policy", section.at), what).hint(hint));
        }
        reads(section, source, switch.signals.counters.len(), warnings)?;
    }
    let users =
        |goes_by: fn(PolicyKind) -> bool| sections.iter().any(|section| goes_by(section.settings.policy));
    if !switch.classes.rules().is_empty() && !users(goes_by_class) {
        let what = "no policy uses service classes: they are only counted and logged";
        warnings.push(Fault::new("switch.classes", what).hint("cap, cap-load and static use them"));
    }
    Ok(())
}

/// Checks that the source provides the signals that a policy reads.
fn reads(
    section: &Section<'_>,
    source: SignalSource,
    counters: usize,
    warnings: &mut Vec<Fault>,
) -> Result<(), Fault> {
    let policy = section.settings.policy;
    let missing =
        |signals: &[Signal]| signals.iter().copied().find(|signal| !provides(source, *signal, counters));
    let needed = needed(section.settings);
    if needed.is_empty() {
        return Ok(());
    }
    if source == SignalSource::Off {
        let what = format!("'{policy}' uses load reports, and signals are off: it works without reports");
        warnings
            .push(Fault::new("switch.signals.source", what).hint("set source = \"larder\", or leave it out"));
        return Ok(());
    }
    match missing(&needed) {
        Some(Signal::App(which)) => {
            let what = format!(
                "'{policy}' uses the signal app{}, and the number of counters is {counters}",
                which + 1
            );
            Err(Fault::new("switch.signals.counters", what)
                .hint("name the application's counters, app1 first"))
        }
        Some(signal) => {
            let what =
                format!("'{policy}' uses the signal {}, which {source} does not provide", signal.name());
            let able = SignalSource::ALL
                .into_iter()
                .filter(|able| needed.iter().all(|s| provides(*able, *s, counters)));
            let able: Vec<&str> = able.map(SignalSource::name).collect();
            Err(Fault::new("switch.signals.source", what).hint(format!("use one of: {}", able.join(", "))))
        }
        None => Ok(()),
    }
}

/// Whether a policy uses service classes.
fn goes_by_class(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Cap | PolicyKind::CapLoad | PolicyKind::Static)
}

/// Returns the signals that a policy requires.
fn needed(settings: &Settings) -> Vec<Signal> {
    match settings.policy {
        PolicyKind::WrrNum => vec![Signal::Processes],
        PolicyKind::WrrTime => vec![Signal::ServiceTime],
        PolicyKind::LardUtil => match settings.policies.lard_util.by {
            UtilBy::Utilisation => vec![Signal::Cpu],
            UtilBy::Connections => vec![Signal::Processes],
        },
        PolicyKind::Lard | PolicyKind::LardR if settings.thresholds.low != LowRule::Fixed => {
            vec![Signal::Cpu]
        }
        PolicyKind::Hacc => settings.policies.hacc.signals().map(|weight| weight.signal).collect(),
        _ => Vec::new(),
    }
}
