//! Nodes that clients reach without a switch: TLS, and clients that a balancer announces.

use std::fs;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use larder_testkit::Authority;
use rustls::RootCertStore;

use crate::http::{self, Client, Reply, get, metric};
use crate::origin::{Origin, echoed_request, values};
use crate::peers::{PeerCluster, body, status};
use crate::process::{LARDER, Process, until};
use crate::secured::{TlsConnection, connect, shake, shown};

/// PROXY protocol announcement of a client, version 1.
const ANNOUNCED: &[u8] = b"PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n";
/// Announcement of the balancer's own health check, version 2.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Starts a node with and without TLS. `more` are keys of `[node]`, and `tls` keys of `[node.tls]`.
fn node(folder: &Path, more: &str, tls: &str) -> Process {
    let text = format!(
        "[node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n{more}\n[node.tls]\nlisten = \"127.0.0.1:0\"\nreload = \"1s\"\n\
         {tls}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    Process::start(&["node", "--config", config.to_str().unwrap()])
}

fn root(folder: &Path) -> String {
    let root = folder.join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), "hello").unwrap();
    format!("root = {root:?}")
}

fn await_metric(node: &Process, name: &str, labels: &[&str], value: u64) {
    let admin = node.admin.unwrap();
    until(format!("{name} is {value}"), || (metric(admin, name, labels)? == value).then_some(()));
}

fn tls_client(address: SocketAddr, host: &str, roots: &RootCertStore) -> Client<TlsConnection> {
    Client::over(connect(address, host, roots.clone()).unwrap())
}

/// Opens a connection, and sends these bytes first.
fn connect_announced(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    tcp.write_all(bytes).unwrap();
    tcp
}

fn ask(tcp: TcpStream, target: &str, fields: &str) -> Reply {
    Client::over(tcp).ask("GET", target, fields).unwrap()
}

/// Whether the node closes a connection, after any bytes.
fn is_closed(mut stream: impl Read) -> bool {
    let mut bytes = [0; 256];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_node_shows_the_certificate_of_the_host_and_what_is_renewed_to_new_connections() {
    let folder = tempfile::tempdir().unwrap();
    let shelf = folder.path().join("tls");
    fs::create_dir(&shelf).unwrap();
    let (authority, other) =
        (Authority::in_folder(&shelf, "one"), Authority::in_folder(folder.path(), "two"));
    let first = fs::read(authority.leaf("a.test")).unwrap();
    authority.leaf("b.test");
    let tls = format!("certificates = {shelf:?}\nredirect = true");
    let node = node(folder.path(), &root(folder.path()), &tls);
    let checked = Command::new(LARDER).arg("check").arg(folder.path().join("larder.toml")).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    for line in ["GMT, for a.test, all other hosts\n", "GMT, for b.test\n"] {
        assert!(checked.contains(line), "{checked}");
    }
    let (secure, trusted) = (node.further[0], authority.roots());
    let (a, b) = (shown(secure, "a.test", &trusted).unwrap(), shown(secure, "b.test", &trusted).unwrap());
    assert_ne!(a, b);
    let mut old = tls_client(secure, "a.test", &trusted);
    for (outcome, hit) in [("fwd", false), ("hit", true)] {
        let reply = old.ask("GET", "/a", "").unwrap();
        assert_eq!((reply.status, &reply.body[..]), (200, &b"hello"[..]), "{outcome}");
        assert_eq!(reply.node_and_hit(), ("n".to_owned(), hit));
    }
    // Without TLS, requests other than the node's own paths are redirected.
    let sent = get(node.address, "/a?b");
    let location = format!("https://localhost:{}/a?b", secure.port());
    assert_eq!((sent.status, sent.header("location")), (308, Some(&*location)));
    assert_eq!(get(node.address, "/.larder/health").status, 200);

    // A renewed certificate is shown on new connections, and old connections stay open.
    other.leaf("a.test");
    fs::copy(folder.path().join("a.test.pem"), shelf.join("a.test.pem")).unwrap();
    let renewed = until("the renewed one is shown", || shown(secure, "a.test", &other.roots()).ok());
    assert_ne!(renewed, a);
    assert_eq!(shown(secure, "b.test", &trusted).unwrap(), b);
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);

    // An invalid certificate changes nothing, and the error is shown.
    fs::write(shelf.join("a.test.pem"), &first[..first.len() / 2]).unwrap();
    let view = until("there is trouble", || {
        let view = get(node.admin.unwrap(), "/certificates").json();
        (!view["trouble"].is_null()).then_some(view)
    });
    assert!(view["trouble"].as_str().unwrap().contains("a.test.pem"), "{view}");
    assert_eq!(view["certificates"].as_array().unwrap().len(), 2);
    assert_eq!(shown(secure, "a.test", &other.roots()).unwrap(), renewed);
    assert_eq!(metric(node.admin.unwrap(), "larder_node_tls_certificates_stale", &[]), Some(1));
    assert!(metric(node.admin.unwrap(), "larder_node_tls_certificate_not_after_seconds", &[]).is_some());
    assert!(
        metric(node.admin.unwrap(), "larder_node_tls_handshakes_total", &["node=\"n\",outcome=\"done\""])
            .unwrap()
            >= 5
    );
    // An idle connection does not delay the shutdown.
    assert!(node.terminate().success());
}

