//! What is compared: ways for a set of nodes to serve one site, with a front-end and without.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use larder_core::PolicyKind;
use larder_trace::ward::CoreChoice;

/// A way to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    /// Every node by itself: PRESS's traditional server, and WARD's round robin.
    Trad,
    /// Equal nodes that work together.
    Peers(Cooperation),
    /// A switch before nodes that know nothing of one another.
    Switch(PolicyKind),
}

/// How equal nodes work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cooperation {
    /// Each node decides by what all have told.
    Press,
    /// One of them decides for all, by LARD/R.
    Card,
    /// Each decides by a table that all have: what is asked for most is everybody's, the rest has an owner.
    Ward,
    /// The same, but the nodes make the tables themselves, from nothing, of the counts of all.
    WardOwn,
    /// As `Ward`, but everything has an owner: the WARD paper's pure partitioning.
    Part,
}

impl Cooperation {
    /// All, in the order of the documents.
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

    /// The policy in `[node.peers]`.
    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward | Self::WardOwn | Self::Part => "ward",
        }
    }

    /// What the routing table that it begins with has for a core; none where there is no table.
    pub(super) const fn core(self) -> Option<CoreChoice> {
        match self {
            Self::Press | Self::Card | Self::WardOwn => None,
            Self::Ward => Some(CoreChoice::Best),
            Self::Part => Some(CoreChoice::Targets(0)),
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Press => "each node decides by what all tell of their memories",
            Self::Card => "one node decides for all, by lard-r",
            Self::Ward => "a table decides: a core that every node serves, owners for the rest",
            Self::WardOwn => "as ward, by tables that the nodes make of their own counts, again and again",
            Self::Part => "a table decides: owners for everything",
        }
    }
}

impl System {
    /// PRESS.
    pub(crate) const PRESS: Self = Self::Peers(Cooperation::Press);
    /// What runs unless told otherwise: without a front-end, cooperating, with a front-end.
    pub(crate) const DEFAULT: [Self; 7] = [
        Self::Trad,
        Self::PRESS,
        Self::Peers(Cooperation::Card),
        Self::Peers(Cooperation::Ward),
        Self::Peers(Cooperation::WardOwn),
        Self::Peers(Cooperation::Part),
        Self::Switch(PolicyKind::LardR),
    ];

    /// Whether a node serves by itself at first, or for good.
    pub(super) const fn begins_alone(self) -> bool {
        matches!(self, Self::Trad | Self::PRESS)
    }

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Peers(how) => how.name(),
            Self::Switch(kind) => kind.name(),
        }
    }

    /// What it is, in a few words.
    pub(crate) fn about(self) -> String {
        match self {
            Self::Trad => "no front-end, every node by itself".to_owned(),
            Self::Peers(how) => format!("no front-end, {}", how.about()),
            Self::Switch(kind) => format!("a switch before the nodes, policy {kind}"),
        }
    }

    /// Several, each once.
    ///
    /// # Errors
    /// None, one twice, or a name that nothing has; the text says so.
    pub(crate) fn several(names: &[String]) -> Result<Vec<Self>, String> {
        let systems: Vec<Self> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        if systems.is_empty() {
            return Err("--policies must name at least one".to_owned());
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

    /// `trad` or `rr`, a way to work together, else a policy of the switch.
    fn from_str(name: &str) -> Result<Self, String> {
        if matches!(name, "trad" | "rr") {
            return Ok(Self::Trad);
        }
        if let Some(how) = Cooperation::ALL.into_iter().find(|how| how.name() == name) {
            return Ok(Self::Peers(how));
        }
        let how = Cooperation::ALL.map(Cooperation::name).join(", ");
        name.parse().map(Self::Switch).map_err(|error| format!("{error}, nor is it trad, {how}"))
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
    fn names_are_those_of_servers_and_of_the_switchs_policies() {
        let several = |text: &str| System::several(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(several("trad,press,card,ward,ward-own,part,lard-r"), Ok(System::DEFAULT.to_vec()));
        assert_eq!(several("rr"), Ok(vec![System::Trad]));
        for (text, complaint) in [("press,press", "twice"), ("rr,trad", "twice"), ("presss", "trad, press")] {
            assert!(several(text).is_err_and(|error| error.contains(complaint)), "{text}");
        }
        assert!(System::several(&[]).is_err());
    }
}
