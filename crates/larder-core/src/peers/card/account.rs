//! A distributor's account with one dispatcher: what is under way, and what is to be told.

use super::message::{BATCH_MAX, Batch, Ends};
use crate::id::TargetId;
use crate::time::Time;
use core::time::Duration;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) target: TargetId,
    pub(super) since: Time,
}

/// A batch that is not answered yet.
#[derive(Debug)]
pub(super) struct Flight {
    number: u64,
    pub(super) account: u64,
    /// In the order in which they came.
    pub(super) asked: Vec<Waiting>,
}

/// One account.
#[derive(Debug)]
pub(super) struct Account {
    /// The number of its first batch; `None` until that is sent.
    id: Option<u64>,
    heard: u64,
    /// What is to be told, of at most [`BATCH_MAX`] nodes' lives.
    ends: BTreeMap<u64, u32>,
    lot: u64,
    /// The lot under way.
    told: Vec<Ends>,
    pub(super) flight: Option<Flight>,
    /// When a batch is sent, with or without requests.
    at: Option<Time>,
    /// When the last was sent.
    pub(super) spoke: Time,
}

impl Account {
    /// An account that is opened at this time.
    pub(super) const fn due_at(at: Time) -> Self {
        Self {
            id: None,
            heard: 0,
            ends: BTreeMap::new(),
            lot: 0,
            told: Vec::new(),
            flight: None,
            at: Some(at),
            spoke: at,
        }
    }

    /// The number of its first batch, by which claims name it.
    pub(super) const fn number(&self) -> Option<u64> {
        self.id
    }

    /// The other side is to forget this account; the next batch opens another.
    pub(super) fn close(&mut self, now: Time) {
        *self = Self { flight: self.flight.take(), ..Self::due_at(now) };
    }

    /// A request that was placed in this life of a node has ended, which is told at `at` at the latest. Beyond the bound the account
    /// is closed: that ends all.
    pub(super) fn owe(&mut self, life: u64, at: Time) {
        if self.ends.len() >= BATCH_MAX && !self.ends.contains_key(&life) {
            return self.close(at);
        }
        let count = self.ends.entry(life).or_default();
        *count = count.saturating_add(1);
        self.speak_by(at);
    }

    /// A batch is to be sent at this time at the latest.
    pub(super) fn speak_by(&mut self, at: Time) {
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }

    /// Whether requests wait for the answer to a batch.
    pub(super) fn asks(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| !flight.asked.is_empty())
    }

    /// Whether nothing is to be done.
    pub(super) const fn rests(&self) -> bool {
        self.flight.is_none() && self.at.is_none()
    }

    /// Its number and the last batch whose answers were used, if nothing is to be told.
    pub(super) fn settled(&self) -> Option<(u64, u64)> {
        let is_told = self.ends.is_empty() && self.told.is_empty();
        self.id.filter(|_| is_told).map(|id| (id, self.heard))
    }

    /// When something is to be done: the batch under way has taken too long, or one is to be sent.
    pub(super) fn due(&self, patience: Duration, retry: Duration) -> Option<Time> {
        let Some(flight) = &self.flight else { return self.at };
        Some(flight.asked.first().map_or(self.spoke + retry, |oldest| oldest.since + patience))
    }

    /// The batch that asks for these. It takes the place of the one under way, which nobody waits for.
    pub(super) fn batch(&mut self, now: Time, epoch: u64, number: u64, asked: Vec<Waiting>) -> Batch {
        let account = *self.id.get_or_insert(number);
        if self.told.is_empty() && !self.ends.is_empty() {
            let ends = core::mem::take(&mut self.ends);
            self.told = ends.into_iter().map(|(life, count)| Ends { life, count }).collect();
            self.lot += 1;
        }
        // What has ended while another lot is under way is told as soon as that is answered.
        (self.at, self.spoke) = ((!self.ends.is_empty()).then_some(now), now);
        let asks = asked.iter().map(|waiting| waiting.target).collect();
        self.flight = Some(Flight { number, account, asked });
        let (heard, lot, ends) = (self.heard, self.lot, self.told.clone());
        Batch { epoch, account, number, heard, lot, ends, asks }
    }

    /// The batch that an answer belongs to, if it is under way.
    pub(super) fn landed(&mut self, number: u64) -> Option<Flight> {
        self.flight.take_if(|flight| flight.number == number)
    }

    /// The answers to a batch are used; what it told has arrived.
    pub(super) fn used(&mut self, flight: &Flight) {
        if self.id == Some(flight.account) {
            self.heard = flight.number;
            self.told.clear();
        }
    }
}
