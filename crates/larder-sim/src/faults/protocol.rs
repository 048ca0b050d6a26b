//! The protocols that nodes speak, and the rules of them that nodes may break.

use core::time::Duration;

/// After the last fault, and with every node in sight of every other, views are exact within this time (of the simulation).
pub const CONVERGES_WITHIN: Duration = Duration::from_secs(8);

/// The protocol that the nodes of a world speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Every node knows of the others' loads and memories.
    Press,
    /// One node decides for all.
    Card,
    /// Every node has a routing table.
    Ward,
    /// Switches side by side.
    Switches,
    /// Nodes hand clients' connections over to each other.
    Handing,
    /// A switch hands clients' connections off to nodes.
    Edge,
}

impl Protocol {
    /// All.
    pub const ALL: [Self; 6] =
        [Self::Press, Self::Card, Self::Ward, Self::Switches, Self::Handing, Self::Edge];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Press => "press",
            Self::Card => "card",
            Self::Ward => "ward",
            Self::Switches => "switches",
            Self::Handing => "handing",
            Self::Edge => "edge",
        }
    }

    /// So long after the last fault, of the simulation, rule 4 holds. A dispatcher hears from each node every 10 s at least.
    pub const fn converges_within(self) -> Duration {
        match self {
            Self::Press => CONVERGES_WITHIN,
            Self::Card => Duration::from_secs(14),
            Self::Ward => Duration::from_secs(8),
            Self::Switches => Duration::from_secs(14),
            Self::Handing | Self::Edge => Duration::from_secs(20),
        }
    }
}

/// A rule that the nodes of a world break, to show that the breach is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A service node decides about what was forwarded to it as if a client had asked: breaks rule 2.
    ForwardsAgain,
    /// An initial node forgets a request whose service node did not answer: breaks rule 1.
    ForgetsRequests,
    /// An initial node gives up on a request whose service node did not answer, and answers it all the same: breaks rule 1.
    EndsTwice,
    /// A service node does not count the end of what was forwarded to it: breaks rule 3. (CARD: a distributor tells no ends;
    /// WARD counts nothing; switches: one does not count an end; handing over: a service node tells no ends.)
    ForgetsEnds,
    /// Each end counts twice: breaks rule 3. (WARD counts nothing.)
    EndsCountTwice,
    /// Nobody asks for what he has missed (CARD, WARD: no clock strikes): breaks rule 4.
    NeverAsks,
    /// Handing over: a service node does not name what it has when a channel has come up.
    NeverNames,
    /// Handing over: an agent goes on listening to a node's older connections.
    HearsTheOld,
    /// Handing over: what begins a move is sent by whichever connection is up.
    SendsByAny,
    /// Handing over: a socket of which nothing is known goes on here.
    ThawsInDoubt,
    /// Handing over: clients whose node is gone are not told.
    ForgetsToTell,
    /// Handing over: packets of what a node still has do not go to it again.
    NeverPointsBack,
    /// Handing over: what rests counts at the dispatcher.
    NeverRests,
}

impl Broken {
    /// All.
    pub const ALL: [Self; 13] = [
        Self::ForwardsAgain,
        Self::ForgetsRequests,
        Self::EndsTwice,
        Self::ForgetsEnds,
        Self::EndsCountTwice,
        Self::NeverAsks,
        Self::NeverNames,
        Self::HearsTheOld,
        Self::SendsByAny,
        Self::ThawsInDoubt,
        Self::ForgetsToTell,
        Self::NeverPointsBack,
        Self::NeverRests,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForwardsAgain => "forwards-again",
            Self::ForgetsRequests => "forgets-requests",
            Self::EndsTwice => "ends-twice",
            Self::ForgetsEnds => "forgets-ends",
            Self::EndsCountTwice => "ends-count-twice",
            Self::NeverAsks => "never-asks",
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
