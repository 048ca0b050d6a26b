//! Weighted routes through a real switch.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

use crate::http::{ask, get};
use crate::http2;
use crate::origin::{Origin, values};
use crate::process::Process;

const USERS: usize = 400;

/// Starts a switch before a stable and a new origin. Requests for `/by-client` and `/by-user` are split 80 to
/// 20.
fn start(folder: &std::path::Path) -> (Vec<Origin>, Process) {
    let origins: Vec<Origin> = ["old", "new"].map(|name| Origin::start(name, "")).into();
    let nodes: Vec<String> =
        origins.iter().map(|origin| origin.entry(&format!(", groups = [\"{}\"]", origin.name))).collect();
    let text = format!(
        r#"
[switch]
listen = "127.0.0.1:0"
h2c = true
nodes = [{}]

[[switch.routes]]
name = "clients"
path = "/by-client"
group = "old"

[[switch.routes]]
name = "clients-new"
of = "clients"
share = 20.0
group = "new"
headers.reply = {{ set = {{ x-side = "canary" }} }}

[[switch.routes]]
name = "users"
path = "/by-user"
group = "old"
split_by = "{{header:x-user}}"

[[switch.routes]]
name = "users-new"
of = "users"
share = 20.0
group = "new"
"#,
        nodes.join(", ")
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    (origins, Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"]))
}

/// Sends a request from a client address, and returns the reply, which echoes the request.
fn from(client: Ipv4Addr, switch: SocketAddr, target: &str) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect(&switch.into()).unwrap();
    let mut tcp = std::net::TcpStream::from(socket);
    write!(tcp, "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    tcp.read_to_string(&mut text).unwrap();
    text
}

fn is_new(head: &str) -> bool {
    match values(head, "x-origin")[..] {
        ["new"] => true,
        ["old"] => false,
        _ => panic!("{head}"),
    }
}

fn users(switch: &Process) -> Vec<bool> {
    let of = |user| is_new(&ask(switch.address, "GET", "/by-user", &format!("X-User: u{user}\r\n")).head);
    (0..USERS).map(of).collect()
}

#[test]
fn a_share_goes_another_way_and_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let (_origins, switch) = start(folder.path());
    let first = users(&switch);
    let count = |sides: &[bool]| sides.iter().filter(|new| **new).count();
    // Expected: a fifth of 400. The tolerance is five standard deviations, 40.
    assert!(count(&first).abs_diff(80) < 40, "{}", count(&first));
    assert_eq!(users(&switch), first, "users stay where they are");
    for (user, new) in first.iter().enumerate().take(20) {
        let reply = http2::ask(switch.address, "GET", "http://test/by-user", &format!("x-user: u{user}\n"));
        assert_eq!(is_new(&reply.head), *new);
    }
    // A higher share at run time moves no user back.
    let more = |percent: &str| {
        ask(switch.admin.unwrap(), "POST", &format!("/routes/users-new/share?percent={percent}"), "")
    };
    assert_eq!(more("50").status, 200);
    let second = users(&switch);
    assert!(count(&second).abs_diff(200) < 50, "{}", count(&second));
    assert!(first.iter().zip(&second).all(|(before, now)| !before || *now));
    assert_eq!(more("100").status, 200);
    assert_eq!(count(&users(&switch)), USERS);
    assert_eq!(more("0").status, 200);
    assert_eq!(count(&users(&switch)), 0);
    let routes = get(switch.admin.unwrap(), "/routes").json();
    let route = |name: &str| routes.as_array().unwrap().iter().find(|route| route["name"] == name).unwrap();
    assert_eq!(
        (route("users-new")["share_of"].as_str(), route("users-new")["share"].as_f64()),
        (Some("users"), Some(0.0))
    );
    assert!(route("users").get("share").is_none());
    let requests = |name: &str| route(name)["requests"][0].as_u64().unwrap();
    assert_eq!(requests("users") + requests("users-new"), (5 * USERS + 20) as u64);
    for (path, status) in [
        ("/routes/users-new/share?percent=101", 400),
        ("/routes/users-new/share?percent=some", 400),
        ("/routes/users/share?percent=5", 409),
        ("/routes/nobody/share?percent=5", 404),
    ] {
        assert_eq!(ask(switch.admin.unwrap(), "POST", path, "").status, status, "{path}");
    }
    assert_eq!(get(switch.admin.unwrap(), "/routes/users-new/share").status, 405);
}

#[test]
fn clients_are_identified_by_their_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let (_origins, switch) = start(folder.path());
    let side = |client: u8| {
        let text = from(Ipv4Addr::new(127, 0, 1, client), switch.address, "/by-client");
        let new = is_new(text.split("\r\n\r\n").next().unwrap());
        assert_eq!(text.contains("x-side: canary") || text.contains("X-Side: canary"), new, "{text}");
        new
    };
    let first: Vec<bool> = (1..=200).map(side).collect();
    let new = first.iter().filter(|new| **new).count();
    // Expected: a fifth of 200. The tolerance is five standard deviations, 28.
    assert!(new.abs_diff(40) < 28, "{new}");
    assert_eq!((1..=200).map(side).collect::<Vec<_>>(), first);
    // `/explain` returns the decision for such a client.
    let explained = |client: u8| {
        let question = format!("/explain?target=test/by-client&client=127.0.1.{client}");
        get(switch.admin.unwrap(), &question).json()["route"] == "clients-new"
    };
    assert_eq!((1..=200).map(explained).collect::<Vec<_>>(), first);
    assert_eq!(get(switch.admin.unwrap(), "/explain?target=test/by-client&client=me").status, 400);
}
