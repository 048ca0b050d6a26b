//! The outcome of a run of a cooperative cluster.

use serde::{Deserialize, Serialize};

use crate::outcome::{DelayLog, Delays};

/// The utilisation of the stations, 0 to 1, as the mean over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Utilisation {
    /// Processors.
    pub cpu: f64,
    /// Disks.
    pub disk: f64,
    /// Interfaces to clients.
    pub external: f64,
    /// Interfaces between nodes; 0 if there are none.
    pub internal: f64,
    /// The dispatcher's processor. If the dispatcher is also a node, or only makes tables: the share of its
    /// processor that messages and decisions take. 0 if there is no dispatcher.
    pub dispatcher: f64,
    /// The busiest processor or disk.
    pub most: f64,
    /// The part of the processors that protocol messages and decisions for other nodes take.
    pub talk: f64,
}

/// Statistics of the routing tables of a run, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableStats {
    /// The number of tables that were computed or installed.
    pub made: u64,
    /// The targets of the last table.
    pub targets: u64,
    /// The targets of the last table's core.
    pub core_targets: u64,
    /// The number of tables that reached every node before the next table.
    pub everywhere: u64,
    /// Mean time from the first node to the last, over the tables that reached every node, in s.
    pub spread_s: f64,
}

/// The outcome of a run: from the first request after the warm-up until the last request arrives. Shares and
/// values per request refer to the requests that ended in this time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CooperationOutcome {
    /// Requests of the run, warm-up included; all have ended.
    pub requests_all: u64,
    /// Requests measured.
    pub requests: u64,
    /// Simulated seconds measured.
    pub seconds: f64,
    /// Requests per simulated second of the whole cluster.
    pub throughput: f64,
    /// LHR: the share of the locally served requests that were found in memory.
    pub hit_rate_local: f64,
    /// THR: the share of all requests that were found in the memory of the node that served them.
    pub hit_rate: f64,
    /// The share of the requests that were served by another node than their initial node.
    pub forwarded_share: f64,
    /// Load broadcasts per request.
    pub load_broadcasts: f64,
    /// Caching broadcasts per request; several changes may share one broadcast.
    pub cache_broadcasts: f64,
    /// Cache changes that were broadcast, per request.
    pub cache_changes: f64,
    /// Protocol messages per request, counted per receiver.
    pub messages: f64,
    /// Bytes of protocol messages per request.
    pub message_bytes: f64,
    /// Bytes of forwarded requests and relayed replies between nodes, per request.
    pub relayed_bytes: f64,
    /// Disk reads per request.
    pub disk_reads: f64,
    /// Requests of the node that served most, relative to the mean.
    pub imbalance: f64,
    /// The share of the nodes' time in which they cooperated; 0 for servers that never do.
    pub sharing: f64,
    /// The utilisation of the stations.
    pub busy: Utilisation,
    /// Questions to another node about a placement, per request.
    pub asks: f64,
    /// Mean number of questions per message.
    pub batch: f64,
    /// The wait for the answers to these questions.
    pub answer: Delays,
    /// The statistics of the routing tables.
    pub tables: TableStats,
    /// Bytes of table parts that were sent, per table and node.
    pub table_bytes: f64,
    /// Bytes of counts that were sent, per table and node.
    pub count_bytes: f64,
    /// Mean protocol state of a node at the end, in bytes. PRESS: 240 per peer, 34 per known target, 17 per
    /// cached target. CARD: 575 per peer and, at the dispatcher, 48 per target and 100 per distributor. WARD:
    /// 112 per peer, 12 per target of the table, 48 per counted target.
    pub state_bytes: f64,
    /// The largest protocol state of a node at the end, in bytes.
    pub state_bytes_most: f64,
    /// Mean number of targets at the end whose servers a node knows.
    pub targets_known: f64,
    /// The delays of requests, from their arrival until their reply has left.
    pub delay: Delays,
    /// Decisions by reason, without reasons that did not occur, in the order of the protocol's list.
    pub reasons: Vec<(String, u64)>,
}

impl CooperationOutcome {
    /// Returns the share of the decisions with this reason, 0 to 1.
    pub fn reason_share(&self, name: &str) -> f64 {
        let all: u64 = self.reasons.iter().map(|(_, count)| count).sum();
        let of = self.reasons.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        of as f64 / all.max(1) as f64
    }
}

/// The counters of the measured part of a run.
#[derive(Debug, Default)]
pub(super) struct CooperationTally {
    pub(super) ended: u64,
    pub(super) local: u64,
    pub(super) hits_local: u64,
    pub(super) hits: u64,
    pub(super) load_broadcasts: u64,
    pub(super) cache_broadcasts: u64,
    pub(super) cache_changes: u64,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) relayed_bytes: u64,
    pub(super) disk_reads: u64,
    pub(super) asks: u64,
    pub(super) batches: u64,
    pub(super) answers: DelayLog,
    pub(super) table_bytes: u64,
    pub(super) count_bytes: u64,
    /// Processor time for messages and decisions, by node, in ns.
    pub(super) talk_ns: Vec<u64>,
    /// Requests served, by node.
    pub(super) served: Vec<u64>,
    pub(super) reasons: Vec<(&'static str, u64)>,
    pub(super) delays: DelayLog,
}

impl CooperationTally {
    /// Creates the counters for `nodes` nodes and the reasons of a protocol.
    pub(super) fn new(nodes: usize, reasons: Vec<&'static str>) -> Self {
        let reasons = reasons.into_iter().map(|name| (name, 0)).collect();
        Self { served: vec![0; nodes], talk_ns: vec![0; nodes], reasons, ..Self::default() }
    }

    /// Returns the values of the outcome that follow from the counters alone.
    pub(super) fn outcome(&self, seconds: f64) -> CooperationOutcome {
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let each = |count: u64| share(count, self.ended);
        let most = self.served.iter().copied().max().unwrap_or(0);
        let served: u64 = self.served.iter().sum();
        CooperationOutcome {
            requests: self.ended,
            seconds,
            throughput: if seconds > 0.0 { self.ended as f64 / seconds } else { 0.0 },
            hit_rate_local: share(self.hits_local, self.local),
            hit_rate: each(self.hits),
            forwarded_share: each(self.ended - self.local),
            load_broadcasts: each(self.load_broadcasts),
            cache_broadcasts: each(self.cache_broadcasts),
            cache_changes: each(self.cache_changes),
            messages: each(self.messages),
            message_bytes: each(self.message_bytes),
            relayed_bytes: each(self.relayed_bytes),
            disk_reads: each(self.disk_reads),
            asks: each(self.asks),
            batch: share(self.asks, self.batches),
            answer: self.answers.delays(),
            imbalance: share(most * self.served.len() as u64, served),
            delay: self.delays.delays(),
            reasons: self
                .reasons
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
            ..CooperationOutcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_hit_rate_covers_locally_served_requests() {
        let tally = CooperationTally {
            ended: 100,
            local: 25,
            hits_local: 20,
            hits: 95,
            served: vec![10, 30],
            ..CooperationTally::default()
        };
        let outcome = tally.outcome(2.0);
        assert_eq!((outcome.throughput, outcome.hit_rate_local, outcome.hit_rate), (50.0, 0.8, 0.95));
        assert_eq!((outcome.forwarded_share, outcome.imbalance), (0.75, 1.5));
    }
}
