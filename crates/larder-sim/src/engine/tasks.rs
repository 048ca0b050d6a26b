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

use super::{Engine, Job, NOBODY};
use crate::cost::{CostModel, Found, Progress};
use crate::gms::Looked;
use crate::workload::Workload;

/// The number of chunks requested ahead of the next chunk to be sent.
const AHEAD: usize = 1;

/// The state of reads and chunked replies.
#[derive(Debug)]
pub(super) struct Tasks {
    chunk: u64,
    /// The memory key of the first chunk, by item. The key of an item is its index. Empty if no item has
    /// chunks.
    first_keys: BTreeMap<u32, u32>,
    keys: usize,
    /// The end of each job's current step at its station, in ns; used if the model has a timer.
    ends_ns: Vec<u64>,
    replies: BTreeMap<u32, Reply>,
    reads: BTreeMap<u32, Piece>,
}

/// A chunked reply in progress.
#[derive(Debug, Default)]
struct Reply {
    /// The next chunk to request.
    next: u32,
    /// Bytes before that chunk that were read without a gap.
    run: u64,
    /// The requested chunks: the key, and the read in progress if the chunk was not in memory.
    asked: Vec<(u32, Option<u32>)>,
}

/// An item or chunk that a task reads.
#[derive(Clone, Copy, Debug)]
struct Piece {
    key: u32,
    /// Memory that it takes, in bytes.
    memory: u64,
    keep: bool,
}

impl Tasks {
    pub(super) fn new(workload: &Workload, model: &impl CostModel) -> Self {
        let chunk = model.chunk();
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
    pub(super) fn look_and_read(&mut self, number: u32) {
        let Job { node, ask, measured, .. } = self.jobs[number as usize];
        let item = self.workload.items[ask.item as usize];
        let found = match self.tasks.first_keys.get(&ask.item).copied() {
            Some(first) => self.look_for_parts(node, ask.item, first, number),
            None => match self.begin(number, ask.item, 0, item.bytes) {
                Begun::Here => Found::Memory,
                Begun::Joined(_) => Found::Shared,
                Begun::Reads(_) => Found::Read,
            },
        };
        let job = &mut self.jobs[number as usize];
        job.found = found;
        if found == Found::Memory {
            job.ready = self.now;
        }
        // Bytes read are counted when a read begins.
        self.tally.note_found(found, node as usize, 0, measured);
    }

    fn look_for_parts(&mut self, node: u16, item: u32, first: u32, number: u32) -> Found {
        self.tasks.replies.insert(number, Reply::default());
        if self.memories.look(node as usize, item) == Looked::Nowhere {
            self.keep(node, item, 0);
            return Found::Read;
        }
        let count = self.workload.items[item as usize].bytes.div_ceil(self.tasks.chunk) as u32;
        let all = (first..first + count).all(|key| self.memories.holds(node as usize, key));
        if all { Found::Memory } else { Found::Read }
    }

    /// Requests a key: it is in memory, its read is in progress, or its read begins now.
    fn begin(&mut self, number: u32, key: u32, before: u64, bytes: u64) -> Begun {
        let Job { node, ask, asked, measured, .. } = self.jobs[number as usize];
        let item = &self.workload.items[ask.item as usize];
        if item.cacheable && self.memories.look(node as usize, key) != Looked::Nowhere {
            return Begun::Here;
        }
        if let Some(read) = self.reads.get(&(node, key)) {
            return Begun::Joined(*read);
        }
        let memory = if key == ask.item { item.memory } else { bytes };
        let keep = item.cacheable && item.bytes <= self.scenario.object_max.get();
        let read = self.add_job(Job {
            ask,
            switch: 0,
            asked,
            sent: self.now,
            ready: Time::ZERO,
            measured,
            read: true,
            node,
            peer: 0,
            found: Found::Unknown,
            seen: 0,
            progress: Progress::default(),
            next_sharer: NOBODY,
        });
        self.tasks.reads.insert(read, Piece { key, memory, keep });
        self.reads.insert((node, key), read);
        self.tally.note_read(node as usize, bytes, measured);
        let (places, disk) = (self.places[node as usize], self.disk(node as usize, read));
        let time_ns = super::scaled(self.model.piece_ns(before, bytes), places.disk_factor);
        self.enqueue(disk, time_ns, read);
        Begun::Reads(read)
    }

    /// Ends a read: stores the result and advances all jobs that wait for it.
    pub(super) fn land(&mut self, number: u32) {
        let node = self.jobs[number as usize].node;
        let Some(piece) = self.tasks.reads.remove(&number) else { return };
        if piece.keep {
            self.keep(node, piece.key, piece.memory);
        }
        self.reads.remove(&(node, piece.key));
        self.wake_sharers(number);
        self.free.push(number);
    }

    /// Advances a reply to its next chunk. Returns true if the reply must wait for the chunk.
    pub(super) fn next_part(&mut self, number: u32) -> bool {
        let Some(mut reply) = self.tasks.replies.remove(&number) else { return false };
        self.ask_for_parts(number, &mut reply);
        let waits = match reply.asked.first() {
            Some((key, Some(read))) => self.wait_for(number, *key, *read),
            _ => false,
        };
        if !reply.asked.is_empty() {
            reply.asked.remove(0);
        }
        let item = self.jobs[number as usize].ask.item;
        let bytes = self.workload.items[item as usize].bytes;
        if !reply.asked.is_empty() || u64::from(reply.next) * self.tasks.chunk < bytes {
            self.tasks.replies.insert(number, reply);
        }
        waits
    }

    fn ask_for_parts(&mut self, number: u32, reply: &mut Reply) {
        let Job { ask, node, .. } = self.jobs[number as usize];
        let Some(first) = self.tasks.first_keys.get(&ask.item).copied() else { return };
        let (chunk, bytes) = (self.tasks.chunk, self.workload.items[ask.item as usize].bytes);
        while reply.asked.len() <= AHEAD && u64::from(reply.next) * chunk < bytes {
            let key = first + reply.next;
            if !reply.asked.is_empty() && self.memories.holds(node as usize, key) {
                break;
            }
            let len = (bytes - u64::from(reply.next) * chunk).min(chunk);
            let read = match self.begin(number, key, reply.run, len) {
                Begun::Here => None,
                Begun::Joined(read) | Begun::Reads(read) => Some(read),
            };
            reply.run = if read.is_some() { reply.run + len } else { 0 };
            reply.asked.push((key, read));
            reply.next += 1;
        }
    }

    /// Adds a job to a read. Returns false if the read has ended.
    fn wait_for(&mut self, number: u32, key: u32, read: u32) -> bool {
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
enum Begun {
    Here,
    Joined(u32),
    Reads(u32),
}
