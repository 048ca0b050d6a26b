//! The choice among the endpoints that the gateway permits for a request.
//!
//! The policy decides among all nodes. If its node is not permitted, the permitted endpoints are ranked:
//!
//! ```text
//! below T_high, a stored server of the target > below T_high > at T_high, the least loaded first
//! ```
//!
//! Equal endpoints are ordered by rendezvous hashing of the target and their addresses, so that a target returns to the same
//! endpoint with the same subset, at every picker.

use crate::endpoints::{Endpoint, EndpointTable};
use larder_core::nodes::GroupId;
use larder_core::{Dispatcher, NodeId, RouteId, TargetId};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use std::cmp::Reverse;
use std::net::SocketAddr;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The namespace and the key of the metadata in which a gateway names the permitted endpoints.
const NAMESPACE: &str = "envoy.lb.subset_hint";
const KEY: &str = "x-gateway-destination-endpoint-subset";

/// Returns the permitted addresses; `None` if all endpoints are permitted. An entry that is no address permits nothing.
pub(crate) fn hint(metadata: Option<&crate::proto::Metadata>) -> Option<Vec<SocketAddr>> {
    let value = field(metadata?, NAMESPACE, KEY)?;
    let addresses =
        |text: &str| text.split(',').filter_map(|one| one.trim().parse().ok()).collect::<Vec<_>>();
    Some(match value {
        Kind::StringValue(text) => addresses(text),
        Kind::ListValue(list) => list.values.iter().filter_map(text).flat_map(addresses).collect(),
        _ => Vec::new(),
    })
}

/// Returns a value in the metadata of a message.
pub(crate) fn field<'a>(
    metadata: &'a crate::proto::Metadata,
    namespace: &str,
    key: &str,
) -> Option<&'a Kind> {
    let space: &Struct = metadata.filter_metadata.get(namespace)?;
    space.fields.get(key)?.kind.as_ref()
}

fn text(value: &Value) -> Option<&str> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Returns the permitted endpoints that take requests, the best first.
pub(crate) fn rank<'a>(
    dispatcher: &Dispatcher,
    table: &'a EndpointTable,
    permitted: &[SocketAddr],
    (target, servers): (TargetId, &[NodeId]),
) -> Vec<&'a Endpoint> {
    let (nodes, high) = (dispatcher.nodes(), u64::from(dispatcher.thresholds_of(RouteId::DEFAULT).1));
    let key = |endpoint: &&Endpoint| {
        let node = NodeId(endpoint.node.slot());
        // As the policies count: without long-lived requests, and with the requests of other replicas.
        let requests = u64::from(nodes.short_lived(node)) + u64::from(nodes.peer_requests(node));
        let (load, weight) = (requests * 1000, u64::from(nodes.weight(node).milli()));
        let full = load >= high * weight;
        let load = if full { load * 1000 / weight.max(1) } else { 0 };
        let hash = xxh3_64_with_seed(endpoint.text.as_bytes(), target.0);
        (full, load, !servers.contains(&node), Reverse(hash), endpoint.address)
    };
    let takes = |endpoint: &&Endpoint| nodes.takes(NodeId(endpoint.node.slot()), GroupId::ALL);
    let mut ranked: Vec<&Endpoint> =
        permitted.iter().filter_map(|address| table.find(*address)).filter(takes).collect();
    ranked.sort_by_cached_key(key);
    ranked.dedup_by_key(|endpoint| endpoint.node);
    ranked
}
