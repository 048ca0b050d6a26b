//! The set of nodes, collected from several sources, and the changes that a running switch or picker needs. Pure: the
//! caller reports the nodes of each source with the time, and receives changes.
//!
//! A node is identified by its name. If two sources list one name, the earlier source in the config takes
//! precedence. A source that fails changes nothing, so its last list stays in force. A node that a source no
//! longer lists is held for the source's `hold`, and then leaves. A held node is a member that health checks
//! watch. If the source lists it again in time, it keeps its targets.

mod dns;
mod file;
mod inherited;
#[cfg_attr(not(feature = "kubernetes"), path = "without_kubernetes.rs")]
mod kubernetes;
mod manager;
mod name_lookup;
mod node_table;

pub(crate) use inherited::InheritedNode;
pub(crate) use manager::{NodeSources, RosterError, RosterManager};
pub(crate) use name_lookup::resolve;
pub(crate) use node_table::NodeTable;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_core::Weight;
use larder_switch::NodeEntry;

/// A change of one node.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// The node joins.
    Join(NodeEntry),
    /// The node leaves, and completes its requests.
    Leave(String),
    /// The node has a new address, and keeps its targets.
    Move(NodeEntry),
    /// The node has a new weight.
    Reweigh(String, Weight),
    /// The node becomes a backup, or stops being one.
    Backup(String, bool),
}

impl Change {
    fn name(&self) -> &str {
        match self {
            Self::Join(entry) | Self::Move(entry) => &entry.spec.name,
            Self::Leave(name) | Self::Reweigh(name, _) | Self::Backup(name, _) => name,
        }
    }
}

/// Nodes by name.
type Entries = BTreeMap<String, NodeEntry>;

/// A source of nodes.
#[derive(Debug)]
struct NodeSource {
    /// Time for which a node stays after the source has stopped listing it.
    hold: Duration,
    listed: Entries,
    /// Nodes that the source no longer lists, and the time since which it does not.
    held: BTreeMap<String, (NodeEntry, Instant)>,
}

/// The set of nodes that a switch should have.
#[derive(Debug, Default)]
struct Roster {
    sources: Vec<NodeSource>,
    /// The nodes that the switch has.
    applied: Entries,
}

impl Roster {
    /// Adds a source with the lowest precedence, and returns its index.
    fn add(&mut self, hold: Duration) -> usize {
        self.sources.push(NodeSource { hold, listed: Entries::new(), held: BTreeMap::new() });
        self.sources.len() - 1
    }

    /// Replaces the nodes of a source. If two nodes have one name, the first is used.
    fn update_source(&mut self, source: usize, entries: Vec<NodeEntry>, now: Instant) {
        let Some(source) = self.sources.get_mut(source) else { return };
        let mut listed = Entries::new();
        for entry in entries {
            listed.entry(entry.spec.name.clone()).or_insert(entry);
        }
        for (name, entry) in std::mem::take(&mut source.listed) {
            source.held.entry(name).or_insert((entry, now));
        }
        source.held.retain(|name, _| !listed.contains_key(name));
        source.listed = listed;
        self.expire(now);
    }

    /// Removes held nodes whose hold has expired.
    fn expire(&mut self, now: Instant) {
        for source in &mut self.sources {
            let hold = source.hold;
            source.held.retain(|_, (_, since)| now.duration_since(*since) < hold);
        }
    }

    /// Returns the time at which the next held node expires.
    fn next_expiry(&self) -> Option<Instant> {
        let all = self.sources.iter();
        all.flat_map(|source| source.held.values().map(|(_, since)| *since + source.hold)).min()
    }

    /// Returns the index of the source that provides the node of this name.
    fn source_of(&self, name: &str) -> Option<usize> {
        self.desired().get(name).map(|(_, source)| *source)
    }

    /// Returns the nodes that a source lists.
    fn nodes_of(&self, source: usize) -> Vec<NodeEntry> {
        self.sources.get(source).map_or_else(Vec::new, |source| source.listed.values().cloned().collect())
    }

    /// Returns the nodes that the switch should have, each with the index of its source.
    fn desired(&self) -> BTreeMap<&str, (&NodeEntry, usize)> {
        let mut desired = BTreeMap::new();
        // A listed node takes precedence over a held node.
        for (number, source) in self.sources.iter().enumerate() {
            for (name, entry) in &source.listed {
                desired.entry(name.as_str()).or_insert((entry, number));
            }
        }
        for (number, source) in self.sources.iter().enumerate() {
            for (name, (entry, _)) in &source.held {
                desired.entry(name.as_str()).or_insert((entry, number));
            }
        }
        desired
    }

