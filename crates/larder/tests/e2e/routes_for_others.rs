//! `larder trace routes`: HAProxy and nginx with a routing table.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use assert_cmd::assert::OutputAssertExt as _;
use larder_core::policy::table::Place;
use larder_testkit::needs_tool;
use larder_trace::Limits;
use larder_trace::ward::for_each_route;

use crate::http::{Client, get};
use crate::peers::free_port;
use crate::process::{LARDER, Process, until};

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Four targets of the core and some of each node, with names that contain special characters of the proxies'
/// configs.
const ROWS: [(&str, &str); 9] = [
    ("core", "/index.html"),
    ("core", "/logo.png"),
    ("0", "/files/a%20b?x=1&y=$host"),
    ("1", "/~user/{page}"),
    ("2", "/say\"so\""),
    ("0", "/back\\slash"),
    ("1", "/files/1;v=2"),
    ("2", "/files/1"),
    ("0", "/files/1?"),
];

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn table(folder: &Path) -> String {
    let header = format!(
        "{{\"nodes\":3,\"names\":[\"a\",\"b\",\"c\"],\"memory_per_node_bytes\":1000000,\"costs\":{{\"forward_us\":138.0,\
         \"disk_us_per_byte\":0.1,\"origin\":\"test\"}},\"log\":\"a\\nlog\",\"log_first_ns\":null,\"log_last_ns\":null,\
         \"log_requests\":100,\"core_targets\":2,\"core_bytes\":2000,\"partition_targets\":{},\"local_share\":0.5}}",
        ROWS.len() - 2
    );
    let rows: String = ROWS.iter().map(|(place, name)| format!("{place} {name}\n")).collect();
    let path = folder.join("t.routes");
    fs::write(&path, format!("larder-routes 1\n{header}\n{rows}end {}\n", ROWS.len())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn nodes(folder: &Path) -> (Vec<Process>, String) {
    let mut manifest: String = ROWS.iter().map(|(_, name)| format!("500\t{name}\n")).collect();
    manifest.push_str("500\t/elsewhere\n");
    let path = folder.join("manifest.tsv");
    fs::write(&path, manifest).unwrap();
    let nodes = NAMES.map(|name| Process::model_node(name, "127.0.0.1:0", &path));
    let addresses: Vec<String> =
        NAMES.iter().zip(&nodes).map(|(name, node)| format!("{name}={}", node.address)).collect();
    (nodes.into(), addresses.join(","))
}

fn routes(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::new(LARDER).args(["trace", "routes"]).args(arguments).assert()
}

/// Checks that a proxy sends every target to the node in the table and others to any node. A dead owner's
/// targets must go to another node.
fn check_proxy(proxy: &str, run: impl FnOnce(&Path) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let (mut nodes, addresses) = nodes(folder.path());
    let listen = format!("127.0.0.1:{}", free_port());
    let (table, output) = (table(folder.path()), folder.path().to_str().unwrap());
    let common = [&table, "--to", proxy, "--nodes", &addresses, "--listen", &listen, "--output", output];
    routes(&common).success();
    let mut command = run(folder.path());
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let _proxy = KillOnDrop(command.spawn().unwrap());
    let address: SocketAddr = listen.parse().unwrap();
    until("it answers", || Client::connect(address).ok());

    let mut owners = BTreeMap::new();
    let read = for_each_route(Path::new(&table), &Limits::default(), |place, name| {
        owners.insert(name.to_owned(), place);
    });
    assert_eq!(read.unwrap().names, NAMES);
    for (name, place) in &owners {
        for _ in 0..3 {
            let reply = get(address, name);
            assert_eq!(reply.status, 200, "{proxy} {name}");
            let (node, _) = reply.node_and_hit();
            if let Place::Node(owner) = place {
                assert_eq!(node, NAMES[usize::from(*owner)], "{proxy} {name}");
            }
        }
    }
    assert_eq!(get(address, "/elsewhere").status, 200);
    nodes[0].kill();
    let served_by = |name: &str| {
        let reply = get(address, name);
        (reply.status == 200).then(|| reply.node_and_hit().0)
    };
    let heir = until("another serves what the owner had", || served_by("/back\\slash"));
    assert_ne!(heir, "a");
    assert_eq!(until("the others serve theirs", || served_by("/files/1")), "c");
}

#[test]
fn haproxy_follows_a_table() {
    if needs_tool("haproxy", "haproxy").is_none() {
        return;
    }
    check_proxy("haproxy", |folder| {
        let config = folder.join("larder.cfg");
        let checked = Command::new("haproxy").arg("-c").arg("-f").arg(&config).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(config);
        command
    });
}

#[test]
fn nginx_follows_a_table() {
    if needs_tool("nginx", "nginx").is_none() {
        return;
    }
    check_proxy("nginx", |folder| {
        let config = folder.join("nginx.conf");
        let here = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {here}/{name};"))
            .concat();
        let text = format!(
            "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\nevents {{}}\n\
             http {{ access_log off; {temporary} include {here}/larder.conf; }}\n"
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder).arg("-c").arg(config);
        command
    });
}

#[test]
fn unsupported_tables_are_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (table, output) = (table(folder.path()), folder.path().to_str().unwrap());
    let of = |nodes: &str, output: &str| {
        let assert = routes(&[&table, "--to", "haproxy", "--nodes", nodes, "--output", output]).failure();
        String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
    };
    for (nodes, expected) in [
        ("a=h:80,b=h:80", "node c of the table has no address"),
        ("a=h:80,b=h:80,c=h:80,d=h:80", "the table has no node d"),
        ("a=h:80,a=h:81,b=h:80,c=h:80", "a is given twice"),
        ("a=h:80,b=h,c=h:80", "should be NAME=HOST:PORT"),
        ("a=h:80,b=h;}:80,c=h:80", "should be NAME=HOST:PORT"),
        ("a=h:80,b=h:0,c=h:80", "should be NAME=HOST:PORT"),
    ] {
        let said = of(nodes, output);
        assert!(said.contains(expected), "{nodes}: {said}");
    }
    let good = "a=h:80,b=h:80,c=h:80";
    assert!(of(good, "/no/such/folder").contains("cannot write to directory"));
    let odd = folder.path().join("a b");
    fs::create_dir(&odd).unwrap();
    let said = of(good, odd.to_str().unwrap());
    assert!(said.contains("a path in the config may have only letters, digits"), "{said}");
    let cut = folder.path().join("cut.routes");
    fs::write(&cut, fs::read_to_string(&table).unwrap().replace("end 9\n", "")).unwrap();
    let assert = routes(&[cut.to_str().unwrap(), "--to", "nginx", "--nodes", good, "--output", output]);
    let said = String::from_utf8_lossy(&assert.failure().get_output().stderr).into_owned();
    assert!(said.contains("cut.routes:") && said.contains("the file is truncated"), "{said}");
    assert!(!folder.path().join("larder.conf").exists(), "nothing is written of half a table");
}
