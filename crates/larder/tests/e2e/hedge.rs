//! Hedged requests of a switch, before two nodes with scripted behaviour.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Client, ask, get, metric};
use crate::http2;
use crate::process::{Process, until};

/// The behaviour of a node for a path.
#[derive(Clone)]
pub enum Behaviour {
    /// Sends nothing until the client leaves.
    Hold,
    /// Holds the first request, and sends this reply to later ones.
    HoldOnce(Vec<u8>),
    /// Closes the first connection without a reply, and sends this reply to later ones.
    CloseOnce(Vec<u8>),
    /// Sends this reply after a delay.
    Reply(Duration, Vec<u8>),
    /// Sends this reply at once, and closes.
    Close(Vec<u8>),
}

/// A node that sends its name for unscripted paths.
#[derive(Clone)]
pub struct Node {
    name: &'static str,
    pub address: SocketAddr,
    behaviours: Arc<Mutex<BTreeMap<&'static str, Behaviour>>>,
    heads: Arc<Mutex<Vec<String>>>,
    /// Clients that left before a reply.
    left: Arc<AtomicUsize>,
}

impl Node {
    pub fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let node =
            Self { name, address, behaviours: Arc::default(), heads: Arc::default(), left: Arc::default() };
        let serving = node.clone();
        // The thread ends with the test process.
        thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let node = serving.clone();
                thread::spawn(move || node.serve(&tcp));
            }
        });
        node
    }

    pub fn at(&self, path: &'static str, act: Behaviour) {
        self.behaviours.lock().unwrap().insert(path, act);
    }

    fn asked(&self, path: &str) -> usize {
        let begins = format!("GET {path} ");
        self.heads.lock().unwrap().iter().filter(|head| head.starts_with(&begins)).count()
    }

    fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    fn serve(&self, mut tcp: &TcpStream) {
        let mut reader = BufReader::new(tcp);
        loop {
            let Ok(head) = larder_testkit::http::read_head(&mut reader) else { return };
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let act = {
                let mut behaviours = self.behaviours.lock().unwrap();
                let act = behaviours.get(&*path).cloned();
                if let (Some(Behaviour::HoldOnce(then) | Behaviour::CloseOnce(then)), Some(place)) =
                    (&act, behaviours.get_mut(&*path))
                {
                    *place = Behaviour::Reply(Duration::ZERO, then.clone());
                }
                act
            };
            self.heads.lock().unwrap().push(head);
            let said = match act
                .unwrap_or_else(|| Behaviour::Reply(Duration::ZERO, self.says("200 OK", self.name)))
            {
                Behaviour::Hold | Behaviour::HoldOnce(_) => {
                    while matches!(reader.read(&mut [0; 64]), Ok(1..)) {}
                    self.left.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Behaviour::Reply(after, bytes) => {
                    larder_testkit::take_time(after);
                    tcp.write_all(&bytes)
                }
                Behaviour::CloseOnce(_) => return,
                Behaviour::Close(bytes) => {
                    let _ = tcp.write_all(&bytes);
                    return;
                }
            };
            if said.is_err() {
                return;
            }
        }
    }

    pub fn says(&self, status: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nX-Origin: {}\r\nContent-Length: {length}\r\n\r\n{body}", self.name)
            .into_bytes()
    }
}

