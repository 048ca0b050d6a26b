//! The hosts of a cluster, merged from the views of all workers.
//!
//! Envoy tells each worker of a change separately, so the views differ for a moment. A node is a member while any worker has it. It
//! takes requests while all workers have it and see it as healthy. So a worker that is behind brings no host back, and no worker
//! gets a decision for a host that it does not have yet, except in the moment of the change.

use larder_core::Weight;
use std::collections::HashMap;
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

/// What the dispatcher shall know of a node.
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
}

impl Views {
    /// Replaces the view of a worker.
    pub(crate) fn replace(&mut self, view: ViewId, hosts: Vec<HostFacts>) {
        self.views.insert(view, hosts);
    }

    /// Removes the view of a worker that has ended.
    pub(crate) fn remove(&mut self, view: ViewId) {
        self.views.remove(&view);
    }

    /// Returns whether there is a view, even an empty one.
    pub(crate) fn has_workers(&self) -> bool {
        !self.views.is_empty()
    }

    /// Returns the nodes and what the dispatcher shall know of them. `latest` is the view that has changed last: its weights and
    /// priorities hold, and its order. O(hosts of all views).
    pub(crate) fn merge(&self, latest: ViewId) -> Vec<(Arc<str>, NodeFacts)> {
        // A worker that has not received its hosts yet has no say.
        let views = self.views.values().filter(|hosts| !hosts.is_empty()).count();
        let (mut merged, mut places): (Vec<Merged<'_>>, HashMap<&str, usize>) = Default::default();
        let others = self.views.iter().filter(|(id, _)| **id != latest).map(|(_, hosts)| hosts);
        for host in self.views.get(&latest).into_iter().chain(others).flatten() {
            let place = *places.entry(&*host.name).or_insert_with(|| {
                merged.push(Merged { host, healthy_views: 0 });
                merged.len() - 1
            });
            merged[place].healthy_views += usize::from(host.healthy);
        }
        let is_up = |node: &Merged<'_>| node.healthy_views >= views;
        let active = merged.iter().filter(|node| is_up(node)).map(|node| node.host.priority).min();
        let heaviest = merged.iter().map(|node| node.host.weight).max().unwrap_or(1);
        let facts = |node: &Merged<'_>| NodeFacts {
            up: is_up(node),
            backup: active.is_some_and(|active| node.host.priority > active),
            weight: weight(node.host.weight, heaviest),
        };
        merged.iter().map(|node| (Arc::clone(&node.host.name), facts(node))).collect()
    }
}

/// A host of at least one view.
#[derive(Debug)]
struct Merged<'a> {
    host: &'a HostFacts,
    healthy_views: usize,
}

/// The largest weight, in 1/1000; see [`Weight::from_milli`].
const WEIGHT_MILLI_MAX: u64 = 100_000;

/// Returns the node's weight. Envoy's weights have no upper bound, and only their ratio counts. Where they exceed the range of
/// [`Weight`], the heaviest host of the cluster gets its maximum.
fn weight(weight: u32, heaviest: u32) -> Weight {
    let (weight, heaviest) = (u64::from(weight), u64::from(heaviest));
    let most = WEIGHT_MILLI_MAX;
    let milli = if heaviest * 1_000 <= most { weight * 1_000 } else { (weight * most / heaviest).max(1) };
    u32::try_from(milli).ok().and_then(Weight::from_milli).unwrap_or(Weight::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, priority: u32, healthy: bool) -> HostFacts {
        HostFacts { name: name.into(), priority, weight: 1, healthy }
    }

    /// Returns the nodes that take requests, and all others in brackets.
    fn shown(views: &Views, latest: u64) -> String {
        let show = |(name, facts): &(Arc<str>, NodeFacts)| match (facts.up, facts.backup) {
            (true, false) => format!("{name} "),
            (true, true) => format!("[backup {name}] "),
            (false, _) => format!("[down {name}] "),
        };
        views.merge(ViewId(latest)).iter().map(show).collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn a_new_host_takes_requests_when_all_workers_have_it() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true)]);
        views.replace(ViewId(2), vec![host("a", 0, true)]);
        views.replace(ViewId(1), vec![host("a", 0, true), host("b", 0, true)]);
        assert_eq!(shown(&views, 1), "a [down b]");
        views.replace(ViewId(2), vec![host("a", 0, true), host("b", 0, true)]);
        assert_eq!(shown(&views, 2), "a b");
    }

    #[test]
    fn a_host_that_one_worker_has_lost_takes_no_requests_and_leaves_with_the_last_worker() {
        let mut views = Views::default();
        let both = vec![host("a", 0, true), host("b", 0, true)];
        views.replace(ViewId(1), both.clone());
        views.replace(ViewId(2), both);
        views.replace(ViewId(2), vec![host("b", 0, true)]);
        assert_eq!(shown(&views, 2), "b [down a]");
        views.replace(ViewId(1), vec![host("b", 0, true)]);
        assert_eq!(shown(&views, 1), "b");
    }

    #[test]
    fn a_worker_that_is_behind_brings_no_host_back() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, false)]);
        views.replace(ViewId(2), vec![host("a", 0, true)]);
        assert_eq!(shown(&views, 2), "[down a]");
    }

    #[test]
    fn workers_without_hosts_and_workers_that_have_ended_have_no_say() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true)]);
        views.replace(ViewId(2), Vec::new());
        assert_eq!(shown(&views, 2), "a");
        views.replace(ViewId(2), vec![host("a", 0, false)]);
        views.remove(ViewId(2));
        assert_eq!(shown(&views, 2), "a");
        views.remove(ViewId(1));
        assert_eq!(shown(&views, 1), "");
    }

    #[test]
    fn the_first_priority_level_with_a_healthy_host_is_used() {
        let mut views = Views::default();
        views.replace(ViewId(1), vec![host("a", 0, true), host("b", 1, true), host("c", 2, true)]);
        assert_eq!(shown(&views, 1), "a [backup b] [backup c]");
        views.replace(ViewId(1), vec![host("a", 0, false), host("b", 1, true), host("c", 2, true)]);
        assert_eq!(shown(&views, 1), "[down a] b [backup c]");
        views.replace(ViewId(1), vec![host("a", 0, false), host("b", 1, false), host("c", 2, false)]);
        assert_eq!(shown(&views, 1), "[down a] [down b] [down c]");
    }

    #[test]
    fn weights_keep_their_ratio() {
        assert_eq!(weight(1, 1), Weight::ONE);
        assert_eq!(weight(3, 100).milli(), 3_000);
        assert_eq!((weight(500, 1_000).milli(), weight(1_000, 1_000).milli()), (50_000, 100_000));
        assert_eq!(weight(1, u32::MAX).milli(), 1);
    }
}
