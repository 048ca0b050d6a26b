//! Whether a desk counts what is under way: for worlds that look into both nodes at once.

use super::{Card, Claim, OWN};
use std::collections::BTreeMap;

/// What a desk counts wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscount {
    /// Requests that it counts for a distributor in one life of a node.
    pub counted: u32,
    /// Requests that the distributor has under way there.
    pub under_way: u32,
}

impl Card {
    /// What this node's desk counts wrongly of an asker's requests, whose `claims` these are. None where it is right, and where
    /// they have something to tell each other: the desk may know less than the asker, or more, until all is said. Both know each
    /// other by the slots that they know themselves by; the asker may be this node.
    pub fn miscount(&self, asker: &Self, claims: impl IntoIterator<Item = Claim>) -> Option<Miscount> {
        let account = if asker.me == self.me { OWN } else { self.settled_account(asker)? };
        let mut under_way = BTreeMap::new();
        for claim in claims.into_iter().filter(|claim| claim.account == account) {
            *under_way.entry(claim.life).or_default() += 1;
        }
        // What is under way in a life that has ended here is not counted.
        let lives = self.desk.lives();
        let mut pairs = lives.map(|life| Miscount {
            counted: self.desk.counted(asker.me, life),
            under_way: under_way.get(&life).copied().unwrap_or(0),
        });
        pairs.find(|pair| pair.counted != pair.under_way)
    }

    /// The account of an asker, if what each side knows of it is the same.
    fn settled_account(&self, asker: &Self) -> Option<u64> {
        let (id, heard) = asker.accounts.get(self.me)?.settled()?;
        (self.desk.heard(asker.me) == Some((asker.epoch, id, heard))).then_some(id)
    }
}
