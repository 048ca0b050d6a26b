//! `node.peers.profile`: the settings of a policy as they were published.
//!
//! A profile sets its keys. A key that is given with another value is refused, so that a cluster that says it runs as published does.

use std::time::Duration;

use larder_core::Bytes;

use crate::config::error::Fault;
use crate::config::sections::node::peers::{PeersHandoff, PeersKind, PeersProfile, PeersSection};
use crate::config::text::{Size, Span};

/// Returns the section with the settings of its profile.
pub(super) fn with_profile(raw: &PeersSection) -> Result<PeersSection, Fault> {
    match (raw.profile, raw.policy) {
        (PeersProfile::Own, _) => Ok(raw.clone()),
        (PeersProfile::Paper, PeersKind::Press) => press(raw),
        (PeersProfile::Paper, PeersKind::Ward) => ward(raw),
        (PeersProfile::Paper, PeersKind::Card) => {
            let what = "\"paper\" has no settings for card, whose dispatcher may use any policy";
            Err(Fault::new("node.peers.profile", what).hint("leave it out"))
        }
    }
}

/// PRESS as published (Carrera and Bianchini, PPoPP 2001, section 4.1). T of 80, differences of load of 4 and a limit of 5 % of misses are the
/// defaults. Reads are not announced, and loads are compared as reported; these have no keys. A node that works alone
/// keeps no large target, which differs from the paper: its store has one limit of size. The paper does not give the window of the misses, and names no way back to working
/// alone. Replies are relayed; with handoff it would be the paper's non-portable server.
fn press(raw: &PeersSection) -> Result<PeersSection, Fault> {
    let usual = PeersSection::default();
    let large_min = Some(Size(Bytes::kib(128)));
    let mut keys = Keys::default();
    keys.check("overload", "80", raw.overload == usual.overload);
    keys.check("large_min", "128KiB", raw.large_min.is_none() || raw.large_min == large_min);
    keys.check("load_step", "4", raw.load_step == usual.load_step);
    keys.check("gather", "0s", raw.gather.0 == usual.gather.0 || raw.gather.0.is_zero());
    keys.check("share_above", "0.05", is_equal(raw.share_above, usual.share_above));
    keys.check(
        "alone_below",
        "0",
        is_equal(raw.alone_below, usual.alone_below) || is_equal(raw.alone_below, 0.0),
    );
    keys.check("handoff", "off", raw.handoff == PeersHandoff::Off);
    keys.verdict()?;
    Ok(PeersSection { large_min, gather: Span(Duration::ZERO), alone_below: 0.0, ..raw.clone() })
}

/// WARD as published (HP Labs 2001): files that are not in the table are served locally, and the log of a day gives the table of the next.
fn ward(raw: &PeersSection) -> Result<PeersSection, Fault> {
    const PERIOD: &str = "24h";
    let (own, usual) = (&raw.ward, PeersSection::default().ward);
    let mut keys = Keys::default();
    keys.check("ward.unnamed", "here", own.unnamed == usual.unnamed || own.unnamed == "here");
    keys.check("ward.refresh", PERIOD, own.refresh == usual.refresh || own.refresh == PERIOD);
    keys.check("ward.carry", "0", is_equal(own.carry, usual.carry) || is_equal(own.carry, 0.0));
    keys.verdict()?;
    let mut section = raw.clone();
    section.ward.unnamed = "here".to_owned();
    section.ward.refresh = PERIOD.to_owned();
    section.ward.carry = 0.0;
    Ok(section)
}

/// Returns whether a value is the one that was written.
fn is_equal(value: f64, other: f64) -> bool {
    value.to_bits() == other.to_bits()
}

/// The first key that contradicts the profile, with the value that the profile sets.
#[derive(Default)]
struct Keys(Option<(&'static str, &'static str)>);

impl Keys {
    fn check(&mut self, key: &'static str, published: &'static str, agrees: bool) {
        if !agrees && self.0.is_none() {
            self.0 = Some((key, published));
        }
    }

    fn verdict(&self) -> Result<(), Fault> {
        match self.0 {
            None => Ok(()),
            Some((key, published)) => {
                let what = format!("contradicts profile = \"paper\", which sets {published}");
                Err(Fault::new(format!("node.peers.{key}"), what).hint("leave out this key, or the profile"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::peers::UnlistedTargets;

    use super::*;
    use crate::config::sections::node::peers_policy::PeersPolicy;
    use crate::config::sections::node::peers_policy::tests::parsed;

    #[test]
    fn the_paper_fixes_the_settings() {
        let (PeersPolicy::Press(paper), _) = parsed("profile = \"paper\"\nwindow = 500\ngather = \"0s\"\n")
        else {
            panic!()
        };
        assert_eq!((paper.overload, paper.load_step, paper.large_min), (80, 4, Bytes::kib(128)));
        assert_eq!((paper.gather, paper.announce_reads), (Duration::ZERO, false));
        assert!(!paper.count_forwarded);
        let sharing = paper.sharing;
        assert_eq!((sharing.on_permille, sharing.off_permille, sharing.window), (50, 0, 500));
        let (PeersPolicy::Press(own), _) = parsed("") else { panic!() };
        assert_eq!((own.large_min, own.announce_reads), (Bytes::mib(256), true));
        assert!(own.count_forwarded);
        let (PeersPolicy::Ward(paper), _) = parsed("policy = \"ward\"\nprofile = \"paper\"\n") else {
            panic!()
        };
        assert_eq!(
            (paper.settings.unlisted, paper.settings.refresh, paper.carry_permille),
            (UnlistedTargets::Here, Some(Duration::from_hours(24)), 0)
        );
    }
}
