//! Nodes by the EndpointSlices of a Kubernetes service (`discovery.k8s.io/v1`): the API server is asked for the list, and then tells
//! what changes.
//!
//! What it has forgotten meanwhile (410 Gone) is listed anew; a watch that breaks off is begun again where it ended, after pauses that
//! grow from 0.8 to 30 s. A node is a ready endpoint: one that ends, or whose readiness probe fails, is named no more. It is called
//! after its pod, so a pod of a StatefulSet keeps its targets when it comes back elsewhere.

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

/// Nodes of one source at most; more is a mistake in the selector.
const NODES_MAX: usize = 4096;
/// The status of a watch from a version that is forgotten (410).
const GONE: u16 = 410;
/// A first list that is not there by then is waited for while the switch serves.
const PATIENCE: Duration = Duration::from_secs(5);
/// After so long without another failure a watch goes on: the longest pause between two tries, and what a try takes.
const QUIET: Duration = Duration::from_secs(45);

/// Why the slices are not known. What was known before stays.
#[derive(Debug, thiserror::Error)]
pub(super) enum SlicesError {
    /// The operator's to mend: no kubeconfig, no service account.
    #[error("how to reach the API server is not known: {0}")]
    Setup(String),
    /// The API server refuses or does not answer; it is asked again.
    #[error("{0}")]
    Watch(String),
    /// No list in time.
    #[error("no list of the API server within {} s", PATIENCE.as_secs())]
    Late,
    /// A port of this name is nowhere.
    #[error("the service has endpoints and no port {0}")]
    NoPort(ServicePort),
    /// More than makes sense.
    #[error("more than {NODES_MAX} nodes")]
    TooMany,
}

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<EndpointSlice>>> + Send>>;

/// The slices of a service, as the API server tells of them.
pub(super) struct Slices {
    source: Discover,
    service: ServiceSlices,
    events: Events,
    known: Known,
    /// The last try failed.
    failing: bool,
}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slices").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Slices {
    /// Finds out whom to ask; asks nobody yet.
    pub(super) async fn new(source: Discover, service: ServiceSlices) -> Result<Self, SlicesError> {
        let setup = |error: &dyn fmt::Display| SlicesError::Setup(error.to_string());
        let config = match &service.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .map_err(|error| setup(&format!("{}: {}", path.display(), whole(&error))))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| setup(&whole(&error)))?
            }
            None => Config::incluster().map_err(|error| {
                setup(&format!("{} (outside of a cluster, give kubeconfig)", whole(&error)))
            })?,
        };
        let client = Client::try_from(config).map_err(|error| setup(&whole(&error)))?;
        let slices = Api::<EndpointSlice>::namespaced(client, &service.namespace);
        let of = watcher::Config::default().labels(&format!("kubernetes.io/service-name={}", service.name));
        let events = Box::pin(watcher(slices, of).default_backoff());
        Ok(Self { source, service, events, known: Known::default(), failing: false })
    }

    /// The first list.
    pub(super) async fn first(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        tokio::time::timeout(PATIENCE, self.next()).await.unwrap_or(Err(SlicesError::Late))
    }

    /// The nodes, once they may have changed or are known again.
    pub(super) async fn next(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        loop {
            let event = if self.failing {
                match tokio::time::timeout(QUIET, self.events.next()).await {
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
                    if self.known.heard(event) {
                        self.failing = false;
                        return self.nodes();
                    }
                }
                // It has forgotten what came meanwhile, as any does after a while, and is asked for the list.
                Some(Err(watcher::Error::WatchError(status))) if status.code == GONE => {}
                Some(Err(error)) => {
                    self.failing = true;
                    return Err(SlicesError::Watch(said(&error)));
                }
                // The stream has no end.
                None => std::future::pending().await,
            }
        }
    }

    fn nodes(&self) -> Result<Vec<NodeEntry>, SlicesError> {
        self.known.nodes(&self.source, &self.service.port)
    }
}

/// What the API server answers, or why it does not.
fn said(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        WatchError(status)
        | InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status,
        _ => return whole(error),
    };
    format!("the API server answers {} {}: {}", status.code, status.reason, status.message)
}

