//! Nodes and endpoints in Kubernetes, with a real API server where there is one. In this file, a stub of the API server lists, watches,
//! expires versions and fails.

mod api_server;
mod charts;
mod gateways;
mod picker;
mod replicas;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::crowd::{Crowd, manifest};
use crate::discovery::{names, source, switch, until_nodes};
use crate::process::{Process, until};

const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const TOKEN: &str = "a-token";

/// The contents and the request counts of the API server.
#[derive(Default)]
struct Store {
    version: u64,
    slices: BTreeMap<String, Value>,
    /// Changes, each with its version.
    events: Vec<(u64, Value)>,
    /// Versions up to this one are expired.
    forgotten: u64,
    /// Whether watches send nothing.
    silent: bool,
    /// Whether every request is answered with 500.
    broken: bool,
    lists: u64,
    watches: Vec<TcpStream>,
    refused: u64,
    unauthorized: u64,
}

#[derive(Clone)]
struct Api(Arc<(Mutex<Store>, Condvar)>, SocketAddr);

impl Api {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Self(Arc::default(), listener.local_addr().unwrap());
        let serving = api.clone();
        // The thread ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let api = serving.clone();
                thread::spawn(move || api.serve(&stream.unwrap()));
            }
        });
        api
    }

    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let changed = change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
        changed
    }

    /// Stores a slice with one pod of this readiness.
    fn put(&self, pod: &str, address: SocketAddr, ready: bool) {
        self.change(|store| {
            store.version += 1;
            let name = format!("store-{pod}");
            let kind = if store.slices.contains_key(&name) { "MODIFIED" } else { "ADDED" };
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": name, "namespace": "default", "resourceVersion": store.version.to_string(),
                    "labels": { "kubernetes.io/service-name": "store" },
                },
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": [address.ip().to_string()], "conditions": { "ready": ready },
                    "targetRef": { "kind": "Pod", "name": pod, "namespace": "default" },
                }],
                "ports": [{ "name": "http", "port": address.port(), "protocol": "TCP" }],
            });
            store.slices.insert(name, slice.clone());
            store.events.push((store.version, json!({ "type": kind, "object": slice })));
        });
    }

    fn delete(&self, pod: &str) {
        self.change(|store| {
            store.version += 1;
            let mut slice = store.slices.remove(&format!("store-{pod}")).unwrap();
            slice["metadata"]["resourceVersion"] = store.version.to_string().into();
            store.events.push((store.version, json!({ "type": "DELETED", "object": slice })));
        });
    }

    /// Expires all versions, and breaks off all watches.
    fn forget(&self) {
        self.change(|store| {
            store.forgotten = store.version;
            store.events.clear();
            store.silent = false;
        });
        self.cut();
    }

    fn cut(&self) {
        self.change(|store| store.watches.drain(..).for_each(|watch| drop(watch.shutdown(Shutdown::Both))));
    }

    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        loop {
            let Ok(head) = larder_testkit::http::read_head(&mut reader) else { return };
            let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let authorized = head.to_ascii_lowercase().contains(&format!("authorization: bearer {TOKEN}"));
            let is_ours =
                path == PATH && query.contains("labelSelector=kubernetes.io%2Fservice-name%3Dstore");
            let broken = self.change(|store| {
                store.refused += u64::from(store.broken);
                store.unauthorized += u64::from(!authorized);
                store.broken
            });
            let said = if !authorized {
                reply(stream, 401, &status(401, "Unauthorized"))
            } else if broken {
                reply(stream, 500, &status(500, "InternalError"))
            } else if !is_ours {
                reply(stream, 404, &status(404, "NotFound"))
            } else if query.contains("watch=true") {
                let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
                self.watch(stream, from.and_then(|text| text.parse().ok()).unwrap_or(0))
            } else {
                let list = self.change(|store| {
                    store.lists += 1;
                    json!({
                        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList",
                        "metadata": { "resourceVersion": store.version.to_string() },
                        "items": store.slices.values().collect::<Vec<_>>(),
                    })
                });
                reply(stream, 200, &list)
            };
            if said.is_err() {
                return;
            }
        }
    }

    /// Sends the changes since a version, and continues until the connection breaks. Ends at once if the
    /// version is expired.
    fn watch(&self, mut stream: &TcpStream, from: u64) -> std::io::Result<()> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes())?;
        let mut told = from;
        let (store, news) = &*self.0;
        let mut store = store.lock().unwrap();
        store.watches.push(stream.try_clone().unwrap());
        loop {
            store = news.wait_while(store, |store| store.silent).unwrap();
            let gone = told < store.forgotten;
            let events: Vec<Value> = if gone {
                vec![json!({ "type": "ERROR", "object": status(410, "Expired") })]
            } else {
                store
                    .events
                    .iter()
                    .filter(|(version, _)| *version > told)
                    .map(|(_, event)| event.clone())
                    .collect()
            };
            told = store.version;
            for event in events {
                let line = format!("{event}\n");
                write!(stream, "{:x}\r\n{line}\r\n", line.len())?;
            }
            if gone {
                return stream.write_all(b"0\r\n\r\n");
            }
            store = news.wait_timeout(store, Duration::from_secs(60)).unwrap().0;
            // A broken connection is noticed at the next write.
        }
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": format!("the stub says {reason}"),
    })
}