    /// Returns the changes in the order in which they must be applied. Nodes join before others leave, so
    /// that capacity does not drop.
    fn changes(&self) -> Vec<Change> {
        let desired = self.desired();
        let (mut changes, mut leaves) = (Vec::new(), Vec::new());
        for (name, (entry, _)) in &desired {
            let Some(before) = self.applied.get(*name) else {
                changes.push(Change::Join((*entry).clone()));
                continue;
            };
            let (old, new) = (&before.spec, &entry.spec);
            let has_moved = before.address != entry.address;
            let must_rejoin = before.groups != entry.groups
                || before.handoff != entry.handoff
                || (before.http2, &before.tls, before.announce) != (entry.http2, &entry.tls, entry.announce)
                || old.cache != new.cache
                // InheritedNode-off connections are bound to the node's address.
                || has_moved && entry.handoff.is_some();
            if must_rejoin {
                changes.push(Change::Leave((*name).to_owned()));
                changes.push(Change::Join((*entry).clone()));
                continue;
            }
            if has_moved {
                changes.push(Change::Move((*entry).clone()));
            }
            if old.weight != new.weight {
                changes.push(Change::Reweigh((*name).to_owned(), new.weight));
            }
            if old.backup != new.backup {
                changes.push(Change::Backup((*name).to_owned(), new.backup));
            }
        }
        leaves.extend(self.applied.keys().filter(|name| !desired.contains_key(name.as_str())));
        changes.extend(leaves.into_iter().cloned().map(Change::Leave));
        changes
    }