#[test]
fn clients_show_their_certificates_to_a_node_and_its_origin_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, clients) =
        (Authority::in_folder(folder.path(), "servers"), Authority::in_folder(folder.path(), "clients"));
    let (own, client) = (servers.leaf("a.test"), clients.leaf("client.test"));
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let tls =
        format!("certificates = {own:?}\nclient_certificates = \"required\"\nclient_ca = {:?}", clients.ca());
    let node = node(folder.path(), &format!("origin = {{ url = \"http://{}\" }}", origin.address), &tls);
    let secure = node.further[0];
    let connected = |own| shake(TcpStream::connect(secure).unwrap(), "a.test", servers.roots(), own);
    let lies = "X-Forwarded-Proto: other\r\nClient-Cert: :AAAA:\r\n";
    let reply = Client::over(connected(Some(&client)).unwrap()).ask("GET", "/x", lies).unwrap();
    let heard = echoed_request(&reply);
    assert_eq!(values(&heard, "x-forwarded-proto"), ["https"]);
    let shown = values(&heard, "client-cert");
    assert!(shown.len() == 1 && shown[0].len() > 100, "{heard}");
    // A client's `Connection` does not remove the fields that the node writes.
    let named = "Connection: close, x-forwarded-for, x-forwarded-proto, client-cert\r\n";
    let heard =
        echoed_request(&Client::over(connected(Some(&client)).unwrap()).ask("GET", "/x", named).unwrap());
    assert_eq!(values(&heard, "x-forwarded-proto"), ["https"]);
    assert_eq!(values(&heard, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(values(&heard, "client-cert").len(), 1, "{heard}");
    // With TLS 1.3 a client sees the refusal after its handshake.
    let refused = connected(None).and_then(|stream| Client::over(stream).ask("GET", "/x", ""));
    assert!(refused.is_err());
    await_metric(&node, "larder_node_tls_handshakes_total", &["node=\"n\",outcome=\"failed\""], 1);
    let heard = echoed_request(&http::ask(node.address, "GET", "/y", lies));
    assert_eq!(values(&heard, "x-forwarded-proto"), ["http"]);
    assert!(values(&heard, "client-cert").is_empty());
}

#[test]
fn an_announced_client_is_the_client_of_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "one");
    let own = authority.leaf("a.test");
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let more = format!(
        "trust.proxy_protocol_from = \"127.0.0.1\"\norigin = {{ url = \"http://{}\" }}\nlimits.head_timeout = \"500ms\"",
        origin.address
    );
    let node = node(folder.path(), &more, &format!("certificates = {own:?}"));
    let (clear, secure) = (node.address, node.further[0]);
    let heard =
        echoed_request(&ask(connect_announced(clear, ANNOUNCED), "/x", "X-Forwarded-For: 198.51.100.1\r\n"));
    assert_eq!(values(&heard, "x-forwarded-for"), ["198.51.100.1, 192.0.2.7"]);
    // The announcement precedes TLS as well.
    let stream = shake(connect_announced(secure, ANNOUNCED), "a.test", authority.roots(), None).unwrap();
    let mut client = Client::over(stream);
    for _ in 0..2 {
        let heard = echoed_request(&client.ask("GET", "/x", "").unwrap());
        assert_eq!(values(&heard, "x-forwarded-for"), ["192.0.2.7"]);
    }
    // Clients cannot read the node's load. A check of the balancer counts as no client.
    assert_eq!(ask(connect_announced(clear, ANNOUNCED), "/.larder/load", "").status, 404);
    assert_eq!(ask(connect_announced(clear, LOCAL), "/.larder/load", "").status, 200);
    let heard = echoed_request(&ask(connect_announced(clear, LOCAL), "/x", ""));
    assert_eq!(values(&heard, "x-forwarded-for"), ["127.0.0.1"], "the balancer's own request");

    assert!(is_closed(connect_announced(clear, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")));
    assert!(is_closed(connect_announced(secure, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\0\0\0\0\0\0")));
    await_metric(&node, "larder_node_announcements_refused_total", &[], 2);
    // Announcement, handshake and head share a deadline.
    assert!(is_closed(connect_announced(clear, b"PROXY TCP4")));
    await_metric(&node, "larder_node_head_timeouts_total", &[], 1);
    assert!(is_closed(connect_announced(secure, ANNOUNCED)));
    await_metric(&node, "larder_node_tls_handshakes_total", &["node=\"n\",outcome=\"timed_out\""], 1);
    let silent = shake(connect_announced(secure, ANNOUNCED), "a.test", authority.roots(), None).unwrap();
    assert!(is_closed(silent));
    await_metric(&node, "larder_node_head_timeouts_total", &[], 2);
    drop(client);
    await_metric(&node, "larder_node_connections", &[], 0);
}

#[test]
fn an_announcement_of_an_unlisted_sender_is_no_http() {
    let folder = tempfile::tempdir().unwrap();
    let own = Authority::in_folder(folder.path(), "one").leaf("a.test");
    let more = root(folder.path()) + "\ntrust.proxy_protocol_from = \"10.0.0.0/8\"";
    let node = node(folder.path(), &more, &format!("certificates = {own:?}"));
    for announcement in [ANNOUNCED, LOCAL] {
        assert_eq!(ask(connect_announced(node.address, announcement), "/a", "").status, 400);
    }
    assert_eq!(get(node.address, "/a").status, 200);
    assert_eq!(metric(node.admin.unwrap(), "larder_node_announcements_refused_total", &[]), Some(0));
}

#[test]
fn peers_serve_targets_of_other_peers_to_clients_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "one");
    let own = authority.leaf("site.test");
    let tls = format!("[node.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {own:?}");
    let cluster = PeerCluster::start(4, &tls);
    let client = |node: usize| tls_client(cluster.node(node).further[0], "site.test", &authority.roots());
    let first = client(0).ask("GET", "/3", "").unwrap();
    assert_eq!((first.status, first.body), (200, body(3)));
    cluster.await_known(1, 1);
    let mut second = client(1);
    for _ in 0..2 {
        let reply = second.ask("GET", "/3", "").unwrap();
        assert_eq!((reply.status, &reply.body), (200, &body(3)));
        assert_eq!(status(&reply), "a; hit, b; fwd=uri-miss; fwd-status=200; detail=lateral");
    }
    assert_eq!(cluster.view(0)["taken"], 2);
}

#[test]
fn a_switch_reaches_a_node_by_tls_and_announces_clients_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::in_folder(folder.path(), "one");
    let own = authority.leaf("a.test");
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let more = format!(
        "trust.proxy_protocol_from = \"127.0.0.1\"\norigin = {{ url = \"http://{}\" }}",
        origin.address
    );
    let node = node(folder.path(), &more, &format!("certificates = {own:?}"));
    let config = folder.path().join("switch.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{}\"]\nconnect.proxy_protocol = \"v2\"\n[switch.connect.tls]\nca = {:?}\n\
         name = \"a.test\"\n",
        node.further[0],
        authority.ca()
    );
    fs::write(&config, text).unwrap();
    let switch = Process::start(&["switch", "--config", config.to_str().unwrap()]);
    let mut client = Client::connect(switch.address).unwrap();
    for _ in 0..2 {
        let heard = echoed_request(&client.ask("GET", "/x", "X-Forwarded-For: 198.51.100.1\r\n").unwrap());
        assert_eq!(values(&heard, "x-forwarded-for"), ["198.51.100.1, 127.0.0.1"]);
        assert_eq!(values(&heard, "x-forwarded-proto"), ["https"]);
    }
    assert_eq!(metric(node.admin.unwrap(), "larder_node_announcements_refused_total", &[]), Some(0));
}
