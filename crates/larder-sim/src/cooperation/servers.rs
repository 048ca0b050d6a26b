//! The servers, and how requests move between their nodes.

use serde::{Deserialize, Serialize};

/// How a cluster serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Every node for itself; no messages. Large targets are not kept.
    Trad,
    /// PRESS: nodes decide, forward, and relay what comes back.
    Press,
    /// Nodes decide as in PRESS and hand connections over.
    Distributed,
    /// One node more decides everything, with exact knowledge, and nodes hand connections over.
    Dispatcher,
    /// One machine more takes all requests and gives them to nodes by LARD/R: a switch. What it takes of its processor is
    /// [`Costs::switch_s`](super::Costs::switch_s); the node pays nothing for it.
    Switch,
    /// CARD: every node takes requests and asks the node with the lowest name, which decides by LARD/R.
    Card,
    /// WARD without a dispatcher: nodes gather counts, and one makes a routing table of them for all.
    Ward,
    /// The same with a table without a core.
    Part,
    /// Every node for itself, as the WARD paper has it: all targets are kept.
    Rr,
}

impl Server {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::Trad,
        Self::Press,
        Self::Distributed,
        Self::Dispatcher,
        Self::Switch,
        Self::Card,
        Self::Ward,
        Self::Part,
        Self::Rr,
    ];

    /// The name in the papers' tables and here.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trad => "trad",
            Self::Press => "press",
            Self::Distributed => "distributed",
            Self::Dispatcher => "dispatcher",
            Self::Switch => "switch",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::Part => "part",
            Self::Rr => "rr",
        }
    }

    /// Whether a request is served where it comes.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Trad | Self::Rr | Self::Switch)
    }

    /// How it moves requests.
    pub(super) const fn moving(self) -> Moving {
        if matches!(self, Self::Press) { Moving::Relay } else { Moving::Handoff }
    }
}

/// How a request moves to its service node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moving {
    /// Its connection is handed over: the service node answers the client.
    Handoff,
    /// It is forwarded: the reply comes back through the initial node.
    Relay,
}

/// Until when the dispatcher of CARD counts a request whose connection is handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// Until it has moved: of what it has placed the dispatcher then never sees more than what is on its way.
    UntilMoved,
    /// Until its reply is through, as in the live nodes. The initial node learns of that: the client's packets pass it, and the
    /// service node tells it.
    #[default]
    UntilServed,
}
