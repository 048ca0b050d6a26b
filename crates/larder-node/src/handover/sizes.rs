//! The sizes of targets, as of their last complete reply, relayed or not. A direct-mapped table: a target
//! replaces an earlier one with the same index.

use larder_core::{Bytes, TargetId};

/// Entries of the table, 16 bytes each; a power of two.
const PLACES: usize = 1 << 16;

/// The table of sizes.
#[derive(Debug)]
pub(super) struct Sizes(Box<[Option<(TargetId, u64)>]>);

impl Default for Sizes {
    fn default() -> Self {
        Self(vec![None; PLACES].into())
    }
}

impl Sizes {
    pub(super) fn note(&mut self, target: TargetId, size: Bytes) {
        self.0[place(target)] = Some((target, size.0));
    }

    pub(super) fn of(&self, target: TargetId) -> Option<Bytes> {
        self.0[place(target)].filter(|(noted, _)| *noted == target).map(|(_, size)| Bytes(size))
    }
}

fn place(target: TargetId) -> usize {
    target.0 as usize & (PLACES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_that_of_the_last_reply_until_another_target_has_its_place() {
        let (mut sizes, one, other) = (Sizes::default(), TargetId(7), TargetId(7 + PLACES as u64));
        assert_eq!(sizes.of(one), None);
        sizes.note(one, Bytes(10));
        sizes.note(one, Bytes(20));
        assert_eq!((sizes.of(one), sizes.of(other)), (Some(Bytes(20)), None));
        sizes.note(other, Bytes(5));
        assert_eq!((sizes.of(one), sizes.of(other)), (None, Some(Bytes(5))));
    }
}
