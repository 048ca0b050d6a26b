//! Tests of the header fields that describe clients to an origin, for all fields that clients may send.
//!
//! Every identity field is sent in every spelling through every entry. The expectations here are independent
//! of the code. An origin learns the address, the scheme, the host and the certificate of the connection, and
//! never what a client claims.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use larder_testkit::Authority;
use rustls::RootCertStore;

use crate::http::{self, Client, Reply, get, metric};
use crate::node_http2;
use crate::origin::{Origin, echoed_request, values};
use crate::peers::PeerCluster;
use crate::process::{Process, until};
use crate::secured::connect;

/// The fields that describe a client to an origin, with a false value for each.
const FIELDS: [(&str, &str); 6] = [
    ("x-forwarded-for", "198.51.100.1"),
    ("forwarded", "for=198.51.100.1;proto=https;host=bank.test"),
    ("x-forwarded-proto", "other"),
    ("x-forwarded-host", "bank.test"),
    ("client-cert", ":AAAA:"),
    ("client-cert-chain", ":AAAA:"),
];

const ANNOUNCED: &str = "192.0.2.7";

/// A spelling of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Small,
    Capital,
    Underscore,
    AllUnderscores,
    Twice,
    TwoCases,
    /// `Connection` nominates the field, which is present.
    Nominated,
    /// `Connection` nominates the field, which is missing.
    NominatedAlone,
    /// `Connection` nominates every identity field.
    AllNominated,
    Empty,
    /// The value continues on a second line (obs-fold).
    Folded,
    /// A space follows the name.
    SpaceBeforeColon,
}

impl Spelling {
    const ALL: [Self; 12] = [
        Self::Small,
        Self::Capital,
        Self::Underscore,
        Self::AllUnderscores,
        Self::Twice,
        Self::TwoCases,
        Self::Nominated,
        Self::NominatedAlone,
        Self::AllNominated,
        Self::Empty,
        Self::Folded,
        Self::SpaceBeforeColon,
    ];

    /// Returns the header lines as names and values.
    fn lines(self, name: &str, lie: &str) -> Vec<(String, String)> {
        let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let all = || FIELDS.map(|(name, _)| name).join(", ");
        match self {
            Self::Small => vec![line(name, lie)],
            Self::Capital => vec![line(&name.to_uppercase(), lie)],
            Self::Underscore => vec![line(&name.replacen('-', "_", 1), lie)],
            Self::AllUnderscores => vec![line(&name.replace('-', "_").to_uppercase(), lie)],
            Self::Twice => vec![line(name, lie), line(name, lie)],
            Self::TwoCases => vec![line(name, lie), line(&name.to_uppercase(), lie)],
            Self::Nominated => vec![line("Connection", &format!("close, {name}")), line(name, lie)],
            Self::NominatedAlone => vec![line("Connection", &format!("close, {}", name.to_uppercase()))],
            Self::AllNominated => vec![line("Connection", &all()), line(name, lie)],
            Self::Empty => vec![line(name, "")],
            Self::Folded => vec![line(name, &format!("{lie}\r\n {lie}"))],
            Self::SpaceBeforeColon => vec![line(&format!("{name} "), lie)],
        }
    }

    /// Whether no valid request has this form.
    fn is_malformed(self) -> bool {
        matches!(self, Self::Folded | Self::SpaceBeforeColon)
    }

    /// Whether HTTP/2 supports the spelling: names are lower case, and there is no `Connection`.
    fn is_of_http2(self) -> bool {
        matches!(self, Self::Small | Self::Underscore | Self::Twice | Self::Empty)
    }

    /// Returns the values that count as values of the field.
    fn values(self, name: &str, lie: &'static str) -> Vec<&'static str> {
        match self {
            Self::Underscore | Self::AllUnderscores if name.contains('-') => vec![],
            Self::NominatedAlone | Self::Empty => vec![],
            Self::Twice | Self::TwoCases => vec![lie, lie],
            _ => vec![lie],
        }
    }
}

/// Sends a request for a path with header fields. `None` if the connection ends without a reply.
type RequestSender<'a> = dyn Fn(&str, &[(String, String)]) -> Option<Reply> + 'a;

/// A way by which requests reach an origin, with the true values for it.
struct Entry<'a> {
    what: &'static str,
    ask: Box<RequestSender<'a>>,
    address: &'static str,
    scheme: &'static str,
    host: &'static str,
    overwrites: bool,
    http2: bool,
}

