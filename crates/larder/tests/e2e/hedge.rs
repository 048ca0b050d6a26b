//! Hedged requests, through the switch as users run it, before two nodes that do as they are told.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Client, ask, get};
use crate::http2;
use crate::process::{Process, until};

/// What a node does when it is asked for a path.
#[derive(Clone)]
enum Act {
    /// Nothing, until whoever asks leaves.
    Hold,
    /// The same for the first; says this to those who come later.
    HoldOnce(Vec<u8>),
    /// Closes without a word; says this to those who come later.
    CloseOnce(Vec<u8>),
    /// Says this after so long.
    Say(Duration, Vec<u8>),
    /// Says this at once, and closes.
    Close(Vec<u8>),
}

/// At other paths it says its name at once.
#[derive(Clone)]
struct Node {
    name: &'static str,
    address: SocketAddr,
    acts: Arc<Mutex<BTreeMap<&'static str, Act>>>,
    heads: Arc<Mutex<Vec<String>>>,
    /// Who asked has left before an answer.
    left: Arc<AtomicUsize>,
}

impl Node {
    fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let node = Self { name, address, acts: Arc::default(), heads: Arc::default(), left: Arc::default() };
        let serving = node.clone();
        // Ends with the test's process.
        thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let node = serving.clone();
                thread::spawn(move || node.serve(&tcp));
            }
        });
        node
    }

    fn at(&self, path: &'static str, act: Act) {
        self.acts.lock().unwrap().insert(path, act);
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
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let path = head.split(' ').nth(1).unwrap().to_owned();
            let act = {
                let mut acts = self.acts.lock().unwrap();
                let act = acts.get(&*path).cloned();
                if let (Some(Act::HoldOnce(then) | Act::CloseOnce(then)), Some(place)) =
                    (&act, acts.get_mut(&*path))
                {
                    *place = Act::Say(Duration::ZERO, then.clone());
                }
                act
            };
            self.heads.lock().unwrap().push(head);
            let said = match act.unwrap_or_else(|| Act::Say(Duration::ZERO, self.says("200 OK", self.name))) {
                Act::Hold | Act::HoldOnce(_) => {
                    while matches!(reader.read(&mut [0; 64]), Ok(1..)) {}
                    self.left.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Act::Say(after, bytes) => {
                    larder_testkit::take_time(after);
                    tcp.write_all(&bytes)
                }
                Act::CloseOnce(_) => return,
                Act::Close(bytes) => {
                    let _ = tcp.write_all(&bytes);
                    return;
                }
            };
            if said.is_err() {
                return;
            }
        }
    }

    fn says(&self, status: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nX-Origin: {}\r\nContent-Length: {length}\r\n\r\n{body}", self.name)
            .into_bytes()
    }
}

/// A switch before two nodes, of which LARD gives each target one.
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

/// The node that has this path's target from now on, and the other. POST is never hedged, however slow the machine is.
fn sides<'n>(switch: &Process, nodes: &'n [Node; 2], path: &str) -> (&'n Node, &'n Node) {
    let reply = ask(switch.address, "POST", path, "Content-Length: 0\r\n");
    let has = reply.header("x-origin").unwrap();
    if has == nodes[0].name { (&nodes[0], &nodes[1]) } else { (&nodes[1], &nodes[0]) }
}

fn hedges(switch: &Process, outcome: &str) -> u64 {
    let metrics = String::from_utf8(get(switch.admin.unwrap(), "/metrics").body).unwrap();
    let begins = format!("larder_switch_hedges_total{{route=\"default\",outcome=\"{outcome}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&*begins)?.parse().ok()).unwrap()
}

/// No node has any load left.
fn settles(switch: &Process) {
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
    has.at("/t?x=1", Act::Hold);
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
    // The client's connection goes on, and the target stays where it was.
    has.acts.lock().unwrap().clear();
    assert_eq!(client.ask("GET", "/t?x=1", "").unwrap().header("x-origin"), Some(has.name));
    has.at("/t?x=1", Act::Hold);
    assert_eq!(http2::ask(switch.address, "GET", "http://test/t?x=1", "").status, 200);
    let node = get(switch.admin.unwrap(), "/nodes").json();
    assert!(node.as_array().unwrap().iter().all(|node| node["state"] == "up"), "slow is not dead: {node}");
    settles(&switch);
}

#[test]
fn the_first_answer_is_taken_but_for_a_server_s_fault() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    let slow = Duration::from_millis(300);
    // The second is slower still.
    let (has, other) = sides(&switch, &nodes, "/first");
    has.at("/first", Act::Say(slow, has.says("200 OK", "mine")));
    other.at("/first", Act::Hold);
    assert_eq!(&*get(switch.address, "/first").body, b"mine");
    until("the second is let go", || (other.left() == 1).then_some(()));
    assert_eq!((hedges(&switch, "lost"), hedges(&switch, "won")), (1, 0));
    // The second answers first, with a fault of its own.
    let (has, other) = sides(&switch, &nodes, "/fault");
    has.at("/fault", Act::Say(slow, has.says("200 OK", "mine")));
    other.at("/fault", Act::Say(Duration::ZERO, other.says("503 Busy", "")));
    assert_eq!(&*get(switch.address, "/fault").body, b"mine");
    // Not found is an answer.
    let (has, other) = sides(&switch, &nodes, "/none");
    has.at("/none", Act::Hold);
    other.at("/none", Act::Say(Duration::ZERO, other.says("404 Not Found", "no")));
    assert_eq!(get(switch.address, "/none").status, 404);
    // A fault is better than nothing.
    let (has, other) = sides(&switch, &nodes, "/both");
    has.at("/both", Act::Say(slow, has.says("500 Broken", "")));
    other.at("/both", Act::Close(Vec::new()));
    assert_eq!(get(switch.address, "/both").status, 500);
    // So it is where the other says nothing at all.
    let (has, other) = sides(&switch, &nodes, "/busy");
    has.at("/busy", Act::Say(slow, has.says("503 Busy", "")));
    other.at("/busy", Act::Hold);
    assert_eq!(get(switch.address, "/busy").status, 503);
    // The second is slow too, and comes.
    let (has, other) = sides(&switch, &nodes, "/late");
    has.at("/late", Act::Hold);
    other.at("/late", Act::Say(slow, other.says("200 OK", "late")));
    assert_eq!(&*get(switch.address, "/late").body, b"late");
    assert_eq!((hedges(&switch, "lost"), hedges(&switch, "won"), hedges(&switch, "failed")), (4, 2, 0));
    settles(&switch);
}

