//! The kinds of servers, and the forwarding modes between their nodes.

use serde::{Deserialize, Serialize};

/// The kind of server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Traditional: nodes serve all requests themselves without messages, and keep targets of every size.
    Trad,
    /// PRESS: nodes decide and forward, and relay the replies.
    Press,
    /// Distributed: nodes decide as in PRESS and hand connections off.
    Distributed,
    /// Dispatcher: an additional machine decides with exact knowledge, and nodes hand connections off.
    Dispatcher,
    /// Switch: an additional machine takes all requests and distributes them by LARD/R. Its processor time is
    /// [`CooperationCosts::switch_s`](super::CooperationCosts::switch_s); the node pays nothing for the
    /// switch.
    Switch,
    /// CARD: every node takes requests and asks the node with the lowest name, which decides by LARD/R.
    Card,
    /// WARD without a dispatcher: nodes collect counts, and one node computes a routing table for all.
    Ward,
    /// WARD with a routing table without a core.
    Part,
    /// Round robin: as traditional, under the WARD paper's name.
    Rr,
}

impl ServerKind {
    /// All kinds of servers.
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

    /// Returns the name, as in the papers' tables.
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

    /// Returns whether requests are served where they arrive.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Trad | Self::Rr | Self::Switch)
    }

    /// Returns the default forwarding mode.
    pub(super) const fn default_forwarding(self) -> ForwardingMode {
        if matches!(self, Self::Press) { ForwardingMode::Relay } else { ForwardingMode::Handoff }
    }
}

/// The mode in which a request moves to its service node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardingMode {
    /// The connection is handed off: the service node answers the client.
    Handoff,
    /// The request is forwarded: the reply returns through the initial node.
    Relay,
}

/// The time until which CARD's dispatcher counts a request that is handed off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadAccounting {
    /// Until the request has moved. The dispatcher then counts only requests that are on their way.
    UntilMoved,
    /// Until its reply has been sent, as in the live nodes. The initial node learns of the end, because the
    /// client's packets pass through it and the service node reports the end.
    #[default]
    UntilServed,
}

/// The nodes at which a request counts as load whose reply is relayed. The paper says: "the number of
/// connections being serviced by the node".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelayedLoad {
    /// At the initial node and at the service node, as in the live nodes.
    #[default]
    Both,
    /// At the initial node, which alone has the client's connection.
    Initial,
}
