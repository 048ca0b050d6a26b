//! Status of peer switches.

use crate::PeerSwitches;
use larder_core::switches::{PeerSwitchSummary, SwitchesCounts};
use larder_core::{Dispatcher, Time};
use larder_peers::CounterValues;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Status of this switch and its peers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwitchesStatus {
    /// This switch's name.
    pub name: String,
    /// Address at which it listens to its peers; `None` while it cannot.
    pub listen: Option<SocketAddr>,
    /// Incarnation of its name: milliseconds since 1970 at its start.
    pub incarnation: Option<u64>,
    /// Whether it has requested all server sets of its peers, or there was no peer.
    pub whole: bool,
    /// Peers by name.
    pub others: Vec<PeerSwitchStatus>,
    /// Load difference up to which nodes count as equal when a target is placed. Requests.
    pub apart: u32,
    /// Requests of the peers at each node by name, without zeros.
    pub elsewhere: BTreeMap<String, u32>,
    /// Counters of server sets.
    pub sets: SetsStatus,
    /// Counters of the network; `None` while it is not joined.
    pub network: Option<CounterValues>,
}

/// Status of a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerSwitchStatus {
    /// Its name.
    pub name: String,
    /// Address at which it listens; `None` once membership has lost it.
    pub address: Option<SocketAddr>,
    /// Incarnation of its name.
    pub incarnation: Option<u64>,
    /// Whether messages pass in both directions.
    pub up: bool,
    /// Seconds since its last load message.
    pub silent_s: f64,
    /// Whether its load is unknown; then it is assumed to be like the others.
    pub unknown: bool,
    /// Whether server sets are being requested from it.
    pub asking: bool,
    /// Its requests at nodes that this switch knows.
    pub requests: u64,
}

/// Counters of server sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SetsStatus {
    /// Sent to peers.
    pub told: u64,
    /// Received, and newer than the known set.
    pub taken: u64,
    /// Received, and known already.
    pub same: u64,
    /// Received, and older than the known set.
    pub older: u64,
    /// Not sent, because they had too many servers.
    pub too_large: u64,
    /// Times that more sets had changed than could be sent, so that the peers were told to request them.
    pub missed: u64,
    /// Requested parts.
    pub parts_asked: u64,
    /// Messages that were malformed or of another version.
    pub strange: u64,
}

impl From<SwitchesCounts> for SetsStatus {
    fn from(counts: SwitchesCounts) -> Self {
        Self {
            told: counts.sets_sent,
            taken: counts.sets_taken,
            same: counts.sets_same,
            older: counts.sets_older,
            too_large: counts.sets_too_large,
            missed: counts.missed,
            parts_asked: counts.parts_asked,
            strange: counts.invalid,
        }
    }
}

impl PeerSwitches {
    /// Returns the status of this switch and its peers.
    pub fn status(&self, now: Time, dispatcher: &Dispatcher) -> SwitchesStatus {
        let network = self.network().clone();
        let members = network.as_ref().map(|network| network.members());
        let (others, sets) = self.peers_and_counts(now);
        let sets = SetsStatus::from(sets);
        let other = |other: PeerSwitchSummary| {
            let mut members = members.iter().flat_map(|members| members.iter());
            let member = members.find(|member| member.name.as_str() == &*other.name);
            PeerSwitchStatus {
                name: other.name.to_string(),
                address: member.map(|member| member.address),
                incarnation: member.map(|member| member.incarnation),
                up: other.up,
                silent_s: other.silent.as_secs_f64(),
                unknown: other.unknown,
                asking: other.requesting,
                requests: other.requests,
            }
        };
        let nodes = dispatcher.nodes();
        let there = nodes.rows().into_iter().map(|row| (row.name.to_string(), nodes.peer_requests(row.id)));
        let machine = self.machine();
        SwitchesStatus {
            name: self.config.network.name.to_string(),
            listen: network.as_ref().map(|network| network.local_addr()),
            incarnation: network.as_ref().map(|network| network.incarnation()),
            whole: machine.is_complete(),
            others: others.into_iter().map(other).collect(),
            apart: machine.peer_state().equal_within,
            elsewhere: there.filter(|(_, requests)| *requests > 0).collect(),
            sets,
            network: network.map(|network| network.counters().read()),
        }
    }
}
