//! What the cluster looks like from one node.

use super::{Cooperation, State};
use larder_core::peers::Why as Placed;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// What the cluster looks like from here.
#[derive(Clone, Debug, Serialize)]
pub struct PeersView {
    /// This node's name.
    pub name: String,
    /// Which life of it: milliseconds since 1970 at its start.
    pub incarnation: u64,
    /// Whether it takes part; by itself it forwards nothing and tells nothing.
    pub sharing: bool,
    /// Connections that it services.
    pub load: u32,
    /// Targets whose servers it knows.
    pub targets_known: usize,
    /// Targets that it holds in memory, of those that peers may ask for.
    pub targets_held: usize,
    /// Decisions by reason.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The other members.
    pub members: Vec<MemberView>,
    /// Broadcasts of load.
    pub loads_told: u64,
    /// Broadcasts of changes of memory.
    pub changes_told: u64,
    /// Requests that were forwarded.
    pub forwarded: u64,
    /// Requests that peers have forwarded.
    pub taken: u64,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Where it listens for peers.
    pub address: String,
    /// Which life of its name.
    pub incarnation: u64,
    /// Its load as it counts here; unknown is `null`.
    pub load: Option<u32>,
    /// Whether all that it has said of its memory is known.
    pub known: bool,
}

impl Cooperation {
    pub(super) fn view(&self) -> PeersView {
        let (state, now) = (self.lock(), self.now());
        let State { press, numbers, .. } = &*state;
        let (targets_known, targets_held) = press.sizes();
        let counts = self.network.counters().read();
        let decided = Placed::ALL.iter().zip(&self.placed);
        let members = self.network.members();
        let member = |member: &crate::peers::Member| {
            let node = numbers.get(&member.name).copied();
            MemberView {
                name: member.name.to_string(),
                address: member.address.to_string(),
                incarnation: member.incarnation,
                load: node.and_then(|node| press.load_of(now, node)),
                known: node.is_some_and(|node| press.knows(node)),
            }
        };
        PeersView {
            name: self.network.name().to_string(),
            incarnation: self.network.incarnation(),
            sharing: press.shares(),
            load: press.load(),
            targets_known,
            targets_held,
            decisions: decided.map(|(why, count)| (why.name(), count.load(Relaxed))).collect(),
            members: members.iter().map(member).collect(),
            loads_told: self.loads_told.load(Relaxed),
            changes_told: self.changes_told.load(Relaxed),
            forwarded: counts.requests_out,
            taken: counts.requests_in,
        }
    }
}