    /// Records that a change was applied.
    fn mark_applied(&mut self, change: &Change) {
        match change {
            Change::Join(entry) => {
                self.applied.insert(entry.spec.name.clone(), entry.clone());
            }
            Change::Leave(name) => {
                self.applied.remove(name);
            }
            Change::Move(entry) => {
                if let Some(applied) = self.applied.get_mut(&entry.spec.name) {
                    applied.address.clone_from(&entry.address);
                }
            }
            Change::Reweigh(name, weight) => {
                if let Some(applied) = self.applied.get_mut(name) {
                    applied.spec.weight = *weight;
                }
            }
            Change::Backup(name, backup) => {
                if let Some(applied) = self.applied.get_mut(name) {
                    applied.spec.backup = *backup;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_core::NodeSpec;
    use proptest::prelude::*;

    use super::*;

    const HOLD: Duration = Duration::from_secs(30);

    fn entry(name: &str, address: &str) -> NodeEntry {
        NodeEntry::new(NodeSpec::named(name), address)
    }

    fn nodes(names: &[&str]) -> Vec<NodeEntry> {
        names.iter().map(|name| entry(name, &format!("{name}:80"))).collect()
    }

    /// Applies all changes, and returns them as text.
    fn settle(roster: &mut Roster) -> Vec<String> {
        let changes = roster.changes();
        changes.iter().for_each(|change| roster.mark_applied(change));
        assert_eq!(roster.changes(), [], "nothing is to be done twice");
        let say = |change: &Change| match change {
            Change::Join(entry) => format!("join {}", entry.spec.name),
            Change::Leave(name) => format!("leave {name}"),
            Change::Move(entry) => format!("move {} {}", entry.spec.name, entry.address),
            Change::Reweigh(name, weight) => format!("reweigh {name} {weight}"),
            Change::Backup(name, backup) => format!("backup {name} {backup}"),
        };
        changes.iter().map(say).collect()
    }

    #[test]
    fn listed_nodes_join_and_dropped_nodes_leave_after_their_hold() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let (config, dns) = (roster.add(Duration::ZERO), roster.add(HOLD));
        roster.update_source(config, nodes(&["a"]), start);
        roster.update_source(dns, nodes(&["b", "c"]), start);
        assert_eq!(settle(&mut roster), ["join a", "join b", "join c"]);
        roster.update_source(dns, nodes(&["c", "d"]), start);
        assert_eq!(settle(&mut roster), ["join d"], "b is held");
        assert_eq!(roster.next_expiry(), Some(start + HOLD));
        roster.expire(start + HOLD - Duration::from_millis(1));
        assert_eq!(settle(&mut roster), [""; 0]);
        roster.expire(start + HOLD);
        assert_eq!((settle(&mut roster), roster.next_expiry()), (vec!["leave b".to_owned()], None));
        roster.update_source(config, nodes(&["e"]), start);
        assert_eq!(settle(&mut roster), ["join e", "leave a"], "who comes comes first; no hold");
    }

    #[test]
    fn a_node_that_returns_within_its_hold_never_leaves() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let dns = roster.add(HOLD);
        roster.update_source(dns, nodes(&["a", "b"]), start);
        settle(&mut roster);
        roster.update_source(dns, nodes(&["b"]), start);
        roster.update_source(dns, nodes(&["a", "b"]), start + HOLD / 2);
        assert_eq!((settle(&mut roster).len(), roster.next_expiry()), (0, None));
        // The hold begins with the last disappearance, not with the first.
        roster.update_source(dns, nodes(&["b"]), start + HOLD);
        assert_eq!(roster.next_expiry(), Some(start + HOLD + HOLD));
        roster.update_source(dns, nodes(&["b"]), start + HOLD + HOLD / 2);
        assert_eq!(roster.next_expiry(), Some(start + HOLD + HOLD), "nor from the last");
    }

    #[test]
    fn the_earlier_source_has_precedence_and_the_later_one_takes_over() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let (first, second) = (roster.add(HOLD), roster.add(HOLD));
        roster.update_source(second, vec![entry("a", "two:80")], start);
        assert_eq!(settle(&mut roster), ["join a"]);
        roster.update_source(first, vec![entry("a", "one:80"), entry("a", "other:80")], start);
        assert_eq!(settle(&mut roster), ["move a one:80"]);
        roster.update_source(first, vec![], start);
        assert_eq!(settle(&mut roster), ["move a two:80"], "named comes before held");
    }

    #[test]
    fn only_changed_attributes_are_changed() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let file = roster.add(Duration::ZERO);
        let mut a = entry("a", "one:80");
        roster.update_source(file, vec![a.clone()], start);
        settle(&mut roster);
        a.spec.weight = Weight::from_f64(2.0).expect("a weight");
        a.address = "two:80".to_owned();
        a.spec.backup = true;
        roster.update_source(file, vec![a.clone()], start);
        assert_eq!(settle(&mut roster), ["move a two:80", "reweigh a 2", "backup a true"]);
        a.spec.backup = false;
        roster.update_source(file, vec![a.clone()], start);
        assert_eq!(settle(&mut roster), ["backup a false"]);
        a.groups = vec!["g".to_owned()];
        roster.update_source(file, vec![a], start);
        assert_eq!(settle(&mut roster), ["leave a", "join a"]);
    }

    proptest! {
        /// In any order of lists and with any failed changes, the members at the end are the nodes that the sources list.
        #[test]
        fn the_switch_converges_to_the_desired_nodes(
            steps in prop::collection::vec((0_usize..3, prop::collection::vec(0_u8..6, 0..5), 0_u64..40, any::<u64>()), 1..30),
        ) {
            let (mut roster, mut now) = (Roster::default(), Instant::now());
            for hold in [0, 10, 30] {
                roster.add(Duration::from_secs(hold));
            }
            for (source, names, later, lots) in steps {
                now += Duration::from_secs(later);
                let found = names.iter().map(|n| entry(&format!("n{n}"), &format!("s{source}:{n}"))).collect();
                roster.update_source(source, found, now);
                for (at, change) in roster.changes().iter().enumerate() {
                    // Some changes fail, for example because a name cannot be resolved.
                    if lots >> (at % 64) & 1 == 0 {
                        roster.mark_applied(change);
                    }
                }
            }
            settle(&mut roster);
            let desired: Vec<_> = roster.desired().into_iter().map(|(name, (e, _))| (name.to_owned(), e.address.clone())).collect();
            let applied: Vec<_> = roster.applied.iter().map(|(name, e)| (name.clone(), e.address.clone())).collect();
            prop_assert_eq!(desired, applied);
            let before: Vec<_> = roster.applied.keys().cloned().collect();
            roster.expire(now + Duration::from_secs(31));
            settle(&mut roster);
            prop_assert_eq!(roster.next_expiry(), None);
            prop_assert!(roster.applied.keys().all(|name| before.contains(name)));
        }
    }
}
