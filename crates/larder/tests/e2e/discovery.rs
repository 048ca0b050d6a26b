//! Nodes join, leave and move under load, as sources and the operator request. No GET fails.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::crowd::{Crowd, manifest};
use crate::http::{get, post};
use crate::process::{Process, until};

/// Starts a switch whose node sources are these lines.
pub fn switch(folder: &Path, lines: &str) -> Process {
    let path = folder.join("switch.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\n{lines}\n[switch.health]\ninterval = \"50ms\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    std::fs::write(&path, text).unwrap();
    Process::start(&["switch", "--config", path.to_str().unwrap()])
}

pub fn names(switch: &Process) -> Vec<String> {
    let nodes = get(switch.admin.unwrap(), "/nodes").json();
    let mut names: Vec<String> =
        nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

pub fn until_nodes(switch: &Process, wanted: &[&str]) {
    let mut wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    wanted.sort();
    until(format!("the nodes are {wanted:?}"), || (names(switch) == wanted).then_some(()));
}

/// Returns the status of the source whose name begins with `name`.
pub fn source(switch: &Process, name: &str) -> Value {
    let view = get(switch.admin.unwrap(), "/discovery").json();
    let sources = view["sources"].as_array().unwrap();
    let found = sources.iter().find(|one| one["source"].as_str().unwrap().starts_with(name));
    found.unwrap_or_else(|| panic!("no source {name} in {view}")).clone()
}

/// Writes the file atomically, so that no reader sees a part of it.
fn write_nodes(path: &Path, nodes: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, format!("nodes = [{nodes}]\n")).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

#[test]
fn nodes_come_and_go_with_a_file_and_at_the_operators_word() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let nodes = ["a", "b", "c", "d"].map(|name| Process::model_node(name, "127.0.0.1:0", &manifest));
    let entry = |i: usize| {
        format!("{{ name = \"{}\", address = \"{}\" }}", ["a", "b", "c", "d"][i], nodes[i].address)
    };
    let path = folder.path().join("nodes.toml");
    write_nodes(&path, &[entry(0), entry(1)].join(", "));
    let switch = switch(
        folder.path(),
        &format!("[[switch.discover]]\nfile = {:?}\nperiod = \"100ms\"\n", path.to_str().unwrap()),
    );
    let admin = switch.admin.unwrap();
    assert_eq!(names(&switch), ["a", "b"]);
    let crowd = Crowd::start(switch.address);
    crowd.more(300);
    write_nodes(&path, &[entry(1), entry(2)].join(", "));
    until_nodes(&switch, &["b", "c"]);
    crowd.more(300);
    // An invalid file changes nothing, and the error is shown.
    write_nodes(&path, "\"nowhere\"");
    until("the mistake is shown", || {
        let error = source(&switch, "file ")["error"].as_str().map(str::to_owned);
        error.filter(|error| error.contains("nodes.toml:1:10: nodes[0]: 'nowhere' has no port"))
    });
    assert_eq!(names(&switch), ["b", "c"]);
    // c now has d's address. It is the same node with the same targets.
    let moved = format!("{{ name = \"c\", address = \"{}\" }}", nodes[3].address);
    write_nodes(&path, &[entry(1), moved].join(", "));
    until("the node has moved", || {
        let listed = get(admin, "/nodes").json();
        let c = listed.as_array().unwrap().iter().find(|node| node["name"] == "c").unwrap().clone();
        (c["address"] == nodes[3].address.to_string()).then_some(())
    });
    crowd.more(300);
    // The operator adds and removes nodes.
    let join = format!("/nodes/x/join?address={}&weight=2", nodes[0].address);
    assert_eq!(post(admin, &join).status, 200);
    assert_eq!(names(&switch), ["b", "c", "x"]);
    assert_eq!(post(admin, &join).status, 409, "the name is taken");
    assert_eq!(post(admin, "/nodes/y/join?address=nowhere").status, 400);
    assert_eq!(post(admin, "/nodes/y/join?address=none.invalid:80").status, 409);
    assert_eq!(post(admin, "/nodes/b/leave").status, 409, "the file would bring it back");
    assert_eq!(post(admin, "/nodes/z/leave").status, 404);
    assert_eq!(post(admin, "/nodes/x/weight?value=0.5").status, 200);
    assert_eq!(post(admin, "/nodes/x/weight?value=-1").status, 400);
    crowd.more(300);
    assert_eq!(post(admin, "/nodes/x/leave").status, 200);
    assert_eq!(names(&switch), ["b", "c"]);
    crowd.more(100);
    let seen = crowd.end();
    for name in ["a", "b", "c", "d"] {
        assert!(seen.get(name).is_some_and(|count| *count > 0), "{name} has served: {seen:?}");
    }
    drop(nodes);
}

/// The records of a name server; `None` makes the server fail.
type Zone = Arc<Mutex<Option<Vec<Record>>>>;

#[derive(Clone)]
struct Record {
    kind: u16,
    data: Vec<u8>,
}

fn a(last: u8) -> Record {
    Record { kind: 1, data: Ipv4Addr::new(127, 0, 0, last).octets().to_vec() }
}

fn srv(priority: u16, weight: u16, port: u16, host: &str) -> Record {
    let mut data = [priority, weight, port].map(u16::to_be_bytes).concat();
    for label in host.split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend(label.as_bytes());
    }
    data.push(0);
    Record { kind: 33, data }
}

