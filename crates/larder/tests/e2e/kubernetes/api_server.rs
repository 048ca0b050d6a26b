//! A real API server: kube-apiserver with etcd, both from `scripts/setup.sh test`. There are no controllers and no kubelets, so the
//! tests make pods and their states themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use larder_testkit::{Authority, eventually_within, free_port, write_secret};
use rcgen::{DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub use crate::acme::tool;

/// Time for the API server to start on a machine whose processors are busy.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// The field manager of changes.
const MANAGER: &str = "larder-tests";

/// A process that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the store of the API server in a folder. Returns its URL too.
fn start_etcd(program: &Path, folder: &Path) -> (Server, String) {
    let (store, peers) = [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}")).into();
    let log = |name: &str| fs::File::create(folder.join(name)).unwrap();
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(folder.join("etcd")).arg("--unsafe-no-fsync");
    for (option, value) in [
        ("--listen-client-urls", &store),
        ("--advertise-client-urls", &store),
        ("--listen-peer-urls", &peers),
    ] {
        command.args([option, value]);
    }
    command.stdin(Stdio::null()).stdout(log("etcd.out")).stderr(log("etcd.log"));
    (Server(command.spawn().unwrap()), store)
}

pub struct ApiServer {
    // Dropped in this order: clients, then the API server, then its store, then the files of both.
    client: Client,
    runtime: Runtime,
    api: Server,
    _etcd: Server,
    folder: TempDir,
    address: String,
    authority: Authority,
}

impl ApiServer {
    /// Starts the API server with the definition of InferencePool. Returns `None` if the test is skipped.
    pub fn start() -> Option<Self> {
        let (etcd, api) = (tool("etcd")?, tool("kube-apiserver")?);
        let pool = fs::read_to_string(tool("inference-pool.yaml")?).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let log = |name: &str| fs::File::create(folder.path().join(name)).unwrap();
        let (etcd, store) = start_etcd(&etcd, folder.path());
        let port = free_port();
        let server = authority.leaf_with("127.0.0.1", "server.pem", |params| {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        });
        let admin = authority.leaf_with("admin", "admin.pem", |params| {
            params.distinguished_name.push(DnType::OrganizationName, "system:masters");
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        });
        let accounts = folder.path().join("accounts.key");
        let (pair, public) = (KeyPair::generate().unwrap(), folder.path().join("accounts.pub"));
        write_secret(&accounts, &pair.serialize_pem());
        fs::write(&public, pair.public_key_pem()).unwrap();
        let mut command = Command::new(api);
        for (option, value) in [
            ("--etcd-servers", store.as_ref()),
            ("--bind-address", Path::new("127.0.0.1")),
            ("--secure-port", port.to_string().as_ref()),
            ("--cert-dir", folder.path()),
            ("--tls-cert-file", &server),
            ("--tls-private-key-file", &server),
            ("--client-ca-file", &authority.ca()),
            ("--authorization-mode", Path::new("RBAC")),
            ("--service-account-issuer", Path::new("https://127.0.0.1")),
            ("--service-account-key-file", &public),
            ("--service-account-signing-key-file", &accounts),
            ("--service-cluster-ip-range", Path::new("10.96.0.0/24")),
            // There is no controller that makes the accounts of namespaces.
            ("--disable-admission-plugins", Path::new("ServiceAccount")),
        ] {
            command.arg(option).arg(value);
        }
        let api = Server(
            command.stdin(Stdio::null()).stdout(log("api.out")).stderr(log("api.log")).spawn().unwrap(),
        );
        let address = format!("https://127.0.0.1:{port}");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = kubeconfig(
            &address,
            &authority.ca(),
            &json!({ "client-certificate": admin, "client-key": admin }),
        );
        let client = runtime.block_on(client(&config));
        let mut started = Self { client, runtime, api, _etcd: etcd, folder, address, authority };
        let log = started.folder.path().join("api.log");
        let told = std::fmt::from_fn(|f| {
            let text = fs::read_to_string(&log).unwrap_or_default();
            write!(f, "the API server is ready: {}", text.lines().last().unwrap_or_default())
        });
        eventually_within(START_TIMEOUT, &told, || {
            assert!(started.api.0.try_wait().unwrap().is_none(), "the API server has ended: {told}");
            let ready = started.runtime.block_on(started.client.request_text(get("/readyz")));
            ready.ok().filter(|text| text == "ok")
        });
        started.apply_text(&pool, "default");
        eventually_within(START_TIMEOUT, "InferencePool is defined", || {
            let path = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools";
            started.runtime.block_on(started.client.request_text(get(path))).ok()
        });
        Some(started)
    }

    /// Writes a kubeconfig with the rights of a service account, and returns its path.
    pub fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let body = http::Request::post(path).header("content-type", "application/json");
        let body = body.body(request.to_string().into_bytes()).unwrap();
        let made: Value = self.runtime.block_on(self.client.request(body)).unwrap();
        self.write_kubeconfig(account, &json!({ "token": made["status"]["token"] }))
    }

    /// Writes a kubeconfig with all rights, and returns its path.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        let admin = self.authority.path().join("admin.pem");
        self.write_kubeconfig("admin", &json!({ "client-certificate": admin, "client-key": admin }))
    }

    fn write_kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        fs::write(&path, kubeconfig(&self.address, &self.authority.ca(), user).to_string()).unwrap();
        path
    }

    /// Applies all objects of a text in YAML. Objects without a namespace are put into `namespace`.
    pub fn apply_text(&self, text: &str, namespace: &str) {
        for object in objects(text) {
            self.apply(&object, namespace, false).unwrap_or_else(|error| panic!("{error}: {object}"));
        }
    }

    /// Lets the server check all objects of a text in YAML, and changes nothing. Unknown fields are errors.
    pub fn dry_run(&self, text: &str, namespace: &str) {
        for object in objects(text) {
            self.apply(&object, namespace, true).unwrap_or_else(|error| panic!("{error}: {object}"));
        }
    }

    fn apply(&self, object: &Value, namespace: &str, dry_run: bool) -> kube::Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut parameters = PatchParams::apply(MANAGER).force().validation_strict();
        parameters.dry_run = dry_run;
        self.runtime.block_on(async {
            let api = self.api(object, namespace).await?;
            api.patch(name, &parameters, &Patch::Apply(object)).await.map(drop)
        })
    }

    pub fn delete(&self, version: &str, kind: &str, name: &str) {
        let object = json!({ "apiVersion": version, "kind": kind });
        // A pod without a kubelet would remain.
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.runtime
            .block_on(async { self.api(&object, "default").await?.delete(name, &now).await.map(drop) })
            .unwrap();
    }

    /// Returns the interface for objects of the kind of `object`.
    async fn api(&self, object: &Value, namespace: &str) -> kube::Result<Api<DynamicObject>> {
        let version = object["apiVersion"].as_str().unwrap();
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
        let (resource, capabilities): (ApiResource, _) =
            kube::discovery::pinned_kind(&self.client, &kind).await?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        Ok(match capabilities.scope {
            kube::discovery::Scope::Namespaced => {
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
            kube::discovery::Scope::Cluster => Api::all_with(self.client.clone(), &resource),
        })
    }

    /// Creates a pod with the label `app`, or changes whether it is ready.
    pub fn put_pod(&self, app: &str, name: &str, address: &str, ready: bool) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": app } },
            // Only a pod on a host terminates; any other is deleted at once.
            "spec": { "nodeName": "host", "containers": [{ "name": "server", "image": "server" }] },
        });
        self.apply(&pod, "default", false).unwrap();
        let ready = if ready { "True" } else { "False" };
        let status = json!({ "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": ready }],
        } });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        self.runtime
            .block_on(pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)))
            .unwrap();
    }

    /// Marks a pod as terminating, as `kubectl delete pod` does until the kubelet has ended it.
    pub fn terminate_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let graceful = DeleteParams { grace_period_seconds: Some(600), ..DeleteParams::default() };
        self.runtime.block_on(pods.delete(name, &graceful)).unwrap();
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

/// Returns a kubeconfig, which is JSON and therefore YAML.
fn kubeconfig(server: &str, ca: &Path, user: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": { "server": server, "certificate-authority": ca } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "users": [{ "name": "test", "user": user }],
    })
}

async fn client(config: &Value) -> Client {
    let config: Kubeconfig = serde_json::from_value(config.clone()).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Returns the objects of a text in YAML.
pub fn objects(text: &str) -> Vec<Value> {
    let parts = text.split("\n---");
    let values = parts.filter(|part| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '-']))
    });
    values
        .map(|part| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{error}: {part}")))
        .filter(|value: &Value| !value.is_null())
        .collect()
}

/// Returns the number of objects of each kind.
pub fn kinds(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for object in objects(text) {
        *found.entry(object["kind"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    found
}
