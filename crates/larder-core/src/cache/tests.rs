//! Tests of the caches against slow and simple models.

use super::*;
use proptest::prelude::*;

/// One step of a random run.
#[derive(Clone, Copy, Debug)]
enum Step {
    Touch(u8),
    Insert(u8, u64),
    Remove(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..40_u8).prop_map(Step::Touch),
        3 => (0..40_u8, prop_oneof![0..5_u64, 1..200_u64, 150..1_200_u64])
            .prop_map(|(key, size)| Step::Insert(key, size)),
        1 => (0..40_u8).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..400)
}

/// An object of the model, with every property by which a policy could rank it.
#[derive(Clone, Copy, Debug)]
struct ModelObject {
    key: u8,
    size: u64,
    used_at: u64,
    h: f64,
}

/// A list that is scanned for every operation.
struct NaiveCache {
    kind: CacheKind,
    capacity: u64,
    object_max: u64,
    objects: Vec<ModelObject>,
    clock: u64,
    inflation: f64,
}

impl NaiveCache {
    fn value(&self, size: u64) -> f64 {
        let size = size as f64;
        match self.kind {
            CacheKind::GdsPackets => self.inflation + (2.0 + size / 536.0) / size,
            CacheKind::Gds | CacheKind::Lru => self.inflation + 1.0 / size,
        }
    }

    fn used(&self) -> u64 {
        self.objects.iter().map(|object| object.size).sum()
    }

    fn touch(&mut self, key: u8) -> bool {
        self.clock += 1;
        let Some(place) = self.objects.iter().position(|object| object.key == key) else { return false };
        self.objects[place].h = self.value(self.objects[place].size);
        self.objects[place].used_at = self.clock;
        true
    }

    fn remove(&mut self, key: u8) -> Option<u64> {
        let place = self.objects.iter().position(|object| object.key == key)?;
        Some(self.objects.remove(place).size)
    }

    fn insert(&mut self, key: u8, size: u64) -> Vec<(u8, Bytes)> {
        let size = size.max(1);
        self.clock += 1;
        let earlier = self.remove(key);
        if size > self.object_max.min(self.capacity) {
            return earlier.map(|size| (key, Bytes(size))).into_iter().collect();
        }
        let mut evicted = Vec::new();
        while self.used() + size > self.capacity {
            let place = self.victim();
            let object = self.objects.remove(place);
            self.inflation = object.h;
            evicted.push((object.key, Bytes(object.size)));
        }
        self.objects.push(ModelObject { key, size, used_at: self.clock, h: self.value(size) });
        evicted
    }

    fn victim(&self) -> usize {
        let least = |a: &ModelObject, b: &ModelObject| match self.kind {
            CacheKind::Lru => a.used_at.cmp(&b.used_at),
            CacheKind::Gds | CacheKind::GdsPackets => a.h.total_cmp(&b.h).then(a.used_at.cmp(&b.used_at)),
        };
        (0..self.objects.len())
            .min_by(|&a, &b| least(&self.objects[a], &self.objects[b]))
            .expect("a full cache holds an object")
    }
}

fn run(kind: CacheKind, capacity: u64, object_max: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut cache = ByteCache::new(kind, Bytes(capacity), Bytes(object_max));
    let mut naive = NaiveCache { kind, capacity, object_max, objects: Vec::new(), clock: 0, inflation: 0.0 };
    let mut stats = CacheStats::default();
    for &step in steps {
        match step {
            Step::Touch(key) => {
                let hit = naive.touch(key);
                prop_assert_eq!(cache.contains(&key), hit);
                prop_assert_eq!(cache.touch(&key), hit);
                stats.hits += u64::from(hit);
                stats.misses += u64::from(!hit);
            }
            Step::Insert(key, size) => {
                let expected = match (size.max(1) > object_max.min(capacity), cache.contains(&key)) {
                    (true, _) => InsertOutcome::TooLarge,
                    (false, true) => InsertOutcome::Replaced,
                    (false, false) => InsertOutcome::Stored,
                };
                let mut evicted = Vec::new();
                prop_assert_eq!(cache.insert(key, Bytes(size), &mut evicted), expected);
                prop_assert_eq!(&evicted, &naive.insert(key, size));
                stats.refused += u64::from(expected == InsertOutcome::TooLarge);
                stats.insertions += u64::from(expected != InsertOutcome::TooLarge);
                stats.evictions += evicted.len() as u64;
                stats.evicted_bytes += evicted.iter().map(|&(_, size)| size).sum();
            }
            Step::Remove(key) => prop_assert_eq!(cache.remove(&key), naive.remove(key).map(Bytes)),
        }
        prop_assert_eq!(cache.used(), Bytes(naive.used()));
        prop_assert!(cache.used() <= cache.capacity());
        prop_assert_eq!(cache.len(), naive.objects.len());
        prop_assert_eq!(cache.stats(), stats);
    }
    Ok(())
}