fn reply(mut stream: &TcpStream, code: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} Whatever\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn kubeconfig(folder: &Path, api: SocketAddr, token: &str) -> String {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters: [{{name: test, cluster: {{server: \"http://{api}\"}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\nusers: [{{name: test, user: {{token: {token}}}}}]\n"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn nodes_come_and_go_with_the_pods_of_a_service() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let names_of = ["a", "b", "c", "d"];
    let nodes = names_of.map(|name| Process::model_node(name, "127.0.0.1:0", &manifest));
    let api = Api::start();
    let put = |number: usize, ready: bool| api.put(names_of[number], nodes[number].address, ready);
    put(0, true);
    put(1, true);
    let kubeconfig = kubeconfig(folder.path(), api.1, TOKEN);
    let switch = switch(
        folder.path(),
        &format!(
            "[[switch.discover]]\nkubernetes = \"default/store:http\"\nkubeconfig = {kubeconfig:?}\nhold = \"0s\"\n"
        ),
    );
    assert_eq!(names(&switch), ["a", "b"], "listed before the switch is ready");
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    // The watch reports that a pod joins, another becomes unready, and another leaves.
    put(2, true);
    until_nodes(&switch, &["a", "b", "c"]);
    put(0, false);
    until_nodes(&switch, &["b", "c"]);
    put(0, true);
    until_nodes(&switch, &["a", "b", "c"]);
    api.delete("c");
    until_nodes(&switch, &["a", "b"]);
    crowd.more(200);
    // The watch breaks off. The next watch reports the changes meanwhile.
    let lists = api.change(|store| store.lists);
    api.cut();
    put(3, true);
    until_nodes(&switch, &["a", "b", "d"]);
    assert_eq!(api.change(|store| store.lists), lists, "nothing is listed anew for that");
    crowd.more(200);
    // The version is expired (410). The client lists again and notices the removed pods.
    api.change(|store| store.silent = true);
    api.delete("a");
    put(2, true);
    api.forget();
    until_nodes(&switch, &["b", "c", "d"]);
    assert!(api.change(|store| store.lists) > lists);
    crowd.more(200);
    // The server fails. Nothing changes, and the error is shown.
    api.change(|store| store.broken = true);
    api.cut();
    put(0, true);
    until("the failure is shown", || {
        source(&switch, "kubernetes default/store:http")["error"].as_str().filter(|e| !e.is_empty()).map(drop)
    });
    assert_eq!(names(&switch), ["b", "c", "d"]);
    crowd.more(200);
    api.change(|store| store.broken = false);
    until_nodes(&switch, &["a", "b", "c", "d"]);
    assert!(source(&switch, "kubernetes ")["error"].is_null());
    crowd.more(200);
    let seen = crowd.end();
    for name in names_of {
        assert!(seen.get(name).is_some_and(|count| *count > 0), "{name} has served: {seen:?}");
    }
    assert_eq!(api.change(|store| store.unauthorized), 0);
}

/// A switch without permission and a switch without endpoints start and report the problem.
#[test]
fn a_refusal_of_the_server_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::start();
    let file = kubeconfig(folder.path(), api.1, "another-token");
    let lines = format!("[[switch.discover]]\nkubernetes = \"default/store:http\"\nkubeconfig = {file:?}\n");
    let refused = switch(folder.path(), &lines);
    let error = source(&refused, "kubernetes ")["error"].as_str().unwrap().to_owned();
    assert_eq!(error, "the API server replied with 401 Unauthorized: the stub says Unauthorized");
    assert_eq!(names(&refused), [""; 0]);
    drop(refused);
    fs::remove_file(&file).unwrap();
    let config = folder.path().join("none.toml");
    fs::write(&config, format!("[switch]\nlisten = \"127.0.0.1:0\"\n{lines}")).unwrap();
    let said = std::process::Command::new(crate::process::LARDER)
        .args(["switch", "--one-process", "--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("switch.discover[0].kubeconfig: ") && said.contains("does not exist"), "{said}");
}