/// Starts a switch before two nodes. LARD assigns each target to one of them.
fn start(folder: &Path, nodes: &[Node; 2], hedge: &str) -> Process {
    let text = format!(
        r#"
[switch]
listen = "127.0.0.1:0"
policy = "lard"
h2c = true
health = {{ check = "off", passive_fall = 0 }}
nodes = [{{ name = "a", address = "{}" }}, {{ name = "b", address = "{}" }}]
hedge = {{ {hedge} }}

[[switch.routes]]
name = "plain"
path = "/plain/*"
hedge = {{ after = "0s" }}

[[switch.routes]]
name = "sticky"
path = "/sticky/*"
sticky = {{ cookie = "srv" }}
"#,
        nodes[0].address, nodes[1].address
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

/// Assigns the path to a node, and returns this node and the other one. POST is never hedged, so the result
/// does not depend on speed.
fn sides<'n>(switch: &Process, nodes: &'n [Node; 2], path: &str) -> (&'n Node, &'n Node) {
    let reply = ask(switch.address, "POST", path, "Content-Length: 0\r\n");
    let has = reply.header("x-origin").unwrap();
    if has == nodes[0].name { (&nodes[0], &nodes[1]) } else { (&nodes[1], &nodes[0]) }
}

fn hedges(switch: &Process, outcome: &str) -> u64 {
    let labels = format!("{{route=\"default\",outcome=\"{outcome}\"}}");
    metric(switch.admin.unwrap(), "larder_switch_hedges_total", &[&labels]).unwrap()
}

/// Waits until no node has any load.
fn await_no_load(switch: &Process) {
    until("nothing is under way", || {
        let nodes = get(switch.admin.unwrap(), "/nodes").json();
        nodes.as_array().unwrap().iter().all(|node| node["load"] == 0).then_some(())
    });
    assert_eq!(get(switch.admin.unwrap(), "/status").json()["outstanding"], 0);
}

#[test]
fn a_node_that_hangs_costs_the_delay_only() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"500ms\", share = 100.0");
    let (has, other) = sides(&switch, &nodes, "/t?x=1");
    assert_eq!(hedges(&switch, "won"), 0);
    has.at("/t?x=1", Behaviour::Hold);
    let mut client = Client::connect(switch.address).unwrap();
    let began = Instant::now();
    let reply = client.ask("GET", "/t?x=1", "X-A: 1\r\n").unwrap();
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(
        (reply.status, reply.header("x-origin"), &*reply.body),
        (200, Some(other.name), other.name.as_bytes())
    );
    until("the one that hangs is let go", || (has.left() == 1).then_some(()));
    assert_eq!(hedges(&switch, "won"), 1);
    let head = other.heads.lock().unwrap().last().unwrap().to_ascii_lowercase();
    for field in
        ["host: localhost\r\n", "x-a: 1\r\n", "x-forwarded-for: 127.0.0.1\r\n", "larder-target: ", "via: "]
    {
        assert!(head.contains(field), "{field} in {head}");
    }
    // The client's connection stays open, and the target stays at its node.
    has.behaviours.lock().unwrap().clear();
    assert_eq!(client.ask("GET", "/t?x=1", "").unwrap().header("x-origin"), Some(has.name));
    has.at("/t?x=1", Behaviour::Hold);
    assert_eq!(http2::ask(switch.address, "GET", "http://test/t?x=1", "").status, 200);
    let node = get(switch.admin.unwrap(), "/nodes").json();
    assert!(node.as_array().unwrap().iter().all(|node| node["state"] == "up"), "slow is not dead: {node}");
    await_no_load(&switch);
}

#[test]
fn the_first_answer_is_taken_but_for_a_server_s_fault() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    let slow = Duration::from_millis(300);
    // The second node is even slower.
    let (has, other) = sides(&switch, &nodes, "/first");
    has.at("/first", Behaviour::Reply(slow, has.says("200 OK", "mine")));
    other.at("/first", Behaviour::Hold);
    assert_eq!(&*get(switch.address, "/first").body, b"mine");
    until("the second is let go", || (other.left() == 1).then_some(()));
    assert_eq!((hedges(&switch, "lost"), hedges(&switch, "won")), (1, 0));
    // The second node answers first, but with a server error.
    let (has, other) = sides(&switch, &nodes, "/fault");
    has.at("/fault", Behaviour::Reply(slow, has.says("200 OK", "mine")));
    other.at("/fault", Behaviour::Reply(Duration::ZERO, other.says("503 Busy", "")));
    assert_eq!(&*get(switch.address, "/fault").body, b"mine");
    // 404 is a valid reply.
    let (has, other) = sides(&switch, &nodes, "/none");
    has.at("/none", Behaviour::Hold);
    other.at("/none", Behaviour::Reply(Duration::ZERO, other.says("404 Not Found", "no")));
    assert_eq!(get(switch.address, "/none").status, 404);
    // A server error is better than no reply.
    let (has, other) = sides(&switch, &nodes, "/both");
    has.at("/both", Behaviour::Reply(slow, has.says("500 Broken", "")));
    other.at("/both", Behaviour::Close(Vec::new()));
    assert_eq!(get(switch.address, "/both").status, 500);
    // The same holds if the other node sends nothing.
    let (has, other) = sides(&switch, &nodes, "/busy");
    has.at("/busy", Behaviour::Reply(slow, has.says("503 Busy", "")));
    other.at("/busy", Behaviour::Hold);
    assert_eq!(get(switch.address, "/busy").status, 503);
    // The second node is slow too, and answers.
    let (has, other) = sides(&switch, &nodes, "/late");
    has.at("/late", Behaviour::Hold);
    other.at("/late", Behaviour::Reply(slow, other.says("200 OK", "late")));
    assert_eq!(&*get(switch.address, "/late").body, b"late");
    assert_eq!((hedges(&switch, "lost"), hedges(&switch, "won"), hedges(&switch, "failed")), (4, 2, 0));
    await_no_load(&switch);
}

