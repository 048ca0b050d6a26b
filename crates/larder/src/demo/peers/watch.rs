//! What a cluster has counted and used at one moment; the difference of two is what happened between them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::cluster::Cluster;
use crate::ask::Asked;
use crate::demo::cpu::CpuTime;
use crate::demo::spent;

/// What a node says of itself.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct NodeCounts {
    hits: u64,
    misses: u64,
    disk_busy_us: u64,
    disk_reads: u64,
}

/// What it says of its peers.
#[derive(Clone, Debug, Deserialize)]
struct PeerCounts {
    policy: String,
    dispatcher: Option<String>,
    table: Option<TableRow>,
    sharing: bool,
    targets_known: usize,
    targets_held: usize,
    decisions: BTreeMap<String, u64>,
    members: Vec<MemberRow>,
    loads_told: u64,
    changes_told: u64,
    forwarded: u64,
    taken: u64,
    network: NetworkCounts,
}

/// The table that a node goes by.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct TableRow {
    number: u64,
    maker: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct NetworkCounts {
    messages_out: u64,
    message_bytes_out: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct MemberRow {
    load: Option<u32>,
    known: bool,
}

/// Processor time of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) nodes: Duration,
    pub(super) switch: Duration,
}

/// A cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    nodes: Vec<NodeCounts>,
    /// Empty where nodes have no peers.
    peers: Vec<PeerCounts>,
    spent: Spent,
    machine: Option<CpuTime>,
}

/// What happened between two moments, whole cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Between {
    /// Requests that nodes served, each once, by whoever had them.
    pub(super) served: u64,
    pub(super) disk_reads: u64,
    pub(super) disk_busy: Duration,
    pub(super) spent: Spent,
    /// Shares of all processors: of everybody, and of this cluster with its clients.
    pub(super) busy: Option<(f64, f64)>,
    /// None where nodes have no peers.
    pub(super) told: Option<Told>,
}

/// What peers decided and told.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// Decisions by reason.
    pub(super) decisions: BTreeMap<String, u64>,
    pub(super) loads: u64,
    pub(super) changes: u64,
    /// Messages of the protocol, one for each receiver, and their bytes.
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) forwarded: u64,
    pub(super) taken: u64,
    /// Routing tables that nodes have made, as their numbers say.
    pub(super) tables: u64,
    /// Nodes that take part at the later moment.
    pub(super) sharing: usize,
}

impl Told {
    /// Decisions on requests of clients, one each: `unanswered` only says that one was not carried out.
    pub(super) fn decided(&self) -> u64 {
        self.decisions.iter().filter(|(why, _)| *why != "unanswered").map(|(_, count)| count).sum()
    }
}

impl Watch {
    /// Asks all nodes.
    ///
    /// # Errors
    /// One does not answer.
    pub(super) async fn look(asked: &mut [Asked], cluster: &Cluster) -> anyhow::Result<Self> {
        let mut watch = Self { spent: Spent::now(cluster), ..Self::default() };
        let everybody: Vec<u32> =
            cluster.node_ids().into_iter().chain(cluster.switch_id()).chain([std::process::id()]).collect();
        watch.machine = CpuTime::now(&everybody);
        for node in asked {
            watch.nodes.push(node.get("/stats").await?);
            watch.peers.extend(node.get::<Option<PeerCounts>>("/peers").await?);
        }
        Ok(watch)
    }

    /// Whether every node knows every other, and what it goes by: the loads of all if it takes part (who works alone tells
    /// nobody anything), the dispatcher of all, or the table of all.
    pub(super) fn all_ready(&self) -> bool {
        let Some(first) = self.peers.first() else { return false };
        let ready = |peer: &PeerCounts| match peer.policy.as_str() {
            "card" => peer.dispatcher.is_some() && peer.dispatcher == first.dispatcher,
            "ward" => peer.table.is_some() && peer.table == first.table,
            _ => peer.members.iter().all(|row| !peer.sharing || (row.known && row.load.is_some())),
        };
        self.all_there() && self.peers.iter().all(ready)
    }

    /// Whether every node knows every other.
    pub(super) fn all_there(&self) -> bool {
        let others = self.nodes.len() - 1;
        let found = |peer: &PeerCounts| peer.members.len() == others;
        self.peers.len() == self.nodes.len() && self.peers.iter().all(found)
    }

    /// Whether every node knows who has the targets that it has not, of so many that are in memory.
    pub(super) fn all_found(&self, targets: usize) -> bool {
        let finds = |peer: &PeerCounts| peer.targets_known + peer.targets_held >= targets;
        self.peers.iter().all(finds)
    }

    /// What happened since an earlier moment of the same cluster.
    pub(super) fn since(&self, earlier: &Self) -> Between {
        let mut between = Between {
            spent: self.spent.since(earlier.spent),
            busy: self
                .machine
                .zip(earlier.machine)
                .and_then(|(now, then)| now.busy_since(then).map(|busy| (busy.all, busy.own))),
            ..Between::default()
        };
        let nothing = NodeCounts::default();
        for (place, now) in self.nodes.iter().enumerate() {
            let then = earlier.nodes.get(place).unwrap_or(&nothing);
            between.served += (now.hits + now.misses).saturating_sub(then.hits + then.misses);
            between.disk_reads += now.disk_reads.saturating_sub(then.disk_reads);
            between.disk_busy += Duration::from_micros(now.disk_busy_us.saturating_sub(then.disk_busy_us));
        }
        between.told = (!self.peers.is_empty()).then(|| self.told_since(earlier));
        between
    }