impl Entry<'_> {
    /// Returns the list that an origin must see: the client's values if they are kept, and then the true
    /// value.
    fn list(&self, client_values: &[&str], truth: &str) -> String {
        let kept = if self.overwrites { &[][..] } else { client_values };
        kept.iter().copied().chain([truth]).collect::<Vec<_>>().join(", ")
    }

    fn check(&self, heard: &str, field: &str, client_values: &[&str], present: bool) {
        let case = format!("{}: {heard}", self.what);
        let names = heard.split("\r\n").skip(1).filter_map(|line| line.split_once(':')).map(|(name, _)| name);
        assert!(!names.into_iter().any(|name| name.contains('_')), "{case}");
        let of = |name: &str| if name == field { client_values } else { &[] };
        assert_eq!(
            values(heard, "x-forwarded-for"),
            [self.list(of("x-forwarded-for"), self.address)],
            "{case}"
        );
        assert_eq!(values(heard, "x-forwarded-proto"), [self.scheme], "{case}");
        assert_eq!(values(heard, "x-forwarded-host"), [self.host], "{case}");
        assert!(values(heard, "client-cert").is_empty(), "{case}");
        assert!(values(heard, "client-cert-chain").is_empty(), "{case}");
        let own = format!("for={};host=\"{}\";proto={}", self.address, self.host, self.scheme);
        let forwarded = values(heard, "forwarded");
        if present && field == "forwarded" {
            // Applications read the first element, so the client's values are not kept.
            assert_eq!(forwarded, [own], "{case}");
        } else {
            assert!(forwarded.is_empty(), "{case}");
        }
    }

    /// Sends every field in every spelling.
    fn run(&self) {
        let mut asked_for = 0;
        for (name, lie) in FIELDS {
            for spelling in Spelling::ALL {
                if self.http2 && !spelling.is_of_http2() {
                    continue;
                }
                asked_for += 1;
                let case = format!("{}: {spelling:?} {name}", self.what);
                let target = format!("/{name}/{spelling:?}");
                let reply = (self.ask)(&target, &spelling.lines(name, lie));
                if spelling.is_malformed() {
                    assert!(reply.is_none_or(|reply| reply.status == 400), "{case}");
                    continue;
                }
                let reply = reply.unwrap_or_else(|| panic!("{case}: no reply"));
                assert_eq!(reply.status, 200, "{case}: {}", reply.head);
                let dropped = matches!(spelling, Spelling::Underscore | Spelling::AllUnderscores);
                let present = spelling != Spelling::NominatedAlone && !(dropped && name.contains('-'));
                self.check(&echoed_request(&reply), name, &spelling.values(name, lie), present);
            }
        }
        assert!(asked_for >= 24, "{}", self.what);
    }
}

