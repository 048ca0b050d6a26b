//! Groups of nodes. A route uses the nodes of one group.

/// A group of nodes. Group 0 contains all nodes. The groups 1 to [`GroupId::MAX`] contain the nodes that name them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u8);

impl GroupId {
    /// The group of all nodes.
    pub const ALL: Self = Self(0);
    /// The largest group number, which is also the number of groups beside [`GroupId::ALL`].
    pub const MAX: u8 = 63;

    /// Returns the group with this number; `None` above [`GroupId::MAX`].
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// Returns the group number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The groups of a node, beside [`GroupId::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Groups(u64);

impl Groups {
    /// No group beside [`GroupId::ALL`].
    pub const NONE: Self = Self(0);

    /// Returns these groups plus `group`.
    #[must_use]
    pub const fn with(self, group: GroupId) -> Self {
        Self(self.0 | 1 << group.0)
    }

    /// Returns whether a node with these groups belongs to `group`. Every node belongs to [`GroupId::ALL`].
    pub const fn contains(self, group: GroupId) -> bool {
        group.0 == 0 || self.0 >> group.0 & 1 == 1
    }

    /// Returns the groups as a bit set, in which group n has the value 2^n.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Creates the groups from a bit set; see [`Groups::bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_belongs_to_all_and_to_its_named_groups() {
        let group = |number| GroupId::new(number).expect("at most 63");
        let groups = Groups::NONE.with(group(1)).with(group(63));
        for (number, inside) in [(0, true), (1, true), (2, false), (62, false), (63, true)] {
            assert_eq!(groups.contains(group(number)), inside, "{number}");
        }
        assert_eq!(Groups::from_bits(groups.bits()), groups);
        assert_eq!(GroupId::new(64), None);
    }
}
