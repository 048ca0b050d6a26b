//! The sizes of targets, as of their last complete reply, relayed or not. A direct-mapped table: a target
//! replaces an earlier one with the same index.

use larder_core::{Bytes, TargetId};

/// Entries of the table, 16 bytes each; a power of two.
const ENTRIES: usize = 1 << 16;

/// The table of sizes.
#[derive(Debug)]
pub(super) struct SizeTable(Box<[Option<(TargetId, u64)>]>);

impl Default for SizeTable {
    fn default() -> Self {
        Self(vec![None; ENTRIES].into())
    }
}

impl SizeTable {
    pub(super) fn record(&mut self, target: TargetId, size: Bytes) {
        self.0[index(target)] = Some((target, size.0));
    }

    pub(super) fn get(&self, target: TargetId) -> Option<Bytes> {
        self.0[index(target)].filter(|(stored, _)| *stored == target).map(|(_, size)| Bytes(size))
    }
}

fn index(target: TargetId) -> usize {
    target.0 as usize & (ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_lasts_until_another_target_takes_its_slot() {
        let (mut sizes, one, other) = (SizeTable::default(), TargetId(7), TargetId(7 + ENTRIES as u64));
        assert_eq!(sizes.get(one), None);
        sizes.record(one, Bytes(10));
        sizes.record(one, Bytes(20));
        assert_eq!((sizes.get(one), sizes.get(other)), (Some(Bytes(20)), None));
        sizes.record(other, Bytes(5));
        assert_eq!((sizes.get(one), sizes.get(other)), (None, Some(Bytes(5))));
    }
}
