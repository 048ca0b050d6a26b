//! Tests of the tree cache against a model that searches all blocks.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use proptest::prelude::*;

/// Returns the chain that begins with `path`: each id stands for all numbers before it.
fn chain(path: &[u8]) -> Vec<Block> {
    let mut id = 1_u64;
    let block = |step: &u8| {
        id = id * 7 + u64::from(*step) + 1;
        Block { id: TargetId(id), tokens: 1 + u32::from(*step) }
    };
    path.iter().map(block).collect()
}

/// The brute-force model: all blocks with their parent, and the order of their last releases.
#[derive(Default)]
struct Model {
    blocks: BTreeMap<u64, ModelBlock>,
    capacity: u64,
    reserved: u64,
    clock: u64,
}

struct ModelBlock {
    parent: Option<u64>,
    size: u64,
    pins: u32,
    released: u64,
    /// The requests that have used the block since it was stored, without those that were refused.
    users: BTreeSet<u32>,
}

impl Model {
    fn used(&self) -> u64 {
        self.reserved + self.blocks.values().map(|block| block.size).sum::<u64>()
    }

    /// Evicts the leaf without pins that was released first, until `tokens` more fit.
    fn make_room(&mut self, tokens: u64) -> bool {
        let kept = self.blocks.values().filter(|block| block.pins > 0).map(|block| block.size).sum::<u64>();
        if kept + self.reserved + tokens > self.capacity {
            return false;
        }
        while self.used() + tokens > self.capacity {
            let leaves = self.blocks.iter().filter(|(id, block)| {
                block.pins == 0 && self.blocks.values().all(|other| other.parent != Some(**id))
            });
            let (id, _) = leaves.min_by_key(|(_, block)| block.released).expect("a tree has leaves");
            let id = *id;
            self.blocks.remove(&id);
        }
        true
    }

    fn pin(&mut self, chain: &[Block], user: u32) -> usize {
        let mut parent = None;
        for (depth, block) in chain.iter().enumerate() {
            if !self.blocks.contains_key(&block.id.0) {
                if !self.make_room(block.size()) {
                    return depth;
                }
                let (size, users) = (block.size(), BTreeSet::new());
                let stored = ModelBlock { parent, size, pins: 0, released: 0, users };
                self.blocks.insert(block.id.0, stored);
            }
            let stored = self.blocks.get_mut(&block.id.0).expect("it is stored");
            stored.pins += 1;
            stored.users.insert(user);
            parent = Some(block.id.0);
        }
        chain.len()
    }

    /// Unpins the chain, and removes the blocks whose only users were refused, as the request `user` is now.
    fn withdraw(&mut self, chain: &[Block], user: u32) {
        self.unpin(chain);
        for block in chain.iter().rev() {
            let users = &mut self.blocks.get_mut(&block.id.0).expect("pinned blocks stay").users;
            users.remove(&user);
            if users.is_empty() {
                self.blocks.remove(&block.id.0);
                assert!(
                    self.blocks.values().all(|other| other.parent != Some(block.id.0)),
                    "it has children"
                );
            }
        }
    }

