//! Identifiers of nodes, routes, targets and waiting requests.

use core::fmt;

/// A node's slot in the node table. A name keeps its slot until the node is removed; see [`crate::nodes::Nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// Returns the slot as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node#{}", self.0)
    }
}

/// A route of the switch: requests that share a policy, its settings and a group of nodes. Routes are numbered in
/// the order of the configuration; 0 is the default route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u16);

impl RouteId {
    /// The route of every request that no other route takes.
    pub const DEFAULT: Self = Self(0);

    /// Returns the route as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route#{}", self.0)
    }
}

/// A target: the 64-bit hash of a target key (by default host + path + query).
///
/// The hash is XXH3-64 with seed 0, a published and frozen function: two front-ends, the simulator and a later
/// release place alike. Two of n targets share an id with probability about n^2 / 2^65 (10 million targets: 3 in a
/// million). They are then placed together, which costs locality but not correctness.
///
/// Anyone can make keys that share an id, or whose ids agree in chosen bits. An id is therefore no proof of the
/// requested URL. It is hashed once more with a secret key where it selects a shard or a bucket (`spread`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

impl TargetId {
    /// Returns the id of a target key.
    pub fn of(key: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(key))
    }

    /// Returns the id of the key `parts[0] parts[1] ..` without joining the parts in memory; equal to
    /// [`TargetId::of`] of the joined bytes.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
        for part in parts {
            hasher.update(part);
        }
        Self(hasher.digest())
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The number of a request that waits for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_matches_the_published_test_vector() {
        // XXH3-64 of the empty input with seed 0, from the xxHash specification's test vectors.
        assert_eq!(TargetId::of(b""), TargetId(0x2D06_8005_38D3_94C2));
    }

    /// XXH3 multiplies the two halves of 16 bytes, each XORed with a published constant. A half that equals its
    /// constant makes the product 0, and the other half no longer matters.
    #[test]
    fn colliding_keys_can_be_constructed() {
        let key =
            |free: &[u8]| [&b"\xb8\xfe\x6c\x39\x23\xa4\x4b\xbe"[..], free, b"the last 16 byte"].concat();
        assert_eq!(TargetId::of(&key(b"/index.h")), TargetId::of(&key(b"/another")));
    }

    #[test]
    fn parts_hash_like_the_joined_key() {
        assert_eq!(TargetId::of_parts(&[b"example.org", b"/a", b"?b"]), TargetId::of(b"example.org/a?b"));
    }
}
