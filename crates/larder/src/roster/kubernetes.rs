//! Node sources in Kubernetes: the EndpointSlices of a service (`discovery.k8s.io/v1`). The API server sends
//! the list and then its changes.
//!
//! If the API server has dropped old changes (410 Gone), the list is requested again. A watch that breaks off
//! is resumed after pauses that grow from 0.8 to 30 s. A node is a ready endpoint. An endpoint that
//! terminates, or whose readiness probe fails, is not listed. A node has the name of its pod, so that a pod
//! of a StatefulSet keeps its targets when its address changes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use larder_switch::NodeEntry;

use crate::config::{Discover, ServicePort, ServiceSlices};

/// Most nodes of one source. A longer list is probably an error in the selector.
const NODES_MAX: usize = 4096;
/// Status of a watch whose version the API server no longer has (410).
const HTTP_GONE: u16 = 410;
/// Longest time to wait for the first list at the start. Later the list is awaited while the switch serves.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// A watch without a failure for this time has recovered. The time covers the longest pause between two
/// attempts and the attempt itself.
const RECOVERY_TIME: Duration = Duration::from_secs(45);

/// Error of a source. The last known slices stay in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum SlicesError {
    /// The configuration is incomplete: there is no kubeconfig and no service account.
    #[error("cannot determine the address of the API server: {0}")]
    Setup(String),
    /// The API server refused the request or did not answer. The request is repeated.
    #[error("{0}")]
    Watch(String),
    /// No list arrived in time.
    #[error("no list from the API server within {} s", FIRST_LIST_TIMEOUT.as_secs())]
    Late,
    /// No endpoint has a port of this name.
    #[error("the service has endpoints and no port {0}")]
    NoPort(ServicePort),
    /// The source has too many nodes.
    #[error("more than {NODES_MAX} nodes")]
    TooMany,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<EndpointSlice>>> + Send>>;

/// The slices of a service, as the API server reports them.
pub(super) struct Slices {
    source: Discover,
    service: ServiceSlices,
    events: Events,
    cache: SliceCache,
    /// Whether the last attempt failed.
    failing: bool,
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Slices {
    /// Creates the client. Sends nothing yet.
    pub(super) async fn new(source: Discover, service: ServiceSlices) -> Result<Self, SlicesError> {
        let setup = |error: &dyn fmt::Display| SlicesError::Setup(error.to_string());
        let config = match &service.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .map_err(|error| setup(&format!("{}: {}", path.display(), error_chain(&error))))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| setup(&error_chain(&error)))?
            }
            None => Config::incluster().map_err(|error| {
                setup(&format!("{} (outside a cluster, set kubeconfig)", error_chain(&error)))
            })?,
        };
        let client = Client::try_from(config).map_err(|error| setup(&error_chain(&error)))?;
        let slices = Api::<EndpointSlice>::namespaced(client, &service.namespace);
        let selector =
            watcher::Config::default().labels(&format!("kubernetes.io/service-name={}", service.name));
        let events = Box::pin(watcher(slices, selector).default_backoff());
        Ok(Self { source, service, events, cache: SliceCache::default(), failing: false })
    }

    /// Returns the nodes of the first list.
    pub(super) async fn first_list(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        tokio::time::timeout(FIRST_LIST_TIMEOUT, self.next_nodes()).await.unwrap_or(Err(SlicesError::Late))
    }

    /// Waits for a change or for recovery, and returns the nodes.
    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        loop {
            let event = if self.failing {
                match tokio::time::timeout(RECOVERY_TIME, self.events.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.failing = false;
                        return self.nodes();
                    }
                }
            } else {
                self.events.next().await
            };
            match event {
                Some(Ok(event)) => {
                    if self.cache.apply(event) {
                        self.failing = false;
                        return self.nodes();
                    }
                }
                // The API server dropped old changes, which is normal. The watcher requests the list again.
                Some(Err(watcher::Error::WatchError(status))) if status.code == HTTP_GONE => {}
                Some(Err(error)) => {
                    self.failing = true;
                    return Err(SlicesError::Watch(describe(&error)));
                }
                // The stream has no end.
                None => std::future::pending().await,
            }
        }
    }

    fn nodes(&self) -> Result<Vec<NodeEntry>, SlicesError> {
        self.cache.nodes(&self.source, &self.service.port)
    }
}

/// Formats an error of the API server or of the connection.
fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        WatchError(status)
        | InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status,
        _ => return error_chain(error),
    };
    format!("the API server replied with {} {}: {}", status.code, status.reason, status.message)
}

