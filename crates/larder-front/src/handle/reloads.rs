//! Handing over to a process that takes this one's place: what it is told, and what the operator sees of it.

use super::routes::ShareRefused;
use super::status::{SwitchHandle, UnknownNode};
use crate::reload_counts::ReloadCounts;
use larder_core::{Handover, HandoverError, Time};
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// How a node stands, by what this process has been told and has found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReloadState {
    /// Its name.
    pub name: String,
    /// Its address as configured.
    pub address: String,
    /// Its relative capacity in 1/1000.
    pub weight_milli: u32,
    /// The operator takes it out of service.
    pub drained: bool,
    /// It answers.
    pub healthy: bool,
    /// It has joined and is not warm yet.
    pub joining: bool,
    /// Since when it drains, nanoseconds of the clock that all processes of a switch share; 0 if it does not.
    #[serde(default)]
    pub drains_since_ns: u64,
    /// How often it was ejected for how it answers, less what it has made good.
    #[serde(default)]
    pub ejections: u32,
    /// It is out for that, until then on the same clock.
    #[serde(default)]
    pub ejected: bool,
    /// See `ejected`; when the last time ended if it is not out.
    #[serde(default)]
    pub ejected_until_ns: u64,
}

/// A route's share that the operator has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReloadState {
    /// The route, by name.
    pub route: String,
    /// The share that the config gives it, in thousandths of a percent.
    pub configured: u32,
    /// The share that it has.
    pub share: u32,
}

impl SwitchHandle {
    /// How the nodes stand, for the process that takes over.
    pub fn node_reload_states(&self) -> Vec<NodeReloadState> {
        let rows = self.shared.decider.dispatcher.nodes().rows().into_iter();
        let with_node = rows.filter_map(|row| Some((self.shared.decider.nodes.get(row.id)?, row)));
        let members = with_node.filter(|(node, _)| !node.condition().left);
        let condition = members.map(|(node, row)| {
            let condition = node.condition();
            NodeReloadState {
                name: row.name.to_string(),
                address: node.address.clone(),
                weight_milli: row.weight.milli(),
                drained: condition.drained,
                healthy: condition.healthy,
                joining: row.joining,
                drains_since_ns: node.draining_since().map_or(0, Time::as_nanos),
                ejections: node.ejections.load(Relaxed),
                ejected: condition.ejected,
                ejected_until_ns: node.ejected_until.load(Relaxed),
            }
        });
        condition.collect()
    }

    /// Lets a node stand as it did in the process before: drained, and since when; down or ejected if it was and is where it
    /// was.
    ///
    /// # Errors
    /// There is no such node.
    pub fn stand(&self, before: &NodeReloadState) -> Result<(), UnknownNode> {
        let node = self.member(&before.name)?;
        let is_the_same = node.address == before.address;
        let looks = self.shared.guards.outliers.is_on() && is_the_same;
        if looks {
            node.ejections.store(before.ejections, Relaxed);
            node.ejected_until.store(before.ejected_until_ns, Relaxed);
        }
        self.shared.decider.change_condition(&node, "as before the reload", |condition| {
            condition.drained = before.drained;
            condition.healthy = before.healthy || !is_the_same;
            condition.ejected = before.ejected && looks;
        });
        if before.drains_since_ns > 0 {
            node.set_draining_since(Time::from_nanos(before.drains_since_ns));
        }
        Ok(())
    }

    /// The shares that routes have by the operator's word, for the process that takes over.
    pub fn shares(&self) -> Vec<ShareReloadState> {
        let routing = &self.shared.decider.routing;
        let changed = routing.all().filter_map(|(id, route)| {
            let (configured, share) = routing.route(route.share_of?).split.as_ref()?.shares(id)?;
            (configured != share).then(|| ShareReloadState {
                route: route.name.to_string(),
                configured,
                share,
            })
        });
        changed.collect()
    }

    /// Gives routes the shares that they had in the process before. Where the config says another than it did then, that is
    /// the operator's newer word. Returns what cannot be had any more.
    pub fn share_as_before(&self, before: &[ShareReloadState]) -> Vec<ShareRefused> {
        let routing = &self.shared.decider.routing;
        let configured = |route: &str| {
            let (id, routed) = routing.named(route)?;
            Some(routing.route(routed.share_of?).split.as_ref()?.shares(id)?.0)
        };
        let mut same: Vec<&ShareReloadState> =
            before.iter().filter(|share| configured(&share.route) == Some(share.configured)).collect();
        // Those that take less make room for those that take more.
        same.sort_by_key(|share| i64::from(share.share) - i64::from(share.configured));
        let had = |share: &&ShareReloadState| f64::from(share.share) / 1000.0;
        same.iter().filter_map(|share| self.set_share(&share.route, had(share)).err()).collect()
    }

    /// What the policies have learned, as bytes for [`SwitchHandle::take_over`].
    pub fn handover(&self) -> Vec<u8> {
        let routes = self.shared.decider.routing.all().map(|(id, route)| (id, &*route.name));
        Handover::of(&self.shared.decider.dispatcher, routes).encode()
    }

    /// Goes on from what the policies of another process have learned, once the nodes are there and before the first
    /// request. Returns how many targets that were. Nothing is taken while decisions are recorded, since the record would
    /// not have it.
    ///
    /// # Errors
    /// The bytes are of another version or make no sense; nothing is changed.
    pub fn take_over(&self, bytes: &[u8]) -> Result<usize, HandoverError> {
        let handover = Handover::decode(bytes)?;
        if self.shared.observers.recorder.is_some() {
            return Ok(0);
        }
        let lay = |(id, name): (_, &str)| handover.lay(&self.shared.decider.dispatcher, id, name);
        Ok(self.shared.decider.routing.all().map(|(id, route)| lay((id, &route.name))).sum())
    }

    /// Lets go of the forwarding plane, for the process that takes over; new connections are relayed from here on, and
    /// handed-off ones go on by the kernel. False if there is no plane. Blocks for a moment. The network of switches, too,
    /// is for the other one from here on.
    pub fn release_plane(&self) -> bool {
        if let Some(peer_switches) = &self.shared.peer_switches {
            peer_switches.let_go();
        }
        self.shared.handoff.as_ref().is_some_and(|edge| {
            edge.release_plane();
            true
        })
    }

    /// The process that was to take over did not come up: joins the network of switches again.
    pub fn resume(&self) {
        if let Some(peer_switches) = &self.shared.peer_switches {
            peer_switches.resume();
        }
    }

    /// Another process accepts from here on: see [`crate::Switch::run`].
    pub fn retire(&self) {
        self.shared.retire.send_replace(true);
    }

    /// How often the process was replaced, for the metrics.
    pub fn set_reloads(&self, counts: ReloadCounts) {
        *self.shared.reloads.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
