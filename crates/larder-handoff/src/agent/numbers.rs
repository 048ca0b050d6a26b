//! The number by which a front-end knows a restored connection: the sequence number of its client's first byte. The kernel
//! knows it only of connections that it has accepted from a cookie.

use larder_kernel::FlowKey;
use std::collections::HashMap;

/// Connections whose numbers are kept at most; then all are forgotten, and those that are there end without one.
const NUMBERS_MAX: usize = 262_144;

/// Numbers of restored connections that have not ended.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// With the time of the restore, nanoseconds of `CLOCK_MONOTONIC`.
    by_flow: HashMap<FlowKey, (u32, u64)>,
}

impl Numbers {
    /// A connection is here since `now_ns`; 0 if its number is not known.
    pub(super) fn begin(&mut self, flow: FlowKey, first_seq: u32, now_ns: u64) {
        if first_seq == 0 {
            return self.forget(flow);
        }
        if self.by_flow.len() >= NUMBERS_MAX && !self.by_flow.contains_key(&flow) {
            self.by_flow.clear();
        }
        self.by_flow.insert(flow, (first_seq, now_ns));
    }

    /// A connection's number; 0 if it is not known.
    pub(super) fn of(&self, flow: FlowKey) -> u32 {
        self.by_flow.get(&flow).map_or(0, |(first_seq, _)| *first_seq)
    }

    pub(super) fn forget(&mut self, flow: FlowKey) {
        self.by_flow.remove(&flow);
    }

    /// The number of the connection that ended at `at_ns`, of which the kernel says `told`: 0 if that is nothing.
    pub(super) fn end(&mut self, flow: FlowKey, told: u32, at_ns: u64) -> u32 {
        match self.by_flow.get(&flow) {
            // What ended before had the addresses before.
            Some(&(first_seq, since)) if since <= at_ns && (told == 0 || told == first_seq) => {
                self.forget(flow);
                first_seq
            }
            _ => told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_the_connections_that_was_there() {
        let flow = |port: u16| FlowKey::new(([192, 0, 2, 1], port).into(), 0);
        let mut numbers = Numbers::default();
        numbers.begin(flow(1), 7, 100);
        assert_eq!(numbers.end(flow(1), 0, 99), 0, "its predecessor's");
        assert_eq!(numbers.end(flow(1), 8, 101), 8, "one that was accepted");
        assert_eq!((numbers.of(flow(1)), numbers.end(flow(1), 0, 100), numbers.of(flow(1))), (7, 7, 0));
        numbers.begin(flow(1), 7, 100);
        numbers.begin(flow(1), 0, 200);
        assert_eq!(numbers.end(flow(1), 0, 300), 0);
        for at in 0..NUMBERS_MAX + 9 {
            let key = FlowKey::new(([10, (at >> 16) as u8, 0, 0], at as u16).into(), 0);
            numbers.begin(key, 1, 0);
        }
        assert!(numbers.by_flow.len() <= NUMBERS_MAX);
    }
}
