//! The EndpointSlices of a service (`discovery.k8s.io/v1`).
//!
//! A node is a ready endpoint. An endpoint that terminates, or whose readiness probe fails, is not listed. A node has the name of its
//! pod, so that a pod of a StatefulSet keeps its targets when its address changes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use larder_switch::NodeEntry;

use super::objects::ObjectWatch;
use super::{NODES_MAX, WatchError, client};
use crate::config::{Discover, ServicePort, ServiceSlices};

/// The slices of a service, as the API server reports them.
#[derive(Debug)]
pub(in crate::roster) struct Slices {
    source: Discover,
    service: ServiceSlices,
    slices: ObjectWatch<EndpointSlice>,
}

impl Slices {
    /// Creates the client. Sends nothing yet.
    pub(super) async fn new(source: Discover, service: ServiceSlices) -> Result<Self, WatchError> {
        let client = client(service.kubeconfig.as_deref()).await?;
        let slices = Api::<EndpointSlice>::namespaced(client, &service.namespace);
        let selector =
            watcher::Config::default().labels(&format!("kubernetes.io/service-name={}", service.name));
        Ok(Self { source, service, slices: ObjectWatch::new(slices, selector) })
    }

    /// Waits for a change or for recovery, and returns the nodes.
    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        self.slices.changed().await?;
        nodes(self.slices.objects(), &self.source, &self.service.port)
    }
}

/// Returns the ready endpoints, one for each pod. A pod with two addresses is listed with its IPv4 address.
fn nodes<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    source: &Discover,
    port: &ServicePort,
) -> Result<Vec<NodeEntry>, WatchError> {
    let mut found: BTreeMap<String, SocketAddr> = BTreeMap::new();
    let (mut ready, mut with_port) = (0, 0);
    let mut slices: Vec<&EndpointSlice> = slices.collect();
    slices.sort_by_key(|slice| (&slice.address_type, slice.name_any()));
    for slice in slices {
        let port = port_number(slice.ports.as_deref().unwrap_or_default(), port);
        for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
            ready += 1;
            // All addresses of an endpoint are equivalent, according to the API documentation.
            let ip = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
            let (Some(ip), Some(port)) = (ip, port) else { continue };
            with_port += 1;
            let address = SocketAddr::new(ip, port);
            found.entry(node_name(endpoint, address)).or_insert(address);
        }
    }
    if ready > 0 && with_port == 0 {
        return Err(WatchError::NoPort(port.clone()));
    }
    if found.len() > NODES_MAX {
        return Err(WatchError::TooMany);
    }
    let nodes = found.iter().map(|(name, address)| source.entry(name, address.to_string(), source.weight));
    Ok(nodes.collect())
}

/// An unknown condition counts as ready, according to the API documentation.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn node_name(endpoint: &Endpoint, address: SocketAddr) -> String {
    let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
    pod.and_then(|pod| pod.name.clone()).unwrap_or_else(|| address.to_string())
}

