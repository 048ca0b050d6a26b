//! The intervals between the uses of items, and the least cost of those that no memory can cover.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::demand::{Demand, KINDS};
use crate::workload::{Item, Workload};

/// The number of lengths between two stored sums.
const BLOCK: usize = 32;

/// The number of rounds in which the two prices are adjusted in turn.
const ROUNDS: usize = 3;

/// The range of prices, and the number of bisections of its logarithm. An error of a price matters in the second
/// order only, because the cost is flat around its maximum.
const PRICE_MIN: f64 = 1e-18;
const PRICE_MAX: f64 = 1e18;
const BISECTIONS: usize = 24;

/// Items that are alike: their sizes differ by at most a 64th. All of them count with the least values of the group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// The least memory of an item, in bytes; 0 for items that are kept in parts.
    pub(super) memory: u64,
    /// Whether nodes may keep the items.
    pub(super) cacheable: bool,
    /// The least further demand of a read.
    pub(super) read: Demand,
    /// The range of the group's intervals.
    begin: usize,
    end: usize,
}

/// The intervals that end in the measured part, by group.
#[derive(Debug)]
pub(super) struct Reuse {
    pub(super) groups: Vec<Group>,
    /// The group of each item; unused items have none.
    group_of: Vec<u32>,
    /// The lengths of the intervals in requests, ascending within each group.
    lengths: Vec<u32>,
    /// The sums of all lengths before each block.
    sums: Vec<u64>,
    /// Measured requests of each item.
    pub(super) counts: Vec<u32>,
    /// Whether the first use of each item is measured.
    pub(super) cold: Vec<bool>,
    /// Measured requests.
    pub(super) requests: usize,
}

/// The room for items, in units of one request's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of memory; infinite for a memory without limit.
    pub(super) memory: f64,
    /// The size of the largest item that a memory keeps.
    pub(super) item_max: u64,
    /// The least memory that an item takes.
    pub(super) item_min: u64,
    /// Other requests in progress when a request arrives, each of which may carry a read that others share.
    pub(super) in_progress: f64,
}

/// The cost at given prices, and the room that is used.
#[derive(Clone, Copy, Debug, Default)]
struct Priced {
    cost: f64,
    memory: f64,
    in_progress: f64,
}

const NO_GROUP: u32 = u32::MAX;

impl Reuse {
    /// Finds the intervals. Items above `chunk` bytes count as kept without memory. O(requests log requests).
    pub(super) fn new(workload: &Workload, warmup: usize, chunk: u64) -> Self {
        let items = &workload.items;
        let warmup = warmup.min(workload.requests.len());
        let mut reuse = Self {
            groups: Vec::new(),
            group_of: vec![NO_GROUP; items.len()],
            lengths: Vec::new(),
            sums: Vec::new(),
            counts: vec![0; items.len()],
            cold: vec![false; items.len()],
            requests: workload.requests.len() - warmup,
        };
        let mut numbers = BTreeMap::new();
        each_interval(workload, warmup, |item, length| match length {
            None => reuse.cold[item] = true,
            Some(_) => reuse.count_interval(&items[item], item, chunk, &mut numbers),
        });
        for item in &workload.requests[warmup..] {
            reuse.counts[*item as usize] += 1;
        }
        reuse.fill(workload, warmup);
        reuse
    }

    /// Counts an interval in `Group::end`, and creates the group of its item.
    fn count_interval(
        &mut self,
        item: &Item,
        index: usize,
        chunk: u64,
        numbers: &mut BTreeMap<(u32, u32, usize, bool), u32>,
    ) {
        if self.group_of[index] == NO_GROUP {
            let memory = if item.bytes > chunk { 0 } else { item.memory };
            let key = (size_class(memory), size_class(item.bytes), item.class.index(), item.cacheable);
            let next = self.groups.len() as u32;
            let number = *numbers.entry(key).or_insert(next);
            if number == next {
                let read = [f64::INFINITY; KINDS];
                self.groups.push(Group { memory, cacheable: item.cacheable, read, begin: 0, end: 0 });
            }
            let group = &mut self.groups[number as usize];
            group.memory = group.memory.min(memory);
            self.group_of[index] = number;
        }
        self.groups[self.group_of[index] as usize].end += 1;
    }

    /// Stores the lengths by group, in order, with their sums.
    fn fill(&mut self, workload: &Workload, warmup: usize) {
        let mut next = 0;
        for group in &mut self.groups {
            (group.begin, next) = (next, next + group.end);
            group.end = group.begin;
        }
        self.lengths = vec![0; next];
        let Self { groups, group_of, lengths, .. } = self;
        each_interval(workload, warmup, |item, length| {
            if let Some(length) = length {
                let group = &mut groups[group_of[item] as usize];
                lengths[group.end] = length;
                group.end += 1;
            }
        });
        for group in groups {
            lengths[group.begin..group.end].par_sort_unstable();
        }
        let mut sum = 0;
        self.sums = Vec::with_capacity(next / BLOCK + 1);
        self.sums.push(0);
        for block in self.lengths.chunks(BLOCK) {
            sum += block.iter().map(|length| u64::from(*length)).sum::<u64>();
            self.sums.push(sum);
        }
    }