    fn unpin(&mut self, chain: &[Block]) {
        for block in chain.iter().rev() {
            self.clock += 1;
            let stored = self.blocks.get_mut(&block.id.0).expect("pinned blocks stay");
            stored.pins -= 1;
            stored.released = self.clock;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Touch(Vec<u8>),
    Pin(Vec<u8>),
    Unpin(usize),
    Withdraw(usize),
    Reserve(u64),
    Unreserve(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = || prop::collection::vec(0..3_u8, 0..7);
    let step = prop_oneof![
        4 => path().prop_map(Step::Touch),
        2 => path().prop_map(Step::Pin),
        2 => any::<usize>().prop_map(Step::Unpin),
        2 => any::<usize>().prop_map(Step::Withdraw),
        1 => (0..9_u64).prop_map(Step::Reserve),
        1 => any::<usize>().prop_map(Step::Unreserve),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn blocks_and_evictions_equal_those_of_the_model(capacity in 0..40_u64, steps in steps()) {
        let mut cache = TreeCache::new(capacity, usize::MAX);
        let mut model = Model { capacity, ..Model::default() };
        let (mut pinned, mut reserved): (Vec<(Vec<Block>, u32)>, Vec<u64>) = Default::default();
        for (stamp, step) in (0..).zip(steps) {
            match step {
                Step::Touch(path) => {
                    let chain = chain(&path);
                    let stored = model.pin(&chain, stamp);
                    model.unpin(&chain[..stored]);
                    prop_assert_eq!(cache.touch(&chain, stamp), stored);
                }
                Step::Pin(path) => {
                    let mut chain = chain(&path);
                    let count = model.pin(&chain, stamp);
                    prop_assert_eq!(cache.pin(&chain, stamp), count);
                    chain.truncate(count);
                    pinned.push((chain, stamp));
                }
                Step::Unpin(choice) if !pinned.is_empty() => {
                    let (chain, _) = pinned.swap_remove(choice % pinned.len());
                    model.unpin(&chain);
                    cache.unpin(&chain, stamp);
                }
                Step::Withdraw(choice) if !pinned.is_empty() => {
                    let (chain, user) = pinned.swap_remove(choice % pinned.len());
                    model.withdraw(&chain, user);
                    cache.withdraw(&chain, stamp);
                }
                Step::Reserve(tokens) => {
                    let fits = model.make_room(tokens);
                    model.reserved += if fits { tokens } else { 0 };
                    prop_assert_eq!(cache.reserve(tokens), fits);
                    reserved.extend(fits.then_some(tokens));
                }
                Step::Unreserve(choice) if !reserved.is_empty() => {
                    let tokens = reserved.swap_remove(choice % reserved.len());
                    model.reserved -= tokens;
                    cache.unreserve(tokens);
                }
                Step::Unpin(_) | Step::Withdraw(_) | Step::Unreserve(_) => {}
            }
            prop_assert!(cache.used() <= capacity, "{} of {capacity} tokens are used", cache.used());
            prop_assert_eq!(cache.used(), model.used());
            prop_assert_eq!(cache.len(), model.blocks.len());
            for (id, block) in &model.blocks {
                let stored = cache.slab.find(&TargetId(*id)).map(|at| cache.slab.slot(at).link.parent);
                let parent = block.parent.map_or(Some(NONE), |parent| cache.slab.find(&TargetId(parent)));
                prop_assert!(stored.is_some() && stored == parent, "a stored block's parent is stored");
            }
        }
    }

    #[test]
    fn the_limit_on_blocks_holds(paths in prop::collection::vec(prop::collection::vec(0..3_u8, 0..9), 1..60), max in 0..12_usize) {
        let mut cache = TreeCache::new(u64::MAX, max);
        for path in paths {
            let chain = chain(&path);
            prop_assert_eq!(cache.touch(&chain, 0), chain.len().min(max));
            prop_assert!(cache.len() <= max);
            prop_assert_eq!(cache.depth(&chain), chain.len().min(max));
        }
    }
}

#[test]
fn a_digest_under_another_parent_ends_the_chain() {
    let block = |id| Block { id: TargetId(id), tokens: 10 };
    let mut cache = TreeCache::new(1_000, usize::MAX);
    assert_eq!(cache.touch(&[block(1), block(2)], 0), 2);
    assert_eq!(cache.touch(&[block(3), block(2), block(4)], 1), 1);
    assert_eq!((cache.len(), cache.used()), (3, 30));
}

#[test]
fn a_smaller_capacity_evicts_and_a_restart_forgets() {
    let mut cache = TreeCache::new(1_000, usize::MAX);
    let chain: Vec<Block> = (0..10).map(|id| Block { id: TargetId(id), tokens: 100 }).collect();
    cache.touch(&chain, 7);
    cache.resize(450);
    assert_eq!((cache.depth(&chain), cache.used(), cache.oldest()), (4, 400, Some(7)));
    cache.clear();
    assert_eq!((cache.depth(&chain), cache.used(), cache.oldest()), (0, 0, None));
}

/// Tables double, so a block takes most memory just after a doubling, at whatever size. The tables of two million blocks
/// double often enough to show it.
#[test]
fn ten_million_blocks_fit_in_a_gigabyte() {
    let block = |id: u64| Block { id: TargetId(id.wrapping_mul(0x9E37_79B9_7F4A_7C15)), tokens: 16 };
    let mut cache = TreeCache::new(u64::MAX, 2_200_000);
    let mut worst = 0;
    for id in 0..2_400_000_u64 {
        cache.touch(&[block(id)], 0);
        if id > 100_000 {
            worst = worst.max(cache.memory_bytes().div_ceil(cache.len()));
        }
    }
    assert_eq!(cache.len(), 2_200_000);
    assert!(worst <= TreeCache::BLOCK_BYTES_MAX, "{worst} bytes per block");
    assert!(10_000_000 * worst <= 1_000_000_000);
}

/// Copies a cache by pages, as a switch that joins does.
fn copy(cache: &TreeCache, now: u32, blocks_max: usize) -> TreeCache {
    let mut copy = TreeCache::new(cache.capacity(), 1_000);
    let (mut after, mut stamp) = (None, 0);
    loop {
        let page = cache.page(after, now, blocks_max);
        for run in &page.runs {
            stamp += 1;
            assert_eq!(copy.extend(run.parent, &run.blocks, stamp), run.blocks.len());
        }
        match page.next {
            Some(next) => {
                assert!(after.is_none_or(|after| now.wrapping_sub(next) < now.wrapping_sub(after)));
                after = Some(next);
            }
            None => return copy,
        }
    }
}

#[test]
fn pages_keep_the_order_of_use() {
    let mut cache = TreeCache::new(1_000, 1_000);
    // Stamps wrap around between the second and the third use.
    let start = u32::MAX - 1;
    let prompts = [&[1, 2, 3][..], &[1, 2, 4], &[5], &[1, 6]].map(chain);
    for (stamp, prompt) in (0..).zip([2, 0, 1, 3]) {
        cache.touch(&prompts[prompt], start.wrapping_add(stamp));
    }
    let mut copied = copy(&cache, start.wrapping_add(4), 1);
    assert_eq!(copied.len(), cache.len());
    for cache in [&mut cache, &mut copied] {
        for (victim, prompt) in [2, 0, 1].into_iter().enumerate() {
            assert!(cache.evict());
            assert!(cache.depth(&prompts[prompt]) < prompts[prompt].len(), "victim {victim}");
        }
        assert_eq!(cache.depth(&prompts[3]), 2);
    }
}

#[test]
fn a_run_below_an_unknown_block_is_not_stored() {
    let mut cache = TreeCache::new(100, 100);
    assert_eq!(cache.extend(Some(TargetId(7)), &chain(&[1]), 1), 0);
    assert!(cache.is_empty());
}

proptest! {
    #[test]
    fn pages_contain_every_block(
        prompts in prop::collection::vec(prop::collection::vec(0_u8..3, 1..6), 1..40),
        pinned in prop::collection::vec(0_u8..3, 0..4),
        blocks_max in 1_usize..20,
        start in any::<u32>(),
    ) {
        let mut cache = TreeCache::new(60, 40);
        let mut now = start;
        cache.pin(&chain(&pinned), now);
        for prompt in &prompts {
            now = now.wrapping_add(1);
            cache.touch(&chain(prompt), now);
        }
        let copied = copy(&cache, now, blocks_max);
        prop_assert_eq!((copied.len(), copied.used()), (cache.len(), cache.used()));
        for prompt in &prompts {
            prop_assert_eq!(copied.depth(&chain(prompt)), cache.depth(&chain(prompt)));
        }
    }
}
