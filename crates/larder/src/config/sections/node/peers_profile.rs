//! `node.peers.profile`: the settings of a policy as they were published.
//!
//! A profile fixes its settings. Keys of these settings are refused, so that a cluster that says it runs as published does.

use std::time::Duration;

use larder_core::Bytes;
use larder_core::peers::{PressSettings, SharingSettings};

use crate::config::error::Fault;
use crate::config::sections::node::peers::{PeersKind, PeersProfile, PeersSection, TablesSection};
use crate::config::text::Span;

/// The period of WARD's tables: the log of a day gives the table of the next.
const WARD_PERIOD: &str = "24h";

/// Returns the section with the settings of its profile.
pub(super) fn with_profile(raw: &PeersSection) -> Result<PeersSection, Fault> {
    let mut section = raw.clone();
    match (raw.profile, raw.policy) {
        (PeersProfile::Own, _) => {}
        (PeersProfile::Paper, PeersKind::Press) => refuse(&changed_press_keys(raw))?,
        (PeersProfile::Paper, PeersKind::Ward) => {
            refuse(&changed_ward_keys(&raw.ward))?;
            section.ward.unnamed = "here".to_owned();
            section.ward.refresh = WARD_PERIOD.to_owned();
            section.ward.carry = 0.0;
        }
        (PeersProfile::Paper, PeersKind::Card) => {
            let what = "\"paper\" has no settings for card, whose dispatcher may use any policy";
            return Err(Fault::new("node.peers.profile", what).hint("leave it out"));
        }
    }
    Ok(section)
}

/// Returns PRESS as published (Carrera and Bianchini, PPoPP 2001, section 4.1), with the limits of these settings: T = 80, large files from
/// 128 KB on, loads sent at a difference of 4, changes of memory sent at once, reads not announced, and no way back to working alone. The
/// paper does not give the window of the miss rate.
pub(super) fn published(own: PressSettings) -> PressSettings {
    let SharingSettings { off_windows, window, .. } = SharingSettings::default();
    PressSettings {
        overload: 80,
        large_min: Bytes::kib(128),
        load_step: 4,
        gather: Duration::ZERO,
        announce_reads: false,
        sharing: SharingSettings { on_permille: 50, off_permille: 0, off_windows, window },
        ..own
    }
}

fn changed_press_keys(raw: &PeersSection) -> Vec<&'static str> {
    let usual = PeersSection::default();
    let span = |span: Span| span.0;
    let keys = [
        ("overload", raw.overload != usual.overload),
        ("large_min", raw.large_min.is_some()),
        ("load_step", raw.load_step != usual.load_step),
        ("gather", span(raw.gather) != span(usual.gather)),
        ("share_above", raw.share_above.to_bits() != usual.share_above.to_bits()),
        ("alone_below", raw.alone_below.to_bits() != usual.alone_below.to_bits()),
        ("window", raw.window != usual.window),
    ];
    keys.into_iter().filter(|(_, is_changed)| *is_changed).map(|(key, _)| key).collect()
}

fn changed_ward_keys(raw: &TablesSection) -> Vec<&'static str> {
    let usual = TablesSection::default();
    let keys = [
        ("ward.unnamed", raw.unnamed != usual.unnamed),
        ("ward.refresh", raw.refresh != usual.refresh),
        ("ward.carry", raw.carry.to_bits() != usual.carry.to_bits()),
    ];
    keys.into_iter().filter(|(_, is_changed)| *is_changed).map(|(key, _)| key).collect()
}

fn refuse(changed: &[&str]) -> Result<(), Fault> {
    match changed.first() {
        Some(key) => Err(Fault::new(format!("node.peers.{key}"), "is fixed by profile = \"paper\"")
            .hint("leave out this key, or the profile")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use larder_core::peers::UnlistedTargets;

    use super::*;
    use crate::config::Written;
    use crate::config::sections::node::peers_policy::PeersPolicy;

    fn parse(peers: &str) -> PeersPolicy {
        let text = format!(
            "[node]\nname = \"a\"\nlisten = \"127.0.0.1:9001\"\nroot = \"/srv\"\ncache.size = \"16GiB\"\n\
             [node.peers]\nlisten = \"127.0.0.1:9101\"\nsecret = \"/etc/secret\"\n{peers}"
        );
        let config = Written::parse("node.toml", &text).and_then(|written| written.validate());
        let node = config.unwrap_or_else(|error| panic!("{text}\n{error}")).node.expect("there is one");
        node.peers.expect("it has peers").policy
    }

    #[test]
    fn the_paper_fixes_the_settings() {
        let PeersPolicy::Press(paper) = parse("profile = \"paper\"\ntargets_max = 5000\n") else { panic!() };
        assert_eq!(
            (paper.large_min, paper.gather, paper.announce_reads),
            (Bytes::kib(128), Duration::ZERO, false)
        );
        assert_eq!((paper.sharing.off_permille, paper.targets_max), (0, 5_000));
        let PeersPolicy::Press(own) = parse("") else { panic!() };
        assert_eq!((own.large_min, own.announce_reads), (Bytes::mib(256), true));
        let PeersPolicy::Ward(paper) = parse("policy = \"ward\"\nprofile = \"paper\"\n") else { panic!() };
        assert_eq!(
            (paper.settings.unlisted, paper.settings.refresh, paper.carry_permille),
            (UnlistedTargets::Here, Some(Duration::from_hours(24)), 0)
        );
    }
}