    /// Lowers the demand of an item's group to that of the item.
    pub(super) fn note_demand(&mut self, item: usize, read: &Demand) {
        if let Some(group) = self.groups.get_mut(self.group_of[item] as usize) {
            group.read = core::array::from_fn(|at| group.read[at].min(read[at]));
        }
    }

    /// Returns the sum of the first `count` lengths of a group.
    fn sum(&self, group: &Group, count: usize) -> u64 {
        let before = |at: usize| {
            let block = at / BLOCK;
            let rest = self.lengths[block * BLOCK..at].iter().map(|length| u64::from(*length));
            self.sums[block] + rest.sum::<u64>()
        };
        before(group.begin + count) - before(group.begin)
    }

    /// Returns a lower bound on the cost of the intervals that the room cannot cover, where `value` gives the cost
    /// of an uncovered interval of a group.
    pub(super) fn least_uncovered(&self, room: &Room, value: impl Fn(&Group) -> f64) -> f64 {
        let values: Vec<f64> = self.groups.iter().map(value).collect();
        let requests = self.requests as f64;
        let (memory, in_progress) = (room.memory * requests, room.in_progress * requests);
        let (mut by_progress, mut best) = (f64::INFINITY, 0.0_f64);
        for _ in 0..ROUNDS {
            let by_memory = bisect(|price| self.price(room, &values, price, by_progress).memory > memory);
            by_progress =
                bisect(|price| self.price(room, &values, by_memory, price).in_progress > in_progress);
            // Room without limit has the price 0.
            let paid = |price: f64, room: f64| if price > 0.0 { price * room } else { 0.0 };
            let paid = paid(by_memory, memory) + paid(by_progress, in_progress);
            best = best.max(self.price(room, &values, by_memory, by_progress).cost - paid);
        }
        best
    }

    /// Returns the cost of all intervals if none is covered.
    pub(super) fn all(&self, value: impl Fn(&Group) -> f64) -> f64 {
        self.groups.iter().map(|group| value(group) * (group.end - group.begin) as f64).sum()
    }

    /// Returns the least cost if room can be bought: a byte of memory for one request's time costs `by_memory`, a
    /// place of a request in progress `by_progress`.
    fn price(&self, room: &Room, values: &[f64], by_memory: f64, by_progress: f64) -> Priced {
        let mut priced = Priced::default();
        for (group, value) in self.groups.iter().zip(values).filter(|(_, value)| **value > 0.0) {
            let bytes = group.memory.max(room.item_min);
            let storable = group.cacheable && bytes <= room.item_max;
            let kept = if storable { by_memory * bytes as f64 } else { f64::INFINITY };
            let price = kept.min(by_progress);
            let lengths = &self.lengths[group.begin..group.end];
            let covered = lengths.partition_point(|length| f64::from(*length) * price < *value);
            let time = self.sum(group, covered) as f64;
            if covered > 0 {
                priced.cost += price * time;
            }
            priced.cost += value * (lengths.len() - covered) as f64;
            if kept <= by_progress {
                priced.memory += bytes as f64 * time;
            } else {
                priced.in_progress += time;
            }
        }
        priced
    }
}

/// Returns the price at which `is_short` changes from true to false; 0 if there is room without a price.
fn bisect(is_short: impl Fn(f64) -> bool) -> f64 {
    if !is_short(0.0) {
        return 0.0;
    }
    let (mut low, mut high) = (PRICE_MIN.ln(), PRICE_MAX.ln());
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if is_short(middle.exp()) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high).exp()
}

/// Calls `show` for every measured request with its item, and with the length of the interval since the item's last
/// use; `None` for its first use. The part of an interval in the warm-up does not count.
fn each_interval(workload: &Workload, warmup: usize, mut show: impl FnMut(usize, Option<u32>)) {
    let mut last = vec![u32::MAX; workload.items.len()];
    let begin = (warmup as u32).saturating_sub(1);
    for (at, item) in (0_u32..).zip(&workload.requests) {
        let item = *item as usize;
        let before = core::mem::replace(&mut last[item], at);
        if at as usize >= warmup {
            show(item, (before != u32::MAX).then(|| at - before.max(begin)));
        }
    }
}

/// Returns the class of a size. Sizes of a class differ by at most a 64th.
fn size_class(bytes: u64) -> u32 {
    let shift = (u64::BITS - bytes.leading_zeros()).saturating_sub(7);
    (shift << 8) + (bytes >> shift) as u32
}
