//! Preloads a modelled store into memory, for experiments with a cache that has long been warm.

use super::Objects;
use crate::memory::{CHARGE_MIN, CacheEntry, CacheLookup, EntryQuery};
use crate::object::{Object, StoragePolicy};
use crate::store::{Meta, Store, contents};
use larder_core::TargetId;
use std::sync::Arc;

impl Objects {
    /// Puts a modelled store's targets into memory in the manifest's order, until the next one would evict
    /// another. Objects that are too large to store are skipped. With `shared`, the targets get the ids that
    /// peers use.
    pub(crate) fn preload(self: &Arc<Self>, shared: bool) {
        let Store::Model(model) = &self.store else { return };
        let mut room = self.memory.stats().capacity;
        for (name, meta) in model.targets() {
            if !self.memory.may_store(meta.size) {
                continue;
            }
            // An upper bound of the charge: a head, and one entry for every chunk.
            let charge = meta.size + CHARGE_MIN * (2 + meta.size / self.chunk);
            let Some(remaining) = room.checked_sub(charge) else { return };
            room = remaining;
            self.preload_one(name, meta, shared.then(|| TargetId::of(name)));
        }
    }

    fn preload_one(self: &Arc<Self>, name: &[u8], meta: Meta, target_id: Option<TargetId>) {
        let hash = self.memory.hash(name);
        let short = meta.size <= self.chunk;
        let body = short.then(|| contents(name, 0, meta.size));
        let object = Object::new(name, meta, body, self.uptime.now_ms())
            .with_storage(StoragePolicy { target_id, may_store: true });
        let object = Arc::new(object);
        if let CacheLookup::Lead(lead) = self.memory.begin((hash, 0), EntryQuery::Head(name)) {
            lead.complete(Ok(CacheEntry::Head(Arc::clone(&object))), true);
        }
        let mut at = if short { meta.size } else { 0 };
        while at < meta.size {
            let piece = self.chunk_bounds(&object, at);
            let Ok(part) = self.part_number(at) else { return };
            if let CacheLookup::Lead(lead) = self.memory.begin((hash, part), EntryQuery::Part(&object)) {
                let bytes = contents(name, piece.start, piece.end - piece.start);
                lead.complete(Ok(CacheEntry::Part { of: Arc::clone(&object), bytes }), true);
            }
            at = piece.end;
        }
    }
}
