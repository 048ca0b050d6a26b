//! Who the nodes are to be, by several sources at once, and what has to change so that they are. Pure: it is told what was
//! found and when, and says what to do.
//!
//! A node is known by its name. Where two sources name the same, the earlier one in the config counts. A source that fails
//! changes nothing: what it said last stays. What a source no longer names stays for its `hold`, as a member that health
//! checks watch like any other, and goes then; what comes back meanwhile was never away, and keeps its targets.

mod dns;
mod file;
mod follow;
mod handed;
mod keep;
#[cfg_attr(not(feature = "kubernetes"), path = "without_kubernetes.rs")]
mod kubernetes;

pub(crate) use handed::Handed;
pub(crate) use keep::{Found, Refused, RosterKeeper};

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use larder_core::Weight;
use larder_switch::NodeEntry;

/// What is to be done about one node.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// It comes.
    Join(NodeEntry),
    /// It goes; what it has under way it finishes.
    Leave(String),
    /// It is elsewhere now, and keeps its targets.
    Move(NodeEntry),
    /// It gets another weight.
    Reweigh(String, Weight),
    /// It becomes a backup, or an ordinary node.
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

/// One source of nodes.
#[derive(Debug)]
struct Source {
    /// How long what it names no more stays.
    hold: Duration,
    named: Entries,
    /// What it named before, and since when no more.
    missed: BTreeMap<String, (NodeEntry, Instant)>,
}

/// Who the nodes are to be.
#[derive(Debug, Default)]
struct Roster {
    sources: Vec<Source>,
    /// What has been done.
    applied: Entries,
}

impl Roster {
    /// Another source, after those before; its number.
    fn add(&mut self, hold: Duration) -> usize {
        self.sources.push(Source { hold, named: Entries::new(), missed: BTreeMap::new() });
        self.sources.len() - 1
    }

    /// The nodes that a source names now. Of two of one name the first counts.
    fn heard(&mut self, source: usize, entries: Vec<NodeEntry>, now: Instant) {
        let Some(source) = self.sources.get_mut(source) else { return };
        let mut named = Entries::new();
        for entry in entries {
            named.entry(entry.spec.name.clone()).or_insert(entry);
        }
        for (name, entry) in std::mem::take(&mut source.named) {
            source.missed.entry(name).or_insert((entry, now));
        }
        source.missed.retain(|name, _| !named.contains_key(name));
        source.named = named;
        self.forget(now);
    }

    /// What has been missing for its source's hold is forgotten.
    fn forget(&mut self, now: Instant) {
        for source in &mut self.sources {
            let hold = source.hold;
            source.missed.retain(|_, (_, since)| now.duration_since(*since) < hold);
        }
    }

    /// When something is forgotten next.
    fn due(&self) -> Option<Instant> {
        let all = self.sources.iter();
        all.flat_map(|source| source.missed.values().map(|(_, since)| *since + source.hold)).min()
    }

    /// The number of the source by which there is, or is to be, a node of this name.
    fn named_by(&self, name: &str) -> Option<usize> {
        self.wanted().get(name).map(|(_, source)| *source)
    }

    /// The nodes that a source names.
    fn of(&self, source: usize) -> Vec<NodeEntry> {
        self.sources.get(source).map_or_else(Vec::new, |source| source.named.values().cloned().collect())
    }

    /// The nodes that there are to be, and the number of the source that says so.
    fn wanted(&self) -> BTreeMap<&str, (&NodeEntry, usize)> {
        let mut wanted = BTreeMap::new();
        // What is named anywhere comes before what is only held.
        for (number, source) in self.sources.iter().enumerate() {
            for (name, entry) in &source.named {
                wanted.entry(name.as_str()).or_insert((entry, number));
            }
        }
        for (number, source) in self.sources.iter().enumerate() {
            for (name, (entry, _)) in &source.missed {
                wanted.entry(name.as_str()).or_insert((entry, number));
            }
        }
        wanted
    }

    /// What has to be done, in this order: nobody goes before those have come who take his place.
    fn changes(&self) -> Vec<Change> {
        let wanted = self.wanted();
        let (mut changes, mut leaves) = (Vec::new(), Vec::new());
        for (name, (entry, _)) in &wanted {
            let Some(before) = self.applied.get(*name) else {
                changes.push(Change::Join((*entry).clone()));
                continue;
            };
            let (old, new) = (&before.spec, &entry.spec);
            let is_elsewhere = before.address != entry.address;
            let anew = before.groups != entry.groups
                || before.handoff != entry.handoff
                || (before.http2, &before.tls, before.announce) != (entry.http2, &entry.tls, entry.announce)
                || old.cache != new.cache
                // What was handed over to it is known by its place.
                || is_elsewhere && entry.handoff.is_some();
            if anew {
                changes.push(Change::Leave((*name).to_owned()));
                changes.push(Change::Join((*entry).clone()));
                continue;
            }
            if is_elsewhere {
                changes.push(Change::Move((*entry).clone()));
            }
            if old.weight != new.weight {
                changes.push(Change::Reweigh((*name).to_owned(), new.weight));
            }
            if old.backup != new.backup {
                changes.push(Change::Backup((*name).to_owned(), new.backup));
            }
        }
        leaves.extend(self.applied.keys().filter(|name| !wanted.contains_key(name.as_str())));
        changes.extend(leaves.into_iter().cloned().map(Change::Leave));
        changes
    }

