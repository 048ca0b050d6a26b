//! Health of nodes: passive checks by requests, and active checks by the switch.
//!
//! See [`crate::HealthConfig`] for what counts as a failure and what brings a node back.

pub(crate) mod config;
pub(crate) mod outliers;
mod probe;

pub use config::OutlierConfig;

use crate::decider::Decider;
use crate::guards::Guards;
use crate::node::{Node, NodeCondition};
use larder_core::NodeId;
use larder_core::nodes::GroupId;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Counts a failed request of `node`.
pub(crate) fn note_failure((decider, guards): (&Decider, &Guards), node: &Node) {
    let fall = guards.health.passive_fall;
    if fall == 0 {
        return;
    }
    let failures = node.failures.fetch_add(1, Relaxed).saturating_add(1);
    if failures >= fall {
        eject((decider, guards), node);
    }
}

/// Counts a request that `node` failed and another node got.
pub(crate) fn note_unanswered(node: &Node) {
    node.unanswered.fetch_add(1, Relaxed);
}

/// Takes `node` out after failed requests, unless too few nodes would be left: the requests may be at fault.
fn eject((decider, guards): (&Decider, &Guards), node: &Node) {
    // One at a time, so that two ejections do not each count on the other node.
    let _guard = guards.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = decider.dispatcher.nodes();
    if !nodes.is_open(node.id) {
        return;
    }
    // In every group of the node, because a group has no other nodes.
    let mut groups = decider.routing.all_groups().filter(|(group, _)| nodes.is_in(node.id, *group));
    if groups.all(|(group, _)| can_spare_one(decider, group)) {
        decider.change_condition(node, "requests fail", |condition| condition.healthy = false);
    }
}

/// Whether a group has another node that is up (possibly a backup), and less than half of its nodes are down.
fn can_spare_one(decider: &Decider, group: GroupId) -> bool {
    let nodes = decider.dispatcher.nodes();
    let (mut members, mut up, mut down) = (0, 0, 0);
    for node in decider.nodes.members().filter(|node| nodes.is_in(node.id, group)) {
        members += 1;
        up += usize::from(nodes.is_open(node.id));
        down += usize::from(!node.condition().healthy);
    }
    up >= 2 && down < members / 2
}

/// Resets the failures of `node` after a reply.
pub(crate) fn note_success(node: &Node) {
    // The read keeps the cache line shared while there are no failures.
    if node.failures.load(Relaxed) != 0 {
        node.failures.store(0, Relaxed);
    }
}

/// Checks one node until it leaves.
pub(crate) async fn watch((decider, guards): (Arc<Decider>, Arc<Guards>), node: NodeId) {
    let Some(node) = decider.nodes.get(node).and_then(|node| node.to_arc()) else { return };
    match guards.health.active {
        Some(_) => check((&decider, &guards), &node).await,
        None => retry_down_node((&decider, &guards), &node).await,
    }
}

/// Runs active checks at an interval.
async fn check((decider, guards): (&Decider, &Guards), node: &Node) {
    let health = &guards.health;
    let Some(what) = &health.active else { return };
    let (mut good, mut bad) = (0_u32, 0_u32);
    let mut lots = Jitter::new(node.id.0);
    tokio::time::sleep(health.interval.mul_f64(lots.next())).await;
    while !node.condition().left {
        let result = tokio::time::timeout(health.timeout, probe::probe(what, &node.dial)).await;
        let failure = match result {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => {
                // A server that is not there has lost its cache, however soon it is back.
                decider.routing.forget_prompts(node.id);
                Some(reason)
            }
            Err(_) => Some("no answer in time".to_owned()),
        };
        match failure {
            None => {
                (good, bad) = (good.saturating_add(1), 0);
                if good >= health.rise {
                    decider.change_condition(node, "health checks succeed", NodeCondition::mark_healthy);
                }
            }
            Some(reason) => {
                (good, bad) = (0, bad.saturating_add(1));
                if bad >= health.fall {
                    decider.change_condition(node, &reason, |condition| condition.healthy = false);
                }
            }
        }
        // If requests found the node down between two checks, successful checks are counted anew.
        let healthy_before = node.condition().healthy;
        tokio::time::sleep(health.interval.mul_f64(0.95 + lots.next() / 10.0)).await;
        if healthy_before && !node.condition().healthy {
            good = 0;
        }
    }
}

/// Without active checks, tries a down node again after a while; one failure takes it out again.
async fn retry_down_node((decider, guards): (&Decider, &Guards), node: &Node) {
    let mut down_for = Duration::ZERO;
    let step = (guards.health.retry_after / 10).max(Duration::from_millis(1));
    while !node.condition().left {
        tokio::time::sleep(step).await;
        if !node.condition().needs_checks() {
            down_for = Duration::ZERO;
            continue;
        }
        down_for += step;
        if down_for >= guards.health.retry_after {
            down_for = Duration::ZERO;
            decider.change_condition(node, "pause after failures ended", NodeCondition::mark_healthy);
            node.failures.store(guards.health.passive_fall.saturating_sub(1), Relaxed);
        }
    }
}

/// Random numbers from 0 to 1, used only to keep checks out of step.
pub(crate) struct Jitter {
    state: RandomState,
    drawn: u64,
    seed: u16,
}

impl Jitter {
    pub(crate) fn new(seed: u16) -> Self {
        Self { state: RandomState::new(), drawn: 0, seed }
    }

    pub(crate) fn next(&mut self) -> f64 {
        self.drawn += 1;
        self.state.hash_one((self.seed, self.drawn)) as f64 / u64::MAX as f64
    }
}
