//! Counters and processor time of a cluster at a moment, and differences between two moments.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::cluster::PeersCluster;
use crate::ask::AdminClient;
use crate::demo::cpu::CpuTime;
use crate::demo::process_time;

/// Reply of a node to `/stats`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct NodeCounts {
    hits: u64,
    misses: u64,
    disk_busy_us: u64,
    disk_reads: u64,
}

/// Reply of a node to `/peers`.
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

/// The routing table of a node.
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
pub(super) struct ClusterCpu {
    pub(super) nodes: Duration,
    pub(super) switch: Duration,
}

/// Counters of a cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterSample {
    nodes: Vec<NodeCounts>,
    /// Empty if nodes have no peers.
    peers: Vec<PeerCounts>,
    cpu: ClusterCpu,
    machine: Option<CpuTime>,
}

/// Differences between two samples, summed over the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterDelta {
    /// Requests that nodes served, each counted once.
    pub(super) served: u64,
    pub(super) disk_reads: u64,
    pub(super) disk_busy: Duration,
    pub(super) cpu: ClusterCpu,
    /// Utilization of all processors: by all processes, and by this cluster with its clients.
    pub(super) busy: Option<(f64, f64)>,
    /// `None` if nodes have no peers.
    pub(super) activity: Option<PeerActivity>,
}

/// Decisions and messages of the peers.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerActivity {
    /// Decisions by reason.
    pub(super) decisions: BTreeMap<String, u64>,
    pub(super) loads: u64,
    pub(super) changes: u64,
    /// Protocol messages, one for each receiver, and their bytes.
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) forwarded: u64,
    pub(super) taken: u64,
    /// Routing tables that nodes have built, from the table numbers.
    pub(super) tables: u64,
    /// Nodes that cooperate at the later moment.
    pub(super) sharing: usize,
}

impl PeerActivity {
    /// Returns the number of decided client requests. `unanswered` is excluded, because it marks a decision
    /// that was not carried out.
    pub(super) fn decision_count(&self) -> u64 {
        self.decisions.iter().filter(|(why, _)| *why != "unanswered").map(|(_, count)| count).sum()
    }
}

impl ClusterSample {
    /// Queries all nodes.
    ///
    /// # Errors
    /// Returns an error if a node does not answer.
    pub(super) async fn take(clients: &mut [AdminClient], cluster: &PeersCluster) -> anyhow::Result<Self> {
        let mut watch = Self { cpu: ClusterCpu::now(cluster), ..Self::default() };
        let processes: Vec<u32> =
            cluster.node_ids().into_iter().chain(cluster.switch_id()).chain([std::process::id()]).collect();
        watch.machine = CpuTime::now(&processes);
        for node in clients {
            watch.nodes.push(node.get("/stats").await?);
            watch.peers.extend(node.get::<Option<PeerCounts>>("/peers").await?);
        }
        Ok(watch)
    }

    /// Whether each node knows all others, and what its policy needs: the loads of cooperating nodes, the
    /// dispatcher, or the table. An independent node reports no load.
    pub(super) fn peers_ready(&self) -> bool {
        let Some(first) = self.peers.first() else { return false };
        let ready = |peer: &PeerCounts| match peer.policy.as_str() {
            "card" => peer.dispatcher.is_some() && peer.dispatcher == first.dispatcher,
            "ward" => peer.table.is_some() && peer.table == first.table,
            _ => peer.members.iter().all(|row| !peer.sharing || (row.known && row.load.is_some())),
        };
        self.peers_known() && self.peers.iter().all(ready)
    }

    /// Whether each node knows all others.
    pub(super) fn peers_known(&self) -> bool {
        let others = self.nodes.len() - 1;
        let found = |peer: &PeerCounts| peer.members.len() == others;
        self.peers.len() == self.nodes.len() && self.peers.iter().all(found)
    }

    /// Whether each node has or can locate `targets` targets.
    pub(super) fn targets_found(&self, targets: usize) -> bool {
        let finds = |peer: &PeerCounts| peer.targets_known + peer.targets_held >= targets;
        self.peers.iter().all(finds)
    }

    /// Returns the differences to an earlier sample of the same cluster.
    pub(super) fn since(&self, earlier: &Self) -> ClusterDelta {
        let mut delta = ClusterDelta {
            cpu: self.cpu.since(earlier.cpu),
            busy: self
                .machine
                .zip(earlier.machine)
                .and_then(|(now, then)| now.busy_since(then).map(|busy| (busy.all, busy.own))),
            ..ClusterDelta::default()
        };
        let nothing = NodeCounts::default();
        for (place, now) in self.nodes.iter().enumerate() {
            let then = earlier.nodes.get(place).unwrap_or(&nothing);
            delta.served += (now.hits + now.misses).saturating_sub(then.hits + then.misses);
            delta.disk_reads += now.disk_reads.saturating_sub(then.disk_reads);
            delta.disk_busy += Duration::from_micros(now.disk_busy_us.saturating_sub(then.disk_busy_us));
        }
        delta.activity = (!self.peers.is_empty()).then(|| self.activity_since(earlier));
        delta
    }

