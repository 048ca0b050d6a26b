//! What an operator sees of switches side by side.

use super::status::SwitchHandle;
use larder_core::switches::{OtherView, SwitchesCounts};
use larder_peers::CounterValues;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// This switch and the others, as they are now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwitchesStatus {
    /// This switch's name.
    pub name: String,
    /// Where it listens to the others; none while it cannot.
    pub listen: Option<SocketAddr>,
    /// Which life of its name this is: milliseconds since 1970 at its start.
    pub incarnation: Option<u64>,
    /// It has asked others for all the sets they knew, or there were none to ask.
    pub whole: bool,
    /// The others, by name.
    pub others: Vec<PeerSwitchStatus>,
    /// Nodes whose loads differ by no more than this count as equal when a target is placed. Requests.
    pub apart: u32,
    /// Requests of the others at each node, by name; nodes at which they have none are left out.
    pub elsewhere: BTreeMap<String, u32>,
    /// Server sets told and heard.
    pub sets: SetsStatus,
    /// What the network has done; none while it cannot be joined.
    pub network: Option<CounterValues>,
}

/// Another switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerSwitchStatus {
    /// Its name.
    pub name: String,
    /// Where it listens; none once membership has lost it.
    pub address: Option<SocketAddr>,
    /// Which life of its name this is.
    pub incarnation: Option<u64>,
    /// Messages go both ways.
    pub up: bool,
    /// Seconds since it last said how loaded it is.
    pub silent_s: f64,
    /// What it has is not known any more: it is taken for like the others.
    pub unknown: bool,
    /// It is being asked for server sets.
    pub asking: bool,
    /// Its requests at nodes known here.
    pub requests: u64,
}

/// Server sets told and heard, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetsStatus {
    /// Told to others.
    pub told: u64,
    /// Heard, and later than what was known.
    pub taken: u64,
    /// Heard, and known already.
    pub same: u64,
    /// Heard, and earlier than what was known.
    pub older: u64,
    /// Not told: of too many servers.
    pub too_large: u64,
    /// Times that more had changed than could be told, so that the others were told to ask.
    pub missed: u64,
    /// Parts asked for.
    pub parts_asked: u64,
    /// Messages that made no sense, or were of another version.
    pub strange: u64,
}

impl From<SwitchesCounts> for SetsStatus {
    fn from(counts: SwitchesCounts) -> Self {
        Self {
            told: counts.sets_told,
            taken: counts.sets_taken,
            same: counts.sets_same,
            older: counts.sets_older,
            too_large: counts.sets_too_large,
            missed: counts.missed,
            parts_asked: counts.parts_asked,
            strange: counts.strange,
        }
    }
}

impl SwitchHandle {
    /// This switch and those beside it; `None` if it is to have none.
    pub fn switches(&self) -> Option<SwitchesStatus> {
        let peer_switches = self.shared.peer_switches.as_ref()?;
        let network = peer_switches.network().clone();
        let members = network.as_ref().map(|network| network.members());
        let (others, sets) = peer_switches.numbers(self.shared.decider.clock.now());
        let sets = SetsStatus::from(sets);
        let other = |other: OtherView| {
            let mut members = members.iter().flat_map(|members| members.iter());
            let member = members.find(|member| member.name.as_str() == &*other.name);
            PeerSwitchStatus {
                name: other.name.to_string(),
                address: member.map(|member| member.address),
                incarnation: member.map(|member| member.incarnation),
                up: other.up,
                silent_s: other.silent.as_secs_f64(),
                unknown: other.unknown,
                asking: other.asking,
                requests: other.requests,
            }
        };
        let nodes = self.shared.decider.dispatcher.nodes();
        let there = nodes.rows().into_iter().map(|row| (row.name.to_string(), nodes.elsewhere(row.id)));
        let machine = peer_switches.machine();
        Some(SwitchesStatus {
            name: peer_switches.config.network.name.to_string(),
            listen: network.as_ref().map(|network| network.local_addr()),
            incarnation: network.as_ref().map(|network| network.incarnation()),
            whole: machine.is_whole(),
            others: others.into_iter().map(other).collect(),
            apart: machine.elsewhere().apart,
            elsewhere: there.filter(|(_, requests)| *requests > 0).collect(),
            sets,
            network: network.map(|network| network.counters().read()),
        })
    }
}
