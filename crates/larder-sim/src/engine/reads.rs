//! Lookups in a node's memory, reads of missing items, and storing of what was read.
//!
//! The first request that misses starts the read. Requests that arrive during the read share it.

use std::collections::btree_map::Entry;

use larder_core::dispatch::CacheEvent;
use larder_core::{NodeId, Time};

use super::{Engine, NO_JOB};
use crate::cost::{CostModel, LookupOutcome};
use crate::gms::CacheLookup;

impl<M: CostModel> Engine<'_, M> {
    /// Looks up a request's item in its node's memory.
    pub(super) fn look_up(&mut self, number: u32) {
        if M::STATIONS.tasks {
            return self.look_up_or_read(number);
        }
        let job = &mut self.jobs[number as usize];
        let item = job.request.item;
        job.found = if !self.workload.items[item as usize].cacheable {
            LookupOutcome::Never
        } else {
            match self.memories.look_up(job.node as usize, item) {
                CacheLookup::Local => LookupOutcome::Memory,
                CacheLookup::Remote(peer) => {
                    job.peer = peer.0;
                    LookupOutcome::Peer
                }
                CacheLookup::Miss => match self.reads.entry((job.node, item)) {
                    Entry::Occupied(_) => LookupOutcome::Shared,
                    Entry::Vacant(entry) => {
                        entry.insert(number);
                        LookupOutcome::Read
                    }
                },
            }
        };
        if matches!(job.found, LookupOutcome::Memory | LookupOutcome::Peer) {
            job.ready = self.now;
        }
        let (found, node, measured) = (job.found, job.node as usize, job.measured);
        self.tally.count_lookup(found, node, self.workload.items[item as usize].bytes, measured);
    }

    /// Adds a job to the read that it shares. Returns false if the read has ended.
    pub(super) fn join_read(&mut self, number: u32) -> bool {
        let job = self.jobs[number as usize];
        let Some(reader) = self.reads.get(&(job.node, job.request.item)).copied() else { return false };
        let next = self.jobs[reader as usize].next_sharer;
        self.jobs[number as usize].next_sharer = next;
        self.jobs[reader as usize].next_sharer = number;
        true
    }

    pub(super) fn store_read(&mut self, number: u32) {
        let job = self.jobs[number as usize];
        let memory = self.workload.items[job.request.item as usize].memory;
        self.store_key(job.node, job.request.item, memory);
        self.reads.remove(&(job.node, job.request.item));
        self.jobs[number as usize].ready = self.now;
        self.wake_sharers(number);
    }

    /// Stores a read item or chunk in the node's memory, and reports the changes to dispatchers that follow
    /// the caches. Chunks of long items are no targets, so only the head is reported.
    pub(super) fn store_key(&mut self, node: u16, key: u32, memory: u64) {
        let (evicted, kept) = self.memories.store(node as usize, key, memory);
        if !self.cache_events {
            return;
        }
        for (gone, _) in evicted {
            if let Some(item) = self.workload.items.get(*gone as usize) {
                self.front.report_cache_event(self.now, NodeId(node), item.id, CacheEvent::Evicted);
            }
        }
        if let Some(item) = self.workload.items.get(key as usize).filter(|_| kept) {
            self.front.report_cache_event(self.now, NodeId(node), item.id, CacheEvent::Stored);
        }
    }

    /// Advances the jobs that share a read.
    pub(super) fn wake_sharers(&mut self, reader: u32) {
        let mut sharer = core::mem::replace(&mut self.jobs[reader as usize].next_sharer, NO_JOB);
        // The list has the latest job in front. The jobs go on in the order of their arrival.
        let mut sharers = Vec::new();
        while sharer != NO_JOB {
            sharers.push(sharer);
            sharer = core::mem::replace(&mut self.jobs[sharer as usize].next_sharer, NO_JOB);
        }
        for sharer in sharers.into_iter().rev() {
            let ready = &mut self.jobs[sharer as usize].ready;
            if *ready == Time::ZERO {
                *ready = self.now;
            }
            self.advance(sharer);
        }
    }
}