    /// The highest number of a table.
    fn last_table(&self) -> u64 {
        self.peers.iter().filter_map(|peer| peer.table.as_ref()).map(|table| table.number).max().unwrap_or(0)
    }

    fn told_since(&self, earlier: &Self) -> Told {
        let mut told =
            Told { tables: self.last_table().saturating_sub(earlier.last_table()), ..Told::default() };
        for (place, now) in self.peers.iter().enumerate() {
            let then = earlier.peers.get(place);
            let since = |now: u64, of: fn(&PeerCounts) -> u64| now.saturating_sub(then.map_or(0, of));
            told.loads += since(now.loads_told, |peer| peer.loads_told);
            told.changes += since(now.changes_told, |peer| peer.changes_told);
            told.forwarded += since(now.forwarded, |peer| peer.forwarded);
            told.taken += since(now.taken, |peer| peer.taken);
            told.messages += since(now.network.messages_out, |peer| peer.network.messages_out);
            told.message_bytes += since(now.network.message_bytes_out, |peer| peer.network.message_bytes_out);
            told.sharing += usize::from(now.sharing);
            // A request that another forwarded is the other's to count.
            for (why, count) in now.decisions.iter().filter(|(why, _)| *why != "forwarded") {
                let before = then.and_then(|then| then.decisions.get(why)).copied().unwrap_or(0);
                *told.decisions.entry(why.clone()).or_default() += count.saturating_sub(before);
            }
        }
        told
    }
}

impl Spent {
    fn now(cluster: &Cluster) -> Self {
        Self {
            nodes: cluster.node_ids().into_iter().map(spent::process).sum(),
            switch: cluster.switch_id().map_or(Duration::ZERO, spent::process),
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            nodes: self.nodes.saturating_sub(earlier.nodes),
            switch: self.switch.saturating_sub(earlier.switch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(hits: u64, peer: u64, loads_told: u64) -> Watch {
        let counts = NodeCounts { hits, misses: 1, disk_busy_us: 10 * hits, disk_reads: hits };
        let peers = PeerCounts {
            policy: "press".to_owned(),
            dispatcher: None,
            table: None,
            network: NetworkCounts { messages_out: 3 * loads_told, message_bytes_out: 60 * loads_told },
            sharing: true,
            targets_known: 3,
            targets_held: 2,
            decisions: [("peer", peer), ("unanswered", 1), ("forwarded", 9)]
                .map(|(why, count)| (why.to_owned(), count))
                .into(),
            members: vec![MemberRow { load: Some(1), known: true }],
            loads_told,
            changes_told: 0,
            forwarded: peer,
            taken: peer,
        };
        Watch { nodes: vec![counts; 2], peers: vec![peers; 2], ..Watch::default() }
    }

    #[test]
    fn the_difference_of_two_moments_counts() {
        let between = watch(30, 12, 5).since(&watch(20, 10, 1));
        assert_eq!((between.served, between.disk_reads), (20, 20));
        assert_eq!(between.disk_busy, Duration::from_micros(200));
        let told = between.told.expect("they have peers");
        assert_eq!((told.decided(), told.loads, told.forwarded, told.sharing), (4, 8, 4, 2));
        assert_eq!((told.messages, told.message_bytes), (24, 480));
        let alone = Watch { peers: Vec::new(), ..watch(30, 0, 0) };
        assert!(alone.since(&Watch::default()).told.is_none());
        assert!(!alone.all_ready());
    }

    #[test]
    fn who_knows_all_others_knows_all() {
        let mut watch = watch(1, 1, 1);
        assert!(watch.all_ready() && watch.all_found(5) && !watch.all_found(6));
        watch.peers[1].members[0].load = None;
        assert!(!watch.all_ready());
        watch.peers[1].sharing = false;
        assert!(watch.all_ready());
        watch.peers[1].members.clear();
        assert!(!watch.all_ready());
    }

    #[test]
    fn peers_begin_with_one_table_or_one_dispatcher() {
        let mut watch = watch(1, 1, 1);
        watch.peers.iter_mut().for_each(|peer| peer.policy = "ward".to_owned());
        assert!(!watch.all_ready(), "there is no table");
        let table = |number| Some(TableRow { number, maker: "node-1".to_owned() });
        watch.peers.iter_mut().for_each(|peer| peer.table = table(2));
        assert!(watch.all_ready());
        watch.peers[1].table = table(1);
        assert!(!watch.all_ready());
        watch.peers.iter_mut().for_each(|peer| peer.policy = "card".to_owned());
        assert!(!watch.all_ready(), "nobody decides");
        watch.peers.iter_mut().for_each(|peer| peer.dispatcher = Some("node-1".to_owned()));
        assert!(watch.all_ready());
    }
}
