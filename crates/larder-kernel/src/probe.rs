//! Examines the capabilities of this machine for handoff.
//!
//! [`Facts`] are plain data. [`Facts::of_this_host`] gathers them without changing anything, except for a socket and a
//! tiny program that live for a moment; tests make them up. [`evaluate()`] turns facts into [`Finding`]s, and these
//! into the best available [`Mechanism`]: cookie, else repair, else relay.

mod facts;
mod idle;
mod judge;
mod kernel;
pub(crate) mod netlink;

pub use facts::{Capabilities, Facts, InterfaceFacts, Route, Xdp};
pub use idle::Idle;
pub use judge::evaluate;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Role of this machine in a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The switch.
    Switch,
    /// A node.
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

/// Mechanism by which a request reaches its node, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// Handoff by cookie.
    Cookie,
    /// Handoff by `TCP_REPAIR`.
    Repair,
    /// Two connections with a copy between them. Has no requirements.
    Relay,
}

impl Mechanism {
    /// All mechanisms, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Cookie, Self::Repair, Self::Relay];

    /// Returns the mechanism's name in the config.
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

/// The role and addresses to examine a machine for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The machine's role.
    pub role: Role,
    /// The interface that receives clients' packets. Without it, no interface is examined.
    pub interface: Option<String>,
    /// Listen addresses. An unspecified address is not examined.
    pub services: Vec<SocketAddr>,
    /// Addresses of the nodes (for a switch).
    pub nodes: Vec<IpAddr>,
    /// Whether packets to the nodes are encapsulated.
    pub tunnels: bool,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingState {
    /// It works.
    Works,
    /// It works, but more slowly or less safely.
    Degraded,
    /// It could not be determined.
    Unknown,
    /// It is missing. The mechanisms that need it are not available.
    Missing,
}

impl FindingState {
    /// Returns the name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
            Self::Missing => "missing",
        }
    }
}

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Short, stable name of the check.
    pub what: String,
    /// Result.
    pub state: FindingState,
    /// Description of the result.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// How to fix it, if it does not work.
    pub remedy: Option<String>,
    /// Mechanisms that are not available while it is [`FindingState::Missing`].
    pub needed_for: &'static [Mechanism],
}

/// All findings for one [`Subject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The machine's role.
    pub role: Role,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the findings that make a mechanism unavailable.
    pub fn missing_for(&self, mechanism: Mechanism) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(move |f| f.state == FindingState::Missing && f.needed_for.contains(&mechanism))
    }

    /// Whether a mechanism is available.
    pub fn can(&self, mechanism: Mechanism) -> bool {
        self.missing_for(mechanism).next().is_none()
    }

    /// Returns the best available mechanism: cookie, else repair, else relay.
    pub fn best(&self) -> Mechanism {
        Mechanism::ALL.into_iter().find(|m| self.can(*m)).unwrap_or(Mechanism::Relay)
    }
}
