//! Routes, classes, keys, groups, signals and routing tables of a running switch.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

use crate::http::{Client, ask, get};
use crate::process::{Process, until};

const TARGETS: usize = 40;

/// Writes a manifest of targets in several directories, each with two queries.
fn manifest(folder: &Path) -> PathBuf {
    let mut text = String::new();
    for i in 0..TARGETS {
        for directory in ["/files", "/view", "/cgi-bin"] {
            for query in ["", "?id=1&x=1", "?id=1&x=2", "?id=2"] {
                writeln!(text, "500\t{directory}/{i}{query}").unwrap();
            }
        }
    }
    let path = folder.join("manifest.tsv");
    fs::write(&path, text).unwrap();
    path
}

/// Starts three nodes and a switch. `rest` is the rest of its config, in which NODES is replaced by the
/// nodes' addresses.
fn cluster(folder: &Path, rest: &str) -> (Vec<Process>, Process) {
    let manifest = manifest(folder);
    let names = ["a", "b", "c"];
    let nodes: Vec<Process> = names.map(|name| Process::model_node(name, "127.0.0.1:0", &manifest)).into();
    let mut text = rest.to_owned();
    for (name, node) in names.iter().zip(&nodes) {
        text = text.replace(&format!("{{{name}}}"), &node.address.to_string());
    }
    let config = folder.join("larder.toml");
    fs::write(&config, format!("[switch]\nlisten = \"127.0.0.1:0\"\n{text}")).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"]);
    (nodes, switch)
}

fn admin(switch: &Process, path: &str) -> Value {
    get(switch.admin.unwrap(), path).json()
}

fn explain(switch: &Process, question: &str) -> Value {
    admin(switch, &format!("/explain?target={question}"))
}

/// Checks that a JSON object has these texts.
fn assert_says(reply: &Value, expected: &[(&str, &str)]) {
    for (key, text) in expected {
        assert_eq!(reply[key].as_str(), Some(*text), "{key} of {reply:#}");
    }
}

/// Returns the node that answers.
fn node_of(switch: &Process, target: &str) -> String {
    let reply = get(switch.address, target);
    assert_eq!(reply.status, 200, "{target}");
    reply.node_and_hit().0
}

#[test]
fn routes_have_their_own_policy_nodes_keys_and_classes() {
    let folder = tempfile::tempdir().unwrap();
    let (_nodes, switch) = cluster(
        folder.path(),
        r#"
policy = "hacc"
nodes = [
  { name = "a", address = "{a}", groups = ["files"] },
  { name = "b", address = "{b}", groups = ["dynamic"] },
  { name = "c", address = "{c}", groups = ["dynamic"] },
]
signals = { source = "larder", period = "20ms" }

[[switch.routes]]
name = "mirror"
host = "mirror.example"
policy = "hash"
group = "files"

[[switch.routes]]
name = "views"
path = "/view/*"
key = "{path}?{query:id}"
policy = "lard"

[[switch.routes]]
name = "programs"
path = "/cgi-bin/*"
group = "dynamic"
policy = "cap"
classes = [
  { class = "dcb", header = { x-cost = "high*" } },
  { class = "cb", method = "POST" },
  { class = "db", path = "*" },
]
"#,
    );
    let mirror = explain(&switch, "mirror.example/files/1");
    assert_says(&mirror, &[("route", "mirror"), ("group", "files"), ("policy", "hash"), ("node", "a")]);
    assert_says(
        &explain(&switch, "localhost/view/1%3Fx=9%26id=1"),
        &[("route", "views"), ("policy", "lard"), ("key", "/view/1?id=1"), ("class", "n")],
    );
    let program = "localhost/cgi-bin/1";
    assert_says(&explain(&switch, program), &[("route", "programs"), ("class", "db"), ("policy", "cap")]);
    assert_says(&explain(&switch, &format!("{program}&method=POST")), &[("class", "cb"), ("method", "POST")]);
    let costly = explain(&switch, &format!("{program}&method=POST&header=X-Cost:high-2"));
    assert_says(&costly, &[("class", "dcb")]);
    assert_says(&explain(&switch, "localhost/files/1"), &[("route", "default"), ("policy", "hacc")]);

    for i in 0..TARGETS {
        // The key ignores the rest of the query, so both are one target.
        let first = node_of(&switch, &format!("/view/{i}?id=1&x=1"));
        assert_eq!(node_of(&switch, &format!("/view/{i}?id=1&x=2")), first, "{i}");
        assert!(["b", "c"].contains(&&*node_of(&switch, &format!("/cgi-bin/{i}"))), "{i}");
        assert_eq!(node_of(&switch, &format!("/files/{i}")).len(), 1);
    }
    let routes = admin(&switch, "/routes");
    let names: Vec<&str> = routes.as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "mirror", "views", "programs"]);
    assert_eq!(routes[2]["requests"], serde_json::json!([2 * TARGETS, 0, 0, 0]), "views are of class n");
    assert_eq!(routes[3]["requests"], serde_json::json!([0, TARGETS, 0, 0]), "programs are of class db");
    assert_eq!((routes[3]["nodes_up"].as_u64(), &routes[3]["table"]), (Some(2), &Value::Null));
    let told = |node: &Value| node["report"].is_object();
    until("every node has reported", || {
        admin(&switch, "/nodes").as_array().unwrap().iter().all(told).then_some(())
    });
    let nodes = admin(&switch, "/nodes");
    assert_eq!(nodes[1]["groups"], serde_json::json!(["dynamic"]));
    let wrong = ask(switch.admin.unwrap(), "POST", "/routes/views/table/reload", "");
    assert_eq!(wrong.status, 404, "lard goes by no table");
}