#[test]
fn replies_of_every_framing_are_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    let long = "0123456789".repeat(200_000);
    let forms: [(&'static str, Vec<u8>, u16, &[u8]); 6] = [
        ("/long", nodes[0].says("200 OK", &long), 200, long.as_bytes()),
        ("/empty", nodes[0].says("200 OK", ""), 200, b""),
        ("/no-content", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), 204, b""),
        ("/not-modified", b"HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\n".to_vec(), 304, b""),
        (
            "/chunked",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-End: 1\r\n\r\n".to_vec(),
            200,
            b"abcde",
        ),
        ("/early", [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec(), nodes[0].says("200 OK", "hm")].concat(), 200, b"hm"),
    ];
    for (path, bytes, status, body) in &forms {
        let (has, other) = sides(&switch, &nodes, path);
        for hedged in [false, true] {
            has.at(
                path,
                if hedged { Behaviour::Hold } else { Behaviour::Reply(Duration::ZERO, bytes.clone()) },
            );
            other.at(path, Behaviour::Reply(Duration::ZERO, bytes.clone()));
            let uri = format!("http://test{path}");
            let reply = http2::ask(switch.address, "GET", &uri, "");
            assert_eq!(
                (reply.status, reply.body == *body),
                (*status, true),
                "{path} {hedged} {}",
                reply.head
            );
            let mut client = Client::connect(switch.address).unwrap();
            if *path != "/chunked" {
                let reply = client.ask("GET", path, "").unwrap();
                assert_eq!(
                    (reply.status, reply.body == *body),
                    (*status, true),
                    "{path} {hedged} {}",
                    reply.head
                );
                assert_eq!(
                    client.ask("GET", "/again", "").unwrap().status,
                    200,
                    "{path}: the connection goes on"
                );
            }
        }
    }
    // Replies that end with the connection, and replies to HEAD.
    let (has, other) = sides(&switch, &nodes, "/close");
    has.at("/close", Behaviour::Hold);
    other.at("/close", Behaviour::Close(b"HTTP/1.1 200 OK\r\n\r\nto the end".to_vec()));
    assert_eq!(http2::ask(switch.address, "GET", "http://test/close", "").body, b"to the end");
    other.at(
        "/close",
        Behaviour::Reply(Duration::ZERO, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n".to_vec()),
    );
    let head = ask(switch.address, "HEAD", "/close", "");
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    // A truncated reply is truncated for the client too.
    other.at("/close", Behaviour::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()));
    assert!(Client::connect(switch.address).unwrap().ask("GET", "/close", "").is_err());
    await_no_load(&switch);
}

#[test]
fn a_second_node_continues_a_reply_that_a_hedge_aborted() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    let (has, other) = sides(&switch, &nodes, "/rest");
    let rest = b"HTTP/1.1 206 Partial Content\r\nETag: \"v\"\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\n56789";
    has.at("/rest", Behaviour::HoldOnce(rest.to_vec()));
    other.at(
        "/rest",
        Behaviour::Close(b"HTTP/1.1 200 OK\r\nETag: \"v\"\r\nContent-Length: 10\r\n\r\n01234".to_vec()),
    );
    assert_eq!(get(switch.address, "/rest").body, b"0123456789");
    assert_eq!((has.asked("/rest"), other.asked("/rest")), (2, 1));
    until("the one that was held is left", || (has.left() == 1).then_some(()));
    await_no_load(&switch);
}

