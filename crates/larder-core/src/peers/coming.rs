//! Targets that a node has told to have and is still reading.

use crate::clock::{ClockTable, Mark};
use crate::id::TargetId;
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// At one time; further ones are told when they are there.
const COMING_MAX: usize = 65_536;

/// What is being read, until when it is believed to come.
#[derive(Debug)]
pub(super) struct Coming {
    until: BTreeMap<TargetId, Time>,
    /// In order of the times; those that have come or ended are passed over.
    order: VecDeque<(Time, TargetId)>,
    /// Targets that did not come: an error, or something that must not be kept.
    failed: ClockTable<Mark>,
}

impl Coming {
    /// `failed_max`: targets that did not come, remembered at most.
    pub(super) fn new(failed_max: usize) -> Self {
        Self { until: BTreeMap::new(), order: VecDeque::new(), failed: ClockTable::new(failed_max) }
    }

    /// A read begins; no call has an earlier `until` than the one before. Whether it is to be told.
    pub(super) fn begins(&mut self, until: Time, target: TargetId) -> bool {
        if self.order.len() == COMING_MAX || self.failed.find(target).is_some() || self.has(target) {
            return false;
        }
        self.until.insert(target, until);
        self.order.push_back((until, target));
        true
    }

    /// The memory has it, or has it no longer.
    pub(super) fn noted(&mut self, target: TargetId, cached: bool) {
        self.until.remove(&target);
        if cached {
            self.failed.remove(target);
        }
    }

    /// It will not be kept. Whether it was coming.
    pub(super) fn ends(&mut self, target: TargetId) -> bool {
        let came = self.until.remove(&target).is_some();
        if came {
            self.failed.touch(target, || Mark::new(target));
        }
        came
    }

    /// One that should have come by now.
    pub(super) fn expires(&mut self, now: Time) -> Option<TargetId> {
        while let Some((at, target)) = self.order.front().copied().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            if self.until.get(&target) == Some(&at) && self.ends(target) {
                return Some(target);
            }
        }
        None
    }

    /// When the next one should have come, or earlier.
    pub(super) fn due(&self) -> Option<Time> {
        self.order.front().map(|(at, _)| *at)
    }

    pub(super) fn has(&self, target: TargetId) -> bool {
        self.until.contains_key(&target)
    }
}
