//! The compared systems: ways for a set of nodes to serve a site, with a switch and without.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use larder_core::PolicyKind;
use larder_trace::ward::CoreChoice;

/// A system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    /// Independent nodes: PRESS's traditional server, and WARD's round robin.
    Trad,
    /// Peers that cooperate.
    Peers(Cooperation),
    /// A switch in front of independent nodes.
    Switch(PolicyKind),
}

/// A way in which peers cooperate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cooperation {
    /// Each node decides by what all nodes report.
    Press,
    /// One node decides for all, by LARD/R.
    Card,
    /// Each node decides by a common table. The most requested targets are served by all nodes, and the
    /// others have an owner.
    Ward,
    /// As `Ward`, but the nodes build the tables themselves from the counts of all nodes.
    WardOwn,
    /// As `Ward`, but every target has an owner: the WARD paper's pure partitioning.
    Part,
}

impl Cooperation {
    /// All ways, in the order of the documents.
    const ALL: [Self; 5] = [Self::Press, Self::Card, Self::Ward, Self::WardOwn, Self::Part];

    const fn name(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::WardOwn => "ward-own",
            Self::Part => "part",
        }
    }

    /// Returns the policy in `[node.peers]`.
    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward | Self::WardOwn | Self::Part => "ward",
        }
    }

    /// Returns the core of the initial routing table; `None` without an initial table.
    pub(super) const fn core(self) -> Option<CoreChoice> {
        match self {
            Self::Press | Self::Card | Self::WardOwn => None,
            Self::Ward => Some(CoreChoice::Best),
            Self::Part => Some(CoreChoice::Targets(0)),
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Press => "each node decides by the contents that all nodes report",
            Self::Card => "one node decides for all, by lard-r",
            Self::Ward => "a table decides: a core that every node serves, owners for the rest",
            Self::WardOwn => "as ward, with tables that the nodes rebuild from their own counts",
            Self::Part => "a table decides: owners for everything",
        }
    }
}

impl System {
    /// PRESS.
    pub(crate) const PRESS: Self = Self::Peers(Cooperation::Press);
    /// The default systems.
    pub(crate) const DEFAULT: [Self; 7] = [
        Self::Trad,
        Self::PRESS,
        Self::Peers(Cooperation::Card),
        Self::Peers(Cooperation::Ward),
        Self::Peers(Cooperation::WardOwn),
        Self::Peers(Cooperation::Part),
        Self::Switch(PolicyKind::LardR),
    ];

    /// Whether nodes work independently, at first or always.
    pub(super) const fn starts_alone(self) -> bool {
        matches!(self, Self::Trad | Self::PRESS)
    }

    /// Returns the name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Peers(cooperation) => cooperation.name(),
            Self::Switch(kind) => kind.name(),
        }
    }

    /// Returns a short description.
    pub(crate) fn describe(self) -> String {
        match self {
            Self::Trad => "no switch, independent nodes".to_owned(),
            Self::Peers(cooperation) => format!("no switch, {}", cooperation.describe()),
            Self::Switch(kind) => format!("a switch in front of the nodes, policy {kind}"),
        }
    }

    /// Parses a list of distinct systems.
    ///
    /// # Errors
    /// Returns an error if the list is empty, contains a system twice, or contains an unknown name.
    pub(crate) fn parse_list(names: &[String]) -> Result<Vec<Self>, String> {
        let systems: Vec<Self> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        if systems.is_empty() {
            return Err("--policies must name at least one policy".to_owned());
        }
        let mut seen = BTreeSet::new();
        match systems.iter().find(|system| !seen.insert(**system)) {
            Some(twice) => Err(format!("--policies names '{twice}' twice")),
            None => Ok(systems),
        }
    }
}

impl FromStr for System {
    type Err = String;

    /// Parses `trad`, `rr`, a way to cooperate, or a policy of the switch.
    fn from_str(name: &str) -> Result<Self, String> {
        if matches!(name, "trad" | "rr") {
            return Ok(Self::Trad);
        }
        if let Some(cooperation) = Cooperation::ALL.into_iter().find(|cooperation| cooperation.name() == name)
        {
            return Ok(Self::Peers(cooperation));
        }
        let cooperation = Cooperation::ALL.map(Cooperation::name).join(", ");
        name.parse().map(Self::Switch).map_err(|error| format!("{error}, nor is it trad, {cooperation}"))
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_and_policies_of_the_switch_are_parsed() {
        let parse = |text: &str| System::parse_list(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("trad,press,card,ward,ward-own,part,lard-r"), Ok(System::DEFAULT.to_vec()));
        assert_eq!(parse("rr"), Ok(vec![System::Trad]));
        for (text, complaint) in [("press,press", "twice"), ("rr,trad", "twice"), ("presss", "trad, press")] {
            assert!(parse(text).is_err_and(|error| error.contains(complaint)), "{text}");
        }
        assert!(System::parse_list(&[]).is_err());
    }
}
