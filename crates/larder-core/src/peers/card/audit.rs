//! Check of a dispatcher's counts against the requests in progress, for tests that see both nodes.

use super::{Card, Claim, OWN_ACCOUNT};
use alloc::collections::BTreeMap;

/// Wrong count of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscount {
    /// Requests that the dispatcher counts for a distributor and one incarnation of a node.
    pub counted: u32,
    /// Requests of the distributor that are in progress there.
    pub in_progress: u32,
}

impl Card {
    /// Compares the counts of this node's dispatcher with the claims of a distributor. Returns the first wrong
    /// count. Returns `None` if all counts are right, or if either side still has something to report. Both nodes
    /// must use the same slots; the distributor may be this node.
    pub fn miscount(&self, distributor: &Self, claims: impl IntoIterator<Item = Claim>) -> Option<Miscount> {
        let account =
            if distributor.me == self.me { OWN_ACCOUNT } else { self.settled_account(distributor)? };
        let mut in_progress = BTreeMap::new();
        for claim in claims.into_iter().filter(|claim| claim.account == account) {
            *in_progress.entry(claim.incarnation).or_default() += 1;
        }
        // A request at an ended incarnation is not counted.
        let incarnations = self.own_dispatcher.incarnations();
        let mut pairs = incarnations.map(|incarnation| Miscount {
            counted: self.own_dispatcher.counted_requests(distributor.me, incarnation),
            in_progress: in_progress.get(&incarnation).copied().unwrap_or(0),
        });
        pairs.find(|pair| pair.counted != pair.in_progress)
    }

    /// Returns the account of a distributor if both sides have the same state of it.
    fn settled_account(&self, distributor: &Self) -> Option<u64> {
        let (id, acknowledged) = distributor.accounts.get(self.me)?.settled_state()?;
        (self.own_dispatcher.last_answered(distributor.me) == Some((distributor.epoch, id, acknowledged)))
            .then_some(id)
    }
}
