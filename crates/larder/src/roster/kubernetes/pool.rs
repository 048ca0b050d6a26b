//! The pods of an InferencePool (`inference.networking.k8s.io/v1`).
//!
//! A node is a ready pod that the pool's selector matches, at a target port of the pool. A pod that terminates is not listed. A node
//! has the name of its pod, followed by the port if the pool has several. A pool that does not exist has no nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use larder_switch::NodeEntry;
use serde::Deserialize;

use super::objects::ObjectWatch;
use super::{NODES_MAX, WatchError, client};
use crate::config::{Discover, PoolRef};

/// An InferencePool as far as nodes depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolSpec {
    selector: Selector,
    target_ports: Vec<TargetPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct TargetPort {
    number: u16,
}

/// A pool and its pods, as the API server reports them.
pub(in crate::roster) struct Pool {
    source: Discover,
    place: PoolRef,
    client: Client,
    /// The pool, and no other object.
    pool: ObjectWatch<DynamicObject>,
    spec: Option<PoolSpec>,
    /// The pods of the selector; `None` without a pool.
    pods: Option<ObjectWatch<Pod>>,
    /// Whether there has been a pool.
    has_been: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates the client. Sends nothing yet.
    pub(super) async fn new(source: Discover, place: PoolRef) -> Result<Self, WatchError> {
        let client = client(place.kubeconfig.as_deref()).await?;
        let kind = GroupVersionKind::gvk("inference.networking.k8s.io", "v1", "InferencePool");
        let kind = ApiResource::from_gvk_with_plural(&kind, "inferencepools");
        let pools = Api::<DynamicObject>::namespaced_with(client.clone(), &place.namespace, &kind);
        let only = watcher::Config::default().fields(&format!("metadata.name={}", place.name));
        let pool = ObjectWatch::new(pools, only);
        Ok(Self { source, place, client, pool, spec: None, pods: None, has_been: false })
    }

    /// Waits for a change or for recovery, and returns the nodes.
    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        loop {
            let is_pool = match &mut self.pods {
                None => self.pool.changed().await.map(|()| true),
                Some(pods) => tokio::select! {
                    changed = self.pool.changed() => changed.map(|()| true),
                    changed = pods.changed() => changed.map(|()| false),
                },
            };
            if is_pool? {
                self.read_pool()?;
            }
            match (&self.spec, &self.pods) {
                // The nodes that were known before stay until the pods of another selector are listed.
                (Some(spec), Some(pods)) if pods.is_listed() => {
                    return nodes(pods.objects(), spec, &self.source);
                }
                (None, _) if self.has_been => return Ok(Vec::new()),
                (None, _) => return Err(WatchError::NoPool),
                _ => {}
            }
        }
    }

    /// Reads the pool, and begins to watch other pods if its selector has changed.
    fn read_pool(&mut self) -> Result<(), WatchError> {
        let spec = self.pool.objects().next().map(spec).transpose()?;
        let selector = |spec: &Option<PoolSpec>| spec.as_ref().map(|spec| spec.selector.clone());
        if spec.is_none() && self.spec.is_some() {
            tracing::warn!(pool = %self.source, "node source: the InferencePool was deleted, its nodes leave");
        }
        if selector(&spec) != selector(&self.spec) {
            let pods = || Api::<Pod>::namespaced(self.client.clone(), &self.place.namespace);
            let labels = |spec: &PoolSpec| {
                let labels = spec.selector.match_labels.iter().map(|(name, value)| format!("{name}={value}"));
                watcher::Config::default().labels(&labels.collect::<Vec<_>>().join(","))
            };
            self.pods = spec.as_ref().map(|spec| ObjectWatch::new(pods(), labels(spec)));
        }
        self.has_been |= spec.is_some();
        self.spec = spec;
        Ok(())
    }
}

fn spec(pool: &DynamicObject) -> Result<PoolSpec, WatchError> {
    let spec = pool.data.get("spec").cloned().unwrap_or_default();
    let spec: PoolSpec = serde_json::from_value(spec).map_err(|error| WatchError::Pool(error.to_string()))?;
    if spec.selector.match_labels.is_empty() || spec.target_ports.is_empty() {
        return Err(WatchError::Pool("spec has no selector.matchLabels or no targetPorts".to_owned()));
    }
    Ok(spec)
}

/// Returns the ready pods at the ports of the pool.
fn nodes<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    spec: &PoolSpec,
    source: &Discover,
) -> Result<Vec<NodeEntry>, WatchError> {
    let mut nodes = Vec::new();
    for pod in pods.filter(|pod| is_ready(pod)) {
        let ip = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse::<IpAddr>().ok());
        let Some(ip) = ip else { continue };
        for TargetPort { number } in &spec.target_ports {
            let pod = pod.name_any();
            let name = if spec.target_ports.len() == 1 { pod } else { format!("{pod}:{number}") };
            nodes.push(source.entry(&name, SocketAddr::new(ip, *number).to_string(), source.weight));
        }
    }
    if nodes.len() > NODES_MAX { Err(WatchError::TooMany) } else { Ok(nodes) }
}

/// Whether the pod takes requests: it is ready and does not terminate.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && ready.is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ip: Option<&str>, ready: &str, terminates: bool) -> Pod {
        let deleted = terminates.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": { "name": name, "deletionTimestamp": deleted },
            "status": { "podIP": ip, "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .expect("a pod")
    }

    fn pool(spec: &serde_json::Value) -> Result<PoolSpec, String> {
        let object = json!({
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
            "metadata": { "name": "llama" }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        super::spec(&object).map_err(|error| error.to_string())
    }

    #[test]
    fn ready_pods_are_nodes_at_each_target_port() {
        let pods = [
            pod("a", Some("10.0.0.1"), "True", false),
            pod("b", Some("10.0.0.2"), "False", false),
            pod("c", Some("fd00::3"), "True", false),
            pod("d", Some("10.0.0.4"), "True", true),
            pod("e", None, "True", false),
        ];
        let source = crate::config::discover_of("inference_pool = \"default/llama\"").expect("a source");
        let listed = |ports: &[u16]| {
            let ports: Vec<_> = ports.iter().map(|number| json!({ "number": number })).collect();
            let spec =
                pool(&json!({ "selector": { "matchLabels": { "app": "llama" } }, "targetPorts": ports }));
            let nodes = nodes(pods.iter(), &spec.expect("a spec"), &source).expect("nodes");
            nodes.iter().map(|node| format!("{} {}", node.spec.name, node.address)).collect::<Vec<_>>()
        };
        assert_eq!(listed(&[8000]), ["a 10.0.0.1:8000", "c [fd00::3]:8000"]);
        assert_eq!(
            listed(&[1, 2]),
            ["a:1 10.0.0.1:1", "a:2 10.0.0.1:2", "c:1 [fd00::3]:1", "c:2 [fd00::3]:2"]
        );
    }

    #[test]
    fn a_pool_that_cannot_be_read_is_an_error() {
        let selector = json!({ "matchLabels": { "app": "a" } });
        for spec in [
            json!({}),
            json!({ "selector": selector, "targetPorts": [] }),
            json!({ "selector": selector, "targetPorts": [{ "number": 70_000 }] }),
            json!({ "selector": { "matchLabels": {} }, "targetPorts": [{ "number": 1 }] }),
        ] {
            let error = pool(&spec).expect_err("it cannot be used");
            assert!(error.starts_with("the InferencePool cannot be used: "), "{error}");
        }
    }
}