    /// This has been done.
    fn done(&mut self, change: &Change) {
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

    /// Does all that is to be done; what it was.
    fn settle(roster: &mut Roster) -> Vec<String> {
        let changes = roster.changes();
        changes.iter().for_each(|change| roster.done(change));
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
    fn what_a_source_names_comes_and_what_it_drops_goes_after_its_hold() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let (config, dns) = (roster.add(Duration::ZERO), roster.add(HOLD));
        roster.heard(config, nodes(&["a"]), start);
        roster.heard(dns, nodes(&["b", "c"]), start);
        assert_eq!(settle(&mut roster), ["join a", "join b", "join c"]);
        roster.heard(dns, nodes(&["c", "d"]), start);
        assert_eq!(settle(&mut roster), ["join d"], "b is held");
        assert_eq!(roster.due(), Some(start + HOLD));
        roster.forget(start + HOLD - Duration::from_millis(1));
        assert_eq!(settle(&mut roster), [""; 0]);
        roster.forget(start + HOLD);
        assert_eq!((settle(&mut roster), roster.due()), (vec!["leave b".to_owned()], None));
        roster.heard(config, nodes(&["e"]), start);
        assert_eq!(settle(&mut roster), ["join e", "leave a"], "who comes comes first; no hold");
    }

    #[test]
    fn who_comes_back_in_time_was_never_away() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let dns = roster.add(HOLD);
        roster.heard(dns, nodes(&["a", "b"]), start);
        settle(&mut roster);
        roster.heard(dns, nodes(&["b"]), start);
        roster.heard(dns, nodes(&["a", "b"]), start + HOLD / 2);
        assert_eq!((settle(&mut roster).len(), roster.due()), (0, None));
        // Not from the first time on that it was away.
        roster.heard(dns, nodes(&["b"]), start + HOLD);
        assert_eq!(roster.due(), Some(start + HOLD + HOLD));
        roster.heard(dns, nodes(&["b"]), start + HOLD + HOLD / 2);
        assert_eq!(roster.due(), Some(start + HOLD + HOLD), "nor from the last");
    }

    #[test]
    fn the_earlier_source_counts_and_the_later_one_takes_over() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let (first, second) = (roster.add(HOLD), roster.add(HOLD));
        roster.heard(second, vec![entry("a", "two:80")], start);
        assert_eq!(settle(&mut roster), ["join a"]);
        roster.heard(first, vec![entry("a", "one:80"), entry("a", "other:80")], start);
        assert_eq!(settle(&mut roster), ["move a one:80"]);
        roster.heard(first, vec![], start);
        assert_eq!(settle(&mut roster), ["move a two:80"], "named comes before held");
    }

    #[test]
    fn what_has_changed_of_a_node_is_changed() {
        let (mut roster, start) = (Roster::default(), Instant::now());
        let file = roster.add(Duration::ZERO);
        let mut a = entry("a", "one:80");
        roster.heard(file, vec![a.clone()], start);
        settle(&mut roster);
        a.spec.weight = Weight::from_f64(2.0).expect("a weight");
        a.address = "two:80".to_owned();
        a.spec.backup = true;
        roster.heard(file, vec![a.clone()], start);
        assert_eq!(settle(&mut roster), ["move a two:80", "reweigh a 2", "backup a true"]);
        a.spec.backup = false;
        roster.heard(file, vec![a.clone()], start);
        assert_eq!(settle(&mut roster), ["backup a false"]);
        a.groups = vec!["g".to_owned()];
        roster.heard(file, vec![a], start);
        assert_eq!(settle(&mut roster), ["leave a", "join a"]);
    }

    proptest! {
        /// Whatever is heard in whatever order, and whatever could not be done at once: in the end the nodes are those that are wanted.
        #[test]
        fn it_settles_at_what_is_wanted(
            steps in prop::collection::vec((0_usize..3, prop::collection::vec(0_u8..6, 0..5), 0_u64..40, any::<u64>()), 1..30),
        ) {
            let (mut roster, mut now) = (Roster::default(), Instant::now());
            for hold in [0, 10, 30] {
                roster.add(Duration::from_secs(hold));
            }
            for (source, names, later, lots) in steps {
                now += Duration::from_secs(later);
                let found = names.iter().map(|n| entry(&format!("n{n}"), &format!("s{source}:{n}"))).collect();
                roster.heard(source, found, now);
                for (at, change) in roster.changes().iter().enumerate() {
                    // Some fail, such as for a name that does not resolve.
                    if lots >> (at % 64) & 1 == 0 {
                        roster.done(change);
                    }
                }
            }
            settle(&mut roster);
            let wanted: Vec<_> = roster.wanted().into_iter().map(|(name, (e, _))| (name.to_owned(), e.address.clone())).collect();
            let applied: Vec<_> = roster.applied.iter().map(|(name, e)| (name.clone(), e.address.clone())).collect();
            prop_assert_eq!(wanted, applied);
            let before: Vec<_> = roster.applied.keys().cloned().collect();
            roster.forget(now + Duration::from_secs(31));
            settle(&mut roster);
            prop_assert_eq!(roster.due(), None);
            prop_assert!(roster.applied.keys().all(|name| before.contains(name)));
        }
    }
}
