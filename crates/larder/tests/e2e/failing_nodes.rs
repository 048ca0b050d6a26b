//! The log lines of a switch about requests that fail.

use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use larder_testkit::{Authority, free_port};

use crate::http::{get, metrics};
use crate::origin::Origin;
use crate::process::{Process, until};

/// Starts a server that answers any bytes with a line of text.
fn speaks_no_tls() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut tcp, _)) = listener.accept() {
            let _ = tcp.read(&mut [0; 4096]);
            let _ = tcp.write_all(b"this is no TLS\r\n");
        }
    });
    address
}

#[test]
fn the_log_names_the_cause_and_the_remedy_of_failed_requests_once() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "root");
    let http1 = Origin::start("http1", "").address;
    let clear = speaks_no_tls();
    // No server listens at this address.
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\n\
         {{ name = \"dead\", address = \"{dead}\", groups = [\"dead\"] }},\n\
         {{ name = \"http1\", address = \"{http1}\", groups = [\"http1\"], http2 = true }},\n\
         {{ name = \"clear\", address = \"{clear}\", groups = [\"clear\"], tls = {{ ca = {:?} }} }},\n]\n",
        authority.ca()
    );
    for name in ["dead", "http1", "clear"] {
        text += &format!("[[switch.routes]]\nname = \"{name}\"\npath = \"/{name}\"\ngroup = \"{name}\"\n");
    }
    text += "[switch.health]\ncheck = \"off\"\n[admin]\nlisten = \"127.0.0.1:0\"\n";
    let config = folder.path().join("larder.toml");
    fs::write(&config, text).unwrap();
    let log = folder.path().join("log");
    let switch = Process::start_with_log(&["switch", "--config", config.to_str().unwrap()], &log);
    for _ in 0..3 {
        for path in ["/dead", "/http1", "/clear"] {
            assert_eq!(get(switch.address, path).status, 502, "{path}");
        }
    }
    assert!(switch.terminate().success());
    let log = fs::read_to_string(log).unwrap();
    for (node, failure, hint) in [
        ("dead", "connect_failed", "is the server running"),
        ("http1", "bad_reply", "remove http2"),
        ("clear", "node_tls", "set tls = false"),
    ] {
        let words = [format!("node=\"{node}\""), format!("failure=\"{failure}\""), hint.to_owned()];
        let said = log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count();
        assert_eq!(said, 1, "{words:?}\n{log}");
    }
}

#[test]
fn a_node_logs_the_cause_of_failures_at_its_origin_once() {
    let folder = tempfile::tempdir().unwrap();
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port()));
    for (origin, line) in [
        (speaks_no_tls(), "origin: requests fail origin=127.0.0.1"),
        (dead, "origin: connection failed origin=127.0.0.1"),
    ] {
        let text = format!(
            "[node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n[node.origin]\nurl = \"http://{origin}\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n"
        );
        let (config, log) = (folder.path().join("larder.toml"), folder.path().join("log"));
        fs::write(&config, text).unwrap();
        let node = Process::start_with_log(&["node", "--config", config.to_str().unwrap()], &log);
        for _ in 0..3 {
            assert_eq!(get(node.address, "/x").status, 502);
        }
        assert!(node.terminate().success());
        let log = fs::read_to_string(&log).unwrap();
        assert_eq!(log.lines().filter(|said| said.contains(line)).count(), 1, "{line}\n{log}");
    }
}

#[test]
fn plain_http_at_an_address_for_tls_is_answered_with_400() {
    let folder = tempfile::tempdir().unwrap();
    let leaf = Authority::in_folder(folder.path(), "root").leaf("a.test");
    let origin = Origin::start("a", "");
    let text = format!(
        "[switch]\nnodes = [{}]\n[switch.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = [{leaf:?}]\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        origin.entry(""),
    );
    let config = folder.path().join("larder.toml");
    fs::write(&config, text).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap()]);
    let mut client = TcpStream::connect(switch.address).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("https://"), "{reply}");
    drop(client);
    until("the connection is counted", || {
        let metrics = metrics(switch.admin.unwrap());
        metrics.contains("tls_handshakes_total{outcome=\"plain_http\"} 1").then_some(())
    });
}
