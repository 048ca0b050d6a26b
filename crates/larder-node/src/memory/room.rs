//! Pages of an origin in the memory, and room set aside for those on their way.

use super::{Entry, Inner, Kept, Key, Memory, Wanted};
use crate::origin::Page;
use std::sync::Arc;

/// What no longer belongs to a memory. Dropped after its lock: returning a large block to the system takes long.
type Released = Vec<Entry>;

impl Inner {
    /// Sets aside `reserved` bytes in all; what is kept has the rest.
    fn reserve(&mut self, reserved: u64, released: &mut Released) {
        let mut evicted = Vec::new();
        self.reserved = reserved;
        self.order.resize(larder_core::Bytes(self.total - reserved), &mut evicted);
        released.extend(evicted.iter().filter_map(|(key, _)| self.take(key)));
    }
}

/// Room in a memory for something on its way, given back when dropped. Half of the memory can be set aside so.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Reservation {
    /// Sets aside room for `bytes` in all. False if there is none: then what was set aside stays so.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> bool {
        let Some(more) = bytes.checked_sub(self.bytes) else { return true };
        let mut released = Released::new();
        let mut inner = self.memory.lock();
        let reserved = inner.reserved.saturating_add(more);
        let fits = reserved <= inner.total / 2;
        if fits {
            inner.reserve(reserved, &mut released);
            self.bytes = bytes;
        }
        drop(inner);
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut released = Released::new();
            let mut inner = self.memory.lock();
            let reserved = inner.reserved - self.bytes;
            inner.reserve(reserved, &mut released);
        }
    }
}

impl Memory {
    /// What is kept of a target of an origin. Counts as a use.
    pub(crate) fn page(&self, hash: u64, name: &[u8]) -> Option<Arc<Page>> {
        match self.find((hash, 0), Wanted::Page(name)) {
            Some(Entry::Page(page)) => Some(page),
            _ => None,
        }
    }

    /// Puts what `make` makes of the page that is kept in its place, in the room that was set aside for it.
    pub(crate) fn put_page(
        &self,
        (hash, name): (u64, &[u8]),
        mut room: Reservation,
        make: impl FnOnce(Option<&Page>) -> Page,
    ) -> Kept {
        let key: Key = (hash, 0);
        let (mut released, mut evicted) = (Released::new(), Vec::new());
        let mut inner = self.lock();
        let reserved = inner.reserved - std::mem::take(&mut room.bytes);
        inner.reserve(reserved, &mut released);
        let earlier = inner.entries.get(&key).filter(|entry| entry.is(Wanted::Page(name))).cloned();
        let entry = match &earlier {
            Some(Entry::Page(page)) => make(Some(page)),
            _ => make(None),
        };
        let kept = inner.insert(key, Entry::Page(Arc::new(entry)), &mut evicted, &mut released);
        drop(inner);
        kept
    }

    /// Room for something on its way, none yet.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation { memory: Arc::clone(self), bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use crate::memory::Found;
    use crate::object::Object;
    use crate::store::Meta;
    use larder_core::cache::CacheKind;

    #[test]
    fn room_set_aside_is_taken_from_what_is_kept_and_given_back() {
        let bytes = larder_core::Bytes(10_000);
        let config = CacheConfig { kind: CacheKind::Lru, bytes, ..CacheConfig::default() };
        let memory = Arc::new(Memory::new(&config, 10));
        for n in 0..9_u8 {
            let meta = Meta { size: 1_000, modified: (1, 0), fresh: false, tag: 0 };
            let object = Object::new(&[n], meta, Some(vec![0; 1_000].into()), 0);
            let Found::Lead(lead) = memory.begin((u64::from(n), 0), Wanted::Head(&[n])) else {
                panic!("{n}")
            };
            lead.land(Ok(Entry::Head(Arc::new(object))), true);
        }
        let (mut one, mut two) = (memory.reservation(), memory.reservation());
        assert!(one.grow_to(1_000) && one.grow_to(500), "there was room");
        assert_eq!((memory.stats().objects, memory.stats().used), (9, 10_000));
        assert!(two.grow_to(4_000));
        assert_eq!((memory.stats().objects, memory.stats().used), (5, 10_000));
        assert!(!two.grow_to(4_001), "half of it is the most");
        drop(two);
        assert_eq!(
            (memory.stats().objects, memory.stats().used, memory.stats().capacity),
            (5, 6_000, 10_000)
        );
        drop(one);
        assert_eq!(memory.stats().used, 5_000);
    }
}