fn lines(fields: &[(String, String)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
}

fn over<S: std::io::Read + std::io::Write>(
    stream: S,
    target: &str,
    fields: &[(String, String)],
) -> Option<Reply> {
    Client::over(stream).ask("GET", target, &lines(fields)).ok()
}

fn tcp(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn http2(client: &node_http2::Client, target: &str, fields: &[(String, String)]) -> Option<Reply> {
    let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let reply = client.send(node_http2::with(target, &fields)).ok()?;
    let (status, body) = (reply.status().as_u16(), client.rest(reply).ok()?.to_vec());
    Some(Reply { status, head: String::new(), body })
}

/// Starts a node before the origin, with and without TLS.
fn node(folder: &Path, name: &str, origin: &Origin, more: &str) -> Process {
    let authority = Authority::in_folder(folder, name);
    let text = format!(
        "[node]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\n{more}\norigin = {{ url = \"http://{}\" }}\n[node.tls]\n\
         listen = \"127.0.0.1:0\"\ncertificates = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        origin.address,
        authority.leaf(node_http2::HOST)
    );
    let config = folder.join(format!("{name}.toml"));
    fs::write(&config, text).unwrap();
    let process = Process::start(&["node", "--config", config.to_str().unwrap()]);
    fs::write(folder.join(format!("{name}.roots")), fs::read(authority.ca()).unwrap()).unwrap();
    process
}

fn roots(folder: &Path, name: &str) -> RootCertStore {
    crate::secured::roots(&fs::read(folder.join(format!("{name}.roots"))).unwrap())
}

fn switch(folder: &Path, node: SocketAddr, more: &str) -> Process {
    let config = folder.join("switch.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{node}\"]\n{more}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap()])
}

/// Returns the number of header fields that this node or switch has dropped.
fn dropped_fields(process: &Process, role: &str) -> u64 {
    let name = format!("larder_{role}_header_fields_dropped_total");
    metric(process.admin.unwrap(), &name, &[]).unwrap()
}

/// Checks the entries of a node: without TLS, with TLS, and HTTP/2.
fn node_entries(folder: &Path, name: &str, process: &Process, overwrites: bool) {
    let roots = roots(folder, name);
    let (clear, secure) = (process.address, process.further[0]);
    let entry = Entry {
        what: "clear",
        ask: Box::new(|target, fields| over(tcp(clear), target, fields)),
        address: "127.0.0.1",
        scheme: "http",
        host: "localhost",
        overwrites,
        http2: false,
    };
    entry.run();
    let by_tls = |target: &str, fields: &[(String, String)]| {
        over(connect(secure, node_http2::HOST, roots.clone()).unwrap(), target, fields)
    };
    Entry { what: "TLS", ask: Box::new(by_tls), scheme: "https", ..entry }.run();
    let client = node_http2::Client::new(secure, &roots);
    let entry = Entry {
        what: "HTTP/2",
        ask: Box::new(|target, fields| http2(&client, target, fields)),
        address: "127.0.0.1",
        scheme: "https",
        host: node_http2::HOST,
        overwrites,
        http2: true,
    };
    entry.run();
}

#[test]
fn an_origin_behind_a_node_is_told_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let append = node(folder.path(), "append", &origin, "");
    node_entries(folder.path(), "append", &append, false);
    // Five names have a hyphen. HTTP/2 has them in lower case only.
    assert_eq!(dropped_fields(&append, "node"), 10 + 10 + 5);
    let overwrite = node(folder.path(), "overwrite", &origin, "trust.forwarded = \"overwrite\"");
    node_entries(folder.path(), "overwrite", &overwrite, true);
}

#[test]
fn an_origin_is_told_of_announced_clients() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let node = node(folder.path(), "announced", &origin, "trust.proxy_protocol_from = \"127.0.0.1\"");
    let ask = |target: &str, fields: &[(String, String)]| {
        let mut stream = tcp(node.address);
        stream.write_all(format!("PROXY TCP4 {ANNOUNCED} 203.0.113.1 4711 80\r\n").as_bytes()).unwrap();
        over(stream, target, fields)
    };
    let (address, host) = (ANNOUNCED, "localhost");
    let ask = Box::new(ask);
    Entry { what: "PROXY", ask, address, scheme: "http", host, overwrites: false, http2: false }.run();
}

#[test]
fn an_origin_behind_a_switch_and_its_node_is_told_of_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let node = node(folder.path(), "behind", &origin, "trust.relays = \"127.0.0.1\"");
    let switch = switch(folder.path(), node.address, "h2c = true");
    let entry = Entry {
        what: "switch",
        ask: Box::new(|target, fields| over(tcp(switch.address), target, fields)),
        address: "127.0.0.1",
        scheme: "http",
        host: "localhost",
        overwrites: false,
        http2: false,
    };
    entry.run();
    let by_http2 = |target: &str, fields: &[(String, String)]| {
        let uri = format!("http://localhost{target}");
        Some(crate::http2::ask(switch.address, "GET", &uri, &lines(fields)))
    };
    Entry { what: "switch, HTTP/2", ask: Box::new(by_http2), http2: true, ..entry }.run();
    assert_eq!(dropped_fields(&switch, "switch"), 10 + 5);

    // The relay is trusted. The nodes' own paths are not available to its clients.
    let told = "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Proto: https\r\nClient-Cert: :AAAA:\r\n";
    let heard = echoed_request(&http::ask(node.address, "GET", "/told", told));
    assert_eq!(values(&heard, "x-forwarded-for"), ["198.51.100.1"]);
    assert_eq!(
        (values(&heard, "x-forwarded-proto"), values(&heard, "client-cert")),
        (vec!["https"], vec![":AAAA:"])
    );
    assert_eq!(get(node.address, "/.larder/load").status, 200);
    let seen = || origin.requests.lock().unwrap().len();
    let before = seen();
    for path in ["/.larder/load", "/.larder/events", "/.larder/health", "/.larder/load?x"] {
        assert_eq!(get(switch.address, path).status, 404, "{path}");
        let by_http2 = crate::http2::ask(switch.address, "GET", &format!("http://localhost{path}"), "");
        assert_eq!(by_http2.status, 404, "{path}");
    }
    assert_eq!(seen(), before);
}

