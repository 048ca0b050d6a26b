//! Account of a distributor with one dispatcher: the batch in flight, and the ended requests to report.

use super::message::{BATCH_MAX, Batch, EndedRequests};
use crate::id::TargetId;
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(super) struct PendingRequest {
    pub(super) ticket: u64,
    pub(super) target: TargetId,
    pub(super) since: Time,
}

/// Batch without an answer.
#[derive(Debug)]
pub(super) struct PendingBatch {
    number: u64,
    pub(super) account: u64,
    /// Requests in the order of their arrival.
    pub(super) requests: Vec<PendingRequest>,
}

/// Account with one dispatcher.
#[derive(Debug)]
pub(super) struct Account {
    /// Number of its first batch; `None` until that is sent.
    id: Option<u64>,
    acknowledged: u64,
    /// Ended requests to report, for at most [`BATCH_MAX`] incarnations.
    ended: BTreeMap<u64, u32>,
    group: u64,
    /// Group of ended requests that is being sent.
    sent_ended: Vec<EndedRequests>,
    pub(super) in_flight: Option<PendingBatch>,
    /// Time of the next batch, with or without requests.
    send_at: Option<Time>,
    /// Time of the last batch.
    pub(super) sent_at: Time,
}

impl Account {
    /// Creates an account whose first batch is due at this time.
    pub(super) const fn open_at(at: Time) -> Self {
        Self {
            id: None,
            acknowledged: 0,
            ended: BTreeMap::new(),
            group: 0,
            sent_ended: Vec::new(),
            in_flight: None,
            send_at: Some(at),
            sent_at: at,
        }
    }

    /// Returns the number of its first batch, which claims refer to.
    pub(super) const fn number(&self) -> Option<u64> {
        self.id
    }

    /// Closes the account. The next batch opens a new one, and the dispatcher then drops this one.
    pub(super) fn close(&mut self, now: Time) {
        *self = Self { in_flight: self.in_flight.take(), ..Self::open_at(now) };
    }

    /// Adds an ended request of this incarnation, to be reported by `at`. Beyond the limit the account is closed,
    /// which ends all its requests.
    pub(super) fn add_ended(&mut self, incarnation: u64, at: Time) {
        if self.ended.len() >= BATCH_MAX && !self.ended.contains_key(&incarnation) {
            return self.close(at);
        }
        let count = self.ended.entry(incarnation).or_default();
        *count = count.saturating_add(1);
        self.send_by(at);
    }

    /// Makes sure that a batch is sent by this time.
    pub(super) fn send_by(&mut self, at: Time) {
        self.send_at = Some(self.send_at.map_or(at, |before| before.min(at)));
    }

    /// Returns true if requests wait for the answer to a batch.
    pub(super) fn has_requests(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| !in_flight.requests.is_empty())
    }

    /// Returns true if nothing is in flight or due.
    pub(super) const fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.send_at.is_none()
    }

    /// Returns its number and the last acknowledged batch if no ended request remains to be reported.
    pub(super) fn settled_state(&self) -> Option<(u64, u64)> {
        let is_reported = self.ended.is_empty() && self.sent_ended.is_empty();
        self.id.filter(|_| is_reported).map(|id| (id, self.acknowledged))
    }

    /// Returns the time of the next action: the timeout of the batch in flight, or the next batch.
    pub(super) fn due(&self, patience: Duration, retry: Duration) -> Option<Time> {
        let Some(in_flight) = &self.in_flight else { return self.send_at };
        Some(in_flight.requests.first().map_or(self.sent_at + retry, |oldest| oldest.since + patience))
    }

    /// Makes a batch with these requests. It replaces the batch in flight, for which no request waits.
    pub(super) fn make_batch(
        &mut self,
        now: Time,
        epoch: u64,
        number: u64,
        requests: Vec<PendingRequest>,
    ) -> Batch {
        let account = *self.id.get_or_insert(number);
        if self.sent_ended.is_empty() && !self.ended.is_empty() {
            let ended = core::mem::take(&mut self.ended);
            self.sent_ended =
                ended.into_iter().map(|(incarnation, count)| EndedRequests { incarnation, count }).collect();
            self.group += 1;
        }
        // Requests that ended meanwhile are reported as soon as this group is acknowledged.
        (self.send_at, self.sent_at) = ((!self.ended.is_empty()).then_some(now), now);
        let targets = requests.iter().map(|waiting| waiting.target).collect();
        self.in_flight = Some(PendingBatch { number, account, requests });
        let (acknowledged, group, ended) = (self.acknowledged, self.group, self.sent_ended.clone());
        Batch { epoch, account, number, acknowledged, group, ended, targets }
    }

    /// Returns the batch in flight if an answer belongs to it.
    pub(super) fn take_answered(&mut self, number: u64) -> Option<PendingBatch> {
        self.in_flight.take_if(|in_flight| in_flight.number == number)
    }

    /// Records that the answers to a batch are used. Its ended requests have arrived.
    pub(super) fn acknowledge(&mut self, in_flight: &PendingBatch) {
        if self.id == Some(in_flight.account) {
            self.acknowledged = in_flight.number;
            self.sent_ended.clear();
        }
    }
}