/// Returns a table that assigns all files to the node of this number.
fn table(owner: &str) -> String {
    let rows: Vec<String> = (0..TARGETS).map(|i| format!("{owner} /files/{i}")).collect();
    format!(
        "larder-routes 1\n{{\"nodes\":3,\"names\":[\"c\",\"b\",\"a\"],\"memory_per_node_bytes\":1,\"costs\":{{\
         \"forward_us\":1.0,\"disk_us_per_byte\":1.0,\"origin\":\"x\"}},\"log\":\"-\",\"log_first_ns\":null,\
         \"log_last_ns\":null,\"log_requests\":9,\"core_targets\":0,\"core_bytes\":0,\
         \"partition_targets\":{TARGETS},\"local_share\":1.0}}\n{}\nend {TARGETS}\n",
        rows.join("\n")
    )
}

/// Replaces a table file atomically, as `larder trace ward` does.
fn publish(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, path).unwrap();
}

/// Requests files until stopped, and counts the replies.
fn traffic(switch: SocketAddr, stop: &AtomicBool, answered: &AtomicUsize) {
    let mut client = Client::connect(switch).unwrap();
    for i in (0..TARGETS).cycle() {
        if stop.load(Relaxed) {
            return;
        }
        assert_eq!(client.ask("GET", &format!("/files/{i}"), "").unwrap().status, 200, "none is lost");
        answered.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_routing_table_is_replaced_under_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let routes = folder.path().join("www.routes");
    publish(&routes, &table("2"));
    let nodes = "nodes = [\n{ name = \"a\", address = \"{a}\" },\n{ name = \"b\", address = \"{b}\" },\n\
                 { name = \"c\", address = \"{c}\" },\n]\n";
    let ward = format!(
        "policy = \"ward\"\n[switch.policies.ward]\ntable = \"{}\"\nhost = \"localhost\"\n",
        routes.display()
    );
    let (_nodes, switch) = cluster(folder.path(), &format!("{nodes}{ward}"));
    let owner = || explain(&switch, "localhost/files/7")["node"].as_str().unwrap().to_owned();
    assert_eq!(owner(), "a", "nodes are found by their names");
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..3).map(|_| scope.spawn(|| traffic(switch.address, &stop, &answered))).collect();
        until("requests flow", || (answered.load(Relaxed) > 100).then_some(()));
        publish(&routes, &table("1"));
        until("the file is noticed", || (owner() == "b").then_some(()));
        assert_eq!(node_of(&switch, "/files/7"), "b");
        // An invalid table is refused with its line, and the previous one stays in force.
        publish(&routes, &table("1").replace("1 /files/3\n", "9 /files/3\n"));
        let refused = ask(switch.admin.unwrap(), "POST", "/routes/default/table/reload", "");
        assert_eq!(refused.status, 409);
        assert!(refused.json()["error"].as_str().unwrap().contains("www.routes:6: "), "{}", refused.json());
        assert_eq!((owner().as_str(), node_of(&switch, "/files/7").as_str()), ("b", "b"));
        assert!(admin(&switch, "/routes")[0]["table"]["error"].is_string());
        publish(&routes, &table("0"));
        let taken = ask(switch.admin.unwrap(), "POST", "/routes/default/table/reload", "");
        assert_eq!((taken.status, owner().as_str()), (200, "c"));
        let before = answered.load(Relaxed);
        until("requests go on", || (answered.load(Relaxed) > before + 100).then_some(()));
        stop.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    let nodes = admin(&switch, "/nodes");
    let failed = |node: &Value| node["requests"][4].as_u64().unwrap() + node["aborted"].as_u64().unwrap();
    assert!(nodes.as_array().unwrap().iter().all(|node| failed(node) == 0), "{nodes:#}");
}

#[test]
fn a_routing_table_comes_from_the_switch_s_own_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let rest = "nodes = [\"{a}\", \"{b}\", \"{c}\"]\npolicy = \"ward\"\n[switch.policies.ward]\nrefresh = \"24h\"\nmemory = 4000\n";
    let (_nodes, switch) = cluster(folder.path(), rest);
    let refresh = || ask(switch.admin.unwrap(), "POST", "/routes/default/table/refresh", "");
    let early = refresh();
    assert_eq!(early.status, 409, "nothing was asked for");
    for round in 0..6 {
        for i in 0..TARGETS >> round {
            get(switch.address, &format!("/files/{i}"));
        }
    }
    let made =
        until("the requests are counted", || Some(refresh()).filter(|reply| reply.status == 200)).json();
    let count = |key: &str| made[key].as_u64().unwrap();
    assert!(count("core_targets") + count("partition_targets") > 0, "{made:#}");
    assert_says(&admin(&switch, "/routes")[0]["table"], &[("from", "traffic")]);
    // A target in the core or a new target goes to any node. Other targets have an owner.
    let reason = |target: &str| explain(&switch, target)["reason"].as_str().unwrap().to_owned();
    let owned = (0..TARGETS).filter(|i| reason(&format!("localhost/files/{i}")) == "owner").count();
    assert_eq!(owned as u64, count("partition_targets"), "{made:#}");
    assert_eq!(reason("localhost/never/asked"), "least_loaded");
    let reload = ask(switch.admin.unwrap(), "POST", "/routes/default/table/reload", "");
    assert_eq!(reload.status, 409, "there is no file");
}