#[test]
fn fields_with_underscores_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let node = node(folder.path(), "keeping", &origin, "trust.underscores_in_headers = true");
    let switch = switch(folder.path(), node.address, "trust.underscores_in_headers = true");
    for address in [node.address, switch.address] {
        let heard = echoed_request(&http::ask(address, "GET", "/x", "X_Own: 1\r\n"));
        assert_eq!(values(&heard, "x_own"), ["1"]);
    }
    assert_eq!(dropped_fields(&node, "node"), 0);
}

/// An application may use such a field for links or redirects, so its reply must not be stored for others.
#[test]
fn fields_that_tell_another_url_reach_no_origin_and_select_no_stored_reply() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: max-age=60\r\n");
    let fields =
        ["X-Forwarded-Scheme", "X-Forwarded-Prefix", "X-Forwarded-Ssl", "X-Original-URL", "X-Rewrite-URL"];
    let node_of = |name: &str, more: &str| node(folder.path(), name, &origin, more);
    let heard = |node: SocketAddr, target: &str, field: &str| {
        let heard = echoed_request(&http::ask(node, "GET", target, &format!("{field}: /x\r\n")));
        values(&heard, field).join(",")
    };
    let untrusted = node_of("untrusted", "");
    let switch = switch(folder.path(), untrusted.address, "");
    for (address, process) in [(untrusted.address, &untrusted), (switch.address, &switch)] {
        let before = origin.requests.lock().unwrap().len();
        let role = if process.address == switch.address { "switch" } else { "node" };
        for field in fields {
            assert_eq!(heard(address, &format!("/{role}"), field), "", "{role} {field}");
        }
        assert_eq!(origin.requests.lock().unwrap().len(), before + 1, "the stored reply is for all of them");
        assert_eq!(dropped_fields(process, role), 5);
    }
    for (name, more) in
        [("relay", "trust.relays = \"127.0.0.1\""), ("keeping", "trust.url_fields_in_headers = true")]
    {
        let node = node_of(name, more);
        for field in fields {
            assert_eq!(heard(node.address, "/x", field), "/x", "{name} {field}");
        }
        let plain = echoed_request(&get(node.address, "/x"));
        assert!(fields.iter().all(|field| values(&plain, field).is_empty()), "{name}: {plain}");
    }
}

#[test]
fn an_origin_behind_peers_is_told_the_truth() {
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let cluster = PeerCluster::before(origin.address);
    until("all know one another", || {
        let knows = |node| cluster.view(node)["members"].as_array().unwrap().len() == 2;
        (0..3).all(knows).then_some(())
    });
    let entry = Entry {
        what: "peer",
        ask: Box::new(|target, fields| over(tcp(cluster.node(0).address), target, fields)),
        address: "127.0.0.1",
        scheme: "http",
        host: "localhost",
        overwrites: false,
        http2: false,
    };
    entry.run();
    let forwarded: u64 = (1..3).map(|node| cluster.view(node)["taken"].as_u64().unwrap()).sum();
    assert!(forwarded >= 10, "other nodes served {forwarded}");
}

/// The connection options of a client do not affect the fields of the next request.
#[test]
fn a_client_with_many_connection_options_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let node = node(folder.path(), "options", &origin, "");
    let switch = switch(folder.path(), node.address, "");
    let options = |count: usize| format!("Connection: {}\r\n", vec!["x-a"; count].join(", "));
    for address in [node.address, switch.address] {
        assert_eq!(http::ask(address, "GET", "/x", &options(32)).status, 200);
        assert_eq!(http::ask(address, "GET", "/x", &options(33)).status, 400);
    }
    assert_eq!(origin.requests.lock().unwrap().len(), 2);
}
