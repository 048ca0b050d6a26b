//! The input that a policy needs besides requests and their results.

use larder_core::PolicyKind;

/// Returns the input that a policy needs besides requests and their results; `None` if it needs no other. Proxies have no other.
pub const fn extra_input(policy: PolicyKind) -> Option<&'static str> {
    match policy {
        PolicyKind::Cap | PolicyKind::CapLoad | PolicyKind::Static => {
            Some("it needs the service class of each request")
        }
        PolicyKind::Ward | PolicyKind::Part => {
            Some("it needs a routing table, and the node at which a request arrived")
        }
        PolicyKind::WrrNum | PolicyKind::WrrTime | PolicyKind::LardUtil | PolicyKind::Hacc => {
            Some("it needs load reports of the nodes")
        }
        PolicyKind::LbGc | PolicyKind::Lmetric => Some("it needs each change of the nodes' caches"),
        PolicyKind::Random
        | PolicyKind::Rr
        | PolicyKind::Wrr
        | PolicyKind::LeastConn
        | PolicyKind::Hash
        | PolicyKind::Lard
        | PolicyKind::LardR
        | PolicyKind::LardCost
        | PolicyKind::Bounded
        | PolicyKind::BoundedJump
        | PolicyKind::Maglev
        | PolicyKind::Rendezvous
        | PolicyKind::P2c
        | PolicyKind::PeakEwma
        | PolicyKind::Prequal => None,
    }
}
