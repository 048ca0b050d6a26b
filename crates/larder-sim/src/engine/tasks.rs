//! Reads as tasks of their own, and long items in chunks, as in the live node.
//!
//! The first request that misses starts a read, which is a job of its own. The request waits for it like the
//! requests that come later. Items above the chunk size are read, kept and evicted in chunks. Each chunk is a
//! key of the memory with a read of its own. A reply requests its chunks in order, one ahead of the chunk
//! that it waits for. It requests a chunk ahead of need only if the chunk must be read. Chunks that a reply
//! has had read without a gap are one sequential run of the disk.
//!
//! The head of a long item, which is its length only, is known without a read and takes the least charge.

use std::collections::BTreeMap;

use larder_core::Time;

use super::{Engine, Job, NO_JOB};
use crate::cost::{CostModel, LookupOutcome, RequestProgress};
use crate::gms::CacheLookup;
use crate::workload::Workload;

/// The number of chunks requested ahead of the next chunk to be sent.
const AHEAD: usize = 1;

/// The state of reads and chunked replies.
#[derive(Debug)]
pub(super) struct ReadTasks {
    chunk: u64,
    /// The memory key of the first chunk, by item. The key of an item is its index. Empty if no item has
    /// chunks.
    first_keys: BTreeMap<u32, u32>,
    keys: usize,
    /// The end of each job's current step at its station, in ns; used if the model has a timer.
    ends_ns: Vec<u64>,
    replies: BTreeMap<u32, ChunkedReply>,
    reads: BTreeMap<u32, ChunkRead>,
}

/// A chunked reply in progress.
#[derive(Debug, Default)]
struct ChunkedReply {
    /// The next chunk to request.
    next: u32,
    /// Bytes before that chunk that were read without a gap.
    run: u64,
    /// The requested chunks: the key, and the read in progress if the chunk was not in memory.
    requested: Vec<(u32, Option<u32>)>,
}

/// An item or chunk that a task reads.
#[derive(Clone, Copy, Debug)]
struct ChunkRead {
    key: u32,
    /// Memory that it takes, in bytes.
    memory: u64,
    keep: bool,
}

impl ReadTasks {
    pub(super) fn new(workload: &Workload, model: &impl CostModel) -> Self {
        let chunk = model.chunk_bytes();
        let mut first_keys = BTreeMap::new();
        let mut keys = workload.items.len();
        for (item, index) in workload.items.iter().zip(0..) {
            if item.bytes > chunk {
                first_keys.insert(index, u32::try_from(keys).unwrap_or(u32::MAX));
                keys += item.bytes.div_ceil(chunk) as usize;
            }
        }
        Self {
            chunk,
            first_keys,
            keys,
            ends_ns: Vec::new(),
            replies: BTreeMap::new(),
            reads: BTreeMap::new(),
        }
    }

    /// Returns the number of keys of the memories: items and chunks.
    pub(super) fn keys(&self) -> usize {
        self.keys
    }

    pub(super) fn note_end(&mut self, number: u32, end_ns: u64) {
        let place = number as usize;
        if self.ends_ns.len() <= place {
            self.ends_ns.resize(place + 1, 0);
        }
        self.ends_ns[place] = end_ns;
    }

    pub(super) fn end_ns(&self, number: u32) -> u64 {
        self.ends_ns[number as usize]
    }
}

