//! Queries for the nodes that hold a target. A node asks, and the switch answers from the state of its dispatcher.
//!
//! The answer is a hint. If no answer arrives in time, or no node holds the target, the node serves the request itself.

use super::message::{MessageError, check_limit};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Maximum length of a path with its query. Bytes.
pub const TARGET_BYTES_MAX: usize = 4_096;
/// Maximum length of a host, and of a method. Bytes.
pub const HOST_BYTES_MAX: usize = 256;
/// Maximum number of nodes in a reply.
pub const HOLDERS_MAX: usize = 16;

/// A node's query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderQuery {
    /// Chosen by the node and repeated in the reply.
    pub id: u64,
    /// The request whose target is looked up.
    pub request: RequestSummary,
}

/// The parts of a request that identify its target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestSummary {
    /// Method. At most [`HOST_BYTES_MAX`].
    pub method: String,
    /// Value of the `Host` field, or empty. At most [`HOST_BYTES_MAX`].
    pub host: String,
    /// Path and query. At most [`TARGET_BYTES_MAX`].
    pub target: String,
}

/// The switch's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReply {
    /// The id of the [`HolderQuery`].
    pub id: u64,
    /// The target's id at the switch. `None` if the parts sent do not determine the target.
    pub target: Option<u64>,
    /// Whether the asking node is itself a holder.
    pub is_holder: bool,
    /// Requests in flight at the asking node, as counted by the switch.
    pub load: u32,
    /// Other nodes that hold the target and can be asked. At most [`HOLDERS_MAX`].
    pub holders: Vec<Holder>,
}

/// A node that holds a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The node's slot at the switch.
    pub node: u16,
    /// The address of its HTTP server.
    pub address: SocketAddr,
    /// Requests in flight at it, as counted by the switch.
    pub load: u32,
}

impl RequestSummary {
    /// Checks that every part is within its limit.
    ///
    /// # Errors
    ///
    /// The first limit that is exceeded.
    pub fn check(&self) -> Result<(), MessageError> {
        check_limit("the length of the method", self.method.len(), HOST_BYTES_MAX)?;
        check_limit("the length of the host", self.host.len(), HOST_BYTES_MAX)?;
        check_limit("the length of the target", self.target.len(), TARGET_BYTES_MAX)
    }
}

impl HolderQuery {
    pub(super) fn check(&self) -> Result<(), MessageError> {
        self.request.check()
    }
}

impl HolderReply {
    pub(super) fn check(&self) -> Result<(), MessageError> {
        check_limit("the number of holders", self.holders.len(), HOLDERS_MAX)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::message::{FromNode, Message as _, ToNode};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::net::IpAddr;

    pub(in super::super) fn query() -> impl Strategy<Value = HolderQuery> {
        (any::<u64>(), "[A-Z]{1,7}", "[a-z.]{0,40}", "/[ -~]{0,200}").prop_map(
            |(id, method, host, target)| HolderQuery { id, request: RequestSummary { method, host, target } },
        )
    }

    pub(in super::super) fn reply() -> impl Strategy<Value = HolderReply> {
        let holder = any::<(u16, IpAddr, u16, u32)>().prop_map(|(node, ip, port, load)| Holder {
            node,
            address: (ip, port).into(),
            load,
        });
        (any::<(u64, Option<u64>, bool, u32)>(), vec(holder, 0..=HOLDERS_MAX)).prop_map(
            |((id, target, is_holder, load), holders)| HolderReply { id, target, is_holder, load, holders },
        )
    }

    #[test]
    fn each_limit_is_named() {
        let request = |method: usize, host: usize, target: usize| RequestSummary {
            method: "M".repeat(method),
            host: "h".repeat(host),
            target: "/".repeat(target),
        };
        for (request, what) in [
            (request(HOST_BYTES_MAX + 1, 0, 0), "the length of the method"),
            (request(0, HOST_BYTES_MAX + 1, 0), "the length of the host"),
            (request(0, 0, TARGET_BYTES_MAX + 1), "the length of the target"),
        ] {
            let encoded = FromNode::FindHolders(HolderQuery { id: 0, request }).encode();
            assert_eq!(encoded, Err(MessageError::Limit(what)));
        }
        let holder = Holder { node: 0, address: ([10, 0, 0, 1], 80).into(), load: 0 };
        let reply = |count| HolderReply {
            id: 0,
            target: None,
            is_holder: false,
            load: 0,
            holders: vec![holder; count],
        };
        assert!(ToNode::Holders(reply(HOLDERS_MAX)).encode().is_ok());
        let what = "the number of holders";
        assert_eq!(ToNode::Holders(reply(HOLDERS_MAX + 1)).encode(), Err(MessageError::Limit(what)));
    }
}
