//! Reloads: state for the process that takes over, and reload counters.

use super::routes::ShareError;
use super::status::{SwitchHandle, UnknownNode};
use crate::reload_counts::ReloadCounts;
use larder_core::{Snapshot, SnapshotError, Time};
use serde::{Deserialize, Serialize};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// State of a node for the next process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReloadState {
    /// Its name.
    pub name: String,
    /// Its address as configured.
    pub address: String,
    /// Relative capacity in 1/1000.
    pub weight_milli: u32,
    /// Whether the operator has drained it.
    pub drained: bool,
    /// Whether it answers.
    pub healthy: bool,
    /// Whether it has joined and is not warm yet.
    pub joining: bool,
    /// Start of draining in nanoseconds of the clock that all processes of a switch share; 0 if it does not drain.
    #[serde(default)]
    pub drains_since_ns: u64,
    /// Number of ejections, reduced while it behaves well.
    #[serde(default)]
    pub ejections: u32,
    /// Whether it is ejected until `ejected_until_ns`.
    #[serde(default)]
    pub ejected: bool,
    /// End of the current or last ejection.
    #[serde(default)]
    pub ejected_until_ns: u64,
}

/// Share of a route that the operator has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareReloadState {
    /// Name of the route.
    pub route: String,
    /// Configured share, in thousandths of a percent.
    pub configured: u32,
    /// Current share.
    pub share: u32,
}

impl SwitchHandle {
    /// Returns the states of the nodes for the next process.
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

    /// Restores the state of a node from the previous process. Health and ejection are restored only if the address
    /// is unchanged.
    ///
    /// # Errors
    /// There is no such node.
    pub fn restore_node_state(&self, before: &NodeReloadState) -> Result<(), UnknownNode> {
        let node = self.member(&before.name)?;
        let is_the_same = node.address == before.address;
        let looks = self.shared.guards.outliers.is_on() && is_the_same;
        if looks {
            node.ejections.store(before.ejections, Relaxed);
            node.ejected_until.store(before.ejected_until_ns, Relaxed);
        }
        self.shared.decider.change_condition(&node, "state from before the reload", |condition| {
            condition.drained = before.drained;
            condition.healthy = before.healthy || !is_the_same;
            condition.ejected = before.ejected && looks;
        });
        if before.drains_since_ns > 0 {
            node.set_draining_since(Time::from_nanos(before.drains_since_ns));
        }
        Ok(())
    }

    /// Returns the shares that the operator has changed, for the next process.
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

    /// Restores the shares of the previous process. A share whose configured value has changed is not restored.
    /// Returns the errors.
    pub fn restore_shares(&self, before: &[ShareReloadState]) -> Vec<ShareError> {
        let routing = &self.shared.decider.routing;
        let configured = |route: &str| {
            let (id, routed) = routing.named(route)?;
            Some(routing.route(routed.share_of?).split.as_ref()?.shares(id)?.0)
        };
        let mut same: Vec<&ShareReloadState> =
            before.iter().filter(|share| configured(&share.route) == Some(share.configured)).collect();
        // Reduced shares first, to make room for increased ones.
        same.sort_by_key(|share| i64::from(share.share) - i64::from(share.configured));
        let had = |share: &&ShareReloadState| f64::from(share.share) / 1000.0;
        same.iter().filter_map(|share| self.set_share(&share.route, had(share)).err()).collect()
    }

    /// Returns the snapshot of the policies' state for [`SwitchHandle::load_snapshot`].
    pub fn snapshot(&self) -> Vec<u8> {
        let routing = &self.shared.decider.routing;
        let routes = routing.all().map(|(id, route)| (id, &*route.name));
        let dispatcher = &self.shared.decider.dispatcher;
        let mut snapshot = Snapshot::capture(dispatcher, routes);
        for (_, route, chains) in routing.chains() {
            snapshot.capture_chains(dispatcher, &route.name, chains);
        }
        snapshot.encode()
    }

    /// Loads a snapshot of another process's policies. Must be called after the nodes are set and before the first
    /// request. Returns the number of targets. While decisions are recorded it loads only credits of prompts, because the
    /// record would lack the rest.
    ///
    /// # Errors
    /// The snapshot has another version or is malformed; nothing is changed.
    pub fn load_snapshot(&self, bytes: &[u8]) -> Result<usize, SnapshotError> {
        let snapshot = Snapshot::decode(bytes)?;
        let (dispatcher, routing) = (&self.shared.decider.dispatcher, &self.shared.decider.routing);
        for (_, route, chains) in routing.chains() {
            snapshot.restore_chains(dispatcher, &route.name, chains);
        }
        if self.shared.observers.recorder.is_some() {
            return Ok(0);
        }
        let lay = |(id, name): (_, &str)| snapshot.restore(dispatcher, id, name);
        Ok(routing.all().map(|(id, route)| lay((id, &route.name))).sum())
    }

    /// Releases the forwarding plane and the network of peer switches for the next process. New connections are
    /// relayed, and handed-off ones continue in the kernel. Returns false if there is no plane. Blocks briefly.
    pub fn release_plane(&self) -> bool {
        if let Some(peer_switches) = &self.shared.peer_switches {
            peer_switches.release();
        }
        self.shared.handoff.as_ref().is_some_and(|edge| {
            edge.release_plane();
            true
        })
    }

    /// Joins the network of peer switches again, because the next process did not start.
    pub fn resume(&self) {
        if let Some(peer_switches) = &self.shared.peer_switches {
            peer_switches.resume();
        }
    }

    /// Stops accepting, because another process accepts now: see [`crate::Switch::run`].
    pub fn retire(&self) {
        self.shared.retire.send_replace(true);
    }

    /// Sets the reload counters for the metrics.
    pub fn set_reloads(&self, counts: ReloadCounts) {
        *self.shared.reloads.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