/// An error with what is behind it.
fn whole(error: &dyn std::error::Error) -> String {
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

/// Slices by their names.
#[derive(Debug, Default)]
struct Known {
    slices: BTreeMap<String, EndpointSlice>,
    /// Those of a list that is coming.
    listed: BTreeMap<String, EndpointSlice>,
}

impl Known {
    /// Whether the nodes may be others now: a list counts when it is whole.
    fn heard(&mut self, event: Event<EndpointSlice>) -> bool {
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

    /// The ready endpoints, each pod once: by its IPv4 address where it has both.
    fn nodes(&self, source: &Discover, port: &ServicePort) -> Result<Vec<NodeEntry>, SlicesError> {
        let mut found: BTreeMap<String, SocketAddr> = BTreeMap::new();
        let (mut ready, mut with_port) = (0, 0);
        let mut slices: Vec<&EndpointSlice> = self.slices.values().collect();
        slices.sort_by_key(|slice| (&slice.address_type, slice.name_any()));
        for slice in slices {
            let port = port_of(slice.ports.as_deref().unwrap_or_default(), port);
            for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
                ready += 1;
                // All addresses of an endpoint are the same (the type's documentation).
                let ip = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
                let (Some(ip), Some(port)) = (ip, port) else { continue };
                with_port += 1;
                let address = SocketAddr::new(ip, port);
                found.entry(name_of(endpoint, address)).or_insert(address);
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

/// Unknown counts as ready (the type's documentation).
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn name_of(endpoint: &Endpoint, address: SocketAddr) -> String {
    let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
    pod.and_then(|pod| pod.name.clone()).unwrap_or_else(|| address.to_string())
}

/// The number of a port. A slice that lists none leaves it to whoever asks.
fn port_of(listed: &[EndpointPort], wanted: &ServicePort) -> Option<u16> {
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

    /// A slice of endpoints: pod, address, ready.
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

    fn nodes(known: &Known, port: &str) -> Result<Vec<String>, String> {
        let port = port.parse().map_or_else(|_| ServicePort::Named(port.to_owned()), ServicePort::Number);
        let nodes = known.nodes(&source(), &port).map_err(|error| error.to_string())?;
        Ok(nodes.iter().map(|node| format!("{} {}", node.spec.name, node.address)).collect())
    }

    #[test]
    fn ready_endpoints_are_nodes_by_their_pods_each_once() {
        let mut known = Known::default();
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
            known.heard(event);
        }
        assert_eq!(nodes(&known, "http"), Ok(vec![]), "a list counts when it is whole");
        known.heard(Event::InitDone);
        let both = vec!["a 10.1.0.1:8080".to_owned(), "d [fd00::4]:8080".to_owned()];
        assert_eq!(nodes(&known, "http"), Ok(both.clone()));
        assert_eq!(nodes(&known, "8080"), Ok(both));
        for port in ["9090", "quic", "web"] {
            assert_eq!(nodes(&known, port), Err(format!("the service has endpoints and no port {port}")));
        }
    }

    #[test]
    fn changes_and_a_new_list_replace_what_was_known() {
        let mut known = Known::default();
        known.heard(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.1", Some(true))])));
        known.heard(Event::Apply(slice("two", "IPv4", &[("b", "10.1.0.2", Some(true))])));
        known.heard(Event::Apply(slice("one", "IPv4", &[("a", "10.1.0.9", Some(true))])));
        assert_eq!(
            nodes(&known, "http"),
            Ok(vec!["a 10.1.0.9:8080".to_owned(), "b 10.1.0.2:8080".to_owned()])
        );
        known.heard(Event::Delete(slice("two", "IPv4", &[])));
        assert_eq!(nodes(&known, "http"), Ok(vec!["a 10.1.0.9:8080".to_owned()]));
        known.heard(Event::Init);
        assert_eq!(nodes(&known, "http").map(|nodes| nodes.len()), Ok(1), "until the list is whole");
        known.heard(Event::InitDone);
        assert_eq!(nodes(&known, "http"), Ok(vec![]), "nobody is ready, and nobody is missed");
    }

    #[test]
    fn too_many_are_refused_and_a_slice_without_ports_takes_the_number_given() {
        let mut known = Known::default();
        let mut bare = slice("bare", "IPv4", &[("a", "10.1.0.1", None)]);
        bare.ports = None;
        known.heard(Event::Apply(bare));
        assert_eq!(nodes(&known, "9090"), Ok(vec!["a 10.1.0.1:9090".to_owned()]));
        let names: Vec<String> = (0..=NODES_MAX).map(|number| format!("p{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), "10.1.0.1", None)).collect();
        known.heard(Event::Apply(slice("all", "IPv4", &all)));
        assert_eq!(nodes(&known, "http"), Err(format!("more than {NODES_MAX} nodes")));
    }
}
