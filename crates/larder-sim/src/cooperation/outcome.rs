//! What a run gave.

use serde::{Deserialize, Serialize};

use crate::outcome::{DelayLog, Delays};

/// How busy the stations were, 0 to 1, mean over the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Processors.
    pub cpu: f64,
    /// Disks.
    pub disk: f64,
    /// Interfaces to clients.
    pub external: f64,
    /// Interfaces between nodes; 0 where there are none.
    pub internal: f64,
    /// The dispatcher's processor; where it is a node too, or makes tables only, what messages and decisions take of it. 0 where
    /// there is none.
    pub dispatcher: f64,
    /// The busiest processor or disk.
    pub most: f64,
    /// Processors, with messages of the protocol and decisions for others.
    pub talk: f64,
}

/// The routing tables of a run, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tables {
    /// How many were made, or given.
    pub made: u64,
    /// Targets of the last.
    pub targets: u64,
    /// Targets of its core.
    pub core_targets: u64,
    /// How many every node had before there was another.
    pub everywhere: u64,
    /// How long those took from the first node to the last, mean, in s.
    pub spread_s: f64,
}

/// A run in figures: from the first request after the warm-up until the last one comes. Shares and numbers per request are of
/// the requests that ended meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Requests of the run, warm-up included; all of them ended.
    pub requests_all: u64,
    /// Requests measured.
    pub requests: u64,
    /// Simulated seconds measured.
    pub seconds: f64,
    /// Requests per simulated second, whole cluster.
    pub throughput: f64,
    /// LHR: of the requests served where they came, those found in memory.
    pub hit_rate_local: f64,
    /// THR: of all requests, those found in the memory of the node that served them.
    pub hit_rate: f64,
    /// Requests served by another node than the one they came to.
    pub forwarded_share: f64,
    /// Broadcasts of a load, per request.
    pub load_broadcasts: f64,
    /// Broadcasts of what nodes began and ceased to have in memory, per request; several changes may share one.
    pub cache_broadcasts: f64,
    /// Such changes, per request.
    pub cache_changes: f64,
    /// Messages that telling took, each receiver's counted, per request.
    pub messages: f64,
    /// Bytes of those messages, per request.
    pub message_bytes: f64,
    /// Bytes of forwarded requests and relayed replies between nodes, per request.
    pub relayed_bytes: f64,
    /// Reads from disk, per request.
    pub disk_reads: f64,
    /// Requests of the node that served most, over the mean.
    pub imbalance: f64,
    /// Share of the nodes' time during which they took part; 0 for servers that never do.
    pub sharing: f64,
    /// How busy stations were.
    pub busy: Busy,
    /// Questions to another node where a request is to be served, per request.
    pub asks: f64,
    /// Questions that go together, mean.
    pub batch: f64,
    /// How long requests waited for the answers to such.
    pub answer: Delays,
    /// Routing tables.
    pub tables: Tables,
    /// Bytes of parts of tables that were sent, for each table and node.
    pub table_bytes: f64,
    /// Bytes of counts that were sent, for each table and node.
    pub count_bytes: f64,
    /// Bytes of protocol state of a node at the end, mean: 100 a peer; PRESS 34 a target known and 17 one in memory; CARD's
    /// dispatcher 48 a target and 100 a distributor; WARD 12 a target of the table and 48 one counted.
    pub state_bytes: f64,
    /// The same of the node that has most.
    pub state_bytes_most: f64,
    /// Targets whose servers a node knows, at the end, mean.
    pub targets_known: f64,
    /// Delays of requests.
    pub delay: Delays,
    /// Decisions by reason, those that occurred, in the order of the protocol's list.
    pub reasons: Vec<(String, u64)>,
}

impl Outcome {
    /// The share of the decisions that had the reason of this name, 0 to 1.
    pub fn reason_share(&self, name: &str) -> f64 {
        let all: u64 = self.reasons.iter().map(|(_, count)| count).sum();
        let of = self.reasons.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        of as f64 / all.max(1) as f64
    }
}

/// What is counted while a run is measured.
#[derive(Debug, Default)]
pub(super) struct Tally {
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
    /// Of the whole run.
    pub(super) table_bytes: u64,
    pub(super) count_bytes: u64,
    /// Nanoseconds of processors for messages and decisions, by node.
    pub(super) talk_ns: Vec<u64>,
    /// Requests served, by node.
    pub(super) served: Vec<u64>,
    /// Decisions by reason.
    pub(super) reasons: Vec<(&'static str, u64)>,
    pub(super) delays: DelayLog,
}

impl Tally {
    /// For so many nodes with these reasons.
    pub(super) fn new(nodes: usize, reasons: Vec<&'static str>) -> Self {
        let reasons = reasons.into_iter().map(|name| (name, 0)).collect();
        Self { served: vec![0; nodes], talk_ns: vec![0; nodes], reasons, ..Self::default() }
    }

    /// The figures that need nothing else.
    pub(super) fn outcome(&self, seconds: f64) -> Outcome {
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let each = |count: u64| share(count, self.ended);
        let most = self.served.iter().copied().max().unwrap_or(0);
        let served: u64 = self.served.iter().sum();
        Outcome {
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
            ..Outcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_hit_rate_is_that_of_requests_served_where_they_came() {
        let tally = Tally {
            ended: 100,
            local: 25,
            hits_local: 20,
            hits: 95,
            served: vec![10, 30],
            ..Tally::default()
        };
        let outcome = tally.outcome(2.0);
        assert_eq!((outcome.throughput, outcome.hit_rate_local, outcome.hit_rate), (50.0, 0.8, 0.95));
        assert_eq!((outcome.forwarded_share, outcome.imbalance), (0.75, 1.5));
    }
}
