//! The hosts of a cluster, merged from the views of all workers.
//!
//! Envoy tells each worker of a change separately, so the views differ for a moment. A node is a member while any worker has it. It
//! takes requests while all workers have it and see it as healthy. So a worker that is behind brings no host back, and no worker
//! gets a decision for a host that it does not have yet. If no host of the priority level in use is everyone's, for example because
//! all hosts are being replaced, each node takes requests that some worker sees as healthy.

use larder_core::Weight;
use larder_embed::relative_weight;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A worker's view; ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ViewId(pub(crate) u64);

/// A host as a worker sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostFacts {
    /// The address, which is the node's name.
    pub(crate) name: Arc<str>,
    /// The priority level; 0 is used first.
    pub(crate) priority: u32,
    /// Envoy's weight, at least 1.
    pub(crate) weight: u32,
    pub(crate) healthy: bool,
}

/// The facts that the dispatcher shall know of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    pub(crate) up: bool,
    /// Whether the node belongs to a priority level that is not in use.
    pub(crate) backup: bool,
    pub(crate) weight: Weight,
}

/// The views of all workers.
#[derive(Debug, Default)]
pub(crate) struct Views {
    views: HashMap<ViewId, Vec<HostFacts>>,
    /// The hosts of all views, by name.
    merged: HashMap<Arc<str>, Merged>,
    /// The number of hosts that have ever been added, which gives them an order.
    added: u64,
}

/// A host of at least one view.
#[derive(Clone, Copy, Debug)]
struct Merged {
    /// The turn in which it was added.
    turn: u64,
    views: usize,
    healthy_views: usize,
    /// Priority level and weight in the view that has changed last.
    priority: u32,
    weight: u32,
}

impl Views {
    /// Replaces the view of a worker. O(hosts of this view).
    pub(crate) fn replace(&mut self, view: ViewId, hosts: Vec<HostFacts>) {
        for host in &hosts {
            let merged = self.merged.entry(Arc::clone(&host.name)).or_insert_with(|| {
                self.added += 1;
                Merged { turn: self.added, views: 0, healthy_views: 0, priority: 0, weight: 1 }
            });
            merged.views += 1;
            merged.healthy_views += usize::from(host.healthy);
            (merged.priority, merged.weight) = (host.priority, host.weight);
        }
        let before = self.views.insert(view, hosts);
        self.take_out(before);
    }

    /// Removes the view of a worker that has ended.
    pub(crate) fn remove(&mut self, view: ViewId) {
        let before = self.views.remove(&view);
        self.take_out(before);
    }

    fn take_out(&mut self, view: Option<Vec<HostFacts>>) {
        for host in view.into_iter().flatten() {
            let Some(merged) = self.merged.get_mut(&host.name) else { continue };
            merged.views -= 1;
            merged.healthy_views -= usize::from(host.healthy);
            if merged.views == 0 {
                self.merged.remove(&host.name);
            }
        }
    }

    /// Returns whether there is a view, even an empty one.
    pub(crate) fn has_workers(&self) -> bool {
        !self.views.is_empty()
    }

