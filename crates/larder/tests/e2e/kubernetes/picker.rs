//! An endpoint picker with the rights that its manifest gives it, in a real API server.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::api_server::{ApiServer, objects};
use crate::http::get;
use crate::process::{Process, until};

/// The manifest of a picker.
pub fn manifest() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/picker.yaml");
    fs::read_to_string(path).unwrap()
}

/// Applies the manifest except the deployment, and returns the config of the picker that the manifest has. It is changed to run here:
/// with other addresses, without peers, and with the access of the service account.
pub fn deploy(api: &ApiServer) -> String {
    let text = manifest();
    let mut config = None;
    for object in objects(&text) {
        if object["kind"] == "ConfigMap" {
            config = object["data"]["larder.toml"].as_str().map(str::to_owned);
        }
        if object["kind"] != "Deployment" {
            api.apply_text(&object.to_string(), "default");
        }
    }
    let config = config.expect("a config");
    let (picker, rest) = config.split_once("[picker.peers]").expect("peers");
    let admin = rest.split_once("[admin]").expect("an admin interface").1;
    let kubeconfig = api.kubeconfig_of("larder-picker");
    format!("{picker}kubeconfig = {kubeconfig:?}\n[admin]{admin}")
        .replace("0.0.0.0:9002", "127.0.0.1:0")
        .replace("0.0.0.0:9900", "127.0.0.1:0")
}

/// Starts a picker with a config.
pub fn start(folder: &Path, config: &str) -> Process {
    let path = write(folder, config);
    Process::start(&["picker", "--config", path.to_str().unwrap()])
}

fn write(folder: &Path, config: &str) -> PathBuf {
    let path = folder.join("picker.toml");
    fs::write(&path, config).unwrap();
    path
}

pub fn page(picker: &Process, path: &str) -> Value {
    let reply = get(picker.admin.unwrap(), path);
    serde_json::from_slice(&reply.body).unwrap_or_else(|error| panic!("{path}: {error}: {reply:?}"))
}

/// Waits until the picker knows exactly these endpoints.
pub fn until_endpoints(picker: &Process, expected: &[&str]) {
    let known = || {
        let status = page(picker, "/status");
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let open = nodes.into_iter().filter(|node| !node["address"].is_null());
        let text = |node: &Value, key: &str| node[key].as_str().unwrap_or_default().to_owned();
        let mut all: Vec<String> =
            open.map(|node| format!("{} {}", text(&node, "name"), text(&node, "address"))).collect();
        all.sort();
        all
    };
    until(std::fmt::from_fn(|f| write!(f, "{expected:?}, not {:?}", known())), || {
        (known() == expected).then_some(())
    });
}

/// Returns the error of the only source of endpoints.
fn source_error(picker: &Process) -> Option<String> {
    let sources = page(picker, "/discovery")["sources"].as_array().cloned().unwrap_or_default();
    let source = sources
        .into_iter()
        .find(|source| source["source"].as_str().is_some_and(|name| name.starts_with("inference_pool")));
    source?["error"].as_str().map(str::to_owned)
}

fn healthz(picker: &Process) -> u16 {
    get(picker.admin.unwrap(), "/healthz").status
}