#[test]
fn requests_that_are_not_hedged() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 0.0");
    let slow = Duration::from_millis(150);
    for path in ["/plain/x", "/sticky/x"] {
        let (has, other) = sides(&switch, &nodes, path);
        has.at(path, Behaviour::Reply(slow, has.says("200 OK", "mine")));
        assert_eq!(&*get(switch.address, path).body, b"mine");
        assert_eq!(other.asked(path), 0, "{path}");
    }
    let (has, other) = sides(&switch, &nodes, "/post");
    has.at("/post", Behaviour::Reply(slow, has.says("200 OK", "mine")));
    let reply = ask(switch.address, "POST", "/post", "Content-Length: 0\r\n");
    assert_eq!(&*reply.body, b"mine");
    assert!(other.heads.lock().unwrap().iter().all(|head| !head.starts_with("POST /post ")));
    // The share is zero, and the saved tokens of one per second are used up.
    let (has, other) = sides(&switch, &nodes, "/many");
    has.at("/many", Behaviour::Reply(slow, has.says("200 OK", "mine")));
    other.at("/many", Behaviour::Hold);
    until("there is none left", || {
        assert_eq!(&*get(switch.address, "/many").body, b"mine");
        (hedges(&switch, "over_share") > 0).then_some(())
    });
    assert!(hedges(&switch, "lost") >= 10, "ten are saved up");
    await_no_load(&switch);
}

#[test]
fn both_attempts_end_when_the_client_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    sides(&switch, &nodes, "/t");
    nodes.iter().for_each(|node| node.at("/t", Behaviour::Hold));
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    tcp.write_all(b"GET /t HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    until("both are asked", || nodes.iter().all(|node| node.asked("/t") > 0).then_some(()));
    drop(tcp);
    until("both are let go", || nodes.iter().all(|node| node.left() == 1).then_some(()));
    await_no_load(&switch);
    // Both nodes fail. The failure is named, and the request ends.
    nodes.iter().for_each(|node| node.at("/t", Behaviour::Close(Vec::new())));
    let reply = get(switch.address, "/t");
    assert_eq!((reply.status, reply.header("x-larder-error")), (502, Some("node_closed")));
    await_no_load(&switch);
}

#[test]
fn a_closed_idle_connection_does_not_count_as_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"1m\"");
    let (has, other) = sides(&switch, &nodes, "/idle");
    has.at("/idle", Behaviour::CloseOnce(has.says("200 OK", "again")));
    let reply = get(switch.address, "/idle");
    assert_eq!((reply.status, &*reply.body), (200, &b"again"[..]));
    assert_eq!((has.asked("/idle"), other.asked("/idle")), (2, 0), "it is asked once more, and nobody else");
    await_no_load(&switch);
}

#[test]
fn nodes_with_another_protocol_are_not_hedged() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\npolicy = \"lard\"\nhealth = {{ check = \"off\" }}\n\
         nodes = [{{ name = \"a\", address = \"{}\" }}, {{ name = \"b\", address = \"{}\", proxy_protocol = \"v1\" }}]\n\
         hedge = {{ after = \"300ms\", share = 100.0 }}\n",
        nodes[0].address, nodes[1].address
    );
    let config = folder.path().join("larder.toml");
    fs::write(&config, text).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"]);
    let paths = ["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7"];
    let place = |path: &&str| ask(switch.address, "POST", path, "Content-Length: 0\r\n");
    let path = paths.into_iter().find(|path| &*place(path).body == b"a").unwrap();
    let asked = nodes[1].heads.lock().unwrap().len();
    nodes[0].at(path, Behaviour::Reply(Duration::from_secs(1), nodes[0].says("200 OK", "mine")));
    assert_eq!(&*get(switch.address, path).body, b"mine");
    assert_eq!((hedges(&switch, "no_room"), nodes[1].heads.lock().unwrap().len()), (1, asked));
    await_no_load(&switch);
}
