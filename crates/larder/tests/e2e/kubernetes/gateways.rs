//! A real Envoy asks a picker, and the pods of an InferencePool are replaced while clients send requests.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use larder_testkit::{eventually, free_port};
use serde_json::{Value, json};

use super::api_server::{ApiServer, tool};
use super::picker::{deploy, page, start, until_endpoints};
use crate::crowd::{Crowd, manifest};
use crate::hedge::{Behaviour, Node};
use crate::http::{Client, get};
use crate::origin::Origin;
use crate::process::{Process, until};
use crate::prompts_live::{chat, message, post, text};

const TYPE: &str = "type.googleapis.com";

/// A running Envoy.
struct Envoy {
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Envoy {
    /// Starts Envoy with external processing by a picker, and waits until it is ready.
    fn start(program: &Path, picker: std::net::SocketAddr, body_mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, admin) = (free_port(), free_port());
        let config = bootstrap((port, admin), picker.port(), body_mode, &folder.path().join("access.log"));
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(program);
        command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]);
        command.args(["--file-flush-interval-msec", "20", "--log-path"]).arg(folder.path().join("log"));
        command.arg("--config-path").arg(file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut envoy = Self { child, folder, port };
        let log = envoy.folder.path().join("log");
        let told = std::fmt::from_fn(|f| {
            write!(f, "Envoy is ready: {}", std::fs::read_to_string(&log).unwrap_or_default())
        });
        eventually(told, || {
            assert!(
                envoy.child.try_wait().unwrap().is_none(),
                "Envoy has ended: {:?}",
                std::fs::read_to_string(&log)
            );
            std::net::TcpStream::connect(("127.0.0.1", admin)).ok()?;
            (get(([127, 0, 0, 1], admin).into(), "/ready").status == 200).then_some(())
        });
        envoy
    }

    fn address(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    fn access_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }
}

/// Returns the config of Envoy, with the lines that docs/operate/picker.md shows.
fn bootstrap((port, admin): (u16, u16), picker: u16, body_mode: &str, log: &Path) -> Value {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/picker.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, lines) = guide.split_once("```yaml\n").expect("lines for Envoy");
    let (lines, _) = lines.split_once("```").expect("their end");
    let shown: Value = serde_saphyr::from_str(lines).unwrap_or_else(|error| panic!("{error}: {lines}"));
    let mut filter = shown["http_filters"][0].clone();
    for key in ["request_body_mode", "response_body_mode"] {
        filter["typed_config"]["processing_mode"][key] = body_mode.into();
    }
    if body_mode == "NONE" {
        for key in ["request_trailer_mode", "response_trailer_mode"] {
            filter["typed_config"]["processing_mode"][key] = "SKIP".into();
        }
    }
    let mut clusters = shown["clusters"].clone();
    let socket = &mut clusters[0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        ["socket_address"];
    *socket = json!({ "address": "127.0.0.1", "port_value": picker });
    clusters[0]["type"] = "STATIC".into();
    let address = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    json!({
        "admin": { "address": address(admin) },
        "static_resources": {
            "clusters": clusters,
            "listeners": [{
                "name": "requests", "address": address(port),
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": format!("{TYPE}/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                        "stat_prefix": "requests",
                        "http_filters": [filter, {
                            "name": "envoy.filters.http.router",
                            "typed_config": { "@type": format!("{TYPE}/envoy.extensions.filters.http.router.v3.Router") },
                        }],
                        "route_config": { "virtual_hosts": [{
                            "name": "all", "domains": ["*"],
                            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "endpoints" } }],
                        }] },
                        "access_log": [{
                            "name": "envoy.access_loggers.file",
                            "typed_config": {
                                "@type": format!("{TYPE}/envoy.extensions.access_loggers.file.v3.FileAccessLog"),
                                "path": log,
                                "log_format": { "text_format_source": {
                                    "inline_string": "%RESPONSE_CODE% %UPSTREAM_HOST% %DYNAMIC_METADATA(larder:reason)% %RESPONSE_CODE_DETAILS%\n",
                                } },
                            },
                        }],
                    },
                }] }],
            }],
        },
    })
}