/// Returns the number of the requested port. A slice without ports accepts the requested number.
fn port_number(listed: &[EndpointPort], wanted: &ServicePort) -> Option<u16> {
    let number = |port: &EndpointPort| port.port.and_then(|number| u16::try_from(number).ok());
    let is_tcp = |port: &&EndpointPort| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let mut tcp = listed.iter().filter(is_tcp);
    match wanted {
        ServicePort::Number(wanted) if listed.is_empty() => Some(*wanted),
        ServicePort::Number(wanted) => tcp.find_map(|port| number(port).filter(|number| number == wanted)),
        ServicePort::Named(wanted) => {
            tcp.find(|port| port.name.as_deref() == Some(wanted.as_str())).and_then(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::super::objects::ObjectCache;
    use super::*;
    use serde_json::json;

    type SliceCache = ObjectCache<EndpointSlice>;

    /// Builds a slice from pod, address and readiness of its endpoints.
    fn slice(name: &str, kind: &str, endpoints: &[(&str, &str, Option<bool>)]) -> EndpointSlice {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|(pod, address, ready)| {
                json!({
                    "addresses": [address],
                    "conditions": { "ready": ready, "terminating": ready.map(|ready| !ready) },
                    "targetRef": { "kind": "Pod", "name": pod },
                })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": { "name": name },
            "addressType": kind, "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }, { "name": "quic", "port": 8443, "protocol": "UDP" }],
        }))
        .expect("a slice")
    }

    fn source() -> Discover {
        crate::config::discover_of("kubernetes = \"default/store:http\"").expect("a source")
    }

    fn listed(cache: &SliceCache, port: &str) -> Result<Vec<String>, String> {
        let port = port.parse().map_or_else(|_| ServicePort::Named(port.to_owned()), ServicePort::Number);
        let nodes = nodes(cache.objects(), &source(), &port).map_err(|error| error.to_string())?;
        Ok(nodes.iter().map(|node| format!("{} {}", node.spec.name, node.address)).collect())
    }

    #[test]
    fn ready_endpoints_become_one_node_per_pod() {
        let mut cache = SliceCache::default();
        for event in [
            Event::Init,
            Event::InitApply(slice(
                "store-v6",
                "IPv6",
                &[("a", "fd00::1", Some(true)), ("d", "fd00::4", None)],
            )),
            Event::InitApply(slice(
                "store-x",
                "IPv4",
                &[("a", "10.1.0.1", Some(true)), ("b", "10.1.0.2", Some(false))],
            )),
        ] {
            cache.apply(event);
        }
        assert_eq!(listed(&cache, "http"), Ok(vec![]), "a list counts when it is whole");
        cache.apply(Event::InitDone);
        let both = vec!["a 10.1.0.1:8080".to_owned(), "d [fd00::4]:8080".to_owned()];
        assert_eq!(listed(&cache, "http"), Ok(both.clone()));
        assert_eq!(listed(&cache, "8080"), Ok(both));
        for port in ["9090", "quic", "web"] {
            assert_eq!(listed(&cache, port), Err(format!("the service has endpoints and no port {port}")));
        }
    }

    #[test]
    fn changes_and_new_lists_replace_known_slices() {
        let mut cache = SliceCache::default();
        cache.apply(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.1", Some(true))])));
        cache.apply(Event::Apply(slice("two", "IPv4", &[("b", "10.1.0.2", Some(true))])));
        cache.apply(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.9", Some(true))])));
        assert_eq!(
            listed(&cache, "http"),
            Ok(vec!["a 10.1.0.9:8080".to_owned(), "b 10.1.0.2:8080".to_owned()])
        );
        cache.apply(Event::Delete(slice("two", "IPv4", &[])));
        assert_eq!(listed(&cache, "http"), Ok(vec!["a 10.1.0.9:8080".to_owned()]));
        cache.apply(Event::Init);
        assert_eq!(listed(&cache, "http").map(|nodes| nodes.len()), Ok(1), "until the list is whole");
        cache.apply(Event::InitDone);
        assert_eq!(listed(&cache, "http"), Ok(vec![]), "nobody is ready, and nobody is missed");
    }

    #[test]
    fn too_many_nodes_are_refused_and_a_slice_without_ports_uses_the_configured_port() {
        let mut cache = SliceCache::default();
        let mut bare = slice("bare", "IPv4", &[("a", "10.1.0.1", None)]);
        bare.ports = None;
        cache.apply(Event::Apply(bare));
        assert_eq!(listed(&cache, "9090"), Ok(vec!["a 10.1.0.1:9090".to_owned()]));
        let names: Vec<String> = (0..=NODES_MAX).map(|number| format!("p{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), "10.1.0.1", None)).collect();
        cache.apply(Event::Apply(slice("all", "IPv4", &all)));
        assert_eq!(listed(&cache, "http"), Err(format!("more than {NODES_MAX} nodes")));
    }
}
