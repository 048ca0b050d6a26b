//! Outlier ejection: nodes that answer worse than the others are taken out for a growing time.
//!
//! There are two signs: consecutive errors, and a share of failed requests above that of the other nodes. An ejected
//! node is down for the dispatcher, so that policies place its targets elsewhere and records show it. It returns
//! after `time`, the next time after twice that, and so on. The number of ejections is halved for each such period
//! without problems.
//!
//! With locality, the content may be the cause: a target whose every reply is an error makes its node look bad, and
//! then the next one. Ejection is therefore off by default, limited to a share of the nodes, and never takes the last
//! node of a group.

use super::OutlierConfig;
use crate::decider::Decider;
use crate::guards::Guards;
use crate::node::Node;
use larder_core::Time;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Requests of a node in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplyTally {
    requests: u64,
    failures: u64,
}

impl ReplyTally {
    fn share(self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.failures.min(self.requests) as f64 / self.requests as f64 }
    }

    fn since(self, before: Self) -> Self {
        // The counters of a reused slot start at zero.
        if self.requests < before.requests || self.failures < before.failures {
            return self;
        }
        Self { requests: self.requests - before.requests, failures: self.failures - before.failures }
    }
}

/// Returns the nodes that are worse than the others by more than the limit, the worst first.
fn find_outliers(config: &OutlierConfig, tallies: &[ReplyTally]) -> Vec<usize> {
    let sum = |of: fn(&ReplyTally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (requests, failures) = (sum(|tally| tally.requests), sum(|tally| tally.failures));
    let mut found: Vec<(usize, f64)> = Vec::new();
    for (at, tally) in tallies.iter().enumerate() {
        let others = ReplyTally { requests: requests - tally.requests, failures: failures - tally.failures };
        let above = tally.share() - others.share();
        let known = tally.requests >= u64::from(config.requests_min) && others.requests > 0;
        if known && config.failures_above > 0.0 && above >= config.failures_above {
            found.push((at, above));
        }
    }
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.into_iter().map(|(at, _)| at).collect()
}

/// Returns the duration of the `times`th ejection.
fn ejection_time(config: &OutlierConfig, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
    config.time.saturating_mul(factor).min(config.time_max)
}

/// Records the status of a node's reply.
pub(crate) fn note_status((decider, guards): (&Decider, &Guards), node: &Node, status: u16) {
    let consecutive = guards.outliers.consecutive;
    if consecutive == 0 {
        return;
    }
    if status < 500 {
        // The read keeps the cache line shared while there are no errors.
        if node.errors.load(Relaxed) != 0 {
            node.errors.store(0, Relaxed);
        }
    } else if node.errors.fetch_add(1, Relaxed).saturating_add(1) >= consecutive {
        eject((decider, guards), node, "errors in a row");
    }
}

/// Ejects a node, unless too many are ejected.
fn eject((decider, guards): (&Decider, &Guards), node: &Node, cause: &str) {
    let config = &guards.outliers;
    // One at a time, so that two ejections do not each count on the other node.
    let _guard = guards.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = decider.dispatcher.nodes();
    if !nodes.is_open(node.id) {
        return;
    }
    let members = decider.nodes.members().count();
    let ejected = decider.nodes.members().filter(|node| node.condition().ejected).count();
    let most = ((members as f64 * config.ejected_max) as usize).max(1);
    let mut groups = decider.routing.all_groups().filter(|(group, _)| nodes.is_in(node.id, *group));
    if ejected >= most || !groups.all(|(group, _)| nodes.open_in(group) >= 2) {
        return;
    }
    let times = node.ejections.fetch_add(1, Relaxed).saturating_add(1);
    let until = decider.clock.now() + ejection_time(config, times);
    node.ejected_until.store(until.as_nanos(), Relaxed);
    node.errors.store(0, Relaxed);
    decider.metrics.ejected(node.id);
    decider.change_condition(node, cause, |condition| condition.ejected = true);
}

/// Compares all nodes periodically while the switch runs.
pub(crate) async fn watch((decider, guards): (Arc<Decider>, Arc<Guards>)) {
    let config = guards.outliers.clone();
    let step = config.interval.min(config.time / 4).max(Duration::from_millis(25));
    let mut before: BTreeMap<u16, ReplyTally> = BTreeMap::new();
    let mut checked_at = decider.clock.now();
    loop {
        tokio::time::sleep(step).await;
        let now = decider.clock.now();
        for node in decider.nodes.members() {
            restore((&decider, &guards), &node, now);
        }
        if now - checked_at < config.interval {
            continue;
        }
        checked_at = now;
        let members: Vec<_> = decider.nodes.members().collect();
        let counted: Vec<ReplyTally> = members.iter().map(|node| tally(&decider, node)).collect();
        let earlier = |id: u16| before.get(&id).copied().unwrap_or_default();
        let tallies: Vec<ReplyTally> =
            members.iter().zip(&counted).map(|(node, tally)| tally.since(earlier(node.id.0))).collect();
        before = members.iter().map(|node| node.id.0).zip(counted).collect();
        for at in find_outliers(&config, &tallies) {
            eject((&decider, &guards), &members[at], "more failures than the others");
        }
    }
}

fn tally(decider: &Decider, node: &Node) -> ReplyTally {
    let [.., errors, aborted] = decider.metrics.requests(node.id);
    let requests: u64 = decider.metrics.requests(node.id).iter().sum();
    let unanswered = u64::from(node.unanswered.load(Relaxed));
    // An aborted reply may be the client's doing.
    ReplyTally { requests: requests - aborted + unanswered, failures: errors + unanswered }
}

/// Ends an ejection whose time is over, and forgets old ones of a node without problems.
fn restore((decider, guards): (&Decider, &Guards), node: &Node, now: Time) {
    let until = Time::from_nanos(node.ejected_until.load(Relaxed));
    if node.condition().ejected {
        if now >= until {
            decider.change_condition(node, "ejection ended", |condition| condition.ejected = false);
        }
        return;
    }
    let times = node.ejections.load(Relaxed);
    if times > 0 && now >= until + ejection_time(&guards.outliers, times) {
        node.ejections.store(times / 2, Relaxed);
        node.ejected_until.store(now.as_nanos(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(requests: u64, failures: u64) -> ReplyTally {
        ReplyTally { requests, failures }
    }

    #[test]
    fn nodes_worse_than_the_others_are_found() {
        let config = OutlierConfig { failures_above: 0.3, ..OutlierConfig::default() };
        let found = |tallies: &[ReplyTally]| find_outliers(&config, tallies);
        assert_eq!(found(&[tally(100, 50), tally(100, 1), tally(100, 0)]), [0]);
        assert!(found(&[tally(100, 90), tally(100, 90), tally(100, 90)]).is_empty(), "all fail");
        assert!(found(&[tally(49, 49), tally(100, 0)]).is_empty(), "too few to tell");
        assert!(found(&[tally(100, 100)]).is_empty(), "nobody to compare with");
        assert_eq!(found(&[tally(100, 60), tally(100, 99), tally(800, 0)]), [1, 0], "the worst first");
        let off = OutlierConfig::default();
        assert!(find_outliers(&off, &[tally(100, 100), tally(100, 0)]).is_empty());
    }

    #[test]
    fn ejections_grow_to_a_limit() {
        let config = OutlierConfig { time: Duration::from_secs(10), ..OutlierConfig::default() };
        let seconds: Vec<_> = (1..8).map(|times| ejection_time(&config, times).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(ejection_time(&config, u32::MAX).as_secs(), 300);
    }

    #[test]
    fn a_reused_slot_starts_at_zero() {
        assert_eq!(tally(10, 1).since(tally(8, 1)), tally(2, 0));
        assert_eq!(tally(3, 0).since(tally(8, 1)), tally(3, 0));
    }
}