#[test]
fn answers_of_every_form_come_as_they_are() {
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
            has.at(path, if hedged { Act::Hold } else { Act::Say(Duration::ZERO, bytes.clone()) });
            other.at(path, Act::Say(Duration::ZERO, bytes.clone()));
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
    // The end by closing, and HEAD.
    let (has, other) = sides(&switch, &nodes, "/close");
    has.at("/close", Act::Hold);
    other.at("/close", Act::Close(b"HTTP/1.1 200 OK\r\n\r\nto the end".to_vec()));
    assert_eq!(http2::ask(switch.address, "GET", "http://test/close", "").body, b"to the end");
    other.at("/close", Act::Say(Duration::ZERO, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n".to_vec()));
    let head = ask(switch.address, "HEAD", "/close", "");
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
    // What breaks off does so for the client, and is no whole answer.
    other.at("/close", Act::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec()));
    assert!(Client::connect(switch.address).unwrap().ask("GET", "/close", "").is_err());
    settles(&switch);
}

#[test]
fn a_second_node_continues_what_a_hedge_broke_off() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    let (has, other) = sides(&switch, &nodes, "/rest");
    let rest = b"HTTP/1.1 206 Partial Content\r\nETag: \"v\"\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\n56789";
    has.at("/rest", Act::HoldOnce(rest.to_vec()));
    other.at(
        "/rest",
        Act::Close(b"HTTP/1.1 200 OK\r\nETag: \"v\"\r\nContent-Length: 10\r\n\r\n01234".to_vec()),
    );
    assert_eq!(get(switch.address, "/rest").body, b"0123456789");
    assert_eq!((has.asked("/rest"), other.asked("/rest")), (2, 1));
    until("the one that was held is left", || (has.left() == 1).then_some(()));
    settles(&switch);
}

#[test]
fn what_is_not_hedged() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 0.0");
    let slow = Duration::from_millis(150);
    for path in ["/plain/x", "/sticky/x"] {
        let (has, other) = sides(&switch, &nodes, path);
        has.at(path, Act::Say(slow, has.says("200 OK", "mine")));
        assert_eq!(&*get(switch.address, path).body, b"mine");
        assert_eq!(other.asked(path), 0, "{path}");
    }
    let (has, other) = sides(&switch, &nodes, "/post");
    has.at("/post", Act::Say(slow, has.says("200 OK", "mine")));
    let reply = ask(switch.address, "POST", "/post", "Content-Length: 0\r\n");
    assert_eq!(&*reply.body, b"mine");
    assert!(other.heads.lock().unwrap().iter().all(|head| !head.starts_with("POST /post ")));
    // The share is none, and what was saved up of one a second is used up.
    let (has, other) = sides(&switch, &nodes, "/many");
    has.at("/many", Act::Say(slow, has.says("200 OK", "mine")));
    other.at("/many", Act::Hold);
    until("there is none left", || {
        assert_eq!(&*get(switch.address, "/many").body, b"mine");
        (hedges(&switch, "over_share") > 0).then_some(())
    });
    assert!(hedges(&switch, "lost") >= 10, "ten are saved up");
    settles(&switch);
}

#[test]
fn who_leaves_takes_both_along() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"20ms\", share = 100.0");
    sides(&switch, &nodes, "/t");
    nodes.iter().for_each(|node| node.at("/t", Act::Hold));
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    tcp.write_all(b"GET /t HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    until("both are asked", || nodes.iter().all(|node| node.asked("/t") > 0).then_some(()));
    drop(tcp);
    until("both are let go", || nodes.iter().all(|node| node.left() == 1).then_some(()));
    settles(&switch);
    // No node at all: the failure has its name, and the request its end.
    nodes.iter().for_each(|node| node.at("/t", Act::Close(Vec::new())));
    let reply = get(switch.address, "/t");
    assert_eq!((reply.status, reply.header("x-larder-error")), (502, Some("node_closed")));
    settles(&switch);
}

#[test]
fn a_connection_that_was_closed_meanwhile_costs_neither_node_nor_place() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(Node::start);
    let switch = start(folder.path(), &nodes, "after = \"1m\"");
    let (has, other) = sides(&switch, &nodes, "/idle");
    has.at("/idle", Act::CloseOnce(has.says("200 OK", "again")));
    let reply = get(switch.address, "/idle");
    assert_eq!((reply.status, &*reply.body), (200, &b"again"[..]));
    assert_eq!((has.asked("/idle"), other.asked("/idle")), (2, 0), "it is asked once more, and nobody else");
    settles(&switch);
}

#[test]
fn nodes_that_are_spoken_to_otherwise_are_not_asked_beside() {
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
    nodes[0].at(path, Act::Say(Duration::from_secs(1), nodes[0].says("200 OK", "mine")));
    assert_eq!(&*get(switch.address, path).body, b"mine");
    assert_eq!((hedges(&switch, "no_room"), nodes[1].heads.lock().unwrap().len()), (1, asked));
    settles(&switch);
}
