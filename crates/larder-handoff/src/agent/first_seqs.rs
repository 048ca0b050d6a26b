//! First sequence numbers of restored connections. Switches identify a connection by the sequence number of its
//! client's first byte. The kernel knows this number only of connections that it accepted from a cookie.

use larder_kernel::FlowKey;
use std::collections::HashMap;

/// Maximum number of entries. When the table is full, all entries are dropped: these connections are then reported as
/// closed without a first sequence number.
const FIRST_SEQS_MAX: usize = 262_144;

/// First sequence numbers of the restored connections that are open.
#[derive(Debug, Default)]
pub(super) struct FirstSeqs {
    /// The first sequence number, and the time of the restore in nanoseconds of `CLOCK_MONOTONIC`.
    by_flow: HashMap<FlowKey, (u32, u64)>,
}

impl FirstSeqs {
    /// Adds a connection that was restored at `now_ns`. A `first_seq` of 0 means unknown.
    pub(super) fn insert(&mut self, flow: FlowKey, first_seq: u32, now_ns: u64) {
        if first_seq == 0 {
            return self.remove(flow);
        }
        if self.by_flow.len() >= FIRST_SEQS_MAX && !self.by_flow.contains_key(&flow) {
            self.by_flow.clear();
        }
        self.by_flow.insert(flow, (first_seq, now_ns));
    }

    /// Returns a connection's first sequence number, or 0 if it is unknown.
    pub(super) fn get(&self, flow: FlowKey) -> u32 {
        self.by_flow.get(&flow).map_or(0, |(first_seq, _)| *first_seq)
    }

    pub(super) fn remove(&mut self, flow: FlowKey) {
        self.by_flow.remove(&flow);
    }

    /// Returns the first sequence number of the connection that closed at `at_ns`, and removes its entry. `reported` is
    /// the number that the kernel reports, or 0 if the kernel does not know it.
    pub(super) fn take_closed(&mut self, flow: FlowKey, reported: u32, at_ns: u64) -> u32 {
        match self.by_flow.get(&flow) {
            // A close before the restore belongs to the previous connection with these addresses.
            Some(&(first_seq, since)) if since <= at_ns && (reported == 0 || reported == first_seq) => {
                self.remove(flow);
                first_seq
            }
            _ => reported,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_is_matched_with_the_connection_that_was_open_then() {
        let flow = |port: u16| FlowKey::new(([192, 0, 2, 1], port).into(), 0);
        let mut first_seqs = FirstSeqs::default();
        first_seqs.insert(flow(1), 7, 100);
        assert_eq!(first_seqs.take_closed(flow(1), 0, 99), 0, "the previous connection closed");
        assert_eq!(first_seqs.take_closed(flow(1), 8, 101), 8, "the kernel reports another connection");
        assert_eq!(
            (first_seqs.get(flow(1)), first_seqs.take_closed(flow(1), 0, 100), first_seqs.get(flow(1))),
            (7, 7, 0)
        );
        first_seqs.insert(flow(1), 7, 100);
        first_seqs.insert(flow(1), 0, 200);
        assert_eq!(first_seqs.take_closed(flow(1), 0, 300), 0);
        for at in 0..FIRST_SEQS_MAX + 9 {
            let key = FlowKey::new(([10, (at >> 16) as u8, 0, 0], at as u16).into(), 0);
            first_seqs.insert(key, 1, 0);
        }
        assert!(first_seqs.by_flow.len() <= FIRST_SEQS_MAX);
    }
}