    /// Returns the nodes and what the dispatcher shall know of them, in the order in which they were added. O(nodes log nodes).
    pub(crate) fn merge(&self) -> Vec<(Arc<str>, NodeFacts)> {
        // A worker that has not received its hosts yet does not count.
        let views = self.views.values().filter(|hosts| !hosts.is_empty()).count();
        let healthy = || self.merged.values().filter(|node| node.healthy_views > 0);
        let active = healthy().map(|node| node.priority).min();
        // In the level in use, at least one node must be everyone's.
        let is_complete = healthy().any(|node| Some(node.priority) == active && node.healthy_views >= views);
        let needed = if is_complete { views } else { 1 };
        let is_up = |node: &Merged| node.healthy_views >= needed;
        let heaviest = self.merged.values().map(|node| node.weight).max().unwrap_or(1);
        let facts = |node: &Merged| NodeFacts {
            up: is_up(node),
            backup: active.is_some_and(|active| node.priority > active),
            weight: relative_weight(node.weight, heaviest),
        };
        let ordered: BTreeMap<u64, _> =
            self.merged.iter().map(|(name, node)| (node.turn, (name, node))).collect();
        ordered.into_values().map(|(name, node)| (Arc::clone(name), facts(node))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, priority: u32, healthy: bool) -> HostFacts {
        HostFacts { name: name.into(), priority, weight: 1, healthy }
    }

    /// Returns the nodes that take requests, and all others in brackets.
    fn shown(views: &Views) -> String {
        let show = |(name, facts): &(Arc<str>, NodeFacts)| match (facts.up, facts.backup) {
            (true, false) => format!("{name} "),
            (true, true) => format!("[backup {name}] "),
            (false, _) => format!("[down {name}] "),
        };
        views.merge().iter().map(show).collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn a_new_host_takes_requests_when_all_workers_have_it() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true)]);
        views.replace(ViewId(2), vec![host("a", 0, true)]);
        views.replace(ViewId(1), vec![host("a", 0, true), host("b", 0, true)]);
        assert_eq!(shown(&views), "a [down b]");
        views.replace(ViewId(2), vec![host("a", 0, true), host("b", 0, true)]);
        assert_eq!(shown(&views), "a b");
    }

    #[test]
    fn a_host_that_one_worker_has_lost_takes_no_requests_and_leaves_with_the_last_worker() {
        let mut views = Views::default();
        let both = vec![host("a", 0, true), host("b", 0, true)];
        views.replace(ViewId(1), both.clone());
        views.replace(ViewId(2), both);
        views.replace(ViewId(2), vec![host("b", 0, true)]);
        assert_eq!(shown(&views), "[down a] b");
        views.replace(ViewId(1), vec![host("b", 0, true)]);
        assert_eq!(shown(&views), "b");
    }

    #[test]
    fn a_worker_that_is_behind_brings_no_host_back() {
        let mut views = Views::default();
        let hosts = |healthy| vec![host("a", 0, healthy), host("b", 0, true)];
        views.replace(ViewId(1), hosts(false));
        views.replace(ViewId(2), hosts(true));
        assert_eq!(shown(&views), "[down a] b");
    }

    #[test]
    fn while_all_hosts_are_replaced_both_sets_take_requests() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true)]);
        views.replace(ViewId(2), vec![host("a", 0, true)]);
        views.replace(ViewId(1), vec![host("b", 0, true)]);
        assert_eq!(shown(&views), "a b");
        views.replace(ViewId(2), vec![host("b", 0, true)]);
        assert_eq!(shown(&views), "b");
    }

    #[test]
    fn while_a_level_is_replaced_the_next_one_stays_a_backup() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true), host("z", 1, true)]);
        views.replace(ViewId(2), vec![host("a", 0, true), host("z", 1, true)]);
        views.replace(ViewId(1), vec![host("b", 0, true), host("z", 1, true)]);
        assert_eq!(shown(&views), "a [backup z] b");
        views.replace(ViewId(2), vec![host("b", 0, true), host("z", 1, true)]);
        assert_eq!(shown(&views), "[backup z] b");
    }

    #[test]
    fn workers_without_hosts_and_workers_that_have_ended_do_not_count() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true)]);
        views.replace(ViewId(2), Vec::new());
        assert_eq!(shown(&views), "a");
        views.replace(ViewId(2), vec![host("a", 0, false)]);
        views.remove(ViewId(2));
        assert_eq!(shown(&views), "a");
        views.remove(ViewId(1));
        assert_eq!((shown(&views).as_str(), views.has_workers()), ("", false));
    }

    #[test]
    fn the_first_priority_level_with_a_healthy_host_is_used() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true), host("b", 1, true), host("c", 2, true)]);
        assert_eq!(shown(&views), "a [backup b] [backup c]");
        views.replace(ViewId(1), vec![host("a", 0, false), host("b", 1, true), host("c", 2, true)]);
        assert_eq!(shown(&views), "[down a] b [backup c]");
        views.replace(ViewId(1), vec![host("a", 0, false), host("b", 1, false), host("c", 2, false)]);
        assert_eq!(shown(&views), "[down a] [down b] [down c]");
    }
}
