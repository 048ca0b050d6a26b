//! Purges: the named entries are removed, and contents that are being read or fetched are not stored.
//!
//! ```text
//! begin: recorded -> scan in steps, each under the lock -> reads in flight are detached -> completed
//!          |<---------- reads that begin here are checked against the purge ---------->|
//! ```
//! A read or a fetch records the number of completed purges before it looks into the cache
//! ([`Memory::purges_done`]). Its result is stored only if no later purge names it. So a completed purge has
//! removed all matching entries from before its beginning. It also keeps out their successors: a reply from
//! before, or such a reply that the origin has validated since. Later requests join no read from before the
//! purge.
//!
//! Cost: each entry is checked by its name or by the tags of its replies. One hold of the lock covers
//! [`ENTRIES_PER_STEP`] entries and takes about ten microseconds, with a pause of [`PAUSE`] between. Entries
//! need no extra memory. The last [`RECENT_MAX`](super::selection::RECENT_MAX) purges are recorded. Contents
//! whose read began before the first of them are not stored.

use super::selection::{PurgeReport, Selection};
use super::{Inner, Memory, PoisonError};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Entries that are checked in one hold of the lock.
const ENTRIES_PER_STEP: usize = 256;
/// Pause between two holds, in which requests can take the lock.
const PAUSE: Duration = Duration::from_micros(50);
impl Memory {
    /// Returns the number of completed purges. A read or fetch calls this before it does anything else.
    pub(crate) fn purges_done(&self) -> u64 {
        self.purges_done.load(Acquire)
    }

    /// Removes the entries that `selection` names. Blocks until this purge and all earlier ones are done.
    pub(crate) fn purge(&self, selection: Selection) -> PurgeReport {
        let _alone = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.lock().purges.begin(selection);
        let (mut report, mut at, mut keys) =
            (PurgeReport::default(), Some(0), Vec::with_capacity(ENTRIES_PER_STEP));
        while let Some(from) = at {
            keys.clear();
            let mut released = Vec::new();
            let mut inner = self.lock();
            at = inner.order.keys_from(from, ENTRIES_PER_STEP, &mut keys);
            for key in &keys {
                let Inner { entries, purges, .. } = &*inner;
                if !entries.get(key).zip(purges.last()).is_some_and(|(entry, last)| last.matches(entry)) {
                    continue;
                }
                let bytes = inner.order.remove(key).map_or(0, |bytes| bytes.0);
                released.extend(inner.take(key));
                report.removed += 1;
                report.removed_bytes += bytes;
            }
            drop(inner);
            report.looked_at += keys.len() as u64;
            // Contents are released after the lock, because returning a large block to the system is slow.
            drop(released);
            if at.is_some() {
                std::thread::sleep(PAUSE);
            }
        }
        let mut inner = self.lock();
        // Requests that wait for an earlier read continue to wait. Later requests begin reads of their own.
        inner.flights.clear();
        self.purges_done.store(number, Release);
        drop(inner);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::RECENT_MAX;
    use super::*;
    use crate::config::CacheConfig;
    use crate::memory::{CacheEntry, CacheLookup, EntryQuery};
    use crate::object::Object;
    use crate::store::Meta;
    use bytes::Bytes;
    use std::sync::Arc;

    fn memory() -> Arc<Memory> {
        Arc::new(Memory::new(&CacheConfig::default(), 10_000))
    }

    fn entry(name: &str) -> CacheEntry {
        let meta = Meta { size: 3, modified: (1, 0), fresh: false, tag: 0 };
        CacheEntry::Head(Arc::new(Object::new(name.as_bytes(), meta, Some(Bytes::from_static(b"abc")), 0)))
    }

    fn begin(memory: &Arc<Memory>, name: &str) -> super::super::ReadLead {
        match memory.begin((memory.hash(name.as_bytes()), 0), EntryQuery::Head(name.as_bytes())) {
            CacheLookup::Lead(lead) => lead,
            other => panic!("{other:?}"),
        }
    }

    fn holds(memory: &Arc<Memory>, name: &str) -> bool {
        memory.contains((memory.hash(name.as_bytes()), 0), EntryQuery::Head(name.as_bytes()))
    }

    fn objects(name: &str, prefix: bool) -> Selection {
        Selection::Objects { name: name.as_bytes().into(), prefix }
    }

    #[test]
    fn a_purge_removes_only_the_named_entries() {
        let memory = memory();
        for n in 0..2_000 {
            let name = format!("{}/{n}", if n % 2 == 0 { "a" } else { "b" });
            begin(&memory, &name).complete(Ok(entry(&name)), true);
        }
        assert_eq!(
            memory.purge(objects("a/4", false)),
            PurgeReport { removed: 1, removed_bytes: 512, looked_at: 2_000 }
        );
        assert!(!holds(&memory, "a/4") && holds(&memory, "a/40"));
        assert_eq!(memory.purge(objects("a/", true)).removed, 999);
        assert_eq!(
            memory.purge(objects("c", true)),
            PurgeReport { looked_at: 1_000, ..PurgeReport::default() }
        );
        assert_eq!((memory.stats().objects, memory.stats().used), (1_000, 512_000));
        assert_eq!(memory.purge(objects("", true)).removed, 1_000);
        assert_eq!(memory.stats().used, 0);
    }

    #[test]
    fn a_read_from_before_a_purge_is_not_stored_after_it() {
        let memory = memory();
        let (named, other) = (begin(&memory, "a/1"), begin(&memory, "b/1"));
        let CacheLookup::Join(waiting) = memory.begin((memory.hash(b"a/1"), 0), EntryQuery::Head(b"a/1"))
        else {
            panic!("joins")
        };
        memory.purge(objects("a/", true));
        // This is a new read, whose result is stored.
        let later = begin(&memory, "a/1");
        named.complete(Ok(entry("a/1")), true);
        assert!(!holds(&memory, "a/1"));
        assert!(Arc::strong_count(&waiting) == 1, "who waited has got it");
        later.complete(Ok(entry("a/1")), true);
        assert!(holds(&memory, "a/1"));
        other.complete(Ok(entry("b/1")), true);
        assert!(holds(&memory, "b/1"), "another purge's business");
        assert_eq!(memory.stats().reading, 0);
    }

    #[test]
    fn a_read_older_than_all_recorded_purges_is_not_stored() {
        let memory = memory();
        let (old, older) = (begin(&memory, "a"), begin(&memory, "b"));
        for _ in 0..RECENT_MAX {
            memory.purge(objects("c", false));
        }
        old.complete(Ok(entry("a")), true);
        assert!(holds(&memory, "a"), "all of them are known, and none names it");
        memory.purge(objects("c", false));
        older.complete(Ok(entry("b")), true);
        assert!(!holds(&memory, "b"));
    }

    #[test]
    fn requests_proceed_during_a_purge() {
        let memory = memory();
        (0..5_000)
            .for_each(|n| begin(&memory, &format!("a/{n}")).complete(Ok(entry(&format!("a/{n}"))), true));
        std::thread::scope(|scope| {
            let purging = scope.spawn(|| memory.purge(objects("a/", true)));
            for n in 0.. {
                let name = format!("b/{n}");
                begin(&memory, &name).complete(Ok(entry(&name)), true);
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
