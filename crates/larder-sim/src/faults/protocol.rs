//! The protocols of fault worlds, and their rules that nodes may break.

use core::time::Duration;

/// The time after the last fault, with every node in sight of every other, within which views are exact
/// (simulated time).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(8);

/// The protocol of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// PRESS: every node knows the loads and memories of the others.
    Press,
    /// CARD: one node decides for all.
    Card,
    /// WARD: every node has a routing table.
    Ward,
    /// Several switches in front of the same nodes.
    Switches,
    /// Handoff of clients' connections between peers.
    PeerHandoff,
    /// Handoff of clients' connections from a switch to nodes.
    Edge,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 6] =
        [Self::Press, Self::Card, Self::Ward, Self::Switches, Self::PeerHandoff, Self::Edge];

    /// Returns the protocol's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::Switches => "switches",
            Self::PeerHandoff => "handoff",
            Self::Edge => "edge",
        }
    }

    /// Returns the simulated time after the last fault within which invariant 4 holds. A dispatcher hears
    /// from each node at least every 10 s.
    pub const fn convergence_time(self) -> Duration {
        match self {
            Self::Press => CONVERGES_WITHIN,
            Self::Card => Duration::from_secs(14),
            Self::Ward => Duration::from_secs(8),
            Self::Switches => Duration::from_secs(14),
            Self::PeerHandoff | Self::Edge => Duration::from_secs(20),
        }
    }
}

/// A rule that the nodes of a world break, to show that the violation is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenRule {
    /// A service node decides about a forwarded request as about a client's request. Breaks invariant 2.
    ForwardsAgain,
    /// An initial node forgets a request whose service node did not answer. Breaks invariant 1.
    ForgetsRequests,
    /// An initial node gives up a request whose service node did not answer, and answers it nevertheless.
    /// Breaks invariant 1.
    EndsTwice,
    /// A service node does not count the end of a forwarded request. Breaks invariant 3. In CARD, a
    /// distributor reports no ends. WARD counts nothing. A switch does not count an end. In handoff between
    /// peers, a service node reports no ends.
    ForgetsEnds,
    /// Each end counts twice. Breaks invariant 3. WARD counts nothing.
    EndsCountTwice,
    /// No node asks for information that it has missed (CARD, WARD: no timer expires). Breaks invariant 4.
    NeverAsks,
    /// Switches: the end of a prompt is not reported to its chain dispatcher. Breaks invariant 3.
    ForgetsPrompts,
    /// Handoff: a service node does not list its connections when a channel has come up.
    NeverNames,
    /// Handoff: an agent continues to read a node's older sessions.
    HearsTheOld,
    /// Handoff: a move is sent over whichever session is up.
    SendsByAny,
    /// Handoff: a socket in an unknown state continues here.
    ThawsInDoubt,
    /// Handoff: clients of a lost node are not reset.
    ForgetsToTell,
    /// Handoff: packets of connections that a node still has are not sent to the node again.
    NeverPointsBack,
    /// Handoff: idle connections count at the dispatcher.
    NeverRests,
}

impl BrokenRule {
    /// All rules.
    pub const ALL: [Self; 14] = [
        Self::ForwardsAgain,
        Self::ForgetsRequests,
        Self::EndsTwice,
        Self::ForgetsEnds,
        Self::EndsCountTwice,
        Self::NeverAsks,
        Self::ForgetsPrompts,
        Self::NeverNames,
        Self::HearsTheOld,
        Self::SendsByAny,
        Self::ThawsInDoubt,
        Self::ForgetsToTell,
        Self::NeverPointsBack,
        Self::NeverRests,
    ];

    /// Returns the rule's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardsAgain => "forwards-again",
            Self::ForgetsRequests => "forgets-requests",
            Self::EndsTwice => "ends-twice",
            Self::ForgetsEnds => "forgets-ends",
            Self::EndsCountTwice => "ends-count-twice",
            Self::NeverAsks => "never-asks",
            Self::ForgetsPrompts => "forgets-prompts",
            Self::NeverNames => "never-names",
            Self::HearsTheOld => "hears-the-old",
            Self::SendsByAny => "sends-by-any",
            Self::ThawsInDoubt => "thaws-in-doubt",
            Self::ForgetsToTell => "forgets-to-tell",
            Self::NeverPointsBack => "never-points-back",
            Self::NeverRests => "never-rests",
        }
    }
}