/// Returns Envoy, or `None` if the test is skipped.
fn envoy() -> Option<std::path::PathBuf> {
    tool("envoy-1.40.0")
}

/// Clients send requests through Envoy while every pod is replaced. No request fails.
#[test]
fn no_request_fails_while_all_pods_are_replaced() {
    let (Some(program), Some(api)) = (envoy(), ApiServer::start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = manifest(folder.path());
    let port = free_port();
    let config = deploy(&api);
    // Loopback addresses are pods, all with the port of the pool.
    let pool = json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": { "name": "store" },
        "spec": {
            "selector": { "matchLabels": { "app": "store" } }, "targetPorts": [{ "number": port }],
            "endpointPickerRef": { "name": "larder-picker", "port": { "number": 9002 } },
        },
    });
    api.apply_text(&pool.to_string(), "default");
    let pod = |number: u8| {
        let (name, address) = (format!("pod-{number}"), format!("127.0.0.{number}"));
        let node = Process::model_node(&name, &format!("{address}:{port}"), &files);
        api.put_pod("store", &name, &address, true);
        (name, node)
    };
    let mut pods: Vec<(String, Process)> = (11..14).map(pod).collect();
    let picker = start(api.folder(), &config);
    let endpoints = |pods: &[(String, Process)]| {
        let mut all: Vec<String> =
            pods.iter().map(|(name, node)| format!("{name} {}", node.address)).collect();
        all.sort();
        all
    };
    let follow = |pods: &[(String, Process)]| {
        let expected = endpoints(pods);
        until_endpoints(&picker, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    follow(&pods);
    let envoy = Envoy::start(&program, picker.address, "FULL_DUPLEX_STREAMED");
    let crowd = Crowd::start(envoy.address());
    crowd.more(500);
    for number in 14..17 {
        // As a rolling update does: a new pod becomes ready, then an old one terminates, serves what it has, and ends.
        pods.push(pod(number));
        follow(&pods);
        crowd.more(200);
        let (name, node) = pods.remove(0);
        api.terminate_pod(&name);
        follow(&pods);
        // The picker names the pod no more. The pod completes the requests that it has.
        crowd.more(200);
        assert!(node.terminate().success(), "{name} ends in good order");
        api.delete("v1", "Pod", &name);
    }
    let seen = crowd.end();
    assert_eq!(seen.len(), 6, "{seen:?}");
    let status = until("all requests have ended", || {
        Some(page(&picker, "/status")).filter(|status| status["outstanding"] == 0 && status["streams"] == 0)
    });
    let requests = &status["requests"];
    assert_eq!(
        (&requests["complete"], &requests["no_endpoint"]),
        (&json!(seen.values().sum::<u64>()), &json!(0)),
        "{status}"
    );
    // Most requests are for a target that is known, and the access log has the reasons.
    assert!(
        envoy.access_log().contains(" local "),
        "{}",
        envoy.access_log().lines().take(3).collect::<String>()
    );
}

/// The picker's replies reach the client, and a header that the client sends does not choose an endpoint.
#[test]
fn envoy_passes_refusals_on_and_a_client_cannot_choose_an_endpoint() {
    let Some(program) = envoy() else { return };
    let folder = tempfile::tempdir().unwrap();
    let files = manifest(folder.path());
    let node = Process::model_node("a", "127.0.0.1:0", &files);
    for mode in ["FULL_DUPLEX_STREAMED", "BUFFERED", "STREAMED", "NONE"] {
        let list = folder.path().join("nodes.toml");
        std::fs::write(&list, format!("nodes = [\"{}\"]\n", node.address)).unwrap();
        let config = format!(
            "[picker]\nlisten = \"127.0.0.1:0\"\n[[picker.discover]]\nfile = {list:?}\nperiod = \"100ms\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
        );
        let picker = start(folder.path(), &config);
        let envoy = Envoy::start(&program, picker.address, mode);
        let mut client = Client::connect(envoy.address()).unwrap();
        let reply = client.ask("GET", "/t1", "x-gateway-destination-endpoint: 192.0.2.1:1\r\n").unwrap();
        assert_eq!((reply.status, reply.node_and_hit().0.as_str()), (200, "a"), "{mode}");
        until("the request has ended", || {
            (page(&picker, "/status")["requests"]["complete"] == 1).then_some(())
        });
        std::fs::write(&list, "nodes = []\n").unwrap();
        until_endpoints(&picker, &[]);
        let reply = client.ask("GET", "/t1", "").unwrap();
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{mode}");
        until("the log has the reason", || envoy.access_log().contains("larder_no_endpoint").then_some(()));
    }
}

/// Envoy waits for the endpoint while the picker reads the body, and sends the body on unchanged.
#[test]
fn envoy_sends_completions_where_their_prefix_is_cached() {
    let Some(program) = envoy() else { return };
    let folder = tempfile::tempdir().unwrap();
    let servers = ["a", "b", "c"].map(|name| Origin::start(name, ""));
    let nodes = servers.each_ref().map(|server| format!("\"{}\"", server.address)).join(", ");
    let config = format!(
        "[picker]\nlisten = \"127.0.0.1:0\"\nnodes = [{nodes}]\nprompts = {{ body_max = \"1MiB\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let picker = start(folder.path(), &config);
    let envoy = Envoy::start(&program, picker.address, "FULL_DUPLEX_STREAMED");
    let mut homes: Vec<Vec<String>> = vec![Vec::new(); 6];
    let mut conversations: Vec<Vec<Value>> = vec![Vec::new(); 6];
    for turn in 0..3 {
        for (user, messages) in conversations.iter_mut().enumerate() {
            // The last turn is larger than a piece of a body.
            messages.push(message("user", &text(&format!("user {user} turn {turn}"), 4 + 50 * turn)));
            let sent = chat(messages);
            let reply = post(envoy.address(), &sent);
            assert_eq!(reply.status, 200, "{}", reply.head);
            assert!(String::from_utf8_lossy(&reply.body).contains(&sent), "the body arrives as it was sent");
            homes[user].push(reply.header("x-origin").unwrap().to_owned());
        }
    }
    assert!(homes.iter().all(|homes| homes.iter().all(|home| *home == homes[0])), "{homes:?}");
    let used: std::collections::BTreeSet<&String> = homes.iter().flatten().collect();
    assert_eq!(used.len(), 3, "{homes:?}");
    for (body, status, code) in
        [("no json".to_owned(), 400, "no_prompt"), (text("long", 1_100), 413, "body_too_large")]
    {
        let reply = post(envoy.address(), &body);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (status, &json!(code)), "{}", reply.head);
    }
    let status = until("all requests have ended", || {
        Some(page(&picker, "/status")).filter(|status| status["outstanding"] == 0 && status["streams"] == 0)
    });
    assert_eq!(status["requests"]["complete"], 18, "{status}");
}

/// Envoy replies 503 if an endpoint breaks off. The picker tells that from a 503 of the endpoint itself.
#[test]
fn only_a_broken_connection_is_a_failure_of_the_endpoint() {
    let Some(program) = envoy() else { return };
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Node::start("a");
    endpoint.at("/busy", Behaviour::Reply(Duration::ZERO, endpoint.says("503 Busy", "")));
    endpoint.at("/broken", Behaviour::Close(Vec::new()));
    let config = format!(
        "[picker]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{}\"]\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        endpoint.address
    );
    let picker = start(folder.path(), &config);
    let envoy = Envoy::start(&program, picker.address, "FULL_DUPLEX_STREAMED");
    let mut client = Client::connect(envoy.address()).unwrap();
    for (at, (path, failures)) in [("/busy", 0), ("/broken", 1), ("/busy", 1)].into_iter().enumerate() {
        let reply = client.ask("GET", path, "").unwrap();
        assert_eq!(reply.status, 503, "{path}");
        let status = until("the request has ended", || {
            Some(page(&picker, "/status")).filter(|status| status["requests"]["complete"] == at + 1)
        });
        assert_eq!(status["nodes"][0]["failures"], failures, "{path}: {status}");
    }
}
