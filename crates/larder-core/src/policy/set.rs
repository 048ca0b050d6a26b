//! A compact server set: a few node slots in eight bytes.
//!
//! Most targets have one server, and a popular one has a few. Larger sets are in a separate table beside the targets
//! ([`super::targets`]). Members keep the order in which they were added.

use crate::id::NodeId;

const NONE: u16 = u16::MAX;

/// A set of up to four members without a heap allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineSet([u16; Self::MAX]);

impl InlineSet {
    /// The largest number of members.
    pub(crate) const MAX: usize = 4;
    pub(crate) const EMPTY: Self = Self([NONE; Self::MAX]);

    pub(crate) fn from_slice(members: &[NodeId]) -> Option<Self> {
        let mut set = Self::EMPTY;
        if members.len() > set.0.len() {
            return None;
        }
        for (slot, member) in set.0.iter_mut().zip(members) {
            *slot = member.0;
        }
        Some(set)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        self.0.into_iter().take_while(|member| *member != NONE).map(NodeId)
    }

    /// Returns the only member, if there is exactly one.
    pub(crate) fn single(self) -> Option<NodeId> {
        (self.0[0] != NONE && self.0[1] == NONE).then_some(NodeId(self.0[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order() {
        let members = [NodeId(9), NodeId(3), NodeId(7)];
        let set = InlineSet::from_slice(&members).expect("three fit");
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        assert_eq!(set.single(), None);
        assert_eq!(InlineSet::from_slice(&members[..1]).and_then(InlineSet::single), Some(NodeId(9)));
        assert_eq!(InlineSet::from_slice(&[NodeId(0); 5]), None);
    }
}
