//! Later requests on handed-over connections: fetches from other nodes instead of reads.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::cluster::{Cluster, Server, Spec};
use crate::content::Content;
use crate::plans::Random;

const TARGETS: usize = 90;
const BYTES: usize = 20_000;
const CLIENTS: usize = 24;
const CONNECTIONS: usize = 6;
/// Requests on a connection. The dispatcher decides by the first.
const REQUESTS: usize = 12;

/// Contents by path.
type Contents = Mutex<HashMap<String, Vec<u8>>>;

/// Results of a run.
struct RunFigures {
    requests: u64,
    /// Sum over all nodes.
    misses: u64,
    fetched: u64,
    unknown: u64,
    failed: u64,
}

fn request(stream: &mut BufReader<TcpStream>, path: &str) -> Vec<u8> {
    write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut length = None;
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{path}: {line}");
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok();
        }
    }
    let mut body = vec![0; length.unwrap()];
    stream.read_exact(&mut body).unwrap();
    body
}

fn connect(server: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_nodelay(true).unwrap();
    BufReader::new(stream)
}

/// Requests many targets on persistent connections, and compares every reply with the first one for its path.
fn client(number: usize, server: SocketAddr, contents: &Contents) {
    let mut random = Random(number as u64 + 1);
    for _ in 0..CONNECTIONS {
        let mut stream = connect(server);
        for _ in 0..REQUESTS {
            let path = format!("/{}", random.below(TARGETS));
            let body = request(&mut stream, &path);
            let mut contents = contents.lock().unwrap();
            let first = contents.entry(path).or_insert_with(|| body.clone());
            assert!(*first == body);
        }
    }
}

fn stat(cluster: &Cluster, name: &str) -> u64 {
    let of = |number| {
        let text = cluster.node_admin(number, "/stats");
        let json: serde_json::Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
        json[name].as_u64().unwrap_or_else(|| panic!("no {name} in {json}"))
    };
    (0..cluster.topology.nodes.len()).map(of).sum()
}

/// The targets exceed one node's memory, and fit in that of all three.
fn run(later: &str, locality_lost_max: f64) -> Option<RunFigures> {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest");
    let lines = (0..TARGETS).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "{BYTES}\t/{number}");
        text
    });
    fs::write(&manifest, lines).unwrap();
    // A read takes 15 ms.
    let node = format!(
        "cache.size = \"800KB\"\ncache.kind = \"lru\"\n[node.model]\nmanifest = \"{}\"\nspeed = 2.0\n",
        manifest.display()
    );
    let handoff = format!("mechanism = \"cookie\"\nlocality_lost_max = {locality_lost_max}");
    // Long, so that the result does not depend on the machine's load.
    let node_handoff = format!("later = \"{later}\"\nlater_wait = \"500ms\"\n");
    let spec = Spec {
        server: Server::Larder,
        node: &node,
        node_handoff: &node_handoff,
        handoff: &handoff,
        ..Spec::default()
    };
    let cluster = Cluster::new(&spec, Content::new(&[1], 1))?;
    let (server, contents) = (cluster.service()[0], Contents::default());
    let clients = || {
        thread::scope(|scope| {
            (0..CLIENTS).for_each(|number| {
                let contents = &contents;
                scope.spawn(move || client(number, server, contents));
            });
        });
    };
    cluster.topology.client().namespace.run(clients).unwrap();
    let names = ["misses", "later_fetched", "later_unknown", "later_failed"];
    let [misses, fetched, unknown, failed] = names.map(|name| stat(&cluster, name));
    // A fetched reply must equal the node's own reply.
    let own = SocketAddr::from((cluster.node(0).v4, 80));
    let direct = || {
        let mut stream = connect(own);
        contents
            .lock()
            .unwrap()
            .iter()
            .all(|(path, body)| body.len() == BYTES && request(&mut stream, path) == *body)
    };
    assert!(cluster.topology.client().namespace.run(direct).unwrap(), "other bytes");
    let all = (CLIENTS * CONNECTIONS) as u64;
    let handed = cluster.await_metric("larder_switch_deliveries_total", &["cookie"], all * 9 / 10);
    assert!(handed * 10 >= all * 9, "{handed} of {all} handed over, later = {later}\n{}", cluster.logs());
    let requests = all * REQUESTS as u64;
    println!(
        "later = {later}: {misses} misses, {fetched} fetched, {unknown} unknown, {failed} failed of {requests}"
    );
    Some(RunFigures { requests, misses, fetched, unknown, failed })
}

#[test]
fn nodes_that_fetch_from_others_read_less_than_those_that_serve_alone() {
    // With local service only, the route would lose too much locality and would be relayed.
    let Some(alone) = run("serve", 1.0) else { return };
    let Some(together) = run("forward", 0.2) else { return };
    assert_eq!((alone.fetched, alone.requests), (0, together.requests));
    assert!(together.fetched > together.requests / 20, "{} fetched", together.fetched);
    assert!(
        together.failed == 0 && together.unknown < together.requests / 20,
        "{} unknown",
        together.unknown
    );
    assert!(
        together.misses * 10 < alone.misses * 8,
        "{} misses alone, {} together, of {} requests",
        alone.misses,
        together.misses,
        alone.requests
    );
}