/// Starts a name server (RFC 1035) that answers any name with its records of the requested type. It ends with
/// the test.
fn name_server(zone: &Zone) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, zone) = (socket.local_addr().unwrap(), Arc::clone(zone));
    thread::spawn(move || {
        let mut packet = [0; 1_500];
        while let Ok((length, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(&answer(&packet[..length], &zone), from);
        }
    });
    address
}

fn answer(question: &[u8], zone: &Zone) -> Vec<u8> {
    // A header of 12 bytes, then the name, the type and the class.
    let end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let kind = u16::from_be_bytes([question[end], question[end + 1]]);
    let zone = zone.lock().unwrap();
    let records: Vec<&Record> = zone.iter().flatten().filter(|record| record.kind == kind).collect();
    let code = if zone.is_some() { 0x8180_u16 } else { 0x8182 };
    let counts = [1, u16::try_from(records.len()).unwrap(), 0, 0];
    let mut reply = question[..2].to_vec();
    reply.extend(code.to_be_bytes());
    reply.extend(counts.into_iter().flat_map(u16::to_be_bytes));
    reply.extend(&question[12..end + 4]);
    for record in records {
        // The requested name, class IN, and a TTL of one second.
        reply.extend([0xc0, 12]);
        reply.extend(record.kind.to_be_bytes());
        reply.extend([0, 1, 0, 0, 0, 1]);
        reply.extend(u16::try_from(record.data.len()).unwrap().to_be_bytes());
        reply.extend(&record.data);
    }
    reply
}

#[test]
fn nodes_come_and_go_with_the_addresses_of_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let first = Process::model_node("one", "127.0.0.1:0", &manifest);
    let port = first.address.port();
    let others = [2, 3].map(|last| Process::model_node("more", &format!("127.0.0.{last}:{port}"), &manifest));
    let zone: Zone = Arc::new(Mutex::new(Some(vec![a(1), a(2)])));
    let server = name_server(&zone);
    let switch = switch(
        folder.path(),
        &format!(
            "[[switch.discover]]\ndns = \"store.test:{port}\"\nservers = \"{server}\"\nperiod = \"100ms\"\nhold = \"300ms\"\n"
        ),
    );
    let node = |last: u8| format!("127.0.0.{last}:{port}");
    assert_eq!(names(&switch), [node(1), node(2)]);
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    *zone.lock().unwrap() = Some(vec![a(3), a(2)]);
    until_nodes(&switch, &[&node(2), &node(3)]);
    crowd.more(200);
    // If the name server fails or has no records, the known nodes stay.
    for broken in [None, Some(vec![])] {
        let failures = source(&switch, "dns ")["failures"].as_u64().unwrap();
        *zone.lock().unwrap() = broken;
        until("it fails", || {
            (source(&switch, "dns ")["failures"].as_u64().unwrap() > failures + 4).then_some(())
        });
        assert_eq!(names(&switch), [node(2), node(3)], "{}", source(&switch, "dns "));
        assert!(source(&switch, "dns ")["error"].is_string());
    }
    crowd.more(200);
    *zone.lock().unwrap() = Some(vec![a(1)]);
    until_nodes(&switch, &[&node(1)]);
    assert!(source(&switch, "dns ")["error"].is_null());
    crowd.more(200);
    crowd.end();
    drop((first, others));
}

#[test]
fn nodes_are_the_targets_of_srv_records_with_their_weights() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = manifest(folder.path());
    let nodes = ["a", "b"].map(|name| Process::model_node(name, "127.0.0.1:0", &manifest));
    let ports = [nodes[0].address.port(), nodes[1].address.port()];
    let records = vec![
        srv(1, 30, ports[0], "a.test"),
        srv(1, 10, ports[1], "b.test"),
        srv(2, 0, 9, "spare.test"),
        a(1),
    ];
    let zone: Zone = Arc::new(Mutex::new(Some(records)));
    let server = name_server(&zone);
    let switch = switch(
        folder.path(),
        &format!(
            "[[switch.discover]]\nsrv = \"_http._tcp.test\"\nservers = \"{server}\"\nperiod = \"100ms\"\nhold = \"0s\"\n"
        ),
    );
    let [one, other] = [format!("a.test:{}", ports[0]), format!("b.test:{}", ports[1])];
    until_nodes(&switch, &[&one, &other]);
    let weights = || -> Vec<f64> {
        let nodes = get(switch.admin.unwrap(), "/nodes").json();
        let mut rows: Vec<_> = nodes.as_array().unwrap().clone();
        rows.sort_by_key(|row| row["name"].as_str().unwrap().to_owned());
        rows.iter().map(|row| row["weight"].as_f64().unwrap()).collect()
    };
    assert_eq!(weights(), [1.5, 0.5]);
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    *zone.lock().unwrap() = Some(vec![srv(1, 5, ports[0], "a.test"), srv(1, 5, ports[1], "b.test"), a(1)]);
    until("the weights are equal", || (weights() == [1.0, 1.0]).then_some(()));
    *zone.lock().unwrap() = Some(vec![srv(1, 5, ports[1], "b.test"), a(1)]);
    until_nodes(&switch, &[&other]);
    crowd.more(100);
    crowd.end();
}
