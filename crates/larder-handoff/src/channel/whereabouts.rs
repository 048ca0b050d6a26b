//! Which nodes have a target: a node asks, the front-end answers from what its dispatcher remembers.
//!
//! What is said is a hint. A question that is not answered in time, and a target that nobody has, mean the same to the node:
//! it serves the request itself.

use super::message::{MessageError, at_most};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Longest path with its query that is asked about. Bytes.
pub const TARGET_BYTES_MAX: usize = 4_096;
/// Longest host, and longest method. Bytes.
pub const HOST_BYTES_MAX: usize = 256;
/// Nodes in one answer at most.
pub const HOLDERS_MAX: usize = 16;

/// A question of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Where {
    /// Chosen by the node; stands in the answer.
    pub id: u64,
    /// What is asked about.
    pub asked: Asked,
}

/// A request, as far as it says what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    /// Method. At most [`HOST_BYTES_MAX`].
    pub method: String,
    /// The `Host` field; empty if there is none. At most [`HOST_BYTES_MAX`].
    pub host: String,
    /// Path and query. At most [`TARGET_BYTES_MAX`].
    pub target: String,
}

/// What the front-end knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Has {
    /// Of the [`Where`].
    pub id: u64,
    /// The target's number in the front-end's terms; `None` if the request's path does not tell it.
    pub target: Option<u64>,
    /// The asking node is one that has it.
    pub here: bool,
    /// Requests in flight at the asking node, as the front-end counts them.
    pub load: u32,
    /// The others that have it and can be asked. At most [`HOLDERS_MAX`].
    pub holders: Vec<Holder>,
}

/// A node that has a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its slot at the front-end.
    pub node: u16,
    /// Where it takes requests.
    pub address: SocketAddr,
    /// Requests in flight at it, as the front-end counts them.
    pub load: u32,
}

impl Asked {
    /// Whether every part is within its limit.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check(&self) -> Result<(), MessageError> {
        at_most("the length of a method", self.method.len(), HOST_BYTES_MAX)?;
        at_most("the length of a host", self.host.len(), HOST_BYTES_MAX)?;
        at_most("the length of a target", self.target.len(), TARGET_BYTES_MAX)
    }
}

impl Where {
    pub(super) fn check(&self) -> Result<(), MessageError> {
        self.asked.check()
    }
}

impl Has {
    pub(super) fn check(&self) -> Result<(), MessageError> {
        at_most("the number of nodes that have a target", self.holders.len(), HOLDERS_MAX)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::message::{FromNode, Message as _, ToNode};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::net::IpAddr;

    pub(in super::super) fn asked() -> impl Strategy<Value = Where> {
        (any::<u64>(), "[A-Z]{1,7}", "[a-z.]{0,40}", "/[ -~]{0,200}")
            .prop_map(|(id, method, host, target)| Where { id, asked: Asked { method, host, target } })
    }

    pub(in super::super) fn has() -> impl Strategy<Value = Has> {
        let holder = any::<(u16, IpAddr, u16, u32)>().prop_map(|(node, ip, port, load)| Holder {
            node,
            address: (ip, port).into(),
            load,
        });
        (any::<(u64, Option<u64>, bool, u32)>(), vec(holder, 0..=HOLDERS_MAX))
            .prop_map(|((id, target, here, load), holders)| Has { id, target, here, load, holders })
    }

    #[test]
    fn each_limit_is_named() {
        let asked = |method: usize, host: usize, target: usize| Asked {
            method: "M".repeat(method),
            host: "h".repeat(host),
            target: "/".repeat(target),
        };
        for (asked, what) in [
            (asked(HOST_BYTES_MAX + 1, 0, 0), "the length of a method"),
            (asked(0, HOST_BYTES_MAX + 1, 0), "the length of a host"),
            (asked(0, 0, TARGET_BYTES_MAX + 1), "the length of a target"),
        ] {
            let encoded = FromNode::Where(Where { id: 0, asked }).encode();
            assert_eq!(encoded, Err(MessageError::Limit(what)));
        }
        let holder = Holder { node: 0, address: ([10, 0, 0, 1], 80).into(), load: 0 };
        let has = |count| Has { id: 0, target: None, here: false, load: 0, holders: vec![holder; count] };
        assert!(ToNode::Has(has(HOLDERS_MAX)).encode().is_ok());
        let what = "the number of nodes that have a target";
        assert_eq!(ToNode::Has(has(HOLDERS_MAX + 1)).encode(), Err(MessageError::Limit(what)));
    }
}
