//! Purges: what they name leaves the memory, and what was on its way before them does not come in.
//!
//! ```text
//! begins: noted -> scan in pieces, each under the lock -> flights are let go -> done
//!           |<--------- what begins here is held against the purge ---------->|
//! ```
//! A read or a fetch notes how many purges were done when it began ([`Memory::purges_done`]), before it looks at what is kept. What
//! it brings is kept only if no later purge names it. So a purge that is done has removed all that was kept when it began, and all
//! that could come of it: a reply of before, or one of before that the origin has validated meanwhile. Requests that come later
//! join no read of before.
//!
//! Cost: a look at each entry, its name or the tags of its replies; [`PLACES`] entries in one hold of the lock, which takes some ten
//! microseconds, and [`PAUSE`] between. Entries take no memory for it. Of purges, the last [`NOTED_MAX`](super::selection::NOTED_MAX) are noted: what began
//! before the first of these is not kept.

use super::selection::{Purged, Selection};
use super::{Inner, Memory, PoisonError};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Entries that are looked at in one hold of the lock.
const PLACES: usize = 256;
/// Time for requests to take the lock.
const PAUSE: Duration = Duration::from_micros(50);
impl Memory {
    /// The number of purges that are done. Taken before anything else by what may come into the memory later.
    pub(crate) fn purges_done(&self) -> u64 {
        self.purges_done.load(Acquire)
    }

    /// Removes what `selection` names. Blocks while it does, and while another purge does.
    pub(crate) fn purge(&self, selection: Selection) -> Purged {
        let _alone = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.lock().purges.begin(selection);
        let (mut purged, mut at, mut keys) = (Purged::default(), Some(0), Vec::with_capacity(PLACES));
        while let Some(from) = at {
            keys.clear();
            let mut released = Vec::new();
            let mut inner = self.lock();
            at = inner.order.keys_from(from, PLACES, &mut keys);
            for key in &keys {
                let Inner { entries, purges, .. } = &*inner;
                if !entries.get(key).zip(purges.last()).is_some_and(|(entry, last)| last.removes(entry)) {
                    continue;
                }
                let bytes = inner.order.remove(key).map_or(0, |bytes| bytes.0);
                released.extend(inner.take(key));
                purged.removed += 1;
                purged.removed_bytes += bytes;
            }
            drop(inner);
            purged.looked_at += keys.len() as u64;
            // Contents are released after the lock: returning a large block to the system takes long.
            drop(released);
            if at.is_some() {
                std::thread::sleep(PAUSE);
            }
        }
        let mut inner = self.lock();
        // Who waits for a read of before goes on waiting. Others begin their own.
        inner.flights.clear();
        self.purges_done.store(number, Release);
        drop(inner);
        purged
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::NOTED_MAX;
    use super::*;
    use crate::config::CacheConfig;
    use crate::memory::{Entry, Found, Wanted};
    use crate::object::Object;
    use crate::store::Meta;
    use bytes::Bytes;
    use std::sync::Arc;

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::new(&CacheConfig::default(), 10_000))
    }

    fn entry(name: &str) -> Entry {
        let meta = Meta { size: 3, modified: (1, 0), fresh: false, tag: 0 };
        Entry::Head(Arc::new(Object::new(name.as_bytes(), meta, Some(Bytes::from_static(b"abc")), 0)))
    }

    fn begin(memory: &Arc<Memory>, name: &str) -> super::super::Lead {
        match memory.begin((memory.hash(name.as_bytes()), 0), Wanted::Head(name.as_bytes())) {
            Found::Lead(lead) => lead,
            other => panic!("{other:?}"),
        }
    }

    fn holds(memory: &Arc<Memory>, name: &str) -> bool {
        memory.holds((memory.hash(name.as_bytes()), 0), Wanted::Head(name.as_bytes()))
    }

    fn objects(name: &str, prefix: bool) -> Selection {
        Selection::Objects { name: name.as_bytes().into(), prefix }
    }

    #[test]
    fn what_is_named_leaves_and_the_rest_stays() {
        let memory = memory();
        for n in 0..2_000 {
            let name = format!("{}/{n}", if n % 2 == 0 { "a" } else { "b" });
            begin(&memory, &name).land(Ok(entry(&name)), true);
        }
        assert_eq!(
            memory.purge(objects("a/4", false)),
            Purged { removed: 1, removed_bytes: 512, looked_at: 2_000 }
        );
        assert!(!holds(&memory, "a/4") && holds(&memory, "a/40"));
        assert_eq!(memory.purge(objects("a/", true)).removed, 999);
        assert_eq!(memory.purge(objects("c", true)), Purged { looked_at: 1_000, ..Purged::default() });
        assert_eq!((memory.stats().objects, memory.stats().used), (1_000, 512_000));
        assert_eq!(memory.purge(objects("", true)).removed, 1_000);
        assert_eq!(memory.stats().used, 0);
    }

    #[test]
    fn what_was_read_before_a_purge_is_not_kept_after_it() {
        let memory = memory();
        let (named, other) = (begin(&memory, "a/1"), begin(&memory, "b/1"));
        let Found::Join(waiting) = memory.begin((memory.hash(b"a/1"), 0), Wanted::Head(b"a/1")) else {
            panic!("joins")
        };
        memory.purge(objects("a/", true));
        // It is a read of its own, which is kept.
        let anew = begin(&memory, "a/1");
        named.land(Ok(entry("a/1")), true);
        assert!(!holds(&memory, "a/1"));
        assert!(Arc::strong_count(&waiting) == 1, "who waited has got it");
        anew.land(Ok(entry("a/1")), true);
        assert!(holds(&memory, "a/1"));
        other.land(Ok(entry("b/1")), true);
        assert!(holds(&memory, "b/1"), "another purge's business");
        assert_eq!(memory.stats().reading, 0);
    }

    #[test]
    fn what_began_before_the_purges_that_are_noted_is_not_kept() {
        let memory = memory();
        let (old, older) = (begin(&memory, "a"), begin(&memory, "b"));
        for _ in 0..NOTED_MAX {
            memory.purge(objects("c", false));
        }
        old.land(Ok(entry("a")), true);
        assert!(holds(&memory, "a"), "all of them are known, and none names it");
        memory.purge(objects("c", false));
        older.land(Ok(entry("b")), true);
        assert!(!holds(&memory, "b"));
    }

    #[test]
    fn requests_go_on_beside_a_purge() {
        let memory = memory();
        (0..5_000).for_each(|n| begin(&memory, &format!("a/{n}")).land(Ok(entry(&format!("a/{n}"))), true));
        std::thread::scope(|scope| {
            let purging = scope.spawn(|| memory.purge(objects("a/", true)));
            for n in 0.. {
                let name = format!("b/{n}");
                begin(&memory, &name).land(Ok(entry(&name)), true);
                if purging.is_finished() {
                    break;
                }
            }
            assert_eq!(purging.join().unwrap().removed, 5_000);
        });
        assert!(holds(&memory, "b/0"), "it is not named");
        assert!((0..5_000).all(|n| !holds(&memory, &format!("a/{n}"))));
    }
}
