//! What this machine can do, and what of it a role needs.
//!
//! [`Facts`] are what was found: plain data, gathered by [`Facts::of_this_host`] without changing anything (but for a
//! socket and a tiny program that live for a moment), or made up by a test. [`judge()`] turns facts into [`Finding`]s and
//! so into the best [`Mechanism`] that is left: cookie, else repair, else relay.

mod facts;
mod idle;
mod judge;
mod kernel;
pub(crate) mod netlink;

pub use facts::{Capabilities, Facts, InterfaceFacts, Route, Xdp};
pub use idle::Idle;
pub use judge::judge;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Which side of a handoff this machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The front-end.
    Switch,
    /// A host behind it.
    Node,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Switch => "switch",
            Self::Node => "node",
        })
    }
}

/// How a request reaches its node, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// Handoff by cookie.
    Cookie,
    /// Handoff by `TCP_REPAIR`.
    Repair,
    /// Two connections and a copy between them; needs nothing.
    Relay,
}

impl Mechanism {
    /// All, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Cookie, Self::Repair, Self::Relay];

    /// As in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cookie => "cookie",
            Self::Repair => "repair",
            Self::Relay => "relay",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The side.
    pub role: Role,
    /// The interface by which clients' packets come in; without it nothing is said of interfaces.
    pub interface: Option<String>,
    /// Listen addresses. An unspecified address asks for none in particular.
    pub services: Vec<SocketAddr>,
    /// The nodes (of a switch).
    pub nodes: Vec<IpAddr>,
    /// Packets to the nodes are encapsulated.
    pub tunnels: bool,
}

/// How it stands with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Works,
    /// Works, but slower or less safely.
    Degraded,
    /// Could not be found out.
    Unknown,
    /// Is not there; what needs it is out.
    Missing,
}

impl State {
    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What: a short name that stays.
    pub what: String,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to get it, if it does not work.
    pub remedy: Option<String>,
    /// What is out while it is [`State::Missing`].
    pub needed_for: &'static [Mechanism],
}

/// All findings for one [`Subject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// For which side.
    pub role: Role,
    /// In the order in which they were looked at.
    pub findings: Vec<Finding>,
}

impl Report {
    /// What is missing for a mechanism.
    pub fn missing_for(&self, mechanism: Mechanism) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |f| f.state == State::Missing && f.needed_for.contains(&mechanism))
    }

    /// Whether nothing is missing for a mechanism.
    pub fn can(&self, mechanism: Mechanism) -> bool {
        self.missing_for(mechanism).next().is_none()
    }

    /// The best mechanism that this machine can do: cookie, else repair, else relay.
    pub fn best(&self) -> Mechanism {
        Mechanism::ALL.into_iter().find(|m| self.can(*m)).unwrap_or(Mechanism::Relay)
    }
}