    /// Returns the highest number of a table.
    fn last_table(&self) -> u64 {
        self.peers.iter().filter_map(|peer| peer.table.as_ref()).map(|table| table.number).max().unwrap_or(0)
    }

    fn activity_since(&self, earlier: &Self) -> PeerActivity {
        let mut activity = PeerActivity {
            tables: self.last_table().saturating_sub(earlier.last_table()),
            ..PeerActivity::default()
        };
        for (place, now) in self.peers.iter().enumerate() {
            let then = earlier.peers.get(place);
            let since = |now: u64, of: fn(&PeerCounts) -> u64| now.saturating_sub(then.map_or(0, of));
            activity.loads += since(now.loads_told, |peer| peer.loads_told);
            activity.changes += since(now.changes_told, |peer| peer.changes_told);
            activity.forwarded += since(now.forwarded, |peer| peer.forwarded);
            activity.taken += since(now.taken, |peer| peer.taken);
            activity.messages += since(now.network.messages_out, |peer| peer.network.messages_out);
            activity.message_bytes +=
                since(now.network.message_bytes_out, |peer| peer.network.message_bytes_out);
            activity.sharing += usize::from(now.sharing);
            // A forwarded request is counted at the node that received it from the client.
            for (why, count) in now.decisions.iter().filter(|(why, _)| *why != "forwarded") {
                let before = then.and_then(|then| then.decisions.get(why)).copied().unwrap_or(0);
                *activity.decisions.entry(why.clone()).or_default() += count.saturating_sub(before);
            }
        }
        activity
    }
}

impl ClusterCpu {
    fn now(cluster: &PeersCluster) -> Self {
        Self {
            nodes: cluster.node_ids().into_iter().map(process_time::cpu_time).sum(),
            switch: cluster.switch_id().map_or(Duration::ZERO, process_time::cpu_time),
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

    fn sample(hits: u64, peer: u64, loads_told: u64) -> ClusterSample {
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
        ClusterSample { nodes: vec![counts; 2], peers: vec![peers; 2], ..ClusterSample::default() }
    }

    #[test]
    fn samples_are_subtracted() {
        let delta = sample(30, 12, 5).since(&sample(20, 10, 1));
        assert_eq!((delta.served, delta.disk_reads), (20, 20));
        assert_eq!(delta.disk_busy, Duration::from_micros(200));
        let activity = delta.activity.expect("they have peers");
        assert_eq!(
            (activity.decision_count(), activity.loads, activity.forwarded, activity.sharing),
            (4, 8, 4, 2)
        );
        assert_eq!((activity.messages, activity.message_bytes), (24, 480));
        let alone = ClusterSample { peers: Vec::new(), ..sample(30, 0, 0) };
        assert!(alone.since(&ClusterSample::default()).activity.is_none());
        assert!(!alone.peers_ready());
    }

    #[test]
    fn peers_are_ready_if_all_loads_are_known() {
        let mut watch = sample(1, 1, 1);
        assert!(watch.peers_ready() && watch.targets_found(5) && !watch.targets_found(6));
        watch.peers[1].members[0].load = None;
        assert!(!watch.peers_ready());
        watch.peers[1].sharing = false;
        assert!(watch.peers_ready());
        watch.peers[1].members.clear();
        assert!(!watch.peers_ready());
    }

    #[test]
    fn peers_are_ready_with_a_common_table_or_dispatcher() {
        let mut watch = sample(1, 1, 1);
        watch.peers.iter_mut().for_each(|peer| peer.policy = "ward".to_owned());
        assert!(!watch.peers_ready(), "there is no table");
        let table = |number| Some(TableRow { number, maker: "node-1".to_owned() });
        watch.peers.iter_mut().for_each(|peer| peer.table = table(2));
        assert!(watch.peers_ready());
        watch.peers[1].table = table(1);
        assert!(!watch.peers_ready());
        watch.peers.iter_mut().for_each(|peer| peer.policy = "card".to_owned());
        assert!(!watch.peers_ready(), "nobody decides");
        watch.peers.iter_mut().for_each(|peer| peer.dispatcher = Some("node-1".to_owned()));
        assert!(watch.peers_ready());
    }
}
