//! ACME with Pebble, a test authority that behaves like Let's Encrypt. `scripts/setup.sh test` installs it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_testkit::http::{header, read_head};
use larder_testkit::{Authority, write_secret};
use rustix::fs::{FlockOperation, flock};
use rustls::RootCertStore;
use serde_json::Value;

use crate::http::{get, metrics, post};
use crate::peers::free_port;
use crate::process::{Process, until};
use crate::reload::Switch;
use crate::secured::{TlsConnection, connect, roots, shown};

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of a program that `scripts/setup.sh test` builds. `None` if it is missing; then the test
/// is skipped.
pub fn tool(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from);
    let own = std::env::var_os("LARDER_TOOLS").map_or_else(|| home.join(".cache/larder/bin"), PathBuf::from);
    let there = own.join(name);
    if there.exists() {
        return Some(there);
    }
    larder_testkit::skip(&format!("needs {} (scripts/setup.sh test installs it)", there.display()));
    None
}

/// An authority, with a DNS server that resolves every name to this host.
struct Pebble {
    folder: tempfile::TempDir,
    directory: SocketAddr,
    management: SocketAddr,
    program: PathBuf,
    dns: String,
    _names: KillOnDrop,
    running: Option<KillOnDrop>,
}

impl Pebble {
    /// Prepares an authority without starting it. It validates challenges at these ports, and its
    /// certificates have this lifetime.
    fn prepare(http: u16, tls: u16, life_s: u32) -> Option<Self> {
        let (program, names) = (tool("pebble")?, tool("pebble-challtestsrv")?);
        let folder = tempfile::tempdir().unwrap();
        let local = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (directory, management, dns) = (local(), local(), local().to_string());
        let at = folder.path();
        let own = Authority::in_folder(at, "root").leaf("127.0.0.1");
        let config = serde_json::json!({"pebble": {
            "listenAddress": directory, "managementListenAddress": management,
            "certificate": own, "privateKey": own,
            "httpPort": http, "tlsPort": tls, "keyAlgorithm": "ecdsa", "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "one", "validityPeriod": life_s}},
        }});
        fs::write(at.join("pebble.json"), config.to_string()).unwrap();
        let command = Command::new(names)
            .args(["-http01", "", "-https01", "", "-doh", "", "-tlsalpn01", "", "-defaultIPv6", ""])
            .args(["-dnsserver", &dns, "-management", &local().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let names = KillOnDrop(command.unwrap());
        Some(Self { folder, directory, management, program, dns, _names: names, running: None })
    }

    fn started(http: u16, tls: u16, life_s: u32) -> Option<Self> {
        let mut pebble = Self::prepare(http, tls, life_s)?;
        pebble.start();
        Some(pebble)
    }

    fn start(&mut self) {
        let at = self.folder.path();
        let mut command = Command::new(&self.program);
        command.arg("-config").arg(at.join("pebble.json")).args(["-dnsserver", &self.dns]);
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        // The client gives up after three refused nonces in a row. Pebble's default of 5 % caused that in one
        // run of a hundred.
        command.env("PEBBLE_WFE_NONCEREJECT", "1");
        command.stdout(File::create(at.join("log")).unwrap()).stderr(Stdio::null());
        self.running = Some(KillOnDrop(command.spawn().unwrap()));
        until("Pebble answers", || TcpStream::connect(self.directory).ok());
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Returns the folder of this authority in the store.
    fn store_folder(&self) -> PathBuf {
        Path::new(&self.path("store")).join(format!("127.0.0.1-{}-dir", self.directory.port()))
    }

    /// Returns the section `[switch.tls.acme]` for this authority.
    fn section(&self, domains: &[&str], challenge: &str) -> String {
        let (ca, store) = (self.path("root.ca"), self.path("store"));
        let directory = self.directory;
        format!(
            "[switch.tls.acme]\ndomains = {domains:?}\nagree_tos = true\ncontact = \"mailto:ops@example.org\"\n\
             directory = \"https://{directory}/dir\"\nca = \"{ca}\"\nstore = \"{store}\"\nchallenge = \"{challenge}\"\n"
        )
    }

    /// Returns the number of orders. The authority refuses one request in a hundred for its nonce, so clients
    /// must retry.
    fn orders(&self) -> usize {
        fs::read_to_string(self.folder.path().join("log")).unwrap().matches(" orders in the db").count()
    }

    /// Returns the root certificate of issued certificates.
    fn root(&self) -> RootCertStore {
        let own = fs::read(self.folder.path().join("root.ca")).unwrap();
        let mut connection = connect(self.management, "127.0.0.1", roots(&own)).unwrap();
        let ask = "GET /roots/0 HTTP/1.1\r\nHost: pebble\r\nConnection: close\r\n\r\n";
        connection.write_all(ask.as_bytes()).unwrap();
        let mut reply = String::new();
        let _ = connection.read_to_string(&mut reply);
        roots(reply.split_once("\r\n\r\n").unwrap().1.as_bytes())
    }
}

/// Requests a target over TLS, and returns the status line.
fn request_status(stream: &mut TlsConnection, target: &str) -> io::Result<String> {
    write!(stream, "GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n")?;
    let head = read_head(stream)?;
    let length = header(&head, "content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body)?;
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// A node with one target, and the ports of a switch.
struct Site {
    _folder: tempfile::TempDir,
    node: Process,
    http: u16,
    tls: u16,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("manifest.tsv");
        fs::write(&manifest, "500\t/a\n").unwrap();
        let node = Process::model_node("n", "127.0.0.1:0", &manifest);
        Self { _folder: folder, node, http: free_port(), tls: free_port() }
    }

    fn config(&self, tls: &str, acme: &str) -> String {
        let Self { node, http, tls: secure, .. } = self;
        format!(
            "listen = \"127.0.0.1:{http}\"\nnodes = [\"{}\"]\n[switch.tls]\nlisten = \"127.0.0.1:{secure}\"\n\
             {tls}\n{acme}",
            node.address
        )
    }

    fn secure(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.tls).into()
    }
}

fn acme_status(admin: SocketAddr, host: &str) -> Value {
    let view = get(admin, "/certificates").json();
    let all = view["acme"].as_array().unwrap().clone();
    all.into_iter().find(|status| status["host"] == host).unwrap_or_else(|| panic!("{view}"))
}

fn issued(admin: SocketAddr, host: &str) -> i64 {
    until(format!("{host} has a certificate"), || acme_status(admin, host)["not_after"].as_i64())
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// Clients that send requests until they are stopped.
struct Traffic {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Traffic {
    fn start(count: usize, ask: impl Fn() -> io::Result<String> + Clone + Send + 'static) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, served, ask) = (stop.clone(), served.clone(), ask.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    assert_eq!(ask().unwrap(), "200");
                    served.fetch_add(1, Relaxed);
                    larder_testkit::take_time(Duration::from_millis(5));
                }
            })
        };
        let clients = (0..count).map(client).collect();
        Self { stop, served, clients }
    }

    /// Stops the clients and returns the number of replies. Fails if a request failed.
    fn end(self) -> u64 {
        self.stop.store(true, Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        self.served.load(Relaxed)
    }
}

#[test]
fn http_01_gets_certificates_while_traffic_flows_and_a_restart_orders_nothing() {
    let site = Site::new();
    let Some(pebble) = Pebble::started(site.http, 1, 90 * 24 * 3600) else { return };
    let config = site.config("redirect = false", &pebble.section(&["a.test", "B.test"], "http-01"));
    let switch = Switch::start(&config);
    let clear = switch.address;
    let traffic = Traffic::start(2, move || Ok(get(clear, "/a").status.to_string()));
    let not_after = issued(switch.admin, "a.test");
    issued(switch.admin, "b.test");
    assert!(traffic.end() > 0);
    let root = pebble.root();
    let (a, b) =
        (shown(site.secure(), "a.test", &root).unwrap(), shown(site.secure(), "b.test", &root).unwrap());
    assert_ne!(a, b);
    assert_eq!(
        request_status(&mut connect(site.secure(), "a.test", root.clone()).unwrap(), "/a").unwrap(),
        "200"
    );
    let status = acme_status(switch.admin, "a.test");
    assert!(
        (not_after - 33 * 24 * 3600..not_after - 28 * 24 * 3600)
            .contains(&status["next_order"].as_i64().unwrap())
    );
    assert_eq!((&status["failures"], &status["error"]), (&0.into(), &Value::Null));
    let view = get(switch.admin, "/certificates").json();
    assert_eq!(
        (&view["certificates"][0]["source"], &view["certificates"][1]["names"][0]),
        (&"acme".into(), &"b.test".into())
    );
    let metrics = metrics(switch.admin);
    assert!(metrics.contains("larder_switch_acme_orders_total{outcome=\"issued\"} 2"), "{metrics}");
    assert_eq!(pebble.orders(), 2);
    // All answers are removed, and no path leads out of the folder.
    assert_eq!(fs::read_dir(store_of(&pebble).join("challenges")).unwrap().count(), 0);
    assert_eq!(get(clear, "/.well-known/acme-challenge/..%2faccount.json").status, 404);

    switch.reload();
    assert_eq!(shown(site.secure(), "a.test", &root).unwrap(), a);
    assert!(switch.terminate().success());
    let switch = Switch::start(&config);
    issued(switch.admin, "b.test");
    assert_eq!(
        (shown(site.secure(), "a.test", &root).unwrap(), shown(site.secure(), "b.test", &root).unwrap()),
        (a, b)
    );
    assert_eq!(pebble.orders(), 2, "all was in the store");
}

/// Returns the folder of the authority in the store.
fn store_of(pebble: &Pebble) -> PathBuf {
    let mut folders = fs::read_dir(pebble.folder.path().join("store")).unwrap();
    folders.next().unwrap().unwrap().path()
}

#[test]
fn tls_alpn_01_renews_under_load_and_loses_no_request() {
    let site = Site::new();
    let Some(pebble) = Pebble::started(1, site.tls, 12) else { return };
    let switch = Switch::start(&site.config("", &pebble.section(&["a.test"], "tls-alpn-01")));
    issued(switch.admin, "a.test");
    let (root, address) = (pebble.root(), site.secure());
    let first = shown(address, "a.test", &root).unwrap();
    let kept = std::sync::Mutex::new(connect(address, "a.test", root.clone()).unwrap());
    let (kept, fresh) = (Arc::new(kept), root.clone());
    let old = Traffic::start(1, move || request_status(&mut kept.lock().unwrap(), "/a"));
    let new =
        Traffic::start(2, move || request_status(&mut connect(address, "a.test", fresh.clone())?, "/a"));
    until("another certificate is shown", || {
        shown(address, "a.test", &root).ok().filter(|certificate| *certificate != first)
    });
    assert!(old.end() > 0 && new.end() > 0);
    let metrics = metrics(switch.admin);
    assert!(!metrics.contains("handshakes_total{outcome=\"challenge\"} 0"), "{metrics}");
}

#[test]
fn an_unreachable_authority_does_not_prevent_serving_and_is_retried() {
    let site = Site::new();
    let Some(mut pebble) = Pebble::prepare(site.http, 1, 90 * 24 * 3600) else { return };
    let own = rcgen::generate_simple_self_signed(["own.test".to_owned()]).unwrap();
    let file = pebble.path("site.pem");
    write_secret(file.as_ref(), &(own.cert.pem() + &own.signing_key.serialize_pem()));
    let certificates = format!("certificates = \"{file}\"");
    let switch = Switch::start(&site.config(&certificates, &pebble.section(&["a.test"], "http-01")));
    let status = until("the failure is told", || {
        Some(acme_status(switch.admin, "a.test")).filter(|status| status["failures"] == 1)
    });
    assert!(status["error"].as_str().unwrap().contains("Connection refused"), "{status}");
    let left = status["next_order"].as_i64().unwrap() - now();
    assert!((1..=6).contains(&left), "{status}");
    assert_eq!(
        shown(site.secure(), "own.test", &roots(own.cert.pem().as_bytes())).unwrap(),
        own.cert.der().to_vec()
    );
    // A certificate for another name would be useless for this client.
    assert!(
        shown(site.secure(), "a.test", &RootCertStore::empty())
            .unwrap_err()
            .to_string()
            .contains("AccessDenied")
    );
    // The client sees the refusal before the switch counts it.
    until("the handshake is counted", || {
        let metrics = metrics(switch.admin);
        metrics.contains("handshakes_total{outcome=\"no_certificate\"} 1").then_some(())
    });
    pebble.start();
    issued(switch.admin, "a.test");
    shown(site.secure(), "a.test", &pebble.root()).unwrap();
    assert_eq!(acme_status(switch.admin, "a.test")["failures"], 0);
}

#[test]
fn a_refusal_is_backed_off_across_a_reload_unless_an_operator_requests_an_order() {
    let site = Site::new();
    // The authority validates at a port where no server listens.
    let Some(pebble) = Pebble::started(free_port(), 1, 90 * 24 * 3600) else { return };
    let switch = Switch::start(&site.config("", &pebble.section(&["a.test"], "http-01")));
    let failed = |times: u32| {
        until("the failure is told", || {
            Some(acme_status(switch.admin, "a.test")).filter(|status| status["failures"] == times)
        })
    };
    let status = failed(1);
    assert!(status["error"].as_str().unwrap().contains("connection"), "{status}");
    assert!((50..=73).contains(&(status["next_order"].as_i64().unwrap() - now())), "{status}");
    switch.reload();
    assert_eq!(failed(1)["next_order"], status["next_order"]);
    assert_eq!(pebble.orders(), 1, "what failed is not tried again by who comes after");
    assert_eq!(post(switch.admin, "/certificates/b.test/renew").status, 404);
    assert_eq!(post(switch.admin, "/certificates/a.test/renew").status, 200);
    let status = failed(2);
    assert!((590..=730).contains(&(status["next_order"].as_i64().unwrap() - now())), "{status}");
    assert_eq!(pebble.orders(), 2);
}

#[test]
fn switches_with_one_store_order_once_and_each_answers_for_the_other() {
    let (one, other) = (Site::new(), Site::new());
    // The authority validates at the first switch, whichever switch orders.
    let Some(pebble) = Pebble::started(one.http, 1, 90 * 24 * 3600) else { return };
    let section = pebble.section(&["a.test"], "http-01");
    // The second switch orders before the first one can be validated.
    let folder = pebble.store_folder();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).unwrap();
    let held = File::create(folder.join("lock")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let second = Switch::start(&other.config("", &section));
    let first = Switch::start(&one.config("", &section));
    drop(held);
    assert_eq!(post(second.admin, "/certificates/a.test/renew").status, 200);
    let root = pebble.root();
    issued(second.admin, "a.test");
    issued(first.admin, "a.test");
    let shown_by = |site: &Site| until("it is shown", || shown(site.secure(), "a.test", &root).ok());
    assert_eq!(shown_by(&one), shown_by(&other));
    assert_eq!(pebble.orders(), 1);
}