proptest! {
    #[test]
    fn each_kind_agrees_with_its_model(
        kind in prop::sample::select(CacheKind::ALL.to_vec()),
        capacity in prop_oneof![0..3_u64, 500..2_000_u64],
        object_max in prop_oneof![Just(u64::MAX), 1..800_u64],
        steps in steps(),
    ) {
        run(kind, capacity, object_max, &steps)?;
    }

    #[test]
    fn greedy_dual_size_is_lru_when_all_sizes_are_equal(steps in steps(), size in 1..300_u64) {
        let mut lru = ByteCache::new(CacheKind::Lru, Bytes(1_500), Bytes(u64::MAX));
        let mut gds = ByteCache::new(CacheKind::Gds, Bytes(1_500), Bytes(u64::MAX));
        for step in steps {
            let (mut left_lru, mut left_gds) = (Vec::new(), Vec::new());
            match step {
                Step::Touch(key) => prop_assert_eq!(lru.touch(&key), gds.touch(&key)),
                Step::Insert(key, _) => {
                    lru.insert(key, Bytes(size), &mut left_lru);
                    gds.insert(key, Bytes(size), &mut left_gds);
                }
                Step::Remove(key) => prop_assert_eq!(lru.remove(&key), gds.remove(&key)),
            }
            prop_assert_eq!(left_lru, left_gds);
        }
    }
}

#[test]
fn too_large_object_evicts_its_predecessor() {
    let mut cache = ByteCache::new(CacheKind::Lru, Bytes(100), Bytes(50));
    let mut evicted = Vec::new();
    assert_eq!(cache.insert(7_u64, Bytes(50), &mut evicted), InsertOutcome::Stored);
    assert_eq!(cache.insert(7, Bytes(51), &mut evicted), InsertOutcome::TooLarge);
    assert_eq!(evicted, [(7, Bytes(50))]);
    assert!(cache.is_empty());
    assert_eq!(cache.used(), Bytes::ZERO);
}

#[test]
fn sizes_near_the_largest_number_do_not_overflow() {
    let mut cache = ByteCache::new(CacheKind::Gds, Bytes(u64::MAX / 2), Bytes(u64::MAX));
    let mut evicted = Vec::new();
    assert_eq!(cache.insert(1_u64, Bytes(u64::MAX / 2), &mut evicted), InsertOutcome::Stored);
    assert_eq!(cache.insert(2, Bytes(u64::MAX), &mut evicted), InsertOutcome::TooLarge);
    assert_eq!(cache.insert(3, Bytes(1), &mut evicted), InsertOutcome::Stored);
    assert_eq!(evicted, [(1, Bytes(u64::MAX / 2))]);
}

#[test]
fn names_parse_back() {
    for kind in CacheKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert!("LFU".parse::<CacheKind>().is_err());
}

#[test]
fn smaller_cache_keeps_the_most_valuable_objects() {
    for kind in CacheKind::ALL {
        let mut cache = ByteCache::new(kind, Bytes(100), Bytes(100));
        let mut evicted = Vec::new();
        for key in 0..10_u8 {
            cache.insert(key, Bytes(10), &mut evicted);
        }
        assert!(evicted.is_empty());
        cache.resize(Bytes(35), &mut evicted);
        assert_eq!((cache.used(), cache.len(), cache.stats().evictions), (Bytes(30), 3, 7), "{kind}");
        assert!(evicted.iter().all(|(key, size)| *size == Bytes(10) && !cache.contains(key)));
        cache.resize(Bytes(100), &mut evicted);
        cache.insert(20, Bytes(70), &mut evicted);
        assert_eq!((cache.used(), evicted.len()), (Bytes(100), 7), "{kind}");
    }
}

#[test]
fn keys_of_stored_objects_are_in_exactly_one_part() {
    for kind in CacheKind::ALL {
        let mut cache = ByteCache::new(kind, Bytes(1_000), Bytes(1_000));
        let mut evicted = Vec::new();
        for key in 0..500_u64 {
            cache.insert(key, Bytes(1), &mut evicted);
        }
        for key in (0..500).step_by(3) {
            cache.remove(&key);
        }
        let (mut found, mut at, mut new) = (Vec::new(), Some(0), 1_000);
        while let Some(from) = at {
            let mut keys = Vec::new();
            at = cache.keys_from(from, 7, &mut keys);
            assert!(keys.len() <= 7);
            // An object that was found is evicted, and others come into its slot.
            if let Some(key) = keys.first() {
                cache.remove(key);
            }
            cache.insert(new, Bytes(1), &mut evicted);
            new += 1;
            found.extend(keys.into_iter().filter(|key| *key < 500));
        }
        let mut expected: Vec<u64> = (0..500).filter(|key| key % 3 != 0).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{kind}");
        assert_eq!(ByteCache::<u64>::new(kind, Bytes(9), Bytes(9)).keys_from(0, 7, &mut Vec::new()), None);
    }
}