/// Formats an error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// The known slices by name.
#[derive(Debug, Default)]
struct SliceCache {
    slices: BTreeMap<String, EndpointSlice>,
    /// Slices of a list that is not complete yet.
    listed: BTreeMap<String, EndpointSlice>,
}

impl SliceCache {
    /// Applies an event. Returns whether the nodes may have changed. A list takes effect when it is complete.
    fn apply(&mut self, event: Event<EndpointSlice>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                return false;
            }
            Event::InitApply(slice) => {
                self.listed.insert(slice.name_any(), slice);
                return false;
            }
            Event::InitDone => self.slices = std::mem::take(&mut self.listed),
            Event::Apply(slice) => {
                self.slices.insert(slice.name_any(), slice);
            }
            Event::Delete(slice) => {
                self.slices.remove(&slice.name_any());
            }
        }
        true
    }

    /// Returns the ready endpoints, one for each pod. A pod with two addresses is listed with its IPv4
    /// address.
    fn nodes(&self, source: &Discover, port: &ServicePort) -> Result<Vec<NodeEntry>, SlicesError> {
        let mut found: BTreeMap<String, SocketAddr> = BTreeMap::new();
        let (mut ready, mut with_port) = (0, 0);
        let mut slices: Vec<&EndpointSlice> = self.slices.values().collect();
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
            return Err(SlicesError::NoPort(port.clone()));
        }
        if found.len() > NODES_MAX {
            return Err(SlicesError::TooMany);
        }
        let nodes =
            found.iter().map(|(name, address)| source.entry(name, address.to_string(), source.weight));
        Ok(nodes.collect())
    }
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
    use super::*;
    use serde_json::json;

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

    fn nodes(cache: &SliceCache, port: &str) -> Result<Vec<String>, String> {
        let port = port.parse().map_or_else(|_| ServicePort::Named(port.to_owned()), ServicePort::Number);
        let nodes = cache.nodes(&source(), &port).map_err(|error| error.to_string())?;
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
        assert_eq!(nodes(&cache, "http"), Ok(vec![]), "a list counts when it is whole");
        cache.apply(Event::InitDone);
        let both = vec!["a 10.1.0.1:8080".to_owned(), "d [fd00::4]:8080".to_owned()];
        assert_eq!(nodes(&cache, "http"), Ok(both.clone()));
        assert_eq!(nodes(&cache, "8080"), Ok(both));
        for port in ["9090", "quic", "web"] {
            assert_eq!(nodes(&cache, port), Err(format!("the service has endpoints and no port {port}")));
        }
    }

    #[test]
    fn changes_and_new_lists_replace_known_slices() {
        let mut cache = SliceCache::default();
        cache.apply(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.1", Some(true))])));
        cache.apply(Event::Apply(slice("two", "IPv4", &[("b", "10.1.0.2", Some(true))])));
        cache.apply(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.9", Some(true))])));
        assert_eq!(
            nodes(&cache, "http"),
            Ok(vec!["a 10.1.0.9:8080".to_owned(), "b 10.1.0.2:8080".to_owned()])
        );
        cache.apply(Event::Delete(slice("two", "IPv4", &[])));
        assert_eq!(nodes(&cache, "http"), Ok(vec!["a 10.1.0.9:8080".to_owned()]));
        cache.apply(Event::Init);
        assert_eq!(nodes(&cache, "http").map(|nodes| nodes.len()), Ok(1), "until the list is whole");
        cache.apply(Event::InitDone);
        assert_eq!(nodes(&cache, "http"), Ok(vec![]), "nobody is ready, and nobody is missed");
    }

    #[test]
    fn too_many_nodes_are_refused_and_a_slice_without_ports_uses_the_configured_port() {
        let mut cache = SliceCache::default();
        let mut bare = slice("bare", "IPv4", &[("a", "10.1.0.1", None)]);
        bare.ports = None;
        cache.apply(Event::Apply(bare));
        assert_eq!(nodes(&cache, "9090"), Ok(vec!["a 10.1.0.1:9090".to_owned()]));
        let names: Vec<String> = (0..=NODES_MAX).map(|number| format!("p{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), "10.1.0.1", None)).collect();
        cache.apply(Event::Apply(slice("all", "IPv4", &all)));
        assert_eq!(nodes(&cache, "http"), Err(format!("more than {NODES_MAX} nodes")));
    }
}
