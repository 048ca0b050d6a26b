//! Counters of the edge.

use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use larder_core::handoff::ConnectionEnd;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the edge.
#[derive(Debug)]
pub(crate) struct HandoffCounts {
    delivered: [[AtomicU64; DeliveryReason::ALL.len()]; Mechanism::ALL.len()],
    ended: [AtomicU64; ConnectionEnd::ALL.len()],
    /// Held packets that could not be forwarded.
    lost: AtomicU64,
    /// First packets read so late that their clients may have retransmitted them to another switch.
    late: AtomicU64,
    /// Connections that this host's stack should have accepted but did not.
    unaccepted: AtomicU64,
    /// Later requests on kept-alive connections that were examined, and the ones that belong to another node.
    later: AtomicU64,
    misplaced: AtomicU64,
}

impl Default for HandoffCounts {
    fn default() -> Self {
        let zeros = |_| AtomicU64::new(0);
        Self {
            delivered: std::array::from_fn(|_| std::array::from_fn(zeros)),
            ended: std::array::from_fn(zeros),
            lost: AtomicU64::new(0),
            late: AtomicU64::new(0),
            unaccepted: AtomicU64::new(0),
            later: AtomicU64::new(0),
            misplaced: AtomicU64::new(0),
        }
    }
}

impl HandoffCounts {
    pub(crate) fn delivered(&self, Delivery { mechanism, reason }: Delivery) {
        let reason = DeliveryReason::ALL.iter().position(|other| *other == reason).unwrap_or(0);
        self.delivered[mechanism as usize][reason].fetch_add(1, Relaxed);
    }

    pub(crate) fn ended(&self, end: ConnectionEnd) {
        self.ended[end as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&self, sent: &io::Result<()>) {
        if sent.is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn late(&self) {
        self.late.fetch_add(1, Relaxed);
    }

    pub(crate) fn later_request(&self, misplaced: bool) {
        self.later.fetch_add(1, Relaxed);
        self.misplaced.fetch_add(u64::from(misplaced), Relaxed);
    }

    /// Returns the examined later requests, and the ones that belong to another node.
    pub(crate) fn later_requests(&self) -> (u64, u64) {
        (self.later.load(Relaxed), self.misplaced.load(Relaxed))
    }

    pub(crate) fn unaccepted(&self, count: usize) {
        self.unaccepted.fetch_add(count as u64, Relaxed);
    }

    /// Returns the connections by mechanism and reason, without zeros.
    pub(crate) fn deliveries(&self) -> impl Iterator<Item = (Delivery, u64)> {
        let all = Mechanism::ALL.into_iter().flat_map(|mechanism| {
            DeliveryReason::ALL.into_iter().map(move |reason| Delivery { mechanism, reason })
        });
        let cells = self.delivered.iter().flatten().map(|cell| cell.load(Relaxed));
        all.zip(cells).filter(|(_, count)| *count > 0)
    }

    /// Returns the ended handed-off connections by kind of end.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (ConnectionEnd, u64)> {
        ConnectionEnd::ALL.into_iter().zip(&self.ended).map(|(end, cell)| (end, cell.load(Relaxed)))
    }

    /// Returns the lost packets, the late first packets and the connections not accepted.
    pub(crate) fn losses(&self) -> [u64; 3] {
        [&self.lost, &self.late, &self.unaccepted].map(|count| count.load(Relaxed))
    }
}