#[test]
fn the_picker_follows_the_pods_of_a_pool() {
    let Some(api) = ApiServer::start() else { return };
    let config = deploy(&api);
    let picker = start(api.folder(), &config);
    until("it is ready without endpoints", || (healthz(&picker) == 200).then_some(()));
    api.put_pod("store", "a", "10.1.0.1", true);
    api.put_pod("store", "b", "10.1.0.2", false);
    api.put_pod("other", "c", "10.1.0.3", true);
    until_endpoints(&picker, &["a 10.1.0.1:8000"]);
    api.put_pod("store", "b", "10.1.0.2", true);
    until_endpoints(&picker, &["a 10.1.0.1:8000", "b 10.1.0.2:8000"]);
    // A pod that fails its probe, one that terminates, and one that is deleted get no more requests.
    api.put_pod("store", "a", "10.1.0.1", false);
    until_endpoints(&picker, &["b 10.1.0.2:8000"]);
    api.put_pod("store", "a", "10.1.0.1", true);
    until_endpoints(&picker, &["a 10.1.0.1:8000", "b 10.1.0.2:8000"]);
    api.terminate_pod("b");
    until_endpoints(&picker, &["a 10.1.0.1:8000"]);
    api.delete("v1", "Pod", "b");
    // A pod of a StatefulSet returns with another address.
    api.delete("v1", "Pod", "a");
    until_endpoints(&picker, &[]);
    api.put_pod("store", "a", "10.1.0.9", true);
    until_endpoints(&picker, &["a 10.1.0.9:8000"]);
    // The pool gets another selector, more ports, and is deleted and made again.
    let pool = |app: &str, ports: &[u16]| {
        let ports: Vec<Value> = ports.iter().map(|number| json!({ "number": number })).collect();
        let pool = json!({
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": { "name": "store" },
            "spec": {
                "selector": { "matchLabels": { "app": app } }, "targetPorts": ports,
                "endpointPickerRef": { "name": "larder-picker", "port": { "number": 9002 } },
            },
        });
        api.apply_text(&pool.to_string(), "default");
    };
    pool("other", &[8000]);
    until_endpoints(&picker, &["c 10.1.0.3:8000"]);
    pool("other", &[8000, 8001]);
    until_endpoints(&picker, &["c:8000 10.1.0.3:8000", "c:8001 10.1.0.3:8001"]);
    api.delete("inference.networking.k8s.io/v1", "InferencePool", "store");
    until_endpoints(&picker, &[]);
    assert_eq!(healthz(&picker), 200, "the picker replies 503 to requests itself");
    pool("store", &[8000]);
    until_endpoints(&picker, &["a 10.1.0.9:8000"]);
    assert_eq!(source_error(&picker), None);
    let explained = page(&picker, "/explain?target=www.example.org/a");
    assert_eq!(explained["endpoint"], "10.1.0.9:8000", "{explained}");
    assert!(picker.terminate().success());
}

/// A service account without the role, and a pool that does not exist, are reported with the remedy.
#[test]
fn missing_rights_and_a_missing_pool_are_reported() {
    let Some(api) = ApiServer::start() else { return };
    let config = deploy(&api);
    api.delete("inference.networking.k8s.io/v1", "InferencePool", "store");
    let picker = start(api.folder(), &config);
    until("the pool is missing", || {
        source_error(&picker)
            .filter(|error| error == "the InferencePool does not exist: create it, or correct inference_pool")
    });
    assert_eq!(healthz(&picker), 503, "the endpoints are not known");
    api.apply_text(
        r#"{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}"#,
        "default",
    );
    let stranger = api.kubeconfig_of("stranger");
    let config = config.replace("larder-picker.kubeconfig", "stranger.kubeconfig");
    assert!(config.contains(stranger.to_str().unwrap()), "{config}");
    let refused = start(api.folder(), &config);
    until("the refusal is reported", || {
        source_error(&refused).filter(|error| error.contains("403 Forbidden") && error.contains("stranger"))
    });
    assert_eq!(healthz(&refused), 503);
}

/// The EndpointSlices of a service are endpoints too.
#[test]
fn endpoints_may_be_those_of_a_service() {
    let Some(api) = ApiServer::start() else { return };
    let slice = |ready: &[(&str, &str, bool)]| {
        let endpoints: Vec<Value> = ready
            .iter()
            .map(|(pod, address, ready)| {
                json!({
                    "addresses": [address], "conditions": { "ready": ready },
                    "targetRef": { "kind": "Pod", "name": pod, "namespace": "default" },
                })
            })
            .collect();
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "store-1", "labels": { "kubernetes.io/service-name": "store" } },
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "http", "port": 8080 }],
        });
        api.apply_text(&slice.to_string(), "default");
    };
    slice(&[("a", "10.1.0.1", true), ("b", "10.1.0.2", false)]);
    let kubeconfig = api.admin_kubeconfig();
    let config = format!(
        "[picker]\nlisten = \"127.0.0.1:0\"\n[[picker.discover]]\nkubernetes = \"default/store:http\"\n\
         kubeconfig = {kubeconfig:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let picker = start(api.folder(), &config);
    until_endpoints(&picker, &["a 10.1.0.1:8080"]);
    slice(&[("a", "10.1.0.1", true), ("b", "10.1.0.2", true)]);
    until_endpoints(&picker, &["a 10.1.0.1:8080", "b 10.1.0.2:8080"]);
    slice(&[("b", "10.1.0.2", true)]);
    until_endpoints(&picker, &["b 10.1.0.2:8080"]);
    api.delete("discovery.k8s.io/v1", "EndpointSlice", "store-1");
    until_endpoints(&picker, &[]);
}