impl<M: CostModel> Engine<'_, M> {
    /// Looks up a request's item, and starts a read if it is missing.
    pub(super) fn look_up_or_read(&mut self, number: u32) {
        let Job { node, request, measured, .. } = self.jobs[number as usize];
        let item = self.workload.items[request.item as usize];
        let found = match self.tasks.first_keys.get(&request.item).copied() {
            Some(first) => self.look_up_chunks(node, request.item, first, number),
            None => match self.begin_read(number, request.item, 0, item.bytes) {
                ReadStart::Cached => LookupOutcome::Memory,
                ReadStart::Joined(_) => LookupOutcome::Shared,
                ReadStart::Started(_) => LookupOutcome::Read,
            },
        };
        let job = &mut self.jobs[number as usize];
        job.found = found;
        if found == LookupOutcome::Memory {
            job.ready = self.now;
        }
        // Bytes read are counted when a read begins.
        self.tally.count_lookup(found, node as usize, 0, measured);
    }

    fn look_up_chunks(&mut self, node: u16, item: u32, first: u32, number: u32) -> LookupOutcome {
        self.tasks.replies.insert(number, ChunkedReply::default());
        if self.memories.look_up(node as usize, item) == CacheLookup::Miss {
            self.store_key(node, item, 0);
            return LookupOutcome::Read;
        }
        let count = self.workload.items[item as usize].bytes.div_ceil(self.tasks.chunk) as u32;
        let all = (first..first + count).all(|key| self.memories.holds(node as usize, key));
        if all { LookupOutcome::Memory } else { LookupOutcome::Read }
    }

    /// Requests a key: it is in memory, its read is in progress, or its read begins now.
    fn begin_read(&mut self, number: u32, key: u32, before: u64, bytes: u64) -> ReadStart {
        let Job { node, request, arrived_at, measured, .. } = self.jobs[number as usize];
        let item = &self.workload.items[request.item as usize];
        if item.cacheable && self.memories.look_up(node as usize, key) != CacheLookup::Miss {
            return ReadStart::Cached;
        }
        if let Some(read) = self.reads.get(&(node, key)) {
            return ReadStart::Joined(*read);
        }
        let memory = if key == request.item { item.memory } else { bytes };
        let keep = item.cacheable && item.bytes <= self.scenario.object_max.get();
        let read = self.add_job(Job {
            request,
            switch: 0,
            arrived_at,
            sent: self.now,
            ready: Time::ZERO,
            measured,
            read: true,
            node,
            peer: 0,
            found: LookupOutcome::Unknown,
            record: 0,
            progress: RequestProgress::default(),
            next_sharer: NO_JOB,
        });
        self.tasks.reads.insert(read, ChunkRead { key, memory, keep });
        self.reads.insert((node, key), read);
        self.tally.note_read(node as usize, bytes, measured);
        let (node_stations, disk) = (self.node_stations[node as usize], self.disk(node as usize, read));
        let time_ns = super::scale(self.model.chunk_read_ns(before, bytes), node_stations.disk_factor);
        self.enqueue(disk, time_ns, read);
        ReadStart::Started(read)
    }

    /// Ends a read: stores the result and advances all jobs that wait for it.
    pub(super) fn finish_read(&mut self, number: u32) {
        let node = self.jobs[number as usize].node;
        let Some(read) = self.tasks.reads.remove(&number) else { return };
        if read.keep {
            self.store_key(node, read.key, read.memory);
        }
        self.reads.remove(&(node, read.key));
        self.wake_sharers(number);
        self.free.push(number);
    }

    /// Advances a reply to its next chunk. Returns true if the reply must wait for the chunk.
    pub(super) fn next_chunk(&mut self, number: u32) -> bool {
        let Some(mut reply) = self.tasks.replies.remove(&number) else { return false };
        self.request_chunks(number, &mut reply);
        let waits = match reply.requested.first() {
            Some((key, Some(read))) => self.join_chunk_read(number, *key, *read),
            _ => false,
        };
        if !reply.requested.is_empty() {
            reply.requested.remove(0);
        }
        let item = self.jobs[number as usize].request.item;
        let bytes = self.workload.items[item as usize].bytes;
        if !reply.requested.is_empty() || u64::from(reply.next) * self.tasks.chunk < bytes {
            self.tasks.replies.insert(number, reply);
        }
        waits
    }

    fn request_chunks(&mut self, number: u32, reply: &mut ChunkedReply) {
        let Job { request, node, .. } = self.jobs[number as usize];
        let Some(first) = self.tasks.first_keys.get(&request.item).copied() else { return };
        let (chunk, bytes) = (self.tasks.chunk, self.workload.items[request.item as usize].bytes);
        while reply.requested.len() <= AHEAD && u64::from(reply.next) * chunk < bytes {
            let key = first + reply.next;
            if !reply.requested.is_empty() && self.memories.holds(node as usize, key) {
                break;
            }
            let len = (bytes - u64::from(reply.next) * chunk).min(chunk);
            let read = match self.begin_read(number, key, reply.run, len) {
                ReadStart::Cached => None,
                ReadStart::Joined(read) | ReadStart::Started(read) => Some(read),
            };
            reply.run = if read.is_some() { reply.run + len } else { 0 };
            reply.requested.push((key, read));
            reply.next += 1;
        }
    }

    /// Adds a job to a read. Returns false if the read has ended.
    fn join_chunk_read(&mut self, number: u32, key: u32, read: u32) -> bool {
        let node = self.jobs[number as usize].node;
        if self.reads.get(&(node, key)) != Some(&read) {
            return false;
        }
        let next = core::mem::replace(&mut self.jobs[read as usize].next_sharer, number);
        self.jobs[number as usize].next_sharer = next;
        true
    }
}

/// The result of requesting a key.
#[derive(Clone, Copy, Debug)]
enum ReadStart {
    Cached,
    Joined(u32),
    Started(u32),
}
