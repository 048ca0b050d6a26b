//! Thread of the shadow.

use super::{ShadowFeed, lock};
use crate::decider::Decider;
use larder_core::shadow::{LiveNode, ObservedRequest, Shadow};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval of reading the live nodes and reporting.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the thread, once. It ends with the switch.
pub(crate) fn start(decider: &Arc<Decider>, feed: &Arc<ShadowFeed>) {
    let Some((shadow, seen)) = lock(&feed.not_started).take() else { return };
    let weak = (Arc::downgrade(decider), Arc::downgrade(feed));
    let started =
        std::thread::Builder::new().name("larder-shadow".to_owned()).spawn(move || run(&weak, shadow, &seen));
    if let Err(error) = started {
        tracing::warn!(%error, "shadow mode: off, its thread cannot start");
    }
}

fn run(
    (decider, feed): &(Weak<Decider>, Weak<ShadowFeed>),
    mut shadow: Shadow,
    seen: &Receiver<ObservedRequest>,
) {
    let mut look_at = Instant::now();
    loop {
        if Instant::now() >= look_at {
            look_at = Instant::now() + LOOK;
            let (Some(decider), Some(feed)) = (decider.upgrade(), feed.upgrade()) else { return };
            look(&decider, &feed, &mut shadow);
        }
        match seen.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
            Ok(request) => shadow.observe(&request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Updates the nodes and the report.
fn look(decider: &Decider, feed: &ShadowFeed, shadow: &mut Shadow) {
    shadow.update_nodes(decider.clock.now(), nodes(decider, feed));
    *lock(&feed.report) = Some(shadow.report());
}

fn nodes(decider: &Decider, feed: &ShadowFeed) -> Vec<LiveNode> {
    let row = |row: larder_core::NodeRow| LiveNode {
        memory: feed.memory_of(&row.name, row.cache).0,
        name: row.name,
        id: row.id,
        weight: row.weight,
        groups: row.groups,
        backup: row.backup,
        state: row.state,
    };
    decider.dispatcher.nodes().rows().into_iter().map(row).collect()
}
