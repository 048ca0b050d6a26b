//! Groups of nodes: which nodes a route may use.

/// A group of nodes. Group 0 is all of them; up to [`GroupId::MAX`] others have the members that name them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u8);

impl GroupId {
    /// Every node.
    pub const ALL: Self = Self(0);
    /// The largest number of a group; there are so many beside [`GroupId::ALL`].
    pub const MAX: u8 = 63;

    /// The group of that number; `None` above [`GroupId::MAX`].
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The group as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The groups a node is in, beside [`GroupId::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Groups(u64);

impl Groups {
    /// None but all.
    pub const NONE: Self = Self(0);

    /// These groups and one more.
    #[must_use]
    pub const fn with(self, group: GroupId) -> Self {
        Self(self.0 | 1 << group.0)
    }

    /// Whether a node in these groups is in `group`. Every node is in [`GroupId::ALL`].
    pub const fn contains(self, group: GroupId) -> bool {
        group.0 == 0 || self.0 >> group.0 & 1 == 1
    }

    /// The groups as bits, that of group n with the value 2^n.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The groups of such bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_in_all_and_in_those_it_names() {
        let group = |number| GroupId::new(number).expect("at most 63");
        let groups = Groups::NONE.with(group(1)).with(group(63));
        for (number, inside) in [(0, true), (1, true), (2, false), (62, false), (63, true)] {
            assert_eq!(groups.contains(group(number)), inside, "{number}");
        }
        assert_eq!(Groups::from_bits(groups.bits()), groups);
        assert_eq!(GroupId::new(64), None);
    }
}
